use super::{
    budget::{Budget, Memory},
    layout::Layout,
    options::Rules,
    planner::Planner,
};

/// A better layout, and in which way it is better.
pub(super) struct Regrouping {
    pub(super) layout: Layout,
    pub(super) reason: String,
}

/// Fills empty groups from those with several tasks, whatever is gained; and lays everything out
/// anew if that gains `min_gain`, or if somebody is slowed down too much as it is, until nothing
/// does.
pub(super) fn regrouped<B: Budget>(
    layout: &Layout,
    memory: &Memory<B>,
    rules: &Rules,
    min_gain: f64,
) -> Option<Regrouping> {
    let planner = Planner { memory, rules };
    let filled = planner.fill_empty_groups(layout);
    let mut found = filled.map(|(layout, reason)| Regrouping { layout, reason });
    loop {
        let base = found.as_ref().map_or(layout, |found| &found.layout);
        let kept = !rules.bounded() || planner.within_bound(base);
        let least = if kept {
            base.worth(rules) * (1.0 + min_gain)
        } else {
            0.0
        };
        if planner.most_worth(base) < least {
            return found;
        }
        let anew = planner
            .laid_out_anew(base)
            .into_iter()
            .chain([base.clone()]);
        let best = anew.max_by(|a, b| a.worth(rules).total_cmp(&b.worth(rules)));
        let best = best.map(|best| planner.improved(best));
        let Some(better) = best.filter(|best| best.worth(rules) >= least && moves(base, best) > 0)
        else {
            return found;
        };
        found = Some(Regrouping {
            reason: reason(layout, &better, rules),
            layout: better,
        });
    }
}

fn reason(before: &Layout, after: &Layout, rules: &Rules) -> String {
    let moved = moves(before, after);
    let tasks = if moved == 1 { "task" } else { "tasks" };
    if rules.prices.known {
        let (a, b) = (before.worth(rules), after.worth(rules));
        let gain = 100.0 * (b / a - 1.0);
        format!("moved {moved} {tasks}: {a:.0} → {b:.0} tokens a second ({gain:+.1} %)")
    } else {
        let longest = |layout: &Layout| layout.longest_group(rules);
        let (a, b) = (longest(before), longest(after));
        format!("moved {moved} {tasks}: the largest group has {b:.0} tokens, not {a:.0}")
    }
}

/// How many tasks are in another group.
fn moves(before: &Layout, after: &Layout) -> usize {
    let groups = before.seats().into_iter().zip(after.seats());
    groups.filter(|((_, a), (_, b))| a != b).count()
}
