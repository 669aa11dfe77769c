//! `bench`: what it prints for scripts and for people.

use serde_json::Value;

use crate::support::{Run, Workspace};

/// The smallest kernels and training steps there are.
const KERNELS: [&str; 6] = ["--rows", "6", "--d-in", "8", "--d-out", "12"];
const STEPS: [&str; 6] = ["--batch", "1", "--length", "4", "--steps", "1"];

fn bench(of_what: &[&str], more: &[&str]) -> Run {
    let cpu = ["bench", "--device", "cpu", "--adapters", "1,3"];
    let run = Workspace::empty().run(&[&cpu, of_what, more].concat());
    assert_eq!(run.code, 0, "{}", run.all());
    run
}

fn keys(value: &Value) -> Vec<&str> {
    let mut keys: Vec<&str> = value
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    keys.sort_unstable();
    keys
}

fn positive(value: &Value) -> bool {
    value.as_f64().is_some_and(|number| number > 0.0)
}

#[test]
fn json_has_every_key_and_null_for_what_cannot_be_measured() {
    let json = bench(&[KERNELS, STEPS].concat(), &["--json", "--vs-sequential"]).json();
    assert_eq!(keys(&json), ["device", "end_to_end", "kernels"]);
    assert_eq!(json["device"], "cpu");

    let kernels = json["kernels"].as_array().unwrap();
    let names: Vec<&str> = kernels
        .iter()
        .map(|k| k["name"].as_str().unwrap())
        .collect();
    let of_a_mix = [
        "composed",
        "shrink",
        "expand_add",
        "weight_grad",
        "output_grads",
        "fused",
    ];
    assert_eq!(
        names,
        [&["frozen"][..], &of_a_mix, &of_a_mix, &of_a_mix].concat()
    );
    for kernel in kernels {
        assert_eq!(
            keys(kernel),
            [
                "bytes_moved",
                "d_in",
                "d_out",
                "dtype",
                "frozen_milliseconds",
                "launches",
                "milliseconds",
                "name",
                "ranks",
                "rows",
            ]
        );
        assert_eq!(kernel["dtype"], "float32");
        assert_eq!(
            (&kernel["rows"], &kernel["d_in"], &kernel["d_out"]),
            (&6.into(), &8.into(), &12.into())
        );
        assert!(positive(&kernel["milliseconds"]) && positive(&kernel["frozen_milliseconds"]));
        // The CPU launches nothing.
        assert!(kernel["launches"].is_null() && kernel["bytes_moved"].is_null());
    }
    let ranks: Vec<&Value> = kernels.iter().map(|kernel| &kernel["ranks"]).collect();
    let mut expected = vec![serde_json::json!([])];
    for mix in [&[16][..], &[16, 16, 16], &[4, 8, 16]] {
        expected.extend(vec![serde_json::json!(mix); of_a_mix.len()]);
    }
    assert_eq!(serde_json::json!(ranks), serde_json::json!(expected));

    let cases = json["end_to_end"].as_array().unwrap();
    assert_eq!(cases.len(), 2);
    for (case, adapters) in cases.iter().zip([1, 3]) {
        assert_eq!(
            keys(case),
            [
                "adapters",
                "batch",
                "dtype",
                "length",
                "microbatches",
                "model_tflops",
                "peak_bytes",
                "rank",
                "sequential_tokens_per_second",
                "shape",
                "target_modules",
                "tokens_per_second",
                "use_dora",
            ]
        );
        assert_eq!(
            (&case["shape"], &case["dtype"]),
            (&"micro".into(), &"float32".into())
        );
        assert_eq!(
            (&case["adapters"], &case["batch"], &case["length"]),
            (&adapters.into(), &1.into(), &4.into())
        );
        for key in [
            "tokens_per_second",
            "sequential_tokens_per_second",
            "model_tflops",
            "peak_bytes",
        ] {
            assert!(positive(&case[key]), "{key}: {case}");
        }
    }
}

#[test]
fn tables_are_data_and_progress_is_not() {
    let run = bench(&KERNELS, &["--kernels-only"]);
    let lines: Vec<&str> = run.stdout.lines().collect();
    assert_eq!(
        lines[0],
        "layer [8, 12], rows 6, float32: forward and backward, or one kernel"
    );
    assert!(lines[1].starts_with("kernel"), "{}", run.stdout);
    assert!(
        lines[2].starts_with("frozen") && lines[2].contains("1.00"),
        "{}",
        run.stdout
    );
    assert_eq!(lines.len(), 21, "{}", run.stdout);
    assert!(run.stderr.contains("device  cpu\n"), "{}", run.stderr);

    let shorter = bench(&KERNELS, &["--kernels-only", "--no-composed"]).stdout;
    assert!(!shorter.contains("composed"), "{shorter}");
    assert_eq!(shorter.lines().count(), 18, "{shorter}");

    let run = bench(&STEPS, &["--end-to-end-only", "--quiet"]);
    assert_eq!(run.stderr, "");
    let lines: Vec<&str> = run.stdout.lines().collect();
    let title =
        "micro, rank 16 on q_proj,k_proj,v_proj,o_proj, batch 1, length 4, float32: training steps";
    assert_eq!(lines[0], title);
    assert_eq!(lines.len(), 4, "{}", run.stdout);
}

/// The smallest answers there are.
const ANSWERS: [&str; 9] = [
    "bench",
    "--device",
    "cpu",
    "--serving",
    "--prompt-tokens",
    "4",
    "--answer-tokens",
    "2",
    "--quiet",
];

#[test]
fn answers_are_measured_alone_and_beside_training() {
    let here = Workspace::empty();
    let run = |more: &[&str]| {
        let run = here.run(&[&ANSWERS, more].concat());
        assert_eq!(run.code, 0, "{}", run.all());
        run
    };
    let cases = ["--requests", "6", "--adapters", "0,2", "--ranks", "4,2"];
    let training = [
        "--beside-training",
        "1",
        "--batch",
        "1",
        "--length",
        "4",
        "--steps",
        "1",
    ];
    let json = run(&[&cases[..], &training, &["--json"]].concat()).json();
    let found = json["serving"].as_array().unwrap();
    let of: Vec<_> = found
        .iter()
        .map(|case| (case["adapters"].as_u64(), case["trained_adapters"].as_u64()))
        .collect();
    assert_eq!(
        of,
        [
            (Some(0), Some(0)),
            (Some(2), Some(0)),
            (Some(0), Some(1)),
            (Some(2), Some(1))
        ]
    );
    assert_eq!(found[1]["ranks"], serde_json::json!([4, 2]));
    for case in found {
        assert_eq!(
            (&case["requests"], &case["refused"]),
            (&6.into(), &0.into())
        );
        assert!(positive(&case["tokens_per_second"]), "{case}");
        assert!(positive(&case["first_token_seconds"]["p99"]), "{case}");
        let trains = case["trained_adapters"] == 1;
        assert_eq!(
            positive(&case["trained_tokens_per_second"]),
            trains,
            "{case}"
        );
        assert_eq!(
            positive(&case["trained_alone_tokens_per_second"]),
            trains,
            "{case}"
        );
    }
    let policies = [
        "--adapters",
        "1",
        "--requests",
        "4",
        "--tenants",
        "2",
        "--policy",
        "vtc,rpm",
    ];
    let table = run(&[&policies[..], &["--rate-limit", "1"]].concat()).stdout;
    let lines: Vec<&str> = table.lines().collect();
    let title = "micro, float32: answers to 4 requests of 2 tenants, sent at once, at most 64 at a time; seconds";
    assert_eq!((lines.len(), lines[0]), (4, title));
    // "50.0 %" is two words.
    let refused = |line: usize| lines[line].split_whitespace().nth(9);
    assert_eq!((refused(2), refused(3)), (Some("0"), Some("2")), "{table}");
    assert!(
        lines[2].contains("vtc") && lines[3].contains("rpm"),
        "{table}"
    );
}

#[test]
fn answers_to_a_trace_are_measured() {
    let here = Workspace::empty();
    let trace = "TIMESTAMP,ContextTokens,GeneratedTokens,Tenant,Adapter\n\
                 2023-11-16 18:17:03.97,3,2,a,x\n2023-11-16 18:17:04.07,5,1,b,y\n\
                 2023-11-16 18:17:04.17,2,3,a,x\n";
    std::fs::write(here.path("t.csv"), trace).unwrap();
    let bench = [
        "bench",
        "--device",
        "cpu",
        "--serving",
        "--adapters",
        "2",
        "--trace",
        "t.csv",
    ];
    let json = here.run(&[&bench[..], &["--json"]].concat()).json();
    let case = &json["serving"][0];
    let sums = (&case["prompt_tokens"], &case["answer_tokens"]);
    assert_eq!(sums, (&10.into(), &6.into()), "{case}");
    assert_eq!(case["tenants"], 2);
    assert!(
        case["seconds"]
            .as_f64()
            .is_some_and(|seconds| seconds >= 0.2),
        "{case}"
    );
    let faster = here.run(&[&bench[..], &["--request-rate", "200"]].concat());
    assert!(faster.stdout.contains("sent in 0.0 s"), "{}", faster.all());

    let few = here.run(&[&bench[..], &["--requests", "4"]].concat());
    assert_eq!(few.code, 2, "{}", few.all());
    assert!(
        few.stderr.contains("`t.csv` has 3 requests, not 4"),
        "{}",
        few.stderr
    );
    std::fs::write(here.path("t.csv"), trace.replace(",5,1", ",5,0")).unwrap();
    let failed = here.run(&[&bench[..], &["--json"]].concat());
    assert_eq!(failed.json()["serving"][0]["requests"], 2);
    let said = "rows without a token of an answer are left out: 1";
    assert!(failed.stderr.contains(said), "{}", failed.stderr);
    std::fs::write(here.path("t.csv"), trace.replace(",5,1", ",5,x")).unwrap();
    let bad = here.run(&bench);
    assert_eq!(bad.code, 3, "{}", bad.all());
    assert!(
        bad.stderr.contains("line 3: GeneratedTokens is `x`"),
        "{}",
        bad.stderr
    );
}

#[test]
fn what_cannot_be_measured_is_refused() {
    let here = Workspace::empty();
    for (arguments, said) in [
        (
            &["--kernels-only", "--end-to-end-only"][..],
            "cannot be used with",
        ),
        (
            &["--kernels-only", "--rank", "8"],
            "'--kernels-only' cannot be used with '--rank <R>'",
        ),
        (&["--end-to-end-only", "--rows", "8"], "cannot be used with"),
        (
            &["--shape", "llama-9"],
            "possible values: micro, tinyllama-1.1b",
        ),
        (&["--target-modules", "q_proj,q"], "unknown projection `q`"),
        (
            &["--target-modules", "q_proj,v_proj,q_proj"],
            "has q_proj twice",
        ),
        (&["--profile"], "--profile times kernels of a GPU"),
        (&["--adapters", "0"], "`--adapters` has 0"),
        (&["--serving", "--kernels-only"], "cannot be used with"),
        (&["--serving", "--rows", "8"], "cannot be used with"),
        (
            &["--serving", "--vs-sequential"],
            "--vs-sequential cannot be used with --serving",
        ),
        (
            &["--rows", "8", "--requests", "8"],
            "required arguments were not provided:\n  --serving",
        ),
        (
            &["--profile", "--tenants", "2"],
            "required arguments were not provided:\n  --serving",
        ),
        (
            &["--kernels-only", "--requests", "8"],
            "required arguments were not provided:\n  --serving",
        ),
        (
            &["--end-to-end-only", "--seed", "8"],
            "required arguments were not provided:\n  --serving",
        ),
        (&["--requests", "8"], "--serving"),
        (
            &["--serving", "--policy", "fair"],
            "possible values: vtc, fcfs, rpm, lcf",
        ),
        (
            &["--serving", "--length", "8"],
            "--length is for training steps: add --beside-training K",
        ),
        (
            &["--serving", "--rank", "8"],
            "--rank is for training steps",
        ),
        (
            &["--serving", "--steps", "8"],
            "--steps is for training steps",
        ),
        (
            &["--serving", "--policy", "vtc,lcf", "--rate-limit", "9"],
            "--rate-limit is for the policy rpm",
        ),
        (
            &["--serving", "--gradient-checkpointing"],
            "--gradient-checkpointing is for training steps",
        ),
        (
            &["--serving", "--inference-share", "0.5"],
            "--beside-training",
        ),
        (
            &["--serving", "--trace", "t.csv", "--tenants", "2"],
            "cannot be used with",
        ),
        (
            &["--rows", "4", "--adapters", "8"],
            "8 adapters cannot share 4 rows",
        ),
        (
            &["--batch", "2", "--microbatches", "3"],
            "cut 2 sequences of an adapter into 3 micro-batches",
        ),
    ] {
        let run = here.run(&[&["bench", "--device", "cpu"], arguments].concat());
        assert_eq!(run.code, 2, "{}", run.all());
        assert!(run.stderr.contains(said), "{}", run.stderr);
    }
}
