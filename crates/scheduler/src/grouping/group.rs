use super::{
    options::{ROUNDING, Rules},
    pass::Pass,
    profile::{Prices, Profile},
    rejection::Rejection,
    split::Split,
};
use crate::Load;

/// Tasks that are trained as one batch.
#[derive(Debug, Clone, Default)]
pub(super) struct Group {
    pub(super) seats: Vec<Seat>,
    /// What the tasks ask of a device's memory with whole steps: a task whose neighbours leave goes
    /// back to them.
    pub(super) load: Load,
    /// With the least splitting that keeps everybody within the bound.
    pub(super) now: Iteration,
    /// With the parts that tasks have, which may be more.
    pub(super) pass: Pass,
    /// All splits that tasks allow, in their order; the first `now.splits` are made.
    splits: Vec<Split>,
    /// If no step is split, and if all are split as far as they can be.
    whole: Pass,
    least: Pass,
    sums: Sums,
}

/// A task and its place.
#[derive(Debug, Clone)]
pub(super) struct Seat {
    pub(super) profile: Profile,
    pub(super) parts: usize,
    /// The later, the larger.
    pub(super) sequence: u64,
}

/// An iteration of a group.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Iteration {
    /// How many splits are made.
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

/// Over tasks and the parts of their steps.
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

    fn iteration(&self, pass: &Pass, prices: &Prices, splits: usize) -> Iteration {
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

/// The least work of a group's members, by tokens and by the cost of a step alone. Splitting such a step
/// only slows its task down. Tokens are what they are; costs are fitted to times, which may be noisy.
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
    /// The iteration with `newcomer` beside those that are there, with the fewest splits that keep
    /// everybody within the bound.
    pub(super) fn with(&self, newcomer: &Profile, rules: &Rules) -> Result<Iteration, Rejection> {
        let mut sums = self.sums;
        sums.add(newcomer);
        let whole = self.whole.with(newcomer, 1.0);
        let unsplit = sums.iteration(&whole, &rules.prices, 0);
        if !rules.bounded() || why_not(&unsplit, rules).is_none() {
            return Ok(unsplit);
        }
        let least = self.least.with(newcomer, 1.0 / newcomer.most_parts as f64);
        let at_best = sums.iteration(&least, &rules.prices, 0);
        if at_best.slowdown > rules.max_slowdown * (1.0 + ROUNDING) {
            return Err(Rejection::Slowdown(at_best.slowdown));
        }
        self.split(Some(newcomer), at_best.seconds, rules)
            .map_err(|(_, rejection)| rejection)
    }

    /// Splits steps, the most costly part first, until everybody keeps to the rules; or else says
    /// how far from them the best try was. The step with the least work stays whole.
    ///
    /// If any parts keep everybody within the bound, these do. Let p be such parts, with an iteration
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
            pass = pass.with(profile, 1.0);
            sums.add(profile);
        }
        let mut theirs = self.splits.iter().copied().peekable();
        let own = newcomer
            .into_iter()
            .flat_map(|profile| Split::of(profile, self.seats.len()));
        let mut own = own.peekable();
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
                let seat = self.seats.get(split.seat);
                seat.map(|seat| &seat.profile).or(newcomer)
            };
            let next = std::iter::from_fn(&mut next)
                .find(|split| profile_of(split).is_some_and(|profile| !least_work.is_of(profile)));
            let Some(split) = next else { break };
            let Some(profile) = profile_of(&split) else {
                break;
            };
            splits += 1;
            pass.shed(profile, 1.0 / split.parts as f64);
            sums.split(profile, split.parts);
        }
        Err(nearest.unwrap_or((self.now, Rejection::Slowdown(self.now.slowdown))))
    }

    pub(super) fn least_work(&self, newcomer: Option<&Profile>) -> LeastWork {
        let seats = self.seats.iter().map(|seat| &seat.profile);
        let mut least = LeastWork {
            tokens: f64::INFINITY,
            alone: f64::INFINITY,
        };
        for profile in seats.chain(newcomer) {
            least.tokens = least.tokens.min(profile.tokens);
            least.alone = least.alone.min(profile.alone);
        }
        least
    }

    /// Seats a task that was tried with [`with`](Self::with).
    pub(super) fn seat(&mut self, profile: Profile, sequence: u64, now: Iteration) {
        for split in Split::of(&profile, self.seats.len()) {
            let before = |other: &Split| other.order(&split).is_lt();
            let at = self.splits.partition_point(before);
            self.splits.insert(at, split);
        }
        self.count(&profile);
        self.seats.push(Seat {
            profile,
            parts: 1,
            sequence,
        });
        self.now = now;
        self.make_splits();
    }

    fn count(&mut self, profile: &Profile) {
        let share = 1.0 / profile.most_parts as f64;
        self.load = self.load + profile.load;
        self.whole = self.whole.with(profile, 1.0);
        self.least = self.least.with(profile, share);
        self.sums.add(profile);
    }

    /// Gives every task the parts that the splits of this iteration make.
    pub(super) fn make_splits(&mut self) {
        for seat in &mut self.seats {
            seat.parts = 1;
        }
        let mut made = 0;
        let least_work = self.least_work(None);
        for split in &self.splits {
            let seat = &mut self.seats[split.seat];
            if made < self.now.splits && !least_work.is_of(&seat.profile) {
                seat.parts = split.parts;
                made += 1;
            }
        }
        self.pass = self.seats.iter().fold(Pass::default(), |pass, seat| {
            pass.with(&seat.profile, 1.0 / seat.parts as f64)
        });
    }

    /// Spreads a task's step over twice as many iterations as now.
    pub(super) fn halve(&mut self, seat: usize) {
        let Seat { profile, parts, .. } = &mut self.seats[seat];
        self.pass.shed(profile, 0.5 / *parts as f64);
        *parts *= 2;
    }

    /// The group with these seats instead, split anew. Nobody is sent away: if they cannot keep to
    /// the bound, they come as near as they can.
    pub(super) fn rebuilt(seats: Vec<Seat>, rules: &Rules) -> Self {
        let mut group = Self::default();
        for (number, seat) in seats.iter().enumerate() {
            group.count(&seat.profile);
            group.splits.extend(Split::of(&seat.profile, number));
        }
        group.splits.sort_unstable_by(Split::order);
        group.seats = seats;
        if group.seats.is_empty() {
            return group;
        }
        group.now = if rules.bounded() {
            let split = group.split(None, 0.0, rules);
            split.unwrap_or_else(|(nearest, _)| nearest)
        } else {
            group.sums.iteration(&group.whole, &rules.prices, 0)
        };
        group.make_splits();
        group
    }

    pub(super) fn clear(&mut self) {
        self.seats.clear();
        self.splits.clear();
        *self = Self {
            seats: std::mem::take(&mut self.seats),
            splits: std::mem::take(&mut self.splits),
            ..Self::default()
        };
    }

    /// Seconds, or tokens, of a pass of whole steps.
    pub(super) fn whole_seconds(&self, prices: &Prices) -> f64 {
        self.whole.seconds(prices)
    }

    pub(super) fn whole_seconds_with(&self, newcomer: &Profile, prices: &Prices) -> f64 {
        self.whole.with(newcomer, 1.0).seconds(prices)
    }
}

/// Whether somebody is slowed down too much, or the tasks together are slower than the same steps one
/// after another, unless that is a question for a whole pipeline.
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
