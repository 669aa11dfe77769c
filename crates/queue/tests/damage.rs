//! A file that is damaged or something else is reported and left alone.

#![allow(clippy::unwrap_used, reason = "tests fail with them")]

mod support;

use std::{fs, path::Path};

use loraloom_queue::{FILE_NAME, Queue, QueueError, Server, Submission};
use support::{Random, start, submission, submit};

/// A queue at rest, and what was submitted to it.
fn some_queue() -> (Vec<u8>, Vec<Submission>) {
    let (directory, mut server) = start();
    let mut random = Random::new();
    let submissions: Vec<_> = (0..60)
        .map(|index| Submission {
            // Some are longer than a page.
            spec: format!(
                "{{\"text\":\"{}\"}}",
                "long ".repeat(random.below(1500) as usize)
            ),
            key: (index % 2 == 0).then(|| format!("key-{index}")),
            ..without_steps(submission(&format!("task-{index}")))
        })
        .collect();
    server.queue_mut().submit_all(&submissions).unwrap();
    drop(server);
    let entries = fs::read_dir(directory.path()).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, [FILE_NAME, "server.lock"], "no log at rest");
    (
        fs::read(directory.path().join(FILE_NAME)).unwrap(),
        submissions,
    )
}

/// The number of steps may change, so it is under no digest.
fn without_steps(submission: Submission) -> Submission {
    Submission {
        total_steps: None,
        ..submission
    }
}

/// Starts a server on these bytes. What is refused is unchanged on the disk.
fn serve(bytes: &[u8]) -> Result<Vec<Submission>, QueueError> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(FILE_NAME);
    fs::write(&path, bytes).unwrap();
    let result = Server::start(directory.path()).and_then(|(server, _)| {
        let tasks = server.queue().tasks()?;
        let specs = tasks.iter().map(|task| server.queue().spec(task.id));
        specs.map(|spec| spec.map(without_steps)).collect()
    });
    if let Err(error) = &result {
        assert!(
            fs::read(&path).unwrap() == bytes,
            "changed, and refused: {error}"
        );
        assert!(
            error.to_string().contains(&*path.to_string_lossy()),
            "{error}"
        );
    }
    result
}

fn is_report(error: &QueueError) -> bool {
    matches!(
        error,
        QueueError::Corrupt { .. }
            | QueueError::NotAQueue { .. }
            | QueueError::NewerSchema { .. }
            | QueueError::ReadOnly { .. }
    )
}

/// Flips bits of one byte. Every outcome but a report must have lost nothing.
fn flip(bytes: &[u8], at: usize, mask: u8, submissions: &[Submission]) -> bool {
    let mut damaged = bytes.to_vec();
    damaged[at] ^= mask;
    match serve(&damaged) {
        Ok(found) => {
            assert!(
                found == submissions,
                "byte {at} ^ {mask:#04x} changed tasks silently"
            );
            false
        }
        Err(error) => {
            assert!(is_report(&error), "byte {at} ^ {mask:#04x}: {error:?}");
            true
        }
    }
}

#[test]
fn a_flipped_byte_is_reported_or_harmless() {
    let (bytes, submissions) = some_queue();
    assert_eq!(serve(&bytes).unwrap(), submissions);
    let mut random = Random::new();

    let reported: Vec<usize> = (0..100)
        .filter(|&at| flip(&bytes, at, 0x41, &submissions))
        .collect();
    println!("header bytes whose damage is reported: {reported:?}");
    // Magic, page size, file format, application and schema version.
    for at in (0..18).chain(60..64).chain(68..72) {
        assert!(reported.contains(&at), "byte {at}");
    }

    let flips = std::env::var("FLIPS").map_or(250, |f| f.parse().unwrap());
    let mut reports = 0;
    for _ in 0..flips {
        let at = 100 + random.below(bytes.len() as u64 - 100) as usize;
        let mask = 1 << random.below(8);
        reports += usize::from(flip(&bytes, at, mask, &submissions));
    }
    println!(
        "{reports} of {flips} flips in {} pages reported",
        bytes.len() / 4096
    );
    assert!(reports * 2 > flips, "{reports} of {flips}");
}

#[test]
fn a_page_of_something_else_is_reported() {
    let (bytes, submissions) = some_queue();
    let mut random = Random::new();
    let mut reports = 0;
    let pages = bytes.len() / 4096;
    for page in 0..pages {
        let mut damaged = bytes.clone();
        for byte in &mut damaged[page * 4096..(page + 1) * 4096] {
            *byte = random.below(256) as u8;
        }
        match serve(&damaged) {
            Ok(found) => assert_eq!(found, submissions, "page {page}"),
            Err(error) => {
                assert!(is_report(&error), "page {page}: {error:?}");
                reports += 1;
            }
        }
    }
    println!("{reports} of {pages} pages");
    // A page may be free.
    assert!(reports + 1 >= pages);
}

#[test]
fn a_shorter_file_is_reported() {
    let (bytes, submissions) = some_queue();
    let mut lengths = vec![0, 1, 15, 16, 50, 99, 100, 101, 4095, 4097];
    lengths.extend((1..bytes.len() / 4096).map(|pages| pages * 4096));
    for length in lengths {
        let error = serve(&bytes[..length]).expect_err("it is not whole");
        let report = matches!(error, QueueError::Corrupt { .. });
        assert!(report, "{length} bytes: {error:?}");
    }
    // SQLite reads zeros behind the end of a file, and the last byte of a page may be one that is not used.
    match serve(&bytes[..bytes.len() - 1]) {
        Ok(found) => assert_eq!(found, submissions),
        Err(error) => assert!(is_report(&error), "{error:?}"),
    }
}

#[test]
fn something_else_is_reported() {
    let other = tempfile::tempdir().unwrap();
    let path = other.path().join("other.sqlite");
    let connection = rusqlite::Connection::open(&path).unwrap();
    connection
        .execute_batch("CREATE TABLE task (id INTEGER)")
        .unwrap();
    drop(connection);
    let other = fs::read(path).unwrap();
    let zeros = vec![0; 8192];
    let texts: [&[u8]; 4] = [b"loraloom\n", b"SQLite format 3 is", &zeros, &other];
    for bytes in texts {
        let error = serve(bytes).expect_err("not a queue");
        let report = matches!(error, QueueError::NotAQueue { .. });
        assert!(report, "{error:?}");
        assert!(error.hint().is_some());
    }
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join(FILE_NAME)).unwrap();
    let error = Server::start(directory.path()).expect_err("a directory");
    assert!(matches!(error, QueueError::Io { .. }), "{error:?}");
}

/// A later version's file, and one whose tables are not ours though it says so.
#[test]
fn other_schemas_are_refused() {
    let altered = |change: &str| {
        let (directory, server) = start();
        drop(server);
        let path = directory.path().join(FILE_NAME);
        let connection = rusqlite::Connection::open(&path).unwrap();
        connection.execute_batch(change).unwrap();
        drop(connection);
        directory
    };
    let later = altered("PRAGMA user_version = 7");
    for error in [
        Server::start(later.path()).expect_err("refused"),
        Queue::open(later.path()).expect_err("refused"),
    ] {
        let path = later.path().join(FILE_NAME);
        assert_eq!(
            error.to_string(),
            format!(
                "{} has schema version 7; this version of loraloom knows 1",
                path.display()
            )
        );
    }
    for change in [
        "PRAGMA user_version = 0",
        "DROP INDEX task_live_name",
        "DROP TABLE stored",
        "CREATE TRIGGER t AFTER INSERT ON task BEGIN DELETE FROM task; END",
    ] {
        let directory = altered(change);
        let error = Server::start(directory.path()).expect_err(change);
        assert!(matches!(error, QueueError::Corrupt { .. }), "{error:?}");
    }
}

/// Text that is none is found before anything is written, wherever it is.
#[test]
fn unreadable_text_is_reported() {
    let (directory, mut server) = start();
    submit(&mut server, "math");
    server.record(&[], &[("place", "here")]).unwrap();
    drop(server);
    let whole = fs::read(directory.path().join(FILE_NAME)).unwrap();
    assert_eq!(serve(&whole).unwrap().len(), 1);
    for (table, column) in [
        ("task", "tenant"),
        ("task", "reason"),
        ("task", "explanation"),
        ("event", "kind"),
        ("event", "reason"),
        ("stored", "key"),
        ("stored", "value"),
    ] {
        let damaged = tempfile::tempdir().unwrap();
        let path = damaged.path().join(FILE_NAME);
        fs::write(&path, &whole).unwrap();
        let connection = rusqlite::Connection::open(&path).unwrap();
        let rows = connection
            .execute(
                &format!("UPDATE {table} SET {column} = CAST(x'ff' AS TEXT)"),
                [],
            )
            .unwrap();
        assert!(rows > 0, "{table}.{column}");
        drop(connection);
        let error = serve(&fs::read(&path).unwrap()).expect_err(column);
        let report = matches!(error, QueueError::Corrupt { .. });
        assert!(report, "{table}.{column}: {error:?}");
    }
}

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
    let error = Server::start(directory.path()).expect_err("the file is gone");
    assert!(matches!(error, QueueError::Corrupt { .. }), "{error:?}");
    assert!(Queue::open(directory.path()).is_err());
    assert_eq!(fs::read(&path).unwrap(), log, "left alone");

    // An empty file beside it would have SQLite delete the log.
    fs::write(directory.path().join(FILE_NAME), "").unwrap();
    let error = Server::start(directory.path()).expect_err("it is empty");
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
        let (server, _) = Server::start(directory.path()).inspect_err(|error| {
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
        let (server, _) = Server::start(directory.path()).unwrap();
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
    let (server, _) = Server::start(directory.path()).unwrap();
    assert_eq!(server.queue().tasks().unwrap().len(), 2);
}
