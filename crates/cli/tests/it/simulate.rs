//! `simulate`: what scripts read, what it draws, and what it refuses.

use std::{fmt::Write, fs};

use loraloom_simulator::{Costs, SimulatedPolicy};

use crate::support::Workspace;

pub(crate) fn trace(jobs: u64) -> String {
    let mut text = String::from("timestamp,duration,num_gpus,gpu_time,cluster\n");
    for job in 0..jobs {
        let (minute, seconds) = (job / 6, job % 6 * 10);
        let duration = 30 + job * 37 % 200;
        let tenant = ["a", "b"][(job % 2) as usize];
        let _ = writeln!(
            text,
            "2017-10-09 07:{minute:02}:{seconds:02},{duration}.0,1,1.0,{tenant}"
        );
    }
    text
}

#[test]
fn policies_are_compared_on_the_same_jobs() {
    let here = Workspace::empty();
    here.write("trace.csv", trace(60));
    let arguments = [
        "simulate",
        "trace.csv",
        "--compare",
        "--jobs",
        "40",
        "--devices",
        "2",
        "--json",
        "--quiet",
        "--chart",
        "chart.svg",
    ];
    let run = here.run(&arguments);
    assert_eq!((run.code, run.stderr.as_str()), (0, ""), "{}", run.all());
    let json = run.json();
    assert_eq!(
        (json["jobs"].as_u64(), json["devices"].as_u64()),
        (Some(40), Some(2))
    );
    let policies = json["policies"].as_array().unwrap();
    let names: Vec<_> = policies.iter().map(|policy| &policy["policy"]).collect();
    assert_eq!(names, SimulatedPolicy::ALL.map(SimulatedPolicy::name));
    for policy in policies {
        assert!(policy["average_completion_seconds"].as_f64().unwrap() > 0.0);
        assert_eq!(policy["iterations_out_of_memory"], 0);
    }
    let chart = fs::read_to_string(here.path("chart.svg")).unwrap();
    assert!(chart.starts_with("<svg") && chart.contains("best_effort_fifo"));

    let one = here.run(&["simulate", "trace.csv", "--policy", "fair"]);
    assert_eq!(one.code, 0, "{}", one.all());
    assert!(one.stdout.contains("60 jobs from job 0"), "{}", one.stdout);
    let rest = here.run(&["simulate", "trace.csv", "--start", "50"]);
    assert!(
        rest.stdout.contains("10 jobs from job 50"),
        "{}",
        rest.all()
    );
    assert!(one.stdout.contains("fair") && !one.stdout.contains("strict_fifo"));
}

#[test]
fn options_of_a_policy_change_its_results_or_are_refused() {
    let here = Workspace::empty();
    here.write("trace.csv", trace(60));
    for (policy, option, value, default) in [
        ("rpm", "--rate-limit", "1", "64"),
        ("naive_grouping", "--naive-padding", "none", "longest"),
        ("fair", "--max-slowdown", "1", "1.2"),
    ] {
        let average = |more: &[&str]| {
            let line = ["simulate", "trace.csv", "--json", "--policy", policy];
            let run = here.run(&[&line[..], more].concat());
            assert_eq!(run.code, 0, "{}", run.all());
            let policies = &run.json()["policies"];
            policies[0]["average_completion_seconds"].to_string()
        };
        assert_eq!(average(&[]), average(&[option, default]), "{option}");
        assert_ne!(average(&[]), average(&[option, value]), "{option}");
    }
    for (line, message) in [
        (
            "--policy fair --rate-limit 9",
            "--rate-limit does nothing under fair",
        ),
        (
            "--naive-padding none",
            "hint: it is for naive_grouping, and for --compare",
        ),
        (
            "--policy least_loaded --max-slowdown 2",
            "hint: it is for rpm, lcf, strict_fifo, best_effort_fifo, fair, and for --compare",
        ),
    ] {
        let arguments = ["simulate", "trace.csv"].into_iter().chain(line.split(' '));
        let run = here.run(&arguments.collect::<Vec<_>>());
        assert_eq!(run.code, 2, "{}", run.all());
        assert!(run.stderr.contains(message), "{}", run.stderr);
    }
}

#[test]
fn what_cannot_be_replayed_is_refused() {
    let here = Workspace::empty();
    here.write("trace.csv", trace(10));
    here.write("broken.csv", trace(10).replace("67.0", "soon"));
    here.write("long.csv", trace(10).replace("67.0", "1e300"));
    here.write("header.csv", trace(0));
    here.write("costs.json", "{\"seconds\": 1}");
    let costs = Costs {
        seconds_per_task: -1.0,
        ..Costs::default()
    };
    here.write("negative.json", serde_json::to_string(&costs).unwrap());
    let cases = [
        (3, "simulate nowhere.csv", "cannot read `nowhere.csv`"),
        (3, "simulate broken.csv", "line 3: duration is `soon`"),
        (2, "simulate trace.csv --jobs 11", "the trace has 10"),
        (
            2,
            "simulate trace.csv --jobs 11",
            "hint: `--jobs 10` replays",
        ),
        (
            2,
            "simulate trace.csv --jobs 9 --start 4",
            "hint: `--jobs 6` replays",
        ),
        (
            2,
            "simulate trace.csv --start 10",
            "`--start` must be below 10",
        ),
        (3, "simulate header.csv", "the trace has no jobs"),
        (
            3,
            "simulate trace.csv --jobs 5 --costs costs.json",
            "unknown field `seconds`",
        ),
        (
            3,
            "simulate trace.csv --jobs 5 --costs nowhere.json",
            "cannot read `nowhere.json`",
        ),
        (
            3,
            "simulate trace.csv --jobs 5 --costs negative.json",
            "`negative.json`: seconds_per_task is -1",
        ),
        (
            3,
            "simulate long.csv --jobs 5",
            "and at most 3155760000 (100 years)",
        ),
        (
            2,
            "simulate trace.csv --jobs 5 --devices 100000",
            "at most 1024",
        ),
        (
            2,
            "simulate trace.csv --jobs 5 --load 1e-12",
            "hint: raise `--load`",
        ),
        (
            2,
            "simulate trace.csv --policy fifo",
            "invalid value 'fifo'",
        ),
        (
            2,
            "simulate trace.csv --load 0",
            "expected a number above 0",
        ),
        (
            2,
            "simulate trace.csv --max-slowdown 0.9",
            "expected a number of at least 1",
        ),
        (
            2,
            "simulate trace.csv --load 1 --as-recorded",
            "cannot be used with",
        ),
        (
            2,
            "simulate trace.csv --compare --policy fair",
            "cannot be used with",
        ),
    ];
    for (code, line, message) in cases {
        let run = here.run(&line.split(' ').collect::<Vec<_>>());
        assert_eq!(run.code, code, "{line}: {}", run.all());
        assert!(run.stderr.contains(message), "{line}: {}", run.stderr);
        assert_eq!(run.stdout, "");
    }
}
