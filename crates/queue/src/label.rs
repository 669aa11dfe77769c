//! Names that tasks, tenants and sweeps may have.

use crate::QueueError;

const LONGEST: usize = 100;

/// Refuses a name that could not be an adapter's directory; the rule of configuration files.
pub(crate) fn check_name(name: &str) -> Result<(), QueueError> {
    let safe = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let problem = if name.is_empty() {
        "must not be empty".to_owned()
    } else if name.len() > LONGEST {
        format!("must have at most {LONGEST} characters, got {}", name.len())
    } else if let Some(bad) = name.chars().find(|c| !safe(*c)) {
        format!("names a directory: letters, digits, `.`, `_` and `-` only, found {bad:?}")
    } else if name.starts_with(['.', '-']) || name.ends_with('.') {
        "names a directory: it cannot start with `.` or `-` or end with `.`".to_owned()
    } else {
        return Ok(());
    };
    Err(bad("name", name, problem))
}

/// Refuses what cannot be shown on one line.
pub(crate) fn check_text(field: &'static str, text: &str) -> Result<(), QueueError> {
    let problem = if text.is_empty() {
        "must not be empty".to_owned()
    } else if text.len() > LONGEST {
        format!("must have at most {LONGEST} bytes, got {}", text.len())
    } else if let Some(control) = text.chars().find(|c| c.is_control()) {
        format!("must have no control characters, found {control:?}")
    } else {
        return Ok(());
    };
    Err(bad(field, text, problem))
}

fn bad(field: &'static str, value: &str, problem: String) -> QueueError {
    QueueError::Invalid {
        field,
        value: value.chars().take(LONGEST).collect(),
        problem,
    }
}
