//! What a run's events say of steps that are spread over iterations.

use std::collections::BTreeMap;

use loraloom_tests::TrainedRun;
use loraloom_trainer::Event;

/// What happened to steps that were spread over iterations.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Steps that came to their end in this many parts.
    pub(crate) ended: BTreeMap<usize, usize>,
    /// Begun again after their first part.
    pub(crate) restarted: usize,
    /// Parked in the middle.
    pub(crate) parked: usize,
    /// Went on after an iteration in which an adapter of another group had come or gone, or the
    /// scheduler had been asked, and nothing else.
    pub(crate) went_on: usize,
    /// Evaluations or saves of others in the middle.
    pub(crate) interludes: usize,
}

pub(crate) fn seen(run: &TrainedRun) -> Seen {
    let mut seen = Seen::default();
    let mut open: BTreeMap<String, usize> = BTreeMap::new();
    let mut changed = false;
    for event in &run.events {
        match event {
            Event::Iteration { parts, groups, .. } => {
                for name in groups.iter().flatten() {
                    let before = open.remove(name);
                    let part = parts.get(name).copied().unwrap_or([1, 1]);
                    seen.restarted += usize::from(before.is_some() && part[0] == 1);
                    seen.went_on += usize::from(changed && before.is_some() && part[0] > 1);
                    assert!(part[0] == 1 || before == Some(part[0] - 1), "{name}");
                    if part[0] < part[1] {
                        open.insert(name.clone(), part[0]);
                    } else {
                        *seen.ended.entry(part[1]).or_default() += 1;
                    }
                }
                changed = false;
            }
            Event::Park { adapter, .. } => {
                changed = true;
                if open.remove(adapter).is_some() {
                    seen.parked += 1;
                }
            }
            Event::Admit { .. } => changed = true,
            Event::Eval { .. } | Event::Checkpoint { .. } => {
                seen.interludes += usize::from(!open.is_empty());
            }
            _ => {}
        }
    }
    seen
}
