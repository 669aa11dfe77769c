/// What keeps a trace from being replayed.
#[derive(Debug, thiserror::Error)]
pub enum SimulationError {
    /// The file is not CSV.
    #[error("line {line}: {source}")]
    Csv {
        /// Line in the file, from 1.
        line: u64,
        /// What the reader says.
        source: csv::Error,
    },
    /// A column that a trace must have is not in the first line.
    #[error("no column `{column}`; a trace has timestamp, duration, num_gpus and cluster")]
    MissingColumn {
        /// The column.
        column: &'static str,
    },
    /// A row that says nothing that could be replayed.
    #[error("line {line}: `{value}` is no {column}: {expected}")]
    Field {
        /// Line in the file, from 1.
        line: u64,
        /// The column.
        column: &'static str,
        /// What stands there.
        value: String,
        /// What could stand there.
        expected: &'static str,
    },
    /// More jobs are asked for than there are from that place on.
    #[error("{asked} jobs from job {start} on asked for, and the trace has {available}")]
    TooFewJobs {
        /// Jobs asked for.
        asked: usize,
        /// The first of them, from 0 in order of arrival.
        start: usize,
        /// Jobs in the trace.
        available: usize,
    },
    /// A number of the workload or of the costs that makes no sense.
    #[error("{name} is {value}, and must be {expected}")]
    OutOfRange {
        /// What it is.
        name: &'static str,
        /// Its value.
        value: f64,
        /// What it must be.
        expected: &'static str,
    },
    /// A set to draw from has nothing in it.
    #[error("no {name} to draw from")]
    NothingToDraw {
        /// What is drawn.
        name: &'static str,
    },
    /// Costs have more unknowns than that.
    #[error("{measured} measured iterations, and costs follow from {needed} or more")]
    TooFewIterations {
        /// Iterations given.
        measured: usize,
        /// Least number.
        needed: usize,
    },
    /// What was measured is not finite.
    #[error("no costs follow from what was measured")]
    NotFitted,
    /// All jobs arrive at once, so that no spacing gives a load.
    #[error(
        "all {jobs} jobs arrive at the same time, so their arrivals cannot be spread to a load"
    )]
    NoSpacing {
        /// Number of jobs.
        jobs: usize,
    },
    /// A job that no device holds.
    #[error("`{job}` takes {bytes:.0} bytes alone, and a device has {device_bytes:.0}")]
    TooLarge {
        /// Its name.
        job: String,
        /// Bytes of one of its iterations.
        bytes: f64,
        /// Bytes of a device.
        device_bytes: f64,
    },
    /// The scheduler refused what it was told.
    #[error(transparent)]
    Scheduler(#[from] loraloom_scheduler::SchedulerError),
    /// Jobs wait, nothing trains and nothing will arrive: the scheduler starves them.
    #[error("{waiting} jobs wait for ever after {seconds:.0} s; the first is `{first}`")]
    Starved {
        /// Jobs that wait.
        waiting: usize,
        /// Name of the first of them.
        first: String,
        /// The time it was found.
        seconds: f64,
    },
}
