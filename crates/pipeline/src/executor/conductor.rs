use std::{
    collections::HashMap,
    sync::{Arc, mpsc::Receiver},
    time::Instant,
};

use super::{
    run::{GroupOutcome, IterationOutcome, IterationPlan, IterationPlanner},
    stage_loop::{Report, Results, Work},
    times::{StageTimes, TransferTimes},
};
use crate::{
    PipelineError,
    schedule::{Operation, PipelineShape},
};

/// Message of a stage to the conductor.
#[derive(Debug)]
pub(super) enum Notice {
    /// A stage finished a group's iteration.
    Report(Report),
    /// A stage failed; its own result says why.
    Failed {
        /// The stage.
        stage: usize,
    },
}

/// Hands operations to all stages, and books iterations as they end.
#[derive(Debug)]
pub(super) struct Conductor<'a> {
    pub(super) shape: &'a PipelineShape,
    /// True if stages `k` and `k + 1` are in different processes.
    pub(super) linked: Vec<bool>,
    pub(super) notices: Receiver<Notice>,
    /// Iterations that are begun before the first of them is waited for.
    pub(super) lookahead: usize,
    /// Of iterations that are not booked yet, by iteration.
    pub(super) reports: HashMap<usize, Vec<Report>>,
}

impl Conductor<'_> {
    /// Goes through `order`. No iteration begins after one without a plan or a booking that ends
    /// the run; iterations that have begun are completed.
    pub(super) fn conduct<T: IterationPlanner>(
        &mut self,
        order: &[(usize, Operation)],
        planner: &mut T,
        mut hand_out: impl FnMut(usize, Work) -> Result<(), PipelineError>,
    ) -> Result<(), T::Error> {
        let mut plans: HashMap<usize, Arc<IterationPlan>> = HashMap::new();
        let (mut begun, mut booked, mut end) = (0, 0, self.shape.iterations);
        for &(stage, operation) in order {
            let iteration = operation.iteration();
            if iteration == begun && begun < end {
                while booked + self.lookahead <= begun {
                    if !planner.book(self.outcome(booked)?)? {
                        end = begun;
                    }
                    plans.remove(&booked);
                    booked += 1;
                }
                if begun < end {
                    match planner.plan(begun)? {
                        Some(plan) => {
                            plans.insert(begun, Arc::new(plan));
                            begun += 1;
                        }
                        None => end = begun,
                    }
                }
            }
            if let Some(plan) = plans.get(&iteration) {
                let plan = plan.clone();
                hand_out(stage, Work { operation, plan })?;
            }
        }
        for iteration in booked..begun {
            planner.book(self.outcome(iteration)?)?;
        }
        Ok(())
    }

    /// Waits for an iteration's results.
    fn outcome(&mut self, iteration: usize) -> Result<IterationOutcome, PipelineError> {
        let PipelineShape { stages, groups, .. } = *self.shape;
        while self.reports.get(&iteration).map_or(0, Vec::len) < stages * groups {
            match self.notices.recv() {
                Ok(Notice::Report(report)) => {
                    self.reports
                        .entry(report.iteration)
                        .or_default()
                        .push(report);
                }
                Ok(Notice::Failed { stage }) => return Err(PipelineError::Stopped { stage }),
                // Stages keep their senders until the last iteration is booked.
                Err(_) => return Err(PipelineError::Stopped { stage: 0 }),
            }
        }
        let reports = self.reports.remove(&iteration).unwrap_or_default();
        let mut outcome = IterationOutcome {
            iteration,
            groups: vec![GroupOutcome::default(); groups],
            at: Instant::now(),
            busy: vec![Some(0.0); stages],
            passes: Vec::new(),
            transfers: None,
            host_peak_bytes: None,
        };
        let mut times: Vec<Vec<Option<StageTimes>>> = vec![vec![None; stages]; groups];
        let mut last = None;
        for report in reports {
            let stage = report.stage;
            let of_stage = &mut times[report.group][stage];
            *of_stage = report.times;
            outcome.host_peak_bytes = outcome.host_peak_bytes.max(report.host_peak_bytes);
            let Some(Results {
                readback,
                losses,
                clock,
            }) = report.results
            else {
                continue;
            };
            let (mut values, at) = readback.wait()?;
            last = last.max(Some(at));
            if let Some(clock) = clock {
                let read = |values: Vec<_>| StageTimes::from_values(&values, clock.difference());
                *of_stage = values.pop().map(read);
            }
            let norms = values.split_off(losses);
            let group = &mut outcome.groups[report.group];
            group.losses.extend(values);
            if let Some(norms) = norms.into_iter().next() {
                group.squared_norms = norms;
            }
        }
        outcome.at = last.unwrap_or(outcome.at);
        let measured = times.iter().flatten().all(Option::is_some);
        if stages > 1 && measured {
            let all = times.iter().enumerate().flat_map(|(group, stages)| {
                let stages = stages.iter().flatten().enumerate();
                stages.flat_map(move |(stage, times)| times.passes(stage, group))
            });
            outcome.passes = all.collect();
        }
        let mut transfers = Some(TransferTimes::default());
        for group in &times {
            for (sum, times) in outcome.busy.iter_mut().zip(group) {
                *sum = sum.zip(times.as_ref()).map(|(sum, times)| sum + times.busy);
            }
            let stages = group.iter().map(Option::as_ref);
            let stages = stages.map(|times| times.map(|times| times.microbatches.as_slice()));
            let of_group = TransferTimes::of(&stages.collect::<Vec<_>>(), &self.linked);
            transfers = transfers.zip(of_group).map(|(mut sum, part)| {
                sum += part;
                sum
            });
        }
        outcome.transfers = transfers.filter(|_| !times.is_empty());
        Ok(outcome)
    }
}
