//! Simulates the pipeline.

use loraloom_config::Schedule;
use loraloom_model::cost::Operations;
use loraloom_pipeline::{
    schedule::{Operation, PipelineShape, operations},
    simulate::{
        Link, Links, PassCosts, ScheduleCosts, StageReport, Timeline, TimelineError, bubble_gpipe,
        bubble_lorapp, simulate,
    },
};

use super::report::PlannedBubble;

/// Number of iterations that are simulated for the steady state, and of those that are drawn.
const ITERATIONS: usize = 12;
const DRAWN: usize = 3;

/// Assumed speeds.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Speeds {
    /// 10¹² operations a second of a stage. Without it times have no unit, and the chart is drawn for a speed of one.
    pub tflops: Option<f64>,
    /// Bytes a second between stages, in each direction. Without it transfers take no time.
    pub link_bytes_per_second: Option<f64>,
}

impl Speeds {
    fn operations_per_second(self) -> f64 {
        self.tflops.unwrap_or(1.0) * 1e12
    }
}

/// The pipeline to simulate.
#[derive(Debug)]
pub(super) struct Pipeline {
    pub(super) schedule: Schedule,
    /// Micro-batches of a step: the most of any group. Each group's work is spread evenly over this many.
    pub(super) microbatches: usize,
    /// See [`PipelineShape::extra_warmup`].
    pub(super) extra_warmup: usize,
    /// Operations of a group's step, `[stage][group]`.
    pub(super) operations: Vec<Vec<Operations>>,
    /// Bytes of a group's step in each direction, `[group]`.
    pub(super) step_bytes: Vec<f64>,
}

/// Results of the simulation.
#[derive(Debug)]
pub(super) struct Prediction {
    /// Timeline of many iterations.
    pub(super) long: Timeline,
    /// Timeline of the first iterations.
    pub(super) drawn: Timeline,
    pub(super) bubble: PlannedBubble,
    /// Seconds from one iteration to the next.
    pub(super) seconds_per_iteration: f64,
}

impl Pipeline {
    /// Simulates the pipeline.
    ///
    /// # Errors
    /// If a speed is zero, negative or not finite.
    pub(super) fn predict(&self, speeds: Speeds) -> Result<Prediction, TimelineError> {
        let run = |iterations| self.simulate(speeds, iterations);
        let (long, drawn, one) = (run(ITERATIONS)?, run(DRAWN)?, run(1)?);
        let steady = long.steady_steps_per_second();
        let steps_per_second = steady.unwrap_or(long.steps_per_second());
        let (stages, microbatches) = (self.operations.len(), self.microbatches);
        let groups = self.step_bytes.len();
        let bubble = PlannedBubble {
            closed_form: match self.schedule {
                Schedule::LoraPp => bubble_lorapp(stages, groups, microbatches),
                Schedule::OneFOneB | Schedule::GPipe => bubble_gpipe(stages, microbatches),
            },
            simulated: mean(long.stages.iter().map(steady_bubble)),
            simulated_if_drained: mean(one.stages.iter().map(|stage| stage.whole.bubble())),
        };
        Ok(Prediction {
            seconds_per_iteration: if steps_per_second > 0.0 {
                groups as f64 / steps_per_second
            } else {
                0.0
            },
            long,
            drawn,
            bubble,
        })
    }

    fn simulate(&self, speeds: Speeds, iterations: usize) -> Result<Timeline, TimelineError> {
        let (stages, groups) = (self.operations.len(), self.step_bytes.len());
        let parts = self.microbatches as f64;
        let shape = PipelineShape::new(stages, groups, self.microbatches, iterations)
            .with_extra_warmup(self.extra_warmup);
        let seconds = |operations: f64| operations / parts / speeds.operations_per_second();
        let pass = |operations: &Operations| PassCosts {
            forward: seconds(operations.forward),
            backward: seconds(operations.backward),
            step: 0.0,
        };
        let by_stage = self.operations.iter();
        let by_stage = by_stage.map(|groups| groups.iter().map(pass).collect());
        let link = Link {
            bytes_per_second: speeds.link_bytes_per_second.unwrap_or(f64::INFINITY),
            latency: 0.0,
        };
        let bytes = self.step_bytes.iter().map(|bytes| bytes / parts).collect();
        let links = Links::new(vec![link; stages.saturating_sub(1)], bytes)?;
        let costs = ScheduleCosts::new(by_stage.collect())?;
        simulate(&operations(self.schedule, &shape), &costs, &links)
    }
}

/// The idle part of a stage's time, once the pipeline is full.
pub(super) fn steady_bubble(stage: &StageReport) -> f64 {
    // Rounding may make it slightly negative.
    stage.steady.unwrap_or(stage.whole).bubble().max(0.0)
}

/// The largest sum, at any time, over the micro-batches between their forward and their backward pass; `by_group` has
/// the size of each.
pub(super) fn most_held(stage: &StageReport, by_group: &[usize]) -> usize {
    let (mut held, mut most) = (0, 0);
    for interval in &stage.intervals {
        match interval.operation {
            Operation::Forward { group, .. } => held += by_group[group],
            Operation::Backward { group, .. } => held -= by_group[group],
            Operation::Step { .. } => {}
        }
        most = most.max(held);
    }
    most
}

fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len().max(1) as f64;
    (values.sum::<f64>() / count).max(0.0)
}

#[cfg(test)]
mod tests {
    use loraloom_config::Schedule;
    use loraloom_model::cost::Operations;

    use super::{Pipeline, Speeds, most_held};

    const PASS: Operations = Operations {
        forward: 1e12,
        backward: 2e12,
    };

    fn pipeline(schedule: Schedule, stages: usize, groups: usize) -> Pipeline {
        Pipeline {
            schedule,
            microbatches: 1,
            extra_warmup: 0,
            operations: vec![vec![PASS; groups]; stages],
            step_bytes: vec![1e9; groups],
        }
    }

    #[test]
    fn equal_stages_agree_with_the_closed_forms() {
        for schedule in [Schedule::LoraPp, Schedule::OneFOneB, Schedule::GPipe] {
            for (stages, groups) in [(1, 1), (2, 1), (2, 2), (4, 2), (4, 4), (4, 6)] {
                let planned = pipeline(schedule, stages, groups);
                let bubble = planned.predict(Speeds::default()).unwrap().bubble;
                let difference = (bubble.simulated - bubble.closed_form).abs();
                assert!(
                    difference < 1e-9,
                    "{schedule:?} {stages} {groups}: {bubble:?}"
                );
                assert!(bubble.simulated_if_drained >= bubble.simulated - 1e-9);
            }
        }
    }

    #[test]
    fn time_is_operations_over_speed_and_links_add_to_it() {
        let planned = pipeline(Schedule::GPipe, 2, 1);
        let seconds = |tflops, link_bytes_per_second| {
            let speeds = Speeds {
                tflops,
                link_bytes_per_second,
            };
            planned.predict(speeds).unwrap().seconds_per_iteration
        };
        // Two stages, each three operations of one second, one after another.
        assert!((seconds(Some(1.0), None) - 6.0).abs() < 1e-9);
        assert!((seconds(Some(4.0), None) - 1.5).abs() < 1e-9);
        assert!((seconds(Some(1.0), Some(1e9)) - 8.0).abs() < 1e-9);
        let none = Speeds {
            tflops: Some(0.0),
            link_bytes_per_second: None,
        };
        assert!(planned.predict(none).is_err());
    }

    #[test]
    fn a_slow_stage_leaves_the_others_idle() {
        let mut planned = pipeline(Schedule::LoraPp, 2, 2);
        planned.operations[1] = vec![
            Operations {
                forward: 2e12,
                backward: 4e12
            };
            2
        ];
        let found = planned.predict(Speeds::default()).unwrap();
        // Half of the first stage's time.
        assert!((found.bubble.simulated - 0.25).abs() < 1e-9, "{found:?}");
        assert!(found.bubble.closed_form.abs() < 1e-12);
    }

    #[test]
    fn what_is_held_is_summed_by_group() {
        let planned = pipeline(Schedule::LoraPp, 2, 2);
        let long = planned.predict(Speeds::default()).unwrap().long;
        assert_eq!(most_held(&long.stages[0], &[10, 1]), 11);
        assert_eq!(most_held(&long.stages[1], &[10, 1]), 10);
    }
}
