use crate::{
    part_costs::ROUNDS,
    schedule::{Operation, PipelineShape, Schedule},
    simulate::{SimulationError, submission_order},
};

/// No pass of another stage.
const NOTHING: usize = usize::MAX;

/// LoRAPP with as many groups as stages, laid out once so that it can be timed for thousands of
/// partitions: what [`PartCosts::steps_per_second`](crate::PartCosts::steps_per_second) simulates, to
/// the same bits.
#[derive(Debug)]
pub(super) struct Clock {
    /// In an order in which what a pass needs comes before it.
    passes: Vec<Pass>,
    /// The first passes of the step in the middle and of the last one on stage 0.
    window: [usize; 2],
    /// Optimizer steps of all groups between these.
    steps: f64,
    /// By stage and by pass: when it ends.
    free: Vec<f64>,
    ends: Vec<f64>,
}

#[derive(Debug, Clone, Copy)]
struct Pass {
    stage: usize,
    /// Where its time is; see [`Clock::index`].
    time: usize,
    /// The pass of a neighbour that it waits for.
    needs: usize,
}

impl Clock {
    /// # Errors
    /// If the schedule cannot be ordered.
    pub(super) fn new(stages: usize) -> Result<Self, SimulationError> {
        let shape = PipelineShape::new(stages, stages, 1, ROUNDS);
        let order = submission_order(&Schedule::LoraPp.operations(&shape))?;
        // By stage, group, step and direction: where its pass is.
        let at = |stage: usize, group: usize, step: usize, backward: bool| {
            ((stage * stages + group) * ROUNDS + step) * 2 + usize::from(backward)
        };
        let mut places = vec![NOTHING; stages * stages * ROUNDS * 2];
        let mut passes = Vec::with_capacity(places.len());
        let mut firsts = [NOTHING; ROUNDS];
        for (stage, operation) in order {
            let (group, step) = (operation.group(), operation.step());
            let (backward, neighbour) = match operation {
                Operation::Forward { .. } => (false, stage.checked_sub(1)),
                Operation::Backward { .. } => {
                    (true, Some(stage + 1).filter(|&above| above < stages))
                }
                // Takes no time here.
                Operation::Step { .. } => continue,
            };
            if stage == 0 && !backward && firsts[step] == NOTHING {
                firsts[step] = passes.len();
            }
            places[at(stage, group, step, backward)] = passes.len();
            let needs = neighbour.map_or(NOTHING, |stage| places[at(stage, group, step, backward)]);
            passes.push(Pass {
                stage,
                time: Self::index(stages, stage, group, backward),
                needs,
            });
        }
        let middle = ROUNDS / 2;
        Ok(Self {
            window: [firsts[middle], firsts[ROUNDS - 1]],
            steps: (stages * (ROUNDS - 1 - middle)) as f64,
            free: vec![0.0; stages],
            ends: vec![0.0; passes.len()],
            passes,
        })
    }

    /// Where in the times the pass of a stage for a group is.
    pub(super) fn index(stages: usize, stage: usize, group: usize, backward: bool) -> usize {
        (stage * stages + group) * 2 + usize::from(backward)
    }

    /// Passes that are timed together.
    pub(super) fn passes(&self) -> usize {
        self.passes.len()
    }

    /// Optimizer steps of groups in a unit of the times, which are by stage, group and direction.
    pub(super) fn steps_per_second(&mut self, times: &[f64]) -> f64 {
        self.free.fill(0.0);
        let mut starts = [0.0; 2];
        for (index, pass) in self.passes.iter().enumerate() {
            let mut start = self.free[pass.stage];
            if pass.needs != NOTHING {
                start = start.max(self.ends[pass.needs]);
            }
            for (place, at) in starts.iter_mut().zip(self.window) {
                if index == at {
                    *place = start;
                }
            }
            let end = start + times[pass.time];
            self.free[pass.stage] = end;
            self.ends[index] = end;
        }
        let seconds = starts[1] - starts[0];
        if seconds > 0.0 {
            self.steps / seconds
        } else {
            0.0
        }
    }
}
