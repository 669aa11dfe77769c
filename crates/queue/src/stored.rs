//! What a scheduler wants to find again after a crash: texts by key.

use std::collections::BTreeMap;

use rusqlite::params;

use crate::{Queue, QueueError, connection::At, write::Write};

impl Queue {
    /// Everything that [`Server::record`](crate::Server::record) has stored.
    ///
    /// # Errors
    ///
    /// What SQLite reports.
    pub fn stored(&self) -> Result<BTreeMap<String, String>, QueueError> {
        self.connection
            .prepare_cached("SELECT key, value FROM stored")
            .and_then(|mut statement| {
                statement
                    .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
                    .collect()
            })
            .at(&self.path)
    }
}

impl Write<'_> {
    pub(crate) fn store(&self, key: &str, value: &str) -> Result<(), QueueError> {
        self.execute(
            "INSERT INTO stored VALUES (?1, ?2) \
             ON CONFLICT (key) DO UPDATE SET value = excluded.value",
            params![key, value],
        )
        .map(drop)
    }
}
