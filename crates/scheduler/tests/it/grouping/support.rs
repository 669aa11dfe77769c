use loraloom_scheduler::{
    Budget, GroupedRoom, GroupingOptions, Load, Member, Refusal, Room, StepTimeModel, Task, TaskId,
};

/// A device about as fast as a small GPU: 50 ms a pass, 20,000 tokens a second beyond that.
pub(crate) const MODEL: StepTimeModel = StepTimeModel {
    pass: 0.05,
    token: 5e-5,
    rank_token: 5e-7,
    segment: 0.002,
};

pub(crate) fn task(id: u64, rank: usize, rows: usize, length: usize) -> Task {
    let tokens = (rows * length) as u64;
    Task {
        id: TaskId(id),
        name: format!("adapter-{id}"),
        tenant: "default".into(),
        priority: 0,
        arrival: id,
        rank,
        rows_per_step: rows,
        tokens_per_step: rows * length,
        total_steps: 10,
        passes_per_step: 1,
        max_parts: rows,
        load: Load {
            tokens,
            squared_tokens: tokens * length as u64,
            adapter_bytes: 1000 * rank as u64,
            certain_bytes: 0,
        },
    }
}

/// A device that holds so many tokens of a pass.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tokens(pub(crate) u64);

impl Budget for Tokens {
    fn fits(&self, load: Load, _: usize) -> bool {
        load.tokens <= self.0
    }

    fn refusal(&self, load: Load, tasks: usize) -> Refusal {
        Refusal {
            reason: format!(
                "{} tokens of {tasks} tasks, room for {}",
                load.tokens, self.0
            ),
        }
    }
}

pub(crate) fn devices(count: usize, options: GroupingOptions) -> GroupedRoom<Tokens> {
    GroupedRoom::per_group(vec![Tokens(u64::MAX); count], options).expect("usable options")
}

pub(crate) fn pipeline(stages: usize, options: GroupingOptions) -> GroupedRoom<Tokens> {
    let stages = stages.try_into().expect("a stage");
    GroupedRoom::shared(stages, vec![Tokens(u64::MAX)], options).expect("usable options")
}

/// The group in which a task is, and its parts.
pub(crate) fn find(room: &impl Room, task: TaskId) -> Option<(usize, Member)> {
    let groups = room.groups().into_iter().enumerate();
    let mut members = groups.flat_map(|(number, group)| {
        let members = group.into_iter();
        members.map(move |member| (number, member))
    });
    members.find(|(_, member)| member.task == task)
}

/// Random numbers that are the same everywhere (splitmix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % bound as u64) as usize
    }

    pub(crate) fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// A task with tLoRA's ranks and batch sizes.
    pub(crate) fn task(&mut self, id: u64, longest: usize) -> Task {
        let rank = self.of(&[2, 4, 8, 16]);
        let rows = self.of(&[1, 2, 4, 8]);
        let length = 64 + self.below(longest - 63);
        task(id, rank, rows, length)
    }

    /// Devices that differ in what a pass costs whatever is in it.
    pub(crate) fn model(&mut self) -> StepTimeModel {
        let pass = self.of(&[0.002, 0.01, 0.05]);
        StepTimeModel { pass, ..MODEL }
    }
}
