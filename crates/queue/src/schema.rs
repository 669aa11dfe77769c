//! The tables, and how a file says that it has them.

/// `application_id` of a queue: "LLQU".
pub(crate) const APPLICATION: u32 = u32::from_be_bytes(*b"LLQU");

/// `user_version` of the tables below.
pub(crate) const VERSION: i64 = 1;

/// The tables. What a task is, `spec` and the fields of `task` under its digest, never changes; the
/// long text has a table of its own, so that a step's progress does not write it again.
///
/// `last_loss` and `best_metric` are `ANY` because SQLite has no NaN. `changed` is the number of the
/// transaction that last changed the row, counted by `clock`.
pub(crate) const TABLES: &str = "
CREATE TABLE task (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL COLLATE NOCASE,
    tenant TEXT NOT NULL,
    priority INTEGER NOT NULL,
    dataset_hash TEXT NOT NULL,
    sweep TEXT,
    key TEXT UNIQUE,
    state TEXT NOT NULL CHECK (state IN
        ('queued', 'running', 'parked', 'paused', 'done', 'failed', 'cancelled')),
    reason TEXT NOT NULL,
    requested TEXT CHECK (requested IN ('pause', 'resume', 'cancel')),
    explanation TEXT NOT NULL,
    step INTEGER NOT NULL CHECK (step >= 0),
    saved_step INTEGER NOT NULL CHECK (saved_step >= 0),
    total_steps INTEGER CHECK (total_steps >= 0),
    last_loss ANY CHECK (typeof(last_loss) IN ('null', 'real') OR last_loss = 'NaN'),
    best_metric ANY CHECK (typeof(best_metric) IN ('null', 'real') OR best_metric = 'NaN'),
    submitted_at INTEGER NOT NULL,
    started_at INTEGER,
    ended_at INTEGER,
    changed INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX task_live_name ON task (name)
    WHERE state IN ('queued', 'running', 'parked', 'paused');
CREATE INDEX task_name ON task (name);
CREATE INDEX task_changed ON task (changed);
CREATE INDEX task_requested ON task (id) WHERE requested IS NOT NULL;
CREATE TABLE spec (
    task INTEGER PRIMARY KEY REFERENCES task (id),
    text TEXT NOT NULL,
    digest BLOB NOT NULL CHECK (length(digest) = 32)
) STRICT;
CREATE TABLE event (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    task INTEGER NOT NULL REFERENCES task (id),
    kind TEXT NOT NULL,
    reason TEXT NOT NULL,
    at INTEGER NOT NULL
) STRICT;
CREATE INDEX event_task ON event (task, sequence);
CREATE TABLE stored (
    key TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE clock (
    only INTEGER PRIMARY KEY CHECK (only = 1),
    changed INTEGER NOT NULL CHECK (changed >= 0)
) STRICT;
INSERT INTO clock VALUES (1, 0);
";
