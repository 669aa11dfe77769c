//! A log that is damaged is reported and left alone; one that was cut off is read up to there.

use std::{fs, path::Path};

use crate::support::{Random, start, submission, submit};
use loraloom_server::queue::{FILE_NAME, LockedQueue, Queue, QueueError, Submission};

/// The log of a queue that is in use, and the file without it.
fn with_log(directory: &Path) -> (Vec<u8>, Vec<u8>) {
    let log = format!("{FILE_NAME}-wal");
    (
        fs::read(directory.join(FILE_NAME)).unwrap(),
        fs::read(directory.join(log)).unwrap(),
    )
}

#[test]
fn a_log_without_its_file_is_reported() {
    let (source, mut server) = start();
    submit(&mut server, "math");
    let (_, log) = with_log(source.path());
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(format!("{FILE_NAME}-wal"));
    fs::write(&path, &log).unwrap();
    let error = LockedQueue::acquire(directory.path()).expect_err("the file is gone");
    assert!(matches!(error, QueueError::Corrupt { .. }), "{error:?}");
    assert!(Queue::open(directory.path()).is_err());
    assert_eq!(fs::read(&path).unwrap(), log, "left alone");

    // An empty file beside it would have SQLite delete the log.
    fs::write(directory.path().join(FILE_NAME), "").unwrap();
    let error = LockedQueue::acquire(directory.path()).expect_err("it is empty");
    assert!(matches!(error, QueueError::Corrupt { .. }), "{error:?}");
    assert!(Queue::open(directory.path()).is_err());
    assert_eq!(fs::read(&path).unwrap(), log, "left alone");
}

/// SQLite takes a log up to the first frame whose sum is wrong, since a power cut leaves such an end.
/// Of damage that cannot be told from that, the last two transactions may be lost; the rest is reported.
#[test]
fn a_damaged_log_is_reported_or_lacks_its_end() {
    let (source, mut server) = start();
    let names: Vec<String> = (0..20).map(|index| format!("task-{index}")).collect();
    for name in &names {
        submit(&mut server, name);
    }
    let expected: Vec<_> = names.iter().map(|name| submission(name)).collect();
    let (file, log) = with_log(source.path());
    let serve = |log: &[u8]| {
        let directory = tempfile::tempdir().unwrap();
        let beside = directory.path().join(format!("{FILE_NAME}-wal"));
        fs::write(directory.path().join(FILE_NAME), &file).unwrap();
        fs::write(&beside, log).unwrap();
        let (server, _) = LockedQueue::acquire(directory.path()).inspect_err(|error| {
            assert!(
                error.to_string().contains(&*beside.to_string_lossy()),
                "{error}"
            );
            assert!(fs::read(&beside).unwrap() == log, "left alone");
        })?;
        let queue = server.queue();
        let specs = queue.tasks()?.into_iter().map(|task| queue.spec(task.id));
        specs.collect::<Result<Vec<_>, _>>()
    };
    assert_eq!(serve(&log).unwrap(), expected);

    let mut random = Random::new();
    let mut reports = 0;
    let flips = 60;
    for flip in 0..flips {
        let at = match flip {
            0..32 => flip,
            _ => random.below(log.len() as u64) as usize,
        };
        let mut damaged = log.clone();
        damaged[at] ^= 1 << random.below(8);
        match serve(&damaged) {
            Ok(found) => {
                assert!(expected.starts_with(&found), "byte {at}");
                assert!(
                    found.len() + 2 >= expected.len(),
                    "byte {at}: {}",
                    found.len()
                );
            }
            Err(error) => {
                assert!(matches!(error, QueueError::Corrupt { .. }), "{error:?}");
                reports += 1;
            }
        }
    }
    println!("{reports} of {flips} reported");
    assert!(reports >= 40);
}

/// A log that ends anywhere is what a kill or a power cut leaves: the tasks before are there.
#[test]
fn a_log_that_was_cut_off_is_read_up_to_there() {
    let (source, mut server) = start();
    let mut lengths = vec![(with_log(source.path()).1.len(), 0)];
    for index in 0..5 {
        submit(&mut server, &format!("task-{index}"));
        lengths.push((with_log(source.path()).1.len(), index + 1));
    }
    let (file, log) = with_log(source.path());
    let mut random = Random::new();
    for _ in 0..40 {
        let length = random.below(log.len() as u64 + 1) as usize;
        let whole = lengths.iter().filter(|(end, _)| *end <= length);
        let expected = whole.map(|(_, tasks)| *tasks).max().unwrap_or(0);
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join(FILE_NAME), &file).unwrap();
        let cut = directory.path().join(format!("{FILE_NAME}-wal"));
        fs::write(cut, &log[..length]).unwrap();
        let (server, _) = LockedQueue::acquire(directory.path()).unwrap();
        assert_eq!(
            server.queue().tasks().unwrap().len(),
            expected,
            "{length} bytes"
        );
    }
}

/// What is left of transactions that power cuts took back, behind a shorter one that came after, is no
/// damage.
#[test]
fn remains_of_lost_transactions_are_no_damage() {
    let (source, mut server) = start();
    submit(&mut server, "math");
    let (file, log) = with_log(source.path());
    let continued = |submissions: &[Submission]| {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join(FILE_NAME), &file).unwrap();
        let beside = directory.path().join(format!("{FILE_NAME}-wal"));
        fs::write(&beside, &log).unwrap();
        let mut queue = Queue::open(directory.path()).unwrap();
        queue.submit_all(submissions).unwrap();
        fs::read(beside).unwrap()
    };
    let many: Vec<_> = (0..1000)
        .map(|index| submission(&format!("task-{index}")))
        .collect();
    // Two power cuts, then a transaction that stays.
    let [longest, longer, kept] = [1000, 200, 1].map(|tasks| continued(&many[..tasks]));
    let mut all = kept.clone();
    for remains in [longer, longest] {
        assert!(remains.starts_with(&log) && remains.len() > all.len());
        all.extend(&remains[all.len()..]);
    }

    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join(FILE_NAME), &file).unwrap();
    fs::write(directory.path().join(format!("{FILE_NAME}-wal")), all).unwrap();
    let (server, _) = LockedQueue::acquire(directory.path()).unwrap();
    assert_eq!(server.queue().tasks().unwrap().len(), 2);
}
