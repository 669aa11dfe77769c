/// What became of a request when it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// It is written down; the server carries it out at the end of an iteration.
    Waits,
    /// No server runs, so it was carried out at once.
    CarriedOut,
    /// It took back an earlier request that had not been carried out.
    Withdrew,
    /// The task is so already, or it was asked for before.
    Already,
}
