//! What is accepted, under which names and keys.

use crate::support::{bring, keyed, start, submission, submit, to};
use loraloom_scheduler::{TaskId, TaskState};
use loraloom_server::queue::{Accepted, Queue, QueueError, Submission};

#[test]
fn a_task_is_read_back_as_it_was_submitted() {
    let (directory, mut server) = start();
    let submitted = Submission {
        tenant: "team a".to_owned(),
        priority: -7,
        spec: "{\"text\": \"naïve \u{0} \u{1f999}\"}".to_owned(),
        total_steps: None,
        sweep: Some("lr".to_owned()),
        ..keyed("math-r16", "k1")
    };
    let accepted = server.queue_mut().submit(&submitted).unwrap();
    assert!(accepted.new);

    let queue = Queue::open(directory.path()).unwrap();
    assert_eq!(queue.spec(accepted.id).unwrap(), submitted);
    let task = queue.task(accepted.id).unwrap();
    assert_eq!(task.name, "math-r16");
    assert_eq!(task.tenant, "team a");
    assert_eq!(task.priority, -7);
    assert_eq!(task.sweep.as_deref(), Some("lr"));
    assert_eq!(task.key.as_deref(), Some("k1"));
    assert_eq!(task.state, TaskState::Queued);
    assert_eq!((task.step, task.saved_step, task.total_steps), (0, 0, None));
    assert_eq!((task.last_loss, task.best_metric), (None, None));
    assert_eq!(queue.tasks().unwrap(), [task]);
}

#[test]
fn identities_grow_and_are_not_given_again() {
    let (directory, mut server) = start();
    let mut last = TaskId(0);
    for round in 0..3 {
        let id = submit(&mut server, "math");
        assert!(id > last, "round {round}: {id} after {last}");
        last = id;
        bring(&mut server, id, TaskState::Cancelled);
    }
    drop(server);
    let mut queue = Queue::open(directory.path()).unwrap();
    assert!(queue.submit(&submission("math")).unwrap().id > last);
}

#[test]
fn a_name_is_free_again_when_its_task_has_ended() {
    let (_directory, mut server) = start();
    for state in TaskState::ALL {
        let id = submit(&mut server, "math");
        bring(&mut server, id, state);
        let again = server.queue_mut().submit(&submission("MATH"));
        if state.is_final() {
            let again = again.unwrap().id;
            bring(&mut server, again, TaskState::Cancelled);
            continue;
        }
        let error = again.expect_err("the name is taken");
        assert_eq!(
            error.to_string(),
            format!("the name `MATH` is taken by {id}, which is {state}")
        );
        server.apply(&[to(id, TaskState::Cancelled)]).unwrap();
    }
}

#[test]
fn a_key_is_accepted_once() {
    let (_directory, mut server) = start();
    let queue = server.queue_mut();
    let first = queue.submit(&keyed("math", "k")).unwrap();
    // The server may have learned the number of steps since.
    let same = Submission {
        total_steps: None,
        ..keyed("math", "k")
    };
    let again = queue.submit(&same).unwrap();
    let expected = Accepted {
        id: first.id,
        new: false,
    };
    assert_eq!(again, expected);
    assert_eq!(queue.tasks().unwrap().len(), 1);

    bring(&mut server, first.id, TaskState::Done);
    let queue = server.queue_mut();
    assert_eq!(
        queue.submit(&same).unwrap(),
        expected,
        "also when it has ended"
    );

    let other = Submission {
        spec: "{}".to_owned(),
        priority: 3,
        ..keyed("code", "k")
    };
    let error = queue.submit(&other).expect_err("another submission");
    assert_eq!(
        error.to_string(),
        "the key `k` belongs to task 1 (`math`), and `code` differs from it in name, priority, spec"
    );
    for other in [
        Submission {
            priority: 9,
            ..keyed("math", "k")
        },
        Submission {
            tenant: "another".to_owned(),
            ..keyed("math", "k")
        },
    ] {
        let error = queue.submit(&other).expect_err("another submission");
        let field = if other.priority == 9 {
            "priority"
        } else {
            "tenant"
        };
        let text = error.to_string();
        assert!(
            text.ends_with(&format!("differs from it in {field}")),
            "{text}"
        );
    }
    assert_eq!(queue.tasks().unwrap().len(), 1);
}

/// A set that shares a key is one submission, whether of one task or of several.
#[test]
fn a_key_is_of_one_set_of_tasks() {
    let (_directory, mut server) = start();
    let queue = server.queue_mut();
    let long = "x".repeat(100);
    let shared = |names: &[&str]| -> Vec<Submission> {
        let task = |name: &&str| keyed(name, &format!("{long}/{name}"));
        names.iter().map(task).collect()
    };
    queue.submit_all(&shared(&["b"])).unwrap();
    for others in [&["b", "c"][..], &["c"]] {
        let error = queue.submit_all(&shared(others)).expect_err("another set");
        assert!(matches!(error, QueueError::KeyOfOthers { .. }), "{error}");
    }
    let error = queue.submit_all(&shared(&["b", "c"])).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("the key `{long}` belongs to a submission of `b`, and this one has `b`, `c`")
    );
    assert!(!queue.submit_all(&shared(&["b"])).unwrap()[0].new);
    let changed = Submission {
        priority: 9,
        ..shared(&["b"]).remove(0)
    };
    let error = queue.submit(&changed).unwrap_err().to_string();
    assert!(
        error.starts_with(&format!("the key `{long}` belongs to task 1")),
        "{error}"
    );
    // Another key may begin alike.
    let nested = [keyed("d", "k/1/d"), keyed("e", "k/1/e")];
    queue.submit_all(&nested).unwrap();
    queue.submit_all(&[keyed("f", "k/f")]).unwrap();
    let error = queue.submit_all(&nested[..1]).expect_err("a part");
    assert!(matches!(error, QueueError::KeyOfOthers { .. }), "{error}");
    assert_eq!(queue.tasks().unwrap().len(), 4);
}

#[test]
fn several_tasks_are_accepted_together_or_not_at_all() {
    let (_directory, mut server) = start();
    let queue = server.queue_mut();
    let sweep = ["lr-0", "lr-1", "LR-0"].map(submission);
    let error = queue.submit_all(&sweep).expect_err("a name twice");
    assert!(matches!(error, QueueError::NameTaken { .. }), "{error}");
    assert_eq!(queue.tasks().unwrap(), []);

    let accepted = queue.submit_all(&sweep[..2]).unwrap();
    let tasks = queue.tasks().unwrap();
    assert_eq!(tasks.len(), 2);
    for (index, task) in tasks.iter().enumerate() {
        assert_eq!(task.id, accepted[index].id);
        assert_eq!(task.name, sweep[index].name);
    }
}

#[test]
fn a_sweep_is_of_one_submission() {
    let (_directory, mut server) = start();
    let trial = |name: &str, sweep: &str| Submission {
        sweep: Some(sweep.to_owned()),
        ..keyed(name, name)
    };
    let first = ["a-0", "a-1"].map(|name| trial(name, "lr"));
    server.queue_mut().submit_all(&first).unwrap();
    bring(&mut server, TaskId(1), TaskState::Done);
    let queue = server.queue_mut();
    let error = queue.submit_all(&[submission("other"), trial("b-0", "lr")]);
    assert_eq!(
        error.unwrap_err().to_string(),
        "the sweep name `lr` is taken: task 1 (`a-0`) is in it, and is done"
    );
    assert_eq!(queue.tasks().unwrap().len(), 2);
    // Repeated with its keys, and one more trial: it is the same submission.
    let more = [&first[..], &[trial("a-2", "lr")]].concat();
    assert_eq!(queue.submit_all(&more).unwrap().len(), 3);
    queue.submit(&trial("b-0", "lr-2")).unwrap();
}

#[test]
fn digits_are_the_number_of_a_task_and_never_its_name() {
    let (_directory, mut server) = start();
    let ended = submit(&mut server, "math");
    bring(&mut server, ended, TaskState::Cancelled);
    let queue = server.queue();
    assert_eq!(queue.find("math").unwrap().id, ended);
    let live = submit(&mut server, "math");
    let odd = submit(&mut server, "1");
    let queue = server.queue();
    assert_eq!(queue.find("Math").unwrap().id, live);
    assert_eq!(queue.find("1").unwrap().id, ended);
    assert_eq!(queue.find("2").unwrap().id, live);
    assert_eq!(queue.find("3").unwrap().id, odd);
    let of_no_number = submit(&mut server, "9");
    let queue = server.queue();
    for (absent, said) in [
        ("-1", "`-1`"),
        ("code", "`code`"),
        ("", "``"),
        ("5", "5"),
        ("18446744073709551616", "18446744073709551616"),
        ("9", "9; the task with the name `9` is task 4"),
    ] {
        let error = queue.find(absent).expect_err("no such task");
        assert_eq!(error.to_string(), format!("there is no task {said}"));
    }
    assert_eq!(queue.find("4").unwrap().id, of_no_number);
    let error = queue.task(TaskId(u64::MAX)).expect_err("no such task");
    assert!(matches!(error, QueueError::UnknownTask(TaskId(u64::MAX))));
}

/// The reference is the configuration's own rule.
#[test]
fn names_follow_the_rule_of_configuration_files() {
    let (_directory, mut server) = start();
    let long = "x".repeat(101);
    let names = [
        "a",
        "math-r16",
        "A.b_c-d",
        "9",
        "_x",
        "x-",
        "x_",
        "",
        ".",
        "..",
        ".x",
        "x.",
        "-x",
        "a/b",
        "../x",
        "a b",
        "a\\b",
        "naïve",
        "a\u{0}b",
        "a\nb",
        "CON",
        &long[..100],
        &long,
    ];
    let (mut accepted, mut refused) = (0, 0);
    for name in names {
        let config = configurable(name);
        let here = server.queue_mut().submit(&submission(name));
        assert_eq!(here.is_ok(), config, "{name:?}");
        if config {
            accepted += 1;
        } else {
            let error = here.expect_err("refused");
            assert!(matches!(error, QueueError::Invalid { field: "name", .. }));
            refused += 1;
        }
    }
    assert!(accepted > 5 && refused > 10, "{accepted} and {refused}");
}

/// Whether a configuration may have an adapter of this name.
fn configurable(name: &str) -> bool {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run.yaml");
    let quoted: String = name
        .chars()
        .map(|c| match c {
            '\\' => "\\\\".to_owned(),
            c if c.is_control() => format!("\\x{:02x}", u32::from(c)),
            c => c.to_string(),
        })
        .collect();
    let text = format!(
        "model: m\ndatasets:\n  d: {{path: d.jsonl}}\nadapters:\n  - {{name: \"{quoted}\", dataset: d}}\n"
    );
    std::fs::write(&path, text).unwrap();
    match loraloom_config::RunConfig::load(&path, &[]) {
        Ok(loaded) => {
            assert_eq!(loaded.config.adapters[0].name, name);
            true
        }
        Err(error) => {
            assert!(error.to_string().contains("adapters"), "{error}");
            false
        }
    }
}

#[test]
fn other_texts_must_fit_on_a_line() {
    let (_directory, mut server) = start();
    let long = "x".repeat(101);
    for bad in ["", "a\nb", "\u{1b}[2J", &long] {
        let tenant = Submission {
            tenant: bad.to_owned(),
            ..submission("math")
        };
        let sweep = Submission {
            sweep: Some(bad.to_owned()),
            ..submission("math")
        };
        for refused in [tenant, sweep, keyed("math", bad)] {
            let error = server.queue_mut().submit(&refused).expect_err("refused");
            assert!(matches!(error, QueueError::Invalid { .. }), "{error}");
        }
    }
}
