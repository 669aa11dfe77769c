use nalgebra::{DMatrix, DVector};

use super::{Costs, SimulationError};
use loraloom_scheduler::nnls;

/// A measured iteration of a device.
#[derive(Debug, Clone, PartialEq)]
pub struct TimedIteration {
    /// Rank, rows and tokens of a row, by task.
    pub tasks: Vec<[usize; 3]>,
    /// Its seconds.
    pub seconds: f64,
    /// Most bytes in use during it.
    pub bytes: f64,
}

/// Costs that are fitted to measured iterations.
#[derive(Debug, Clone, PartialEq)]
pub struct FittedCosts {
    /// The costs.
    pub costs: Costs,
    /// Relative error in the seconds of each iteration.
    pub seconds_errors: Vec<f64>,
    /// Relative error in the bytes of each iteration.
    pub bytes_errors: Vec<f64>,
}

const SECONDS_TERMS: usize = 5;
const BYTES_TERMS: usize = 4;

impl Costs {
    /// Fits non-negative costs to iterations of batches without padding, by least squares of the relative
    /// errors. A token of padding counts as a token, and the bytes of the device are the default.
    ///
    /// # Errors
    /// [`SimulationError::TooFewIterations`] if there are fewer than unknowns; [`SimulationError::OutOfRange`]
    /// if one took no time or no bytes, or a token costs nothing.
    pub fn fit(iterations: &[TimedIteration]) -> Result<FittedCosts, SimulationError> {
        if iterations.len() < SECONDS_TERMS {
            return Err(SimulationError::TooFewIterations {
                measured: iterations.len(),
                needed: SECONDS_TERMS,
            });
        }
        let seconds = Relative::new(iterations, "seconds of an iteration", |iteration| {
            (seconds_terms(iteration), iteration.seconds)
        })?;
        let bytes = Relative::new(iterations, "bytes of an iteration", |iteration| {
            (bytes_terms(iteration), iteration.bytes)
        })?;
        let ([constant, token, squared, rank_token, task], seconds_errors) = seconds.solve()?;
        let ([bytes_constant, bytes_token, bytes_squared, bytes_rank], bytes_errors) =
            bytes.solve()?;
        let costs = Self {
            seconds_constant: constant,
            seconds_per_token: token,
            seconds_per_squared_token: squared,
            seconds_per_padding_token: token,
            seconds_per_rank_token: rank_token,
            seconds_per_task: task,
            bytes_constant,
            bytes_per_token: bytes_token,
            bytes_per_squared_token: bytes_squared,
            adapter_bytes_per_rank: bytes_rank,
            ..Self::default()
        };
        costs.validate()?;
        Ok(FittedCosts {
            costs,
            seconds_errors,
            bytes_errors,
        })
    }
}

fn seconds_terms(iteration: &TimedIteration) -> [f64; SECONDS_TERMS] {
    let sum = |of: fn([f64; 3]) -> f64| sum_over_tasks(iteration, of);
    [
        1.0,
        sum(|[_, rows, length]| rows * length),
        sum(|[_, rows, length]| rows * length * length),
        sum(|[rank, rows, length]| rank * rows * length),
        iteration.tasks.len() as f64,
    ]
}

fn bytes_terms(iteration: &TimedIteration) -> [f64; BYTES_TERMS] {
    let sum = |of: fn([f64; 3]) -> f64| sum_over_tasks(iteration, of);
    [
        1.0,
        sum(|[_, rows, length]| rows * length),
        sum(|[_, rows, length]| rows * length * length),
        sum(|[rank, _, _]| rank),
    ]
}

fn sum_over_tasks(iteration: &TimedIteration, of: fn([f64; 3]) -> f64) -> f64 {
    iteration
        .tasks
        .iter()
        .map(|task| of(task.map(|value| value as f64)))
        .sum()
}

/// Features of iterations, each divided by the measurement, so that every target is 1.
struct Relative<const TERMS: usize>(DMatrix<f64>);

impl<const TERMS: usize> Relative<TERMS> {
    fn new(
        iterations: &[TimedIteration],
        name: &'static str,
        of: impl Fn(&TimedIteration) -> ([f64; TERMS], f64),
    ) -> Result<Self, SimulationError> {
        let mut rows = DMatrix::zeros(iterations.len(), TERMS);
        for (mut row, iteration) in rows.row_iter_mut().zip(iterations) {
            let (terms, measured) = of(iteration);
            if !(measured.is_finite() && measured > 0.0) {
                return Err(SimulationError::OutOfRange {
                    name,
                    value: measured,
                    expected: "finite and above 0",
                });
            }
            for (value, term) in row.iter_mut().zip(terms) {
                *value = term / measured;
            }
        }
        Ok(Self(rows))
    }

    fn solve(&self) -> Result<([f64; TERMS], Vec<f64>), SimulationError> {
        let ones = DVector::from_element(self.0.nrows(), 1.0);
        let found = nnls(&self.0, &ones).ok_or(SimulationError::NotFitted)?;
        let errors = (&self.0 * &found - ones).iter().copied().collect();
        Ok((std::array::from_fn(|term| found[term]), errors))
    }
}

#[cfg(test)]
mod tests {
    use super::{Costs, TimedIteration};
    use crate::SimulationError;

    /// Iterations of one to three tasks, and what they take at these costs.
    fn measured(costs: &Costs) -> Vec<TimedIteration> {
        let tasks = [
            vec![[4, 1, 100]],
            vec![[8, 2, 100], [2, 1, 300]],
            vec![[16, 1, 700]],
            vec![[2, 8, 50], [4, 4, 60], [64, 1, 90]],
            vec![[16, 4, 200], [16, 4, 400]],
            vec![[1, 2, 30]],
            vec![[32, 3, 256], [4, 3, 256], [8, 1, 10]],
        ];
        let iteration = |tasks: Vec<[usize; 3]>| {
            let (mut seconds, mut bytes) = (costs.seconds_constant, costs.bytes_constant);
            for task in &tasks {
                let [rank, rows, length] = task.map(|value| value as f64);
                let tokens = rows * length;
                seconds += costs.seconds_per_token * tokens
                    + costs.seconds_per_squared_token * tokens * length
                    + costs.seconds_per_rank_token * tokens * rank
                    + costs.seconds_per_task;
                bytes += costs.bytes_per_token * tokens
                    + costs.bytes_per_squared_token * tokens * length
                    + costs.adapter_bytes_per_rank * rank;
            }
            TimedIteration {
                tasks,
                seconds,
                bytes,
            }
        };
        tasks.into_iter().map(iteration).collect()
    }

    #[test]
    fn costs_are_found_again() {
        let costs = Costs {
            bytes_per_squared_token: 30.0,
            ..Costs::default()
        };
        let found = Costs::fit(&measured(&costs)).unwrap();
        let pairs = [
            (found.costs.seconds_constant, costs.seconds_constant),
            (found.costs.seconds_per_token, costs.seconds_per_token),
            (
                found.costs.seconds_per_squared_token,
                costs.seconds_per_squared_token,
            ),
            (
                found.costs.seconds_per_rank_token,
                costs.seconds_per_rank_token,
            ),
            (found.costs.seconds_per_task, costs.seconds_per_task),
            (found.costs.bytes_constant, costs.bytes_constant),
            (found.costs.bytes_per_token, costs.bytes_per_token),
            (
                found.costs.bytes_per_squared_token,
                costs.bytes_per_squared_token,
            ),
            (
                found.costs.adapter_bytes_per_rank,
                costs.adapter_bytes_per_rank,
            ),
        ];
        for (found, expected) in pairs {
            assert!((found / expected - 1.0).abs() < 1e-7, "{found} {expected}");
        }
        let errors = found.seconds_errors.iter().chain(&found.bytes_errors);
        assert!(errors.into_iter().all(|error| error.abs() < 1e-9));
    }

    #[test]
    fn an_error_is_a_share_of_what_was_measured() {
        let mut iterations = measured(&Costs::default());
        iterations[3].seconds *= 2.0;
        let found = Costs::fit(&iterations).unwrap();
        // Half of the measured value is the expected one.
        let error = found.seconds_errors[3];
        assert!(error < -0.1 && error > -0.5, "{:?}", found.seconds_errors);
        assert!(found.bytes_errors.iter().all(|error| error.abs() < 1e-9));
    }

    #[test]
    fn too_little_and_nonsense_are_refused() {
        let iterations = measured(&Costs::default());
        let message = Costs::fit(&iterations[..4]).unwrap_err().to_string();
        assert_eq!(
            message,
            "cannot fit costs to 4 measured iterations; at least 5 are needed"
        );
        let mut wrong = iterations;
        wrong[2].bytes = 0.0;
        assert!(matches!(
            Costs::fit(&wrong),
            Err(SimulationError::OutOfRange {
                name: "bytes of an iteration",
                ..
            })
        ));
    }
}
