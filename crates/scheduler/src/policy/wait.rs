use crate::TaskId;

/// Why a task has no place.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) enum Wait {
    /// Nothing was decided since it began to wait.
    #[default]
    Undecided,
    /// It does not fit beside those before it: what is missing, in words.
    Missing(String),
    /// It does not fit even alone any more.
    NeverFits(String),
    /// `max_adapters` tasks run.
    Cap(usize),
    /// It ran out of memory beside these, and all of them run.
    OutOfMemory(Vec<TaskId>),
    /// Nobody passes this one, which does not fit.
    Behind(TaskId),
    /// This one, which does not fit, would start so many seconds later.
    Delays(TaskId, f64),
    /// Behind this one, and more wait between than are tried.
    TooDeep(TaskId),
    /// Its tenant is ahead of the one of this number by so many tokens.
    Leads(usize, f64),
}
