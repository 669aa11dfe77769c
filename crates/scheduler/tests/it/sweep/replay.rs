use loraloom_scheduler::{Asha, TaskId};

use crate::sweep::{
    curves::{Curve, STEPS},
    split_mix::SplitMix,
};

/// How trials share the machine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrival {
    /// Trials that train at a time; a place that gets free goes to the next in a random line.
    pub(crate) places: usize,
    /// A trial takes a step every so many iterations, from 1 to this: each its own number.
    pub(crate) slowest: usize,
}

impl Arrival {
    pub(crate) const fn new(places: usize, slowest: usize) -> Self {
        Self { places, slowest }
    }
}

/// What became of a sweep.
pub(crate) struct Replayed {
    /// Steps that each trial took.
    pub(crate) steps: Vec<usize>,
}

impl Replayed {
    pub(crate) fn cost(&self) -> f64 {
        let taken: usize = self.steps.iter().sum();
        taken as f64 / (self.steps.len() * STEPS) as f64
    }

    pub(crate) fn is_finished(&self, trial: usize) -> bool {
        self.steps[trial] == STEPS
    }
}

/// Trains all curves under `asha`, which hears of every tenth step.
pub(crate) fn replay(
    curves: &[Curve],
    mut asha: Asha,
    arrival: Arrival,
    random: &mut SplitMix,
) -> Replayed {
    let mut line: Vec<usize> = (0..curves.len()).collect();
    random.shuffle(&mut line);
    let mut line = line.into_iter();
    let periods: Vec<usize> = (0..curves.len())
        .map(|_| random.index(1, arrival.slowest + 1))
        .collect();
    for trial in 0..curves.len() {
        asha.enter(TaskId(trial as u64), STEPS);
    }
    let mut steps = vec![0_usize; curves.len()];
    let mut running: Vec<usize> = line.by_ref().take(arrival.places).collect();
    let mut iteration = 0_usize;
    while !running.is_empty() {
        iteration += 1;
        let mut ended = Vec::new();
        for &trial in &running {
            if !iteration.is_multiple_of(periods[trial]) {
                continue;
            }
            steps[trial] += 1;
            let step = steps[trial];
            if step.is_multiple_of(10) {
                let loss = curves[trial].measured(step, random);
                asha.report(TaskId(trial as u64), step, loss);
            }
            if step == STEPS {
                ended.push(trial);
            }
        }
        ended.extend(asha.judge().iter().map(|stop| stop.trial.0 as usize));
        running.retain(|trial| !ended.contains(trial));
        let free = arrival.places - running.len();
        running.extend(line.by_ref().take(free));
    }
    Replayed { steps }
}
