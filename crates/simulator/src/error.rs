use loraloom_scheduler::sizes;

use super::replay::{MOST_YEARS, YEAR};

/// Errors of traces, workloads and replays.
#[derive(Debug, thiserror::Error)]
pub enum SimulationError {
    /// The file is not CSV.
    #[error("line {line}: {reason}")]
    Csv {
        /// Line in the file, from 1.
        line: u64,
        /// Description of the mistake.
        reason: String,
    },
    /// A column that a trace must have is not in the first line.
    #[error("no column `{column}` in the first line, `{header}`; a trace is CSV with {needed}")]
    MissingColumn {
        /// The column.
        column: &'static str,
        /// The first line.
        header: String,
        /// All columns that a trace must have.
        needed: &'static str,
    },
    /// A field of a row is out of its range.
    #[error("line {line}: {column} is `{value}`, expected {expected}")]
    Field {
        /// Line in the file, from 1.
        line: u64,
        /// The column.
        column: &'static str,
        /// Its text.
        value: String,
        /// The expected form.
        expected: &'static str,
    },
    /// There is nothing to replay.
    #[error("the trace has no jobs, only its first line")]
    NoJobs,
    /// No request is to be sent.
    #[error("the trace has no request with an answer")]
    NoRequests,
    /// The trace has too few jobs from that place on.
    #[error("cannot take {asked} jobs from job {start} on: the trace has {available}")]
    TooFewJobs {
        /// Jobs asked for.
        asked: usize,
        /// The first of them, from 0 in order of arrival.
        start: usize,
        /// Jobs in the trace.
        available: usize,
    },
    /// A number of the workload or of the costs is out of its range.
    #[error("{name} is {value}, but must be {expected}")]
    OutOfRange {
        /// Its name.
        name: &'static str,
        /// Its value.
        value: f64,
        /// Its range.
        expected: &'static str,
    },
    /// A set to draw from is empty.
    #[error("no {name} to draw from")]
    NothingToDraw {
        /// Name of the set.
        name: &'static str,
    },
    /// Too few iterations to fit costs to.
    #[error("cannot fit costs to {measured} measured iterations; at least {needed} are needed")]
    TooFewIterations {
        /// Iterations given.
        measured: usize,
        /// Least number.
        needed: usize,
    },
    /// The least-squares problem has no finite solution.
    #[error("cannot fit costs to the measurements")]
    NotFitted,
    /// All jobs arrive at once, so that no spacing gives a load.
    #[error(
        "all {jobs} jobs arrive at the same time, so their arrivals cannot be spread to a load"
    )]
    NoSpacing {
        /// Number of jobs.
        jobs: usize,
    },
    /// The replay exceeds the clock's limit.
    #[error(
        "the replay would take at least {} years of the trace's time; the limit is {most}",
        if *years < 1e6 { format!("{years:.0}") } else { format!("{years:.1e}") }
    )]
    TooLong {
        /// Years that it takes at least.
        years: f64,
        /// Most of them.
        most: f64,
    },
    /// A job that fits on no device.
    #[error(
        "`{job}` needs {} alone, but a device has {}",
        sizes(*bytes as u64, *device_bytes as u64)[0], sizes(*bytes as u64, *device_bytes as u64)[1]
    )]
    TooLarge {
        /// Its name.
        job: String,
        /// Bytes of one of its iterations.
        bytes: f64,
        /// Bytes of a device.
        device_bytes: f64,
    },
    /// An error of the scheduler.
    #[error(transparent)]
    Scheduler(#[from] loraloom_scheduler::SchedulerError),
    /// Jobs wait, none trains and none will arrive.
    #[error("{waiting} jobs wait forever after {seconds:.0} s; the first is `{first}`")]
    Starved {
        /// Jobs that wait.
        waiting: usize,
        /// Name of the first of them.
        first: String,
        /// The time of the last change.
        seconds: f64,
    },
}

impl SimulationError {
    /// [`SimulationError::TooLong`].
    pub(super) fn too_long(seconds: f64) -> Self {
        Self::TooLong {
            years: seconds / YEAR,
            most: MOST_YEARS,
        }
    }

    /// Advice, if known and not part of the message.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::TooFewJobs {
                start, available, ..
            } => Some(match available.saturating_sub(*start) {
                0 => format!("`--start` must be below {available}"),
                left => format!("`--jobs {left}` replays all jobs from there on"),
            }),
            Self::TooLong { .. } => Some(
                "raise `--load` or `--rate-limit`, take more `--devices`, or fewer `--jobs`; check \
                 that the trace's durations are seconds"
                    .to_owned(),
            ),
            _ => None,
        }
    }
}
