//! Which group an adapter trains in.

use loraloom_scheduler::{TaskId, balanced_groups, group_count};

use crate::{Event, TrainerError, session::Session, task::tokens_per_step};

impl Session<'_> {
    fn wanted_groups(&self, tasks: usize) -> usize {
        group_count(self.ledger.config.pipeline.groups(), tasks)
    }

    /// Groups for tasks that are admitted together, so that all groups have about as many tokens in
    /// a step.
    pub(crate) fn groups_for(&self, admitted: &[TaskId]) -> Vec<usize> {
        let tokens = admitted.iter().map(|id| {
            let waiting = self.waiting.get(id);
            waiting.map_or(0, tokens_per_step)
        });
        let tokens: Vec<usize> = tokens.collect();
        let running = &self.ledger.running;
        let wanted = self.wanted_groups(running.len() + tokens.len());
        let mut of = vec![0; tokens.len()];
        if running.is_empty() {
            for (group, members) in balanced_groups(&tokens, wanted).into_iter().enumerate() {
                for member in members {
                    of[member] = group;
                }
            }
            return of;
        }
        let mut loads = self.loads(wanted);
        for (group, tokens) in of.iter_mut().zip(tokens) {
            *group = emptiest(&loads);
            loads[*group] += tokens;
        }
        of
    }

    /// Tokens that each group's step may have.
    fn loads(&self, groups: usize) -> Vec<usize> {
        let load = |group| self.ledger.members(group).map(tokens_per_step).sum();
        (0..groups.max(self.ledger.groups())).map(load).collect()
    }

    /// Fills groups whose tasks have all ended from those that have several, and lets the last
    /// group take the number of one that stays empty.
    pub(crate) fn regroup(&mut self) -> Result<(), TrainerError> {
        let wanted = self.wanted_groups(self.ledger.running.len());
        let mut moved = false;
        while let Some(empty) = (0..wanted).find(|&group| self.ledger.members(group).count() == 0) {
            let loads = self.loads(wanted);
            let several = |&group: &usize| self.ledger.members(group).count() > 1;
            let donor = (0..loads.len())
                .filter(several)
                .max_by_key(|&group| loads[group]);
            match donor {
                Some(donor) => self.move_last(donor, empty)?,
                None => self.rename_last(empty)?,
            }
            moved = true;
        }
        if moved {
            let groups = self.ledger.group_names();
            let reason = "a group had no task left".to_owned();
            self.ledger.emit(Event::Regroup { groups, reason })?;
        }
        Ok(())
    }

    /// Moves the last task of a group, with its adapter, to another.
    fn move_last(&mut self, from: usize, to: usize) -> Result<(), TrainerError> {
        let running = &mut self.ledger.running;
        let Some(index) = running.iter().rposition(|task| task.group == from) else {
            return Ok(());
        };
        let place = self.ledger.place(index);
        let adapter = self.pipeline.remove(place.group, place.slot)?;
        self.pipeline.reserve_groups(to + 1)?;
        self.pipeline.push(to, adapter)?;
        let mut task = self.ledger.running.remove(index);
        task.group = to;
        self.ledger.running.push(task);
        Ok(())
    }

    /// Gives the last group the number of an empty one.
    fn rename_last(&mut self, empty: usize) -> Result<(), TrainerError> {
        let last = self.ledger.groups() - 1;
        self.pipeline.swap_groups(empty, last)?;
        let members = self.ledger.running.iter_mut();
        for task in members.filter(|task| task.group == last) {
            task.group = empty;
        }
        Ok(())
    }
}

/// The first of the groups with the fewest tokens.
fn emptiest(loads: &[usize]) -> usize {
    let groups = loads.iter().enumerate();
    groups
        .min_by_key(|&(_, load)| load)
        .map_or(0, |(group, _)| group)
}
