//! A file that is damaged or something else is reported and left alone.

use std::fs;

use crate::support::{Random, start, submission, submit};
use loraloom_server::queue::{FILE_NAME, LockedQueue, Queue, QueueError, Submission};

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
    let result = LockedQueue::acquire(directory.path()).and_then(|(server, _)| {
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
    let error = LockedQueue::acquire(directory.path()).expect_err("a directory");
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
        LockedQueue::acquire(later.path()).expect_err("refused"),
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
        let error = LockedQueue::acquire(directory.path()).expect_err(change);
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
