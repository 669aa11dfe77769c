use crate::{Queue, QueueError, Task, connection::At};

/// How far a process has followed a queue; the default has seen nothing. It belongs to one [`Queue`].
#[derive(Debug, Clone, Default)]
pub struct Cursor {
    /// SQLite's count of the others' commits, and the rows that this connection has written.
    seen: Option<(i64, u64)>,
    /// The last transaction whose changes were seen.
    changed: i64,
}

impl Queue {
    /// The tasks that have changed since the last call with this cursor, in order of arrival. Where
    /// nothing has, that is known without reading the file.
    ///
    /// # Errors
    ///
    /// What SQLite reports; the cursor stays where it was.
    pub fn changes(&self, cursor: &mut Cursor) -> Result<Vec<Task>, QueueError> {
        let version = self
            .connection
            .prepare_cached("PRAGMA data_version")
            .and_then(|mut statement| statement.query_row([], |row| row.get(0)))
            .at(&self.path)?;
        let seen = Some((version, self.connection.total_changes()));
        if cursor.seen == seen {
            return Ok(Vec::new());
        }
        // Left alone, SQLite would read every task to have them in order.
        let sql = format!(
            "SELECT {} FROM task INDEXED BY task_changed WHERE changed > ?1 ORDER BY id",
            Task::COLUMNS
        );
        let mut latest = cursor.changed;
        let tasks = self
            .connection
            .prepare_cached(&sql)
            .and_then(|mut statement| {
                statement
                    .query_map([cursor.changed], |row| {
                        latest = latest.max(row.get(Task::CHANGED)?);
                        Task::read(row)
                    })?
                    .collect()
            })
            .at(&self.path)?;
        cursor.seen = seen;
        cursor.changed = latest;
        Ok(tasks)
    }
}
