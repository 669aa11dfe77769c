//! Warnings about data that can be trained on.

use std::fmt;

/// A legal setting or row that is probably not intended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// Subject, such as `dataset shout at max_seq_len 16`.
    pub about: String,
    /// The warning.
    pub message: String,
    /// Hint.
    pub hint: Option<&'static str>,
}

impl Warning {
    pub(crate) fn new(about: impl Into<String>, message: String, hint: &'static str) -> Self {
        Self {
            about: about.into(),
            message,
            hint: Some(hint),
        }
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.about, self.message)?;
        match self.hint {
            Some(hint) => write!(formatter, "; {hint}"),
            None => Ok(()),
        }
    }
}
