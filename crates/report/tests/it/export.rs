//! What other tools read.

use std::fs;

use serde_json::json;

use crate::support::Log;

fn run() -> Log {
    let mut log = Log::of(&["a", "b,\"c\""]);
    for step in 1..=3 {
        log.step(step, "a", step, 1.0 / 3.0 + step as f64);
        log.step(step, "b,\"c\"", step, 2.0);
        log.iteration(step);
        if step == 2 {
            log.eval("a", 2, 0.1);
        }
    }
    log.write(json!({
        "event": "step", "iteration": 4, "adapter": "a", "step": 4, "loss": null, "tokens": 7,
        "grad_norm": 0.5, "rewards/margins": 0.25,
    }));
    log
}

#[test]
fn a_table_has_a_line_for_every_step() {
    let mut table = Vec::new();
    run().history().write_csv(&mut table).unwrap();
    let expected = "\
adapter,step,iteration,tokens,seconds,loss,eval_loss,grad_norm,learning_rate,target_tokens,tokens_per_second,bytes_reserved,rewards/margins
a,1,1,10,0.5,1.3333333333333333,,0.4444444444444444,0.001,4,20,1001,
a,2,2,20,1,2.3333333333333335,0.1,0.7777777777777778,0.001,4,20,1002,
a,3,3,30,1.5,3.3333333333333335,,1.1111111111111112,0.001,4,20,1003,
a,4,4,37,1.5,,,0.5,,0,,,0.25
\"b,\"\"c\"\"\",1,1,10,0.5,2,,0.6666666666666666,0.001,4,20,1001,
\"b,\"\"c\"\"\",2,2,20,1,2,,0.6666666666666666,0.001,4,20,1002,
\"b,\"\"c\"\"\",3,3,30,1.5,2,,0.6666666666666666,0.001,4,20,1003,
";
    assert_eq!(String::from_utf8(table).unwrap(), expected);
}

#[test]
fn rewards_of_evaluations_are_there() {
    let mut log = Log::of(&["a"]);
    log.step(2, "a", 2, 0.1);
    log.iteration(2);
    log.write(
        json!({"event": "eval", "adapter": "a", "step": 2, "loss": 0.5, "rewards/margins": 0.25,
        "rewards/accuracies": 0.75}),
    );
    log.step(3, "a", 3, 0.1);
    log.iteration(3);
    log.write(
        json!({"event": "eval", "adapter": "a", "step": 3, "loss": 0.5, "rewards/margins": 0.5}),
    );
    let mut table = Vec::new();
    log.history().write_csv(&mut table).unwrap();
    let table = String::from_utf8(table).unwrap();
    let mut lines = table.lines();
    let heading = lines.next().unwrap();
    assert!(
        heading.ends_with(",eval_rewards/margins,eval_rewards/accuracies"),
        "{heading}"
    );
    assert!(lines.next().unwrap().ends_with(",0.25,0.75"), "{table}");
    assert!(lines.next().unwrap().ends_with(",0.5,"), "{table}");
    let board = log.path().join("board");
    log.history().write_tensorboard(&board).unwrap();
    let file = fs::read_dir(board.join("a"))
        .unwrap()
        .next()
        .unwrap()
        .unwrap();
    let file = fs::read(file.path()).unwrap();
    let all = tags(&file);
    let margins = all.iter().filter(|tag| **tag == "eval/rewards/margins");
    assert_eq!(margins.count(), 2, "{all:?}");
    assert!(all.contains(&"eval/rewards/accuracies"), "{all:?}");
}

/// Tags in the order of the file, with what follows each.
fn tags(file: &[u8]) -> Vec<&str> {
    let text = |at: usize| std::str::from_utf8(&file[at + 2..at + 2 + file[at + 1] as usize]);
    let places = file.windows(8).enumerate().filter_map(|(at, window)| {
        let is_tag = window[0] == 0x0a
            && [&b"train/"[..], b"eval/", b"run/"]
                .iter()
                .any(|prefix| window[2..].starts_with(&prefix[..prefix.len().min(6)]));
        is_tag.then(|| text(at).unwrap())
    });
    places.collect()
}

#[test]
fn event_files_of_a_run_at_work_are_continued() {
    let mut log = run();
    let board = log.path().join("board");
    log.history().write_tensorboard(&board).unwrap();
    let name = "events.out.tfevents.1795717802.loraloom";
    let read = |folder: &str| fs::read(board.join(folder).join(name)).unwrap();
    let (run, first, second) = (read(""), read("a"), read("1_b__c_"));
    let of_step = ["train/loss", "train/grad_norm", "train/learning_rate"];
    let steps = |count: usize| of_step.repeat(count);
    assert_eq!(tags(&second), steps(3));
    // The fourth step is left until its iteration is known to have ended.
    let expected = [&steps(2)[..], &["eval/loss"], &steps(1)].concat();
    assert_eq!(tags(&first), expected);
    let of_iteration = [
        "run/tokens_per_second",
        "run/bytes_reserved",
        "run/bubble_ratio",
    ];
    assert_eq!(tags(&run), of_iteration.repeat(3));

    log.iteration(4);
    log.history().write_tensorboard(&board).unwrap();
    let continued = read("a");
    assert!(continued.starts_with(&first), "what was there has changed");
    let more = ["train/grad_norm", "train/rewards/margins"];
    assert_eq!(tags(&continued), [&expected[..], &more].concat());

    // What is done again is written anew.
    log.write(json!({"event": "out_of_memory", "iteration": 2, "reason": "full"}));
    log.history().write_tensorboard(&board).unwrap();
    assert_eq!(tags(&read("a")), [&steps(2)[..], &["eval/loss"]].concat());
    assert_eq!(tags(&read("1_b__c_")), steps(2));
}
