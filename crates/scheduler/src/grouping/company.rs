use super::{
    options::Rules,
    pass::Pass,
    profile::{Prices, Profile},
    rejection::Rejection,
    split::Split,
};

/// Rounding errors of sums.
const ROUNDING: f64 = 1e-9;

/// Tasks whose iterations wait for each other: those of one group on a device of its own, or of all
/// groups that go through the same pipeline.
#[derive(Debug, Clone)]
pub(super) struct Company {
    stages: usize,
    pub(super) seats: Vec<Seat>,
    pub(super) now: Iteration,
    /// All splits that tasks allow, in their order; the first `now.splits` are made.
    splits: Vec<Split>,
    /// Each group, if no step is split, and if all are split as far as they can be.
    whole: Vec<Pass>,
    least: Vec<Pass>,
    /// Over the tasks: Σ tokens of a step, Σ t(j), max 1 / t(j).
    sums: Sums,
}

/// A task and its place.
#[derive(Debug, Clone)]
pub(super) struct Seat {
    pub(super) profile: Profile,
    /// Number of the group within the company.
    pub(super) group: usize,
    pub(super) parts: usize,
    /// The later, the larger.
    pub(super) sequence: u64,
}

/// An iteration of a company.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Iteration {
    /// How many splits are made.
    splits: usize,
    pub(super) seconds: f64,
    pub(super) tokens: f64,
    /// The largest slowdown.
    pub(super) slowdown: f64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Sums {
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

impl Company {
    /// Nobody, on the devices of so many stages, with as many groups.
    pub(super) fn new(stages: usize) -> Self {
        Self {
            stages,
            seats: Vec::new(),
            now: Iteration::default(),
            splits: Vec::new(),
            whole: vec![Pass::default(); stages],
            least: vec![Pass::default(); stages],
            sums: Sums::default(),
        }
    }

    pub(super) fn clear(&mut self) {
        self.seats.clear();
        self.splits.clear();
        self.whole.fill(Pass::default());
        self.least.fill(Pass::default());
        self.sums = Sums::default();
        self.now = Iteration::default();
    }

    /// The iteration with `newcomer` in `group` beside those that are there, with the fewest splits
    /// that keep everybody within the bound.
    pub(super) fn with(
        &self,
        newcomer: &Profile,
        group: usize,
        rules: &Rules,
    ) -> Result<Iteration, Rejection> {
        let mut sums = self.sums;
        sums.add(newcomer);
        let whole = self.seconds(&self.whole, Some((newcomer, group, 1.0)), &rules.prices);
        let tasks = self.seats.len() + 1;
        let unsplit = self.iteration(whole, &sums, tasks);
        if !rules.bounded() {
            return Ok(unsplit);
        }
        let share = 1.0 / newcomer.most_parts as f64;
        let least = self.seconds(&self.least, Some((newcomer, group, share)), &rules.prices);
        let at_best = self.iteration(least, &sums, tasks).slowdown;
        if at_best > rules.max_slowdown * (1.0 + ROUNDING) {
            return Err(Rejection::Slowdown(at_best));
        }
        let padded = rules.prices.model.padding > 0.0;
        if !padded && self.keeps(&unsplit, &sums, rules) {
            return Ok(unsplit);
        }
        self.split(Some((newcomer, group)), rules)
            .map_err(|(_, rejection)| rejection)
    }

    /// Splits steps, the most costly part first, until everybody keeps to the rules; or else says
    /// how far from them the best try was.
    ///
    /// If any parts keep everybody within the bound, these do. Let p be such parts with an iteration
    /// of T seconds, and P(j) the most parts with P(j) · T ≤ bound · share · t(j), which is at least
    /// p(j). Then P keeps to the bound as well, because more parts never make an iteration longer. As
    /// long as parts are at most P and not P, some P(j) is not reached, its next part costs at least
    /// T / (bound · share) alone, and any part beyond a P(i) costs less. So the most costly part is
    /// never one beyond P, and P, if nothing before it, is reached.
    fn split(
        &self,
        newcomer: Option<(&Profile, usize)>,
        rules: &Rules,
    ) -> Result<Iteration, (Iteration, Rejection)> {
        let mut passes = self.whole.clone();
        let mut sums = self.sums;
        if let Some((profile, group)) = newcomer {
            passes[group] = passes[group].with(profile, 1.0);
            sums.add(profile);
        }
        let tasks = self.seats.len() + usize::from(newcomer.is_some());
        let mut theirs = self.splits.iter().copied().peekable();
        let own = newcomer
            .into_iter()
            .flat_map(|(profile, _)| Split::of(profile, self.seats.len()));
        let mut own = own.peekable();
        let mut best: Option<(Iteration, Rejection)> = None;
        for splits in 0.. {
            let seconds = self.seconds(&passes, None, &rules.prices);
            let mut iteration = self.iteration(seconds, &sums, tasks);
            iteration.splits = splits;
            let pays = |pass: &Pass| pass.padding_pays(&rules.prices);
            let rejection = if !self.keeps(&iteration, &sums, rules) {
                self.why(&iteration, &sums, rules)
            } else if passes.iter().all(pays) {
                return Ok(iteration);
            } else {
                Rejection::Padding
            };
            if best.is_none_or(|(so_far, _)| iteration.slowdown < so_far.slowdown) {
                best = Some((iteration, rejection));
            }
            let next = match (theirs.peek(), own.peek()) {
                (Some(their), Some(mine)) if mine.order(their).is_lt() => own.next(),
                (None, _) => own.next(),
                _ => theirs.next(),
            };
            let Some(split) = next else { break };
            let (profile, group) = match (self.seats.get(split.seat), newcomer) {
                (Some(seat), _) => (&seat.profile, seat.group),
                (None, Some(newcomer)) => newcomer,
                (None, None) => break,
            };
            let shed = 1.0 / split.parts as f64;
            passes[group].shed(profile, shed);
            sums.tokens -= profile.tokens * shed;
            sums.alone -= profile.alone * shed;
            sums.steepest = sums.steepest.max(split.parts as f64 / profile.alone);
        }
        Err(best.unwrap_or((self.now, Rejection::Padding)))
    }

    /// Whether nobody is slowed down too much and the tasks together are not slower than the same
    /// steps one after another.
    fn keeps(&self, iteration: &Iteration, sums: &Sums, rules: &Rules) -> bool {
        let alone = self.stages as f64 * sums.alone;
        iteration.slowdown <= rules.max_slowdown * (1.0 + ROUNDING)
            && iteration.seconds <= alone * (1.0 + ROUNDING)
    }

    fn why(&self, iteration: &Iteration, sums: &Sums, rules: &Rules) -> Rejection {
        if iteration.slowdown > rules.max_slowdown * (1.0 + ROUNDING) {
            Rejection::Slowdown(iteration.slowdown)
        } else {
            Rejection::Throughput {
                together: iteration.seconds,
                alone: self.stages as f64 * sums.alone,
            }
        }
    }

    /// Seconds of an iteration of these passes: max(Σ t(g), D · max t(g)).
    fn seconds(
        &self,
        passes: &[Pass],
        newcomer: Option<(&Profile, usize, f64)>,
        prices: &Prices,
    ) -> f64 {
        let (mut sum, mut longest) = (0.0, 0.0_f64);
        for (number, pass) in passes.iter().enumerate() {
            let seconds = match newcomer {
                Some((profile, group, share)) if group == number => {
                    pass.with(profile, share).seconds(prices)
                }
                _ => pass.seconds(prices),
            };
            sum += seconds;
            longest = longest.max(seconds);
        }
        (self.stages as f64 * longest).max(sum)
    }

    fn iteration(&self, seconds: f64, sums: &Sums, tasks: usize) -> Iteration {
        Iteration {
            splits: 0,
            seconds,
            tokens: sums.tokens,
            slowdown: seconds * sums.steepest / tasks.max(self.stages) as f64,
        }
    }

    /// Seats a task that was tried with [`with`](Self::with).
    pub(super) fn seat(&mut self, profile: Profile, group: usize, sequence: u64, now: Iteration) {
        let splits = &mut self.splits;
        for split in Split::of(&profile, self.seats.len()) {
            let at = splits.partition_point(|other| other.order(&split).is_lt());
            splits.insert(at, split);
        }
        self.count(&profile, group);
        self.seats.push(Seat {
            profile,
            group,
            parts: 1,
            sequence,
        });
        self.make(now);
    }

    fn count(&mut self, profile: &Profile, group: usize) {
        self.whole[group] = self.whole[group].with(profile, 1.0);
        self.least[group] = self.least[group].with(profile, 1.0 / profile.most_parts as f64);
        self.sums.add(profile);
    }

    fn make(&mut self, iteration: Iteration) {
        for seat in &mut self.seats {
            seat.parts = 1;
        }
        for split in &self.splits[..iteration.splits] {
            self.seats[split.seat].parts = split.parts;
        }
        self.now = iteration;
    }

    /// Takes seats away or reprices them, and splits anew. Who is left is not asked to leave: if
    /// they cannot keep to the bound, they come as near as they can.
    pub(super) fn rebuild(&mut self, seats: Vec<Seat>, rules: &Rules) {
        self.clear();
        for (number, seat) in seats.iter().enumerate() {
            self.count(&seat.profile, seat.group);
            self.splits.extend(Split::of(&seat.profile, number));
        }
        self.splits.sort_unstable_by(Split::order);
        self.seats = seats;
        let seconds = self.seconds(&self.whole, None, &rules.prices);
        let unsplit = self.iteration(seconds, &self.sums, self.seats.len());
        let now = if rules.bounded() && !self.seats.is_empty() {
            self.split(None, rules)
                .unwrap_or_else(|(nearest, _)| nearest)
        } else {
            unsplit
        };
        self.make(now);
    }

    /// Seconds of each group's pass with whole steps.
    pub(super) fn whole_seconds(&self, group: usize, prices: &Prices) -> f64 {
        self.whole[group].seconds(prices)
    }

    pub(super) fn whole_seconds_with(
        &self,
        newcomer: &Profile,
        group: usize,
        prices: &Prices,
    ) -> f64 {
        self.whole[group].with(newcomer, 1.0).seconds(prices)
    }

    /// A task's slowdown.
    pub(super) fn slowdown(&self, seat: &Seat) -> f64 {
        let share = self.seats.len().max(self.stages) as f64;
        seat.parts as f64 * self.now.seconds / (share * seat.profile.alone)
    }
}
