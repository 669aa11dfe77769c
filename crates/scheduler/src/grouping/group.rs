use super::{
    options::{ROUNDING, Rules},
    profile::{GroupWork, Prices, Profile, Split},
};
use crate::Load;

/// Tasks that are trained as one batch.
#[derive(Debug, Clone, Default)]
pub(super) struct Group {
    pub(super) members: Vec<GroupMember>,
    /// Load with whole steps: a task whose neighbours leave goes back to whole steps.
    pub(super) load: Load,
    /// The iteration with the fewest splits that keep all tasks within the bound.
    pub(super) now: Iteration,
    /// The pass with the parts that tasks have, which may be more.
    pub(super) pass: GroupWork,
    /// All splits that the tasks allow, in order; the first `now.splits` are made.
    splits: Vec<Split>,
    /// The pass without splits, and the one with all splits.
    whole: GroupWork,
    least: GroupWork,
    sums: Sums,
}

/// A task of a group.
#[derive(Debug, Clone)]
pub(super) struct GroupMember {
    pub(super) profile: Profile,
    pub(super) parts: usize,
    /// Orders all tasks of a layout by the time they were added.
    pub(super) sequence: u64,
}

/// An iteration of a group.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Iteration {
    /// Number of splits that are made.
    splits: usize,
    pub(super) seconds: f64,
    pub(super) tokens: f64,
    /// The largest slowdown.
    pub(super) slowdown: f64,
    /// Seconds of the same steps one after another: Σ t(j) / p(j).
    pub(super) apart: f64,
}

impl Iteration {
    /// Tokens a second.
    pub(super) fn rate(&self) -> f64 {
        if self.seconds > 0.0 {
            self.tokens / self.seconds
        } else {
            0.0
        }
    }
}

/// Sums over tasks and the parts of their steps.
#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    /// Σ tokens of a step / p(j).
    tokens: f64,
    /// Σ t(j) / p(j).
    alone: f64,
    /// max p(j) / t(j).
    steepest: f64,
}

impl Sums {
    fn add(&mut self, profile: &Profile) {
        self.tokens += profile.tokens;
        self.alone += profile.alone;
        self.steepest = self.steepest.max(1.0 / profile.alone);
    }

    fn split(&mut self, profile: &Profile, parts: usize) {
        let shed = 1.0 / parts as f64;
        self.tokens -= profile.tokens * shed;
        self.alone -= profile.alone * shed;
        self.steepest = self.steepest.max(parts as f64 / profile.alone);
    }

    fn iteration(&self, pass: &GroupWork, prices: &Prices, splits: usize) -> Iteration {
        let seconds = pass.seconds(prices);
        Iteration {
            splits,
            seconds,
            tokens: self.tokens,
            slowdown: seconds * self.steepest / pass.tasks as f64,
            apart: self.alone,
        }
    }
}

/// The least work of a group's members, by tokens and by the cost of a step alone: splitting such a step
/// only slows its task down. Tokens are exact; costs are fitted to times, which may be noisy.
#[derive(Debug, Clone, Copy)]
pub(super) struct LeastWork {
    tokens: f64,
    alone: f64,
}

impl LeastWork {
    pub(super) fn is_of(&self, profile: &Profile) -> bool {
        profile.tokens <= self.tokens || profile.alone <= self.alone
    }
}

impl Group {
    /// The iteration with `newcomer` added, with the fewest splits that keep all tasks within the bound.
    pub(super) fn with(&self, newcomer: &Profile, rules: &Rules) -> Result<Iteration, Rejection> {
        let mut sums = self.sums;
        sums.add(newcomer);
        let whole = self.whole.with(newcomer, 1);
        let unsplit = sums.iteration(&whole, &rules.prices, 0);
        if !rules.bounded() || why_not(&unsplit, rules).is_none() {
            return Ok(unsplit);
        }
        let least = self.least.with(newcomer, newcomer.most_parts);
        let at_best = sums.iteration(&least, &rules.prices, 0);
        if at_best.slowdown > rules.max_slowdown * (1.0 + ROUNDING) {
            return Err(Rejection::Slowdown(at_best.slowdown));
        }
        self.split(Some(newcomer), at_best.seconds, rules)
            .map_err(|(_, rejection)| rejection)
    }

    /// The iteration with a task that has its place here, or with those that are here: with the splits
    /// that keep all tasks within the bound or, where none do, those with the least slowdown.
    pub(super) fn nearest(&self, newcomer: Option<&Profile>, rules: &Rules) -> Iteration {
        if !rules.bounded() {
            let (mut pass, mut sums) = (self.whole, self.sums);
            if let Some(profile) = newcomer {
                pass = pass.with(profile, 1);
                sums.add(profile);
            }
            return sums.iteration(&pass, &rules.prices, 0);
        }
        let split = self.split(newcomer, 0.0, rules);
        split.unwrap_or_else(|(nearest, _)| nearest)
    }

    /// Splits steps, the most costly part first, until all tasks keep to the rules. The step with the least
    /// work stays whole.
    ///
    /// # Errors
    /// If no split does, the iteration with the least slowdown, and why it is rejected.
    ///
    /// # Why this order
    /// If any parts keep all tasks within the bound, these do. Let p be such parts, with an iteration
    /// of T seconds, and P(j) the most parts with P(j) · T ≤ bound · k · t(j), which is at least
    /// p(j). Then P keeps to the bound as well, because more parts never make an iteration longer. As
    /// long as parts are at most P and not P, some task has fewer than P(j), and its next part costs
    /// at least T / (bound · k) alone; a part beyond some P(i) costs less. So the most costly part is
    /// never one beyond P, and P is reached, if nothing before it does.
    ///
    /// Gives up where even an iteration of `least` seconds would be too long.
    fn split(
        &self,
        newcomer: Option<&Profile>,
        least: f64,
        rules: &Rules,
    ) -> Result<Iteration, (Iteration, Rejection)> {
        let (mut pass, mut sums) = (self.whole, self.sums);
        if let Some(profile) = newcomer {
            pass = pass.with(profile, 1);
            sums.add(profile);
        }
        let mut theirs = self.splits.iter().copied().peekable();
        let own = newcomer
            .into_iter()
            .flat_map(|profile| Split::of(profile, self.members.len()));
        let mut own = own.peekable();
        let members = self.members.iter().map(|member| &member.profile);
        let profiles = members.chain(newcomer);
        // A task of one pass has one in every part.
        let several = profiles.clone().any(|profile| profile.passes > 1);
        let mut parts = vec![1; if several { pass.tasks } else { 0 }];
        let mut nearest: Option<(Iteration, Rejection)> = None;
        let least_work = self.least_work(newcomer);
        let mut splits = 0;
        loop {
            let iteration = sums.iteration(&pass, &rules.prices, splits);
            let Some(rejection) = why_not(&iteration, rules) else {
                return Ok(iteration);
            };
            if nearest.is_none_or(|(nearest, _)| iteration.slowdown < nearest.slowdown) {
                nearest = Some((iteration, rejection));
            }
            let at_best = least * sums.steepest / pass.tasks as f64;
            if at_best > rules.max_slowdown * (1.0 + ROUNDING) {
                break;
            }
            let mut next = || match (theirs.peek(), own.peek()) {
                (Some(their), Some(mine)) if mine.order(their).is_lt() => own.next(),
                (None, _) => own.next(),
                _ => theirs.next(),
            };
            let profile_of = |split: &Split| {
                let member = self.members.get(split.member);
                member.map(|member| &member.profile).or(newcomer)
            };
            let next = std::iter::from_fn(&mut next)
                .find(|split| profile_of(split).is_some_and(|profile| !least_work.is_of(profile)));
            let Some(split) = next else { break };
            let Some(profile) = profile_of(&split) else {
                break;
            };
            splits += 1;
            if let Some(parts) = parts.get_mut(split.member) {
                *parts = split.parts;
            }
            let tasks = profiles.clone().zip(parts.iter().copied());
            pass.split(profile, split.parts, tasks);
            sums.split(profile, split.parts);
        }
        Err(nearest.unwrap_or((self.now, Rejection::Slowdown(self.now.slowdown))))
    }

    pub(super) fn least_work(&self, newcomer: Option<&Profile>) -> LeastWork {
        let members = self.members.iter().map(|member| &member.profile);
        let mut least = LeastWork {
            tokens: f64::INFINITY,
            alone: f64::INFINITY,
        };
        for profile in members.chain(newcomer) {
            least.tokens = least.tokens.min(profile.tokens);
            least.alone = least.alone.min(profile.alone);
        }
        least
    }

    /// Adds a task, with the iteration that [`with`](Self::with) returned.
    pub(super) fn add(&mut self, profile: Profile, sequence: u64, now: Iteration) {
        for split in Split::of(&profile, self.members.len()) {
            let before = |other: &Split| other.order(&split).is_lt();
            let at = self.splits.partition_point(before);
            self.splits.insert(at, split);
        }
        self.count(&profile);
        self.members.push(GroupMember {
            profile,
            parts: 1,
            sequence,
        });
        self.now = now;
        self.make_splits();
    }

    fn count(&mut self, profile: &Profile) {
        self.load = self.load + profile.load;
        self.whole = self.whole.with(profile, 1);
        self.least = self.least.with(profile, profile.most_parts);
        self.sums.add(profile);
    }

    /// Sets the parts of all tasks by the splits of the iteration.
    pub(super) fn make_splits(&mut self) {
        for member in &mut self.members {
            member.parts = 1;
        }
        let mut made = 0;
        let least_work = self.least_work(None);
        for split in &self.splits {
            let member = &mut self.members[split.member];
            if made < self.now.splits && !least_work.is_of(&member.profile) {
                member.parts = split.parts;
                made += 1;
            }
        }
        self.pass = self
            .members
            .iter()
            .fold(GroupWork::default(), |pass, member| {
                pass.with(&member.profile, member.parts)
            });
    }

    /// Spreads a task's step over twice as many iterations as now.
    pub(super) fn halve(&mut self, member: usize) {
        self.members[member].parts *= 2;
        let GroupMember { profile, parts, .. } = &self.members[member];
        let members = self.members.iter();
        let tasks = members.map(|member| (&member.profile, member.parts));
        self.pass.split(profile, *parts, tasks);
    }

    /// The group with these members instead, split again. All of them stay.
    pub(super) fn rebuilt(members: Vec<GroupMember>, rules: &Rules) -> Self {
        let mut group = Self::default();
        for (number, member) in members.iter().enumerate() {
            group.count(&member.profile);
            group.splits.extend(Split::of(&member.profile, number));
        }
        group.splits.sort_unstable_by(Split::order);
        group.members = members;
        if group.members.is_empty() {
            return group;
        }
        group.now = group.nearest(None, rules);
        group.make_splits();
        group
    }

    pub(super) fn clear(&mut self) {
        self.members.clear();
        self.splits.clear();
        *self = Self {
            members: std::mem::take(&mut self.members),
            splits: std::mem::take(&mut self.splits),
            ..Self::default()
        };
    }

    /// Seconds of a pass of whole steps, or tokens while step times are unknown.
    pub(super) fn whole_seconds(&self, prices: &Prices) -> f64 {
        self.whole.seconds(prices)
    }

    pub(super) fn whole_seconds_with(&self, newcomer: &Profile, prices: &Prices) -> f64 {
        self.whole.with(newcomer, 1).seconds(prices)
    }
}

/// Rejects an iteration that slows a task down too much, or is longer than the same steps one after another.
/// The latter is checked for a pipeline as a whole, not here.
fn why_not(iteration: &Iteration, rules: &Rules) -> Option<Rejection> {
    if iteration.slowdown > rules.max_slowdown * (1.0 + ROUNDING) {
        Some(Rejection::Slowdown(iteration.slowdown))
    } else if rules.pipeline {
        None
    } else {
        slower(iteration.seconds, iteration.apart)
    }
}

/// The rejection of iterations that take longer than their steps one after another.
pub(super) fn slower(together: f64, apart: f64) -> Option<Rejection> {
    (together > apart * (1.0 + ROUNDING)).then_some(Rejection::Throughput { together, apart })
}

/// Why a task may not join a group.
#[derive(Debug, Clone, Copy)]
pub(super) enum Rejection {
    /// The memory of a device does not hold all tasks.
    Memory {
        device: usize,
        load: Load,
        tasks: usize,
    },
    /// A task would be slowed down beyond the bound, at least by this factor.
    Slowdown(f64),
    /// An iteration would take longer than its steps one after another.
    Throughput { together: f64, apart: f64 },
}

impl Rejection {
    /// The one of two rejections that came closer to a place.
    pub(super) fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::Slowdown(a), Self::Slowdown(b)) if b < a => other,
            (a, b) if b.closeness() > a.closeness() => b,
            _ => self,
        }
    }

    fn closeness(&self) -> u8 {
        match self {
            Self::Memory { .. } => 0,
            Self::Slowdown(_) => 1,
            Self::Throughput { .. } => 2,
        }
    }
}
