use std::path::Path;

use loraloom_report::RunHistory;
use loraloom_server::{Client, queue};

/// Reads the log of a run or a server.
///
/// # Errors
/// If it has none.
pub(crate) fn read_history(directory: &Path) -> anyhow::Result<RunHistory> {
    let mut history = RunHistory::read(directory)?;
    if directory.join(queue::FILE_NAME).exists() {
        for (task, config) in Client::open(directory)?.configurations()? {
            history.add_task(&config, &task.state.to_string());
        }
    }
    Ok(history)
}
