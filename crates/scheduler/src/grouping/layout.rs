use super::{
    budget::{Budget, Memory},
    group::{Group, GroupMember, Iteration, Rejection, slower},
    level::level,
    options::Rules,
    profile::Profile,
};
use crate::{Load, Member, TaskId};

/// All groups and their tasks.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    pub(super) groups: Vec<Group>,
    /// True if all groups go through one pipeline of as many stages, rather than each having a
    /// device of its own.
    pipeline: bool,
    sequence: u64,
}

/// A group that a task may join.
struct Offer {
    group: usize,
    iteration: Iteration,
    empty: bool,
    score: f64,
    preferred: bool,
    tasks: usize,
}

impl Offer {
    fn beats(&self, other: &Self) -> bool {
        let empty = self.empty.cmp(&other.empty);
        empty
            .then_with(|| self.score.total_cmp(&other.score))
            .then_with(|| self.preferred.cmp(&other.preferred))
            .then_with(|| other.tasks.cmp(&self.tasks))
            .is_gt()
    }
}

impl Layout {
    /// Empty groups.
    pub(super) fn new<B>(memory: &Memory<B>, groups: usize) -> Self {
        Self {
            groups: vec![Group::default(); groups],
            pipeline: matches!(memory, Memory::Shared(_)),
            sequence: 0,
        }
    }

    pub(super) fn tasks_in(&self, group: usize) -> usize {
        self.groups[group].members.len()
    }

    pub(super) fn clear(&mut self) {
        self.groups.iter_mut().for_each(Group::clear);
    }

    /// The iteration of the group with one more task.
    pub(super) fn with<B: Budget>(
        &self,
        profile: &Profile,
        group: usize,
        memory: &Memory<B>,
        rules: &Rules,
    ) -> Result<Iteration, Rejection> {
        self.check_memory(profile, group, memory)?;
        let iteration = self.groups[group].with(profile, rules)?;
        if self.pipeline && rules.bounded() {
            let (_, together, apart) = self.pipeline_with(group, &iteration);
            if let Some(rejection) = slower(together, apart) {
                return Err(rejection);
            }
        }
        Ok(iteration)
    }

    /// As [`with`](Self::with), for a task that keeps its place in the group: only memory may refuse it.
    pub(super) fn kept<B: Budget>(
        &self,
        profile: &Profile,
        group: usize,
        memory: &Memory<B>,
        rules: &Rules,
    ) -> Result<Iteration, Rejection> {
        self.check_memory(profile, group, memory)?;
        Ok(self.groups[group].nearest(Some(profile), rules))
    }

    fn check_memory<B: Budget>(
        &self,
        profile: &Profile,
        group: usize,
        memory: &Memory<B>,
    ) -> Result<(), Rejection> {
        let (load, tasks) = self.asked_with(profile, group);
        match memory.overfull(group, load, tasks) {
            Some(device) => Err(Rejection::Memory {
                device,
                load,
                tasks,
            }),
            None => Ok(()),
        }
    }

    /// Load and number of tasks of a device with one more task.
    fn asked_with(&self, profile: &Profile, group: usize) -> (Load, usize) {
        let sharing = if self.pipeline {
            &self.groups[..]
        } else {
            &self.groups[group..=group]
        };
        let load: Load = sharing.iter().map(|group| group.load).sum();
        let tasks: usize = sharing.iter().map(|group| group.members.len()).sum();
        (load + profile.load, tasks + 1)
    }

    /// The group that suits a task best: an empty one; then the one with the largest gain in tokens a second,
    /// or the fewest tokens while step times are unknown; then the preferred one; then the one with fewer
    /// tasks; then the first.
    pub(super) fn best<B: Budget>(
        &self,
        profile: &Profile,
        preferred: Option<usize>,
        memory: &Memory<B>,
        rules: &Rules,
    ) -> Result<(usize, Iteration), Rejection> {
        let mut best: Option<Offer> = None;
        let mut rejected: Option<Rejection> = None;
        for group in 0..self.groups.len() {
            let iteration = match self.with(profile, group, memory, rules) {
                Ok(iteration) => iteration,
                Err(rejection) => {
                    rejected = Some(rejected.map_or(rejection, |other| other.or(rejection)));
                    continue;
                }
            };
            let score = if !rules.prices.known {
                -self.groups[group].whole_seconds_with(profile, &rules.prices)
            } else if self.pipeline {
                let (tokens, seconds, _) = self.pipeline_with(group, &iteration);
                tokens / seconds
            } else {
                iteration.rate() - self.groups[group].now.rate()
            };
            let tasks = self.tasks_in(group);
            let offer = Offer {
                group,
                iteration,
                empty: tasks == 0,
                score,
                preferred: preferred == Some(group),
                tasks,
            };
            if best.as_ref().is_none_or(|best| offer.beats(best)) {
                best = Some(offer);
            }
        }
        match best {
            Some(offer) => Ok((offer.group, offer.iteration)),
            None => Err(rejected.unwrap_or(Rejection::Memory {
                device: 0,
                load: profile.load,
                tasks: 1,
            })),
        }
    }

    /// Tokens and seconds of an iteration of the pipeline with this iteration of one group, and seconds of
    /// the same steps one after another.
    fn pipeline_with(&self, group: usize, iteration: &Iteration) -> (f64, f64, f64) {
        let iterations = self.groups.iter().enumerate().map(|(number, other)| {
            if number == group {
                *iteration
            } else {
                other.now
            }
        });
        let tokens = iterations.clone().map(|iteration| iteration.tokens).sum();
        let seconds = pipeline_seconds(iterations.clone().map(|iteration| iteration.seconds));
        let apart: f64 = iterations.map(|iteration| iteration.apart).sum();
        (tokens, seconds, self.groups.len() as f64 * apart)
    }

    /// Adds a task, with the iteration that [`with`](Self::with) returned.
    pub(super) fn add(&mut self, profile: Profile, group: usize, iteration: Iteration) {
        self.sequence += 1;
        self.groups[group].add(profile, self.sequence, iteration);
    }

    /// Splits more steps if that fills a pipeline better. Tasks may still be added afterwards.
    pub(super) fn level(&mut self, rules: &Rules) {
        if self.pipeline && rules.bounded() {
            level(&mut self.groups, rules);
        }
    }

    pub(super) fn remove(&mut self, task: TaskId, rules: &Rules) {
        let Some((group, _)) = self.find(task) else {
            return;
        };
        let mut members = std::mem::take(&mut self.groups[group].members);
        members.retain(|member| member.profile.id != task);
        self.groups[group] = Group::rebuilt(members, rules);
    }

    /// Applies new prices to all tasks.
    pub(super) fn reprice(&mut self, rules: &Rules) {
        for group in &mut self.groups {
            let mut members = std::mem::take(&mut group.members);
            for member in &mut members {
                member.profile.price(&rules.prices);
            }
            *group = Group::rebuilt(members, rules);
        }
    }

    pub(super) fn find(&self, task: TaskId) -> Option<(usize, &GroupMember)> {
        self.groups.iter().enumerate().find_map(|(number, group)| {
            let is_it = |member: &&GroupMember| member.profile.id == task;
            Some((number, group.members.iter().find(is_it)?))
        })
    }

    /// All members and their groups, in the order in which they were added.
    pub(super) fn members(&self) -> Vec<(&GroupMember, usize)> {
        let groups = self.groups.iter().enumerate();
        let mut members: Vec<_> = groups
            .flat_map(|(number, group)| group.members.iter().map(move |member| (member, number)))
            .collect();
        members.sort_unstable_by_key(|(member, _)| member.sequence);
        members
    }

    /// The groups up to the last that has a task.
    pub(super) fn decision(&self) -> Vec<Vec<Member>> {
        let used = self
            .groups
            .iter()
            .rposition(|group| !group.members.is_empty());
        let groups = self.groups.iter().take(used.map_or(0, |last| last + 1));
        let of = |member: &GroupMember| Member {
            task: member.profile.id,
            parts: member.parts,
        };
        groups
            .map(|group| group.members.iter().map(of).collect())
            .collect()
    }

    /// Seconds of the iterations that a group takes part in.
    pub(super) fn iteration_seconds(&self, group: usize, rules: &Rules) -> f64 {
        let seconds = |group: &Group| group.pass.seconds(&rules.prices);
        if self.pipeline {
            pipeline_seconds(self.groups.iter().map(seconds))
        } else {
            seconds(&self.groups[group])
        }
    }

    /// The objective: tokens a second, or the inverse of the longest group's tokens while step times are
    /// unknown.
    pub(super) fn worth(&self, rules: &Rules) -> f64 {
        if !rules.prices.known {
            return 1.0 / self.longest_group(rules);
        }
        let passes = self.groups.iter().map(|group| group.pass);
        let works = passes.map(|pass| (pass.tokens, pass.seconds(&rules.prices)));
        if self.pipeline {
            let tokens: f64 = works.clone().map(|(tokens, _)| tokens).sum();
            let seconds = pipeline_seconds(works.map(|(_, seconds)| seconds));
            return if seconds > 0.0 { tokens / seconds } else { 0.0 };
        }
        let busy = works.filter(|&(_, seconds)| seconds > 0.0);
        busy.map(|(tokens, seconds)| tokens / seconds).sum()
    }

    /// Seconds (or tokens) of the group whose whole steps are longest.
    pub(super) fn longest_group(&self, rules: &Rules) -> f64 {
        self.groups
            .iter()
            .map(|group| group.whole_seconds(&rules.prices))
            .fold(0.0, f64::max)
    }
}

/// Seconds of an iteration of a pipeline with as many stages as groups, max(Σ t(g), D · max t(g)), given the
/// seconds t(g) for which each group keeps a stage busy.
pub(super) fn pipeline_seconds(groups: impl Iterator<Item = f64>) -> f64 {
    let (mut stages, mut sum, mut longest) = (0.0, 0.0, 0.0_f64);
    for seconds in groups {
        stages += 1.0;
        sum += seconds;
        longest = longest.max(seconds);
    }
    (stages * longest).max(sum)
}
