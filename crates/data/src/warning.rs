//! What is odd about data that can be trained on all the same.

use std::fmt;

/// Something that was probably not meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// What it is about: `dataset shout at max_seq_len 16`.
    pub about: String,
    /// What is odd.
    pub message: String,
    /// What can be done about it.
    pub hint: Option<&'static str>,
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
