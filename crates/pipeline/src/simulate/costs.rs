use std::ops::Add;

use super::SimulationError;

/// Seconds that one group's operations take on one stage.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PassCosts {
    /// One micro-batch forward.
    pub forward: f64,
    /// One micro-batch backward.
    pub backward: f64,
    /// One optimizer step.
    pub step: f64,
}

impl Add for PassCosts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            forward: self.forward + other.forward,
            backward: self.backward + other.backward,
            step: self.step + other.step,
        }
    }
}

/// Seconds of every operation, by stage and group.
#[derive(Debug, Clone, PartialEq)]
pub struct Costs {
    by_stage: Vec<Vec<PassCosts>>,
}

impl Costs {
    /// `by_stage[stage][group]`.
    ///
    /// # Errors
    ///
    /// If a cost is negative, infinite or not a number.
    pub fn new(by_stage: Vec<Vec<PassCosts>>) -> Result<Self, SimulationError> {
        for (stage, groups) in by_stage.iter().enumerate() {
            for (group, costs) in groups.iter().enumerate() {
                for seconds in [costs.forward, costs.backward, costs.step] {
                    if !(seconds.is_finite() && seconds >= 0.0) {
                        return Err(SimulationError::Cost {
                            stage,
                            group,
                            seconds,
                        });
                    }
                }
            }
        }
        Ok(Self { by_stage })
    }

    /// The same costs for all stages and groups.
    ///
    /// # Errors
    ///
    /// If a cost is negative, infinite or not a number.
    pub fn uniform(
        stages: usize,
        groups: usize,
        costs: PassCosts,
    ) -> Result<Self, SimulationError> {
        Self::new(vec![vec![costs; groups]; stages])
    }

    pub(super) fn of(&self, stage: usize, group: usize) -> PassCosts {
        self.by_stage[stage][group]
    }

    pub(super) fn check(&self, stages: usize, groups: usize) -> Result<(), SimulationError> {
        SimulationError::expect("stages with costs", stages, self.by_stage.len())?;
        for row in &self.by_stage {
            if row.len() < groups {
                SimulationError::expect("groups with costs", groups, row.len())?;
            }
        }
        Ok(())
    }
}
