use loraloom_scheduler::Member;

/// One device of the simulation.
#[derive(Debug, Default)]
pub(super) struct Device {
    /// What the scheduler wants it to train.
    pub(super) assigned: Vec<Member>,
    /// What it trains.
    pub(super) stretch: Option<Stretch>,
    /// The members that were measured last.
    pub(super) measured: Vec<Member>,
}

/// Iterations of the same members, one after another.
#[derive(Debug)]
pub(super) struct Stretch {
    pub(super) members: Vec<Member>,
    /// Nanoseconds.
    pub(super) begun: u64,
    /// Nanoseconds of an iteration.
    pub(super) period: u64,
    /// Iterations until it ends.
    pub(super) iterations: u64,
    /// Iterations whose steps were counted.
    pub(super) counted: u64,
    /// Bytes held in each iteration.
    pub(super) bytes: f64,
}

impl Stretch {
    /// When its last iteration ends.
    pub(super) fn end(&self) -> u64 {
        self.begun
            .saturating_add(self.period.saturating_mul(self.iterations))
    }

    /// Iterations that have ended by now and were not counted yet; they are counted by this.
    pub(super) fn count(&mut self, now: u64) -> u64 {
        let ended = ((now - self.begun) / self.period).min(self.iterations);
        let new = ended - self.counted;
        self.counted = ended;
        new
    }

    /// Whether an iteration has just ended, and none has begun; all that have ended were counted.
    pub(super) fn is_at_boundary(&self, now: u64) -> bool {
        self.begun + self.period * self.counted == now
    }

    /// Ends it with the iteration that goes on.
    pub(super) fn cut(&mut self) {
        self.iterations = self.counted + 1;
    }
}

/// The device for each group: the one that is to train most of its tasks already, so that few move.
/// Groups choose in their order, of equal devices the first. Devices are alike, so nothing but
/// moving depends on it.
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
        let mut best = None;
        for (index, device) in devices.iter().enumerate() {
            let count = common(device);
            if !taken[index] && count > best.map_or(0, |(_, most)| most) {
                best = Some((index, count));
            }
        }
        if let Some((index, _)) = best {
            taken[index] = true;
        }
        chosen.push(best.map(|(index, _)| index));
    }
    let mut free = (0..devices.len()).filter(|&index| !taken[index]);
    let place = |device: Option<usize>| device.or_else(|| free.next()).unwrap_or(devices.len());
    chosen.into_iter().map(place).collect()
}

#[cfg(test)]
mod tests {
    use super::{Device, Stretch, devices_for};
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
        let mut stretch = Stretch {
            members: group(&[1]),
            begun: 100,
            period: 10,
            iterations: 5,
            counted: 0,
            bytes: 0.0,
        };
        assert_eq!((stretch.end(), stretch.count(109)), (150, 0));
        assert_eq!((stretch.count(125), stretch.count(125)), (2, 0));
        assert!(!stretch.is_at_boundary(125) && stretch.is_at_boundary(120));
        stretch.cut();
        assert_eq!((stretch.end(), stretch.count(1000)), (130, 1));
    }
}
