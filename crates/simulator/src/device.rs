//! Simulated devices.

use std::cmp::Reverse;

use loraloom_scheduler::Member;

use super::Costs;

/// The devices of a replay.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Devices {
    /// Number of devices; each has the whole backbone and trains one group. A pipeline with this number of
    /// stages that is never idle is the same if its groups take equally long.
    pub count: usize,
    /// Costs of iterations.
    pub costs: Costs,
    /// Padding of batches.
    pub padding: Padding,
    /// Standard deviation of measured seconds, relative to the true ones.
    pub noise: f64,
    /// Seed of the noise.
    pub seed: u64,
    /// Seconds after which a decision is made without news, while a device trains: for policies whose
    /// decisions follow from the tokens trained meanwhile. `None` decides only at news.
    pub decide_every: Option<f64>,
}

/// Padding of the rows of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Padding {
    /// A batch holds the tokens of its rows and nothing else, as loraloom's batches do.
    #[default]
    None,
    /// All rows of a batch are padded to its longest row, as mLoRA's are.
    ToLongest,
}

/// The state of a device.
#[derive(Debug, Default)]
pub(super) struct Device {
    /// The group that it is to train.
    pub(super) assigned: Vec<Member>,
    /// The iterations that it is in.
    pub(super) run: Option<IterationRun>,
    /// The members that were measured last.
    pub(super) measured: Vec<Member>,
}

/// Iterations of the same members, one after another.
#[derive(Debug)]
pub(super) struct IterationRun {
    pub(super) members: Vec<Member>,
    /// Nanoseconds.
    pub(super) begun: u64,
    /// Nanoseconds of an iteration.
    pub(super) period: u64,
    /// Iterations until it ends.
    pub(super) iterations: u64,
    /// Iterations whose steps are counted.
    pub(super) counted: u64,
    /// Bytes held in each iteration.
    pub(super) bytes: f64,
}

impl IterationRun {
    /// When its last iteration ends.
    pub(super) fn end(&self) -> u64 {
        self.begun
            .saturating_add(self.period.saturating_mul(self.iterations))
    }

    /// Counts the iterations that have ended by now, and returns how many are new.
    pub(super) fn count(&mut self, now: u64) -> u64 {
        let ended = ((now - self.begun) / self.period).min(self.iterations);
        let new = ended - self.counted;
        self.counted = ended;
        new
    }

    /// True if an iteration has just ended and the next has not begun. All ended ones must be counted.
    pub(super) fn is_at_boundary(&self, now: u64) -> bool {
        self.begun + self.period * self.counted == now
    }

    /// Ends it with the current iteration.
    pub(super) fn cut(&mut self) {
        self.iterations = self.counted + 1;
    }
}

/// The device for each group: the one with most of its tasks assigned, so that few move. Groups choose in
/// order, and of equal devices the first. Devices are alike, so the choice matters only for moves.
pub(super) fn devices_for(groups: &[Vec<Member>], devices: &[Device]) -> Vec<usize> {
    let mut taken = vec![false; devices.len()];
    let mut chosen: Vec<Option<usize>> = Vec::with_capacity(groups.len());
    for group in groups {
        let common = |device: &Device| {
            let is_there = |member: &&Member| {
                device
                    .assigned
                    .iter()
                    .any(|there| there.task == member.task)
            };
            group.iter().filter(is_there).count()
        };
        let best = (0..devices.len())
            .filter(|&index| !taken[index] && common(&devices[index]) > 0)
            .max_by_key(|&index| (common(&devices[index]), Reverse(index)));
        if let Some(index) = best {
            taken[index] = true;
        }
        chosen.push(best);
    }
    let mut free = (0..devices.len()).filter(|&index| !taken[index]);
    let place = |device: Option<usize>| device.or_else(|| free.next()).unwrap_or(devices.len());
    chosen.into_iter().map(place).collect()
}

#[cfg(test)]
mod tests {
    use super::{Device, IterationRun, devices_for};
    use loraloom_scheduler::{Member, TaskId};

    fn group(tasks: &[u64]) -> Vec<Member> {
        let member = |&task| Member {
            task: TaskId(task),
            parts: 1,
        };
        tasks.iter().map(member).collect()
    }

    #[test]
    fn groups_stay_where_most_of_their_tasks_are() {
        let devices: Vec<Device> = [group(&[1, 2, 3]), group(&[4]), group(&[])]
            .into_iter()
            .map(|assigned| Device {
                assigned,
                ..Device::default()
            })
            .collect();
        let groups = [group(&[9]), group(&[4, 3]), group(&[1, 2])];
        // The tie of 4 and 3 goes to the first device, which the third group then cannot have.
        assert_eq!(devices_for(&groups, &devices), [1, 0, 2]);
        assert_eq!(devices_for(&[group(&[4]), group(&[2])], &devices), [1, 0]);
        assert_eq!(devices_for(&[], &devices), [0; 0]);
    }

    #[test]
    fn iterations_are_counted_once_and_cut_at_their_end() {
        let mut run = IterationRun {
            members: group(&[1]),
            begun: 100,
            period: 10,
            iterations: 5,
            counted: 0,
            bytes: 0.0,
        };
        assert_eq!((run.end(), run.count(109)), (150, 0));
        assert_eq!((run.count(125), run.count(125)), (2, 0));
        assert!(!run.is_at_boundary(125) && run.is_at_boundary(120));
        run.cut();
        assert_eq!((run.end(), run.count(1000)), (130, 1));
    }
}
