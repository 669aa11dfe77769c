use super::{
    asked::{Asked, sum},
    budget::{Budget, Memory},
    company::{Company, Iteration, Seat},
    options::Rules,
    profile::Profile,
    rejection::Rejection,
};
use crate::{Load, Member, TaskId};

/// Who sits where.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    /// One of all groups, or one for each.
    pub(super) companies: Vec<Company>,
    asked: Vec<Asked>,
    sequence: u64,
}

impl Layout {
    /// Nobody, in so many groups.
    pub(super) fn new<B>(memory: &Memory<B>, groups: usize) -> Self {
        let companies = match memory {
            Memory::Shared(_) => vec![Company::new(groups)],
            Memory::PerGroup(_) => vec![Company::new(1); groups],
        };
        Self {
            companies,
            asked: vec![Asked::default(); groups],
            sequence: 0,
        }
    }

    pub(super) fn groups(&self) -> usize {
        self.asked.len()
    }

    pub(super) fn tasks_in(&self, group: usize) -> usize {
        self.asked[group].tasks
    }

    /// The company of a group, and the group's number in it.
    fn locate(&self, group: usize) -> (usize, usize) {
        if self.companies.len() == 1 {
            (0, group)
        } else {
            (group, 0)
        }
    }

    /// The number of a group of a company.
    fn number(&self, company: usize, group: usize) -> usize {
        if self.companies.len() == 1 {
            group
        } else {
            company
        }
    }

    pub(super) fn company_of(&self, group: usize) -> (&Company, usize) {
        let (company, group) = self.locate(group);
        (&self.companies[company], group)
    }

    pub(super) fn clear(&mut self) {
        self.companies.iter_mut().for_each(Company::clear);
        self.asked.fill(Asked::default());
    }

    /// What happens if the task joins the group.
    pub(super) fn with<B: Budget>(
        &self,
        profile: &Profile,
        group: usize,
        memory: &Memory<B>,
        rules: &Rules,
    ) -> Result<Iteration, Rejection> {
        let (load, tasks) = self.asked_with(profile, group, memory, rules);
        if let Some(device) = memory.overfull(group, load, tasks) {
            return Err(Rejection::Memory {
                device,
                load,
                tasks,
            });
        }
        if self.asked[group].tasks >= rules.max_tasks_per_group {
            return Err(Rejection::Full(rules.max_tasks_per_group));
        }
        let (company, group) = self.company_of(group);
        company.with(profile, group, rules)
    }

    /// What a device would have to hold.
    fn asked_with<B>(
        &self,
        profile: &Profile,
        group: usize,
        memory: &Memory<B>,
        rules: &Rules,
    ) -> (Load, usize) {
        let joined = self.asked[group].with(profile);
        let own = (joined.load(rules.padding), joined.tasks);
        let others = self.asked.iter().enumerate();
        match memory {
            Memory::PerGroup(_) => own,
            Memory::Shared(_) => others.filter(|&(other, _)| other != group).fold(
                own,
                |(load, tasks), (_, asked)| {
                    (sum(load, asked.load(rules.padding)), tasks + asked.tasks)
                },
            ),
        }
    }

    /// The group that suits a task best: an empty one; or else the one that raises the tokens a
    /// second most, or while step times are unknown has the fewest tokens; or else the preferred one,
    /// or the one with fewer tasks, or the first.
    pub(super) fn best<B: Budget>(
        &self,
        profile: &Profile,
        preferred: Option<usize>,
        memory: &Memory<B>,
        rules: &Rules,
    ) -> Result<(usize, Iteration), Rejection> {
        let mut best: Option<(bool, f64, bool, usize, Iteration)> = None;
        let mut rejected: Option<Rejection> = None;
        for group in 0..self.groups() {
            let iteration = match self.with(profile, group, memory, rules) {
                Ok(iteration) => iteration,
                Err(rejection) => {
                    rejected = Some(rejected.map_or(rejection, |other| other.or(rejection)));
                    continue;
                }
            };
            let (company, local) = self.company_of(group);
            let score = if rules.prices.known {
                iteration.rate() - company.now.rate()
            } else {
                -company.whole_seconds_with(profile, local, &rules.prices)
            };
            let tasks = self.tasks_in(group);
            let prefers = preferred == Some(group);
            let better = best.is_none_or(|(empty, best_score, best_prefers, best_group, _)| {
                (tasks == 0)
                    .cmp(&empty)
                    .then_with(|| score.total_cmp(&best_score))
                    .then_with(|| prefers.cmp(&best_prefers))
                    .then_with(|| self.tasks_in(best_group).cmp(&tasks))
                    .is_gt()
            });
            if better {
                best = Some((tasks == 0, score, prefers, group, iteration));
            }
        }
        match (best, rejected) {
            (Some((.., group, iteration)), _) => Ok((group, iteration)),
            (None, rejected) => Err(rejected.unwrap_or(Rejection::Full(0))),
        }
    }

    /// Seats a task after those that sit, by what [`with`](Self::with) answered.
    pub(super) fn seat(&mut self, profile: Profile, group: usize, iteration: Iteration) {
        self.asked[group] = self.asked[group].with(&profile);
        let (company, group) = self.locate(group);
        self.sequence += 1;
        self.companies[company].seat(profile, group, self.sequence, iteration);
    }

    pub(super) fn remove(&mut self, task: TaskId, rules: &Rules) {
        let here = |company: &Company| company.seats.iter().any(|seat| seat.profile.id == task);
        let Some(number) = self.companies.iter().position(here) else {
            return;
        };
        let mut seats = std::mem::take(&mut self.companies[number].seats);
        seats.retain(|seat| seat.profile.id != task);
        self.companies[number].rebuild(seats, rules);
        self.count_asked();
    }

    /// Applies new prices to everybody.
    pub(super) fn reprice(&mut self, rules: &Rules) {
        for company in &mut self.companies {
            let mut seats = std::mem::take(&mut company.seats);
            for seat in &mut seats {
                seat.profile.price(&rules.prices);
            }
            company.rebuild(seats, rules);
        }
    }

    fn count_asked(&mut self) {
        self.asked.fill(Asked::default());
        for (number, company) in self.companies.iter().enumerate() {
            for seat in &company.seats {
                let group = self.number(number, seat.group);
                self.asked[group] = self.asked[group].with(&seat.profile);
            }
        }
    }

    pub(super) fn find(&self, task: TaskId) -> Option<(usize, &Company, &Seat)> {
        self.companies
            .iter()
            .enumerate()
            .find_map(|(number, company)| {
                let seat = company.seats.iter().find(|seat| seat.profile.id == task)?;
                Some((self.number(number, seat.group), company, seat))
            })
    }

    /// All seats and their groups, in the order in which they were taken.
    pub(super) fn seats(&self) -> Vec<(&Seat, usize)> {
        let companies = self.companies.iter().enumerate();
        let mut seats: Vec<_> = companies
            .flat_map(|(number, company)| {
                let seats = company.seats.iter();
                seats.map(move |seat| (seat, self.number(number, seat.group)))
            })
            .collect();
        seats.sort_unstable_by_key(|(seat, _)| seat.sequence);
        seats
    }

    /// The groups up to the last that has a task.
    pub(super) fn members(&self) -> Vec<Vec<Member>> {
        let used = self.asked.iter().rposition(|asked| asked.tasks > 0);
        let mut groups = vec![Vec::new(); used.map_or(0, |last| last + 1)];
        for (seat, group) in self.seats() {
            groups[group].push(Member {
                task: seat.profile.id,
                parts: seat.parts,
            });
        }
        groups
    }

    /// What a layout is worth: tokens a second, or the inverse of the longest group's tokens while
    /// step times are unknown.
    pub(super) fn worth(&self, rules: &Rules) -> f64 {
        if rules.prices.known {
            return self
                .companies
                .iter()
                .map(|company| company.now.rate())
                .sum();
        }
        1.0 / self.longest_group(rules)
    }

    /// Seconds, or tokens, of the longest group.
    pub(super) fn longest_group(&self, rules: &Rules) -> f64 {
        let groups = 0..self.groups();
        let longest = groups.map(|group| self.group_seconds(group, rules));
        longest.fold(0.0, f64::max)
    }

    pub(super) fn group_seconds(&self, group: usize, rules: &Rules) -> f64 {
        let (company, group) = self.company_of(group);
        company.whole_seconds(group, &rules.prices)
    }
}
