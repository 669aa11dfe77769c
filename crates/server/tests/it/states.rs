//! States, requests, and their answers.

use crate::support::{bring, progress, start, submit, to};
use loraloom_scheduler::{TaskId, TaskState};
use loraloom_server::queue::{
    Answer, EventKind, LockedQueue, Queue, QueueError, QueuedTask, Request,
};

use Request::{Cancel, Pause, Resume};
use TaskState::{Cancelled, Done, Failed, Parked, Paused, Queued, Running};

#[test]
fn the_queue_has_the_schedulers_state_machine() {
    let (_directory, mut server) = start();
    for from in TaskState::ALL {
        for next in TaskState::ALL {
            let name = format!("{from}-{next}");
            let id = submit(&mut server, &name);
            bring(&mut server, id, from);
            let before = server.queue().task(id).unwrap();
            assert_eq!(before.state, from);
            let result = server.apply(&[to(id, next)]);
            let after = server.queue().task(id).unwrap();
            if from.can_become(next) {
                result.unwrap();
                assert_eq!(after.state, next);
                assert_eq!(after.reason, format!("to {next}"));
                assert_eq!(after.ended_at.is_some(), next.is_final());
            } else {
                let error = result.expect_err("not an arrow");
                assert_eq!(
                    error.to_string(),
                    format!(
                        "{id} (`{name}`) {} and cannot become {next}",
                        from.predicate()
                    )
                );
                assert_eq!(after, before);
            }
        }
    }
}

#[test]
fn transitions_happen_together_or_not_at_all() {
    let (_directory, mut server) = start();
    let first = submit(&mut server, "math");
    let second = submit(&mut server, "code");
    let before = server.queue().tasks().unwrap();
    let error = server
        .apply(&[to(first, Running), to(second, Done)])
        .expect_err("code has not run");
    assert!(matches!(error, QueueError::IllegalTransition { .. }));
    let error = server
        .apply(&[to(first, Running), to(TaskId(9), Running)])
        .expect_err("no task 9");
    assert!(matches!(error, QueueError::UnknownTask(TaskId(9))));
    assert_eq!(server.queue().tasks().unwrap(), before);
    assert_eq!(server.queue().events(first).unwrap().len(), 1);
}

/// What a request is answered in each state, with nothing asked before, while a server runs.
/// `None` is a refusal.
fn first_answer(state: TaskState, request: Request) -> Option<Answer> {
    match (state, request) {
        (Cancelled, Cancel) | (Paused, Pause) => Some(Answer::Already),
        (Queued | Running | Parked, Pause | Cancel)
        | (Paused, Resume | Cancel)
        | (Failed, Resume) => Some(Answer::Waits),
        _ => None,
    }
}

/// The same with a request that waits already.
fn second_answer(pending: Request, request: Request) -> Option<(Answer, Option<Request>)> {
    match (pending, request) {
        (Pause, Resume) | (Resume, Pause) => Some((Answer::Withdrew, None)),
        (Pause | Resume, Cancel) => Some((Answer::Waits, Some(Cancel))),
        (before, after) if before == after => Some((Answer::Waits, Some(before))),
        _ => None,
    }
}

#[test]
fn requests_are_answered_by_state_and_by_what_waits() {
    let (directory, mut server) = start();
    let mut owner = Queue::open(directory.path()).unwrap();
    let mut refusals = 0;
    for state in TaskState::ALL {
        for first in Request::ALL {
            for second in Request::ALL {
                let id = submit(&mut server, &format!("{state}-{first}-{second}"));
                bring(&mut server, id, state);
                let answer = owner.request(id, first);
                let Some(expected) = first_answer(state, first) else {
                    let error = answer.expect_err("refused");
                    assert!(
                        error
                            .to_string()
                            .contains(&format!("it {}", state.predicate()))
                    );
                    assert_eq!(owner.task(id).unwrap().requested, None);
                    refusals += 1;
                    continue;
                };
                assert_eq!(answer.unwrap(), expected, "{first} while {state}");
                if expected == Answer::Already {
                    assert_eq!(owner.task(id).unwrap().requested, None);
                    continue;
                }
                assert_eq!(owner.task(id).unwrap().requested, Some(first));
                let answer = owner.request(id, second);
                let requested = owner.task(id).unwrap().requested;
                let answered = match (state, second) {
                    (Failed, Pause | Cancel) => Some((Answer::Withdrew, None)),
                    _ => second_answer(first, second),
                };
                if let Some((expected, left)) = answered {
                    let context = format!("{second} after {first} while {state}");
                    assert_eq!(answer.unwrap(), expected, "{context}");
                    assert_eq!(requested, left, "{context}");
                } else {
                    let error = answer.expect_err("refused").to_string();
                    assert!(
                        error.ends_with(&format!("and was asked to {first}")),
                        "{error}"
                    );
                    assert_eq!(requested, Some(first));
                }
                assert_eq!(owner.task(id).unwrap().state, state);
            }
        }
    }
    assert_eq!(refusals, 30);
}

/// From where its last checkpoint has it, unless another task has its name by then.
#[test]
fn a_task_that_failed_is_resumed() {
    let (directory, mut server) = start();
    let id = submit(&mut server, "math");
    bring(&mut server, id, Running);
    server.record(&[progress(id, 9)], &[]).unwrap();
    server.saved(&[(id, 7)]).unwrap();
    server.apply(&[to(id, Failed)]).unwrap();
    let mut owner = Queue::open(directory.path()).unwrap();
    assert_eq!(owner.request(id, Resume).unwrap(), Answer::Waits);
    assert_eq!(server.carry_out_waiting().unwrap(), [(id, Parked)]);
    let task = owner.task(id).unwrap();
    assert_eq!((task.state, task.step, task.requested), (Parked, 7, None));
    assert_eq!(task.ended_at, None);

    server.apply(&[to(id, Failed)]).unwrap();
    let other = submit(&mut server, "math");
    let error = owner.request(id, Resume).unwrap_err();
    assert!(
        matches!(error, QueueError::NameTaken { id, .. } if id == other),
        "{error}"
    );
    let never_ran = submit(&mut server, "code");
    server.apply(&[to(never_ran, Failed)]).unwrap();
    owner.request(never_ran, Resume).unwrap();
    assert_eq!(server.carry_out_waiting().unwrap(), [(never_ran, Queued)]);
}

#[test]
fn a_request_stays_until_it_is_carried_out() {
    let (directory, mut server) = start();
    let id = submit(&mut server, "math");
    bring(&mut server, id, Running);
    let mut owner = Queue::open(directory.path()).unwrap();
    assert_eq!(owner.request(id, Pause).unwrap(), Answer::Waits);
    for _ in 0..2 {
        let requests = server.queue().requests().unwrap();
        assert_eq!(requests.len(), 1);
        assert_eq!(requests[0].requested, Some(Pause));
    }
    // Parking is not what was asked for; pausing is.
    server.apply(&[to(id, Parked)]).unwrap();
    assert_eq!(server.queue().requests().unwrap().len(), 1);
    server.apply(&[to(id, Paused)]).unwrap();
    assert_eq!(server.queue().requests().unwrap(), []);

    assert_eq!(owner.request(id, Resume).unwrap(), Answer::Waits);
    server.apply(&[to(id, Parked)]).unwrap();
    assert_eq!(server.queue().requests().unwrap(), []);

    assert_eq!(owner.request(id, Cancel).unwrap(), Answer::Waits);
    server.apply(&[to(id, Running)]).unwrap();
    assert_eq!(server.queue().requests().unwrap().len(), 1);
    // Its end came first.
    server.apply(&[to(id, Done)]).unwrap();
    assert_eq!(server.queue().requests().unwrap(), []);

    let kinds: Vec<_> = owner.events(id).unwrap();
    let kinds: Vec<_> = kinds.iter().map(|event| event.kind).collect();
    assert_eq!(
        kinds,
        [
            EventKind::Entered(Queued),
            EventKind::Entered(Running),
            EventKind::Requested(Pause),
            EventKind::Entered(Parked),
            EventKind::Entered(Paused),
            EventKind::Requested(Resume),
            EventKind::Entered(Parked),
            EventKind::Requested(Cancel),
            EventKind::Entered(Running),
            EventKind::Entered(Done),
        ]
    );
}

/// The states of all tasks, in order.
fn states(queue: &Queue) -> Vec<TaskState> {
    let tasks = queue.tasks().unwrap();
    tasks.iter().map(|task: &QueuedTask| task.state).collect()
}

#[test]
fn the_server_carries_out_what_was_asked_of_waiting_tasks() {
    let (directory, mut server) = start();
    let cases = [
        (Queued, Pause),
        (Queued, Cancel),
        (Parked, Pause),
        (Parked, Cancel),
        (Paused, Resume),
        (Paused, Cancel),
        (Running, Pause),
    ];
    let mut owner = Queue::open(directory.path()).unwrap();
    for (index, (state, request)) in cases.into_iter().enumerate() {
        let id = submit(&mut server, &format!("task-{index}"));
        bring(&mut server, id, state);
        assert_eq!(owner.request(id, request).unwrap(), Answer::Waits);
    }
    // A task that was paused before it began goes back to the queue.
    let unbegun = submit(&mut server, "unbegun");
    server.apply(&[to(unbegun, Paused)]).unwrap();
    owner.request(unbegun, Resume).unwrap();

    let carried = server.carry_out_waiting().unwrap();
    let expected = [
        Paused, Cancelled, Paused, Cancelled, Parked, Cancelled, Running, Queued,
    ];
    assert_eq!(states(&owner), expected);
    assert_eq!(carried.len(), 7);
    assert!(
        carried
            .iter()
            .all(|(id, to)| owner.task(*id).unwrap().state == *to)
    );
    let left = server.queue().requests().unwrap();
    assert_eq!(left.len(), 1);
    assert_eq!((left[0].id, left[0].requested), (TaskId(7), Some(Pause)));
    assert_eq!(server.carry_out_waiting().unwrap(), []);
}

#[test]
fn without_a_server_a_request_is_carried_out_at_once() {
    let (directory, mut server) = start();
    let running = submit(&mut server, "running");
    bring(&mut server, running, Running);
    let waiting = submit(&mut server, "waiting");
    let mut owner = Queue::open(directory.path()).unwrap();
    assert_eq!(owner.request(waiting, Pause).unwrap(), Answer::Waits);
    drop(server);

    // The one that waited is carried out, too, and what ran is parked first.
    assert_eq!(owner.request(running, Pause).unwrap(), Answer::CarriedOut);
    assert_eq!(states(&owner), [Paused, Paused]);
    assert_eq!(owner.request(running, Resume).unwrap(), Answer::CarriedOut);
    assert_eq!(owner.request(waiting, Resume).unwrap(), Answer::CarriedOut);
    assert_eq!(states(&owner), [Parked, Queued]);
    assert_eq!(owner.request(waiting, Cancel).unwrap(), Answer::CarriedOut);
    assert_eq!(states(&owner), [Parked, Cancelled]);
    assert_eq!(owner.request(waiting, Cancel).unwrap(), Answer::Already);

    // The lock is free again.
    let (server, recovered) = LockedQueue::acquire(directory.path()).unwrap();
    assert_eq!(recovered, []);
    assert_eq!(states(server.queue()), [Parked, Cancelled]);
}
