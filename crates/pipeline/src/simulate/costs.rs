use std::ops::Add;

use super::TimelineError;

/// Seconds that one group's operations take on one stage.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
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
pub struct ScheduleCosts {
    by_stage: Vec<Vec<PassCosts>>,
}

impl ScheduleCosts {
    /// `by_stage[stage][group]`.
    ///
    /// # Errors
    /// If a cost is negative, infinite or not a number.
    pub fn new(by_stage: Vec<Vec<PassCosts>>) -> Result<Self, TimelineError> {
        for (stage, groups) in by_stage.iter().enumerate() {
            for (group, costs) in groups.iter().enumerate() {
                let mut all = [costs.forward, costs.backward, costs.step].into_iter();
                if let Some(seconds) = all.find(|seconds| !(seconds.is_finite() && *seconds >= 0.0))
                {
                    return Err(TimelineError::Cost {
                        stage,
                        group,
                        seconds,
                    });
                }
            }
        }
        Ok(Self { by_stage })
    }

    /// The same costs for all stages and groups.
    ///
    /// # Errors
    /// If a cost is negative, infinite or not a number.
    pub fn uniform(stages: usize, groups: usize, costs: PassCosts) -> Result<Self, TimelineError> {
        Self::new(vec![vec![costs; groups]; stages])
    }

    pub(super) fn of(&self, stage: usize, group: usize) -> PassCosts {
        self.by_stage[stage][group]
    }

    pub(super) fn check(&self, stages: usize, groups: usize) -> Result<(), TimelineError> {
        TimelineError::expect("stages with costs", stages, self.by_stage.len())?;
        for row in &self.by_stage {
            TimelineError::expect("groups with costs", groups, row.len().min(groups))?;
        }
        Ok(())
    }
}

/// The connection of two neighbouring stages. Each direction carries one transfer at a time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Link {
    /// Bytes a second in each direction; may be infinite.
    pub bytes_per_second: f64,
    /// Seconds from a transfer's last byte to its use. The next transfer does not wait for them.
    pub latency: f64,
}

impl Link {
    /// A link that takes no time.
    pub const INSTANT: Self = Self {
        bytes_per_second: f64::INFINITY,
        latency: 0.0,
    };
}

/// All links of a pipeline, and the sizes of transfers.
#[derive(Debug, Clone, PartialEq)]
pub struct Links {
    links: Vec<Link>,
    bytes_by_group: Vec<f64>,
}

impl Links {
    /// `links[k]` connects stages `k` and `k + 1`; a micro-batch of group `g` takes
    /// `bytes_by_group[g]` bytes over each, as activations one way and as their gradient the other.
    ///
    /// # Errors
    /// If a bandwidth is not positive, or a latency or size is negative or not finite.
    pub fn new(links: Vec<Link>, bytes_by_group: Vec<f64>) -> Result<Self, TimelineError> {
        for (index, link) in links.iter().enumerate() {
            let usable = link.bytes_per_second > 0.0 && link.latency.is_finite();
            if !usable || link.latency < 0.0 {
                return Err(TimelineError::Link {
                    index,
                    bytes_per_second: link.bytes_per_second,
                    latency: link.latency,
                });
            }
        }
        for (group, &bytes) in bytes_by_group.iter().enumerate() {
            if !(bytes.is_finite() && bytes >= 0.0) {
                return Err(TimelineError::Bytes { group, bytes });
            }
        }
        Ok(Self {
            links,
            bytes_by_group,
        })
    }

    /// Links between `stages` stages that take no time.
    pub fn instant(stages: usize, groups: usize) -> Self {
        Self {
            links: vec![Link::INSTANT; stages.saturating_sub(1)],
            bytes_by_group: vec![0.0; groups],
        }
    }

    pub(super) fn link(&self, index: usize) -> Link {
        self.links[index]
    }

    pub(super) fn bytes(&self, group: usize) -> f64 {
        self.bytes_by_group[group]
    }

    pub(super) fn check(&self, stages: usize, groups: usize) -> Result<(), TimelineError> {
        TimelineError::expect("links", stages.saturating_sub(1), self.links.len())?;
        let sizes = self.bytes_by_group.len().min(groups);
        TimelineError::expect("groups with a size", groups, sizes)
    }
}
