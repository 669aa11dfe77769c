use super::{
    group::{Group, Seat},
    layout::pipeline_seconds,
    options::{ROUNDING, Rules},
};

/// Part of an iteration in which stages wait that is not worth a split.
const NEGLIGIBLE: f64 = 0.01;

/// Splits steps of the longest of a pipeline's groups, beyond what its own tasks need, if all groups
/// together gain tokens a second by it. The longest group is what the pipeline waits for where groups
/// cannot be made equal by other means: with one task each, for example.
///
/// Nobody is slowed down in their group beyond the bound by it, and an iteration stays shorter than
/// its steps one after another. Of two groups that are equally long, splitting the first gains
/// nothing before the second is split as well; so splitting goes on while it can, and ends where it
/// had gained most.
pub(super) fn level(groups: &mut [Group], rules: &Rules) {
    groups.iter_mut().for_each(Group::make_splits);
    let seconds = |group: &Group| group.pass.seconds(&rules.prices);
    let mut halved = Vec::new();
    let mut best = (rate(groups, rules), 0);
    loop {
        let all: f64 = groups.iter().map(seconds).sum();
        if pipeline_seconds(groups.iter().map(seconds)) <= all * (1.0 + NEGLIGIBLE) {
            break;
        }
        let numbers = 0..groups.len();
        let longest = numbers.max_by(|&a, &b| seconds(&groups[a]).total_cmp(&seconds(&groups[b])));
        let Some(longest) = longest else { break };
        let Some(seat) = longest_part(&groups[longest]) else {
            break;
        };
        groups[longest].halve(seat);
        halved.push((longest, seat));
        if slowdown(&groups[longest], rules) > rules.max_slowdown * (1.0 + ROUNDING) {
            break;
        }
        let rate = rate(groups, rules);
        if rate > best.0 * (1.0 + ROUNDING) && beats_time_sharing(groups, rules) {
            best = (rate, halved.len());
        }
    }
    let (_, useful) = best;
    if useful < halved.len() {
        groups.iter_mut().for_each(Group::make_splits);
        for &(group, seat) in &halved[..useful] {
            groups[group].halve(seat);
        }
    }
}

/// The seat with the most costly part of a step that can be split.
fn longest_part(group: &Group) -> Option<usize> {
    let seats = group.seats.iter().enumerate();
    let (least_work, several) = (group.least_work(None), group.seats.len() > 1);
    let splittable = seats.filter(|(_, seat)| {
        let stays = several && least_work.is_of(&seat.profile);
        seat.parts < seat.profile.most_parts && !stays
    });
    let longest = splittable.max_by(|(_, a), (_, b)| part_apart(a).total_cmp(&part_apart(b)));
    longest.map(|(seat, _)| seat)
}

/// Tokens a second of all groups.
fn rate(groups: &[Group], rules: &Rules) -> f64 {
    let tokens: f64 = groups.iter().map(|group| group.pass.tokens).sum();
    let seconds = groups.iter().map(|group| group.pass.seconds(&rules.prices));
    tokens / pipeline_seconds(seconds).max(f64::MIN_POSITIVE)
}

fn beats_time_sharing(groups: &[Group], rules: &Rules) -> bool {
    let together = groups.iter().map(|group| group.pass.seconds(&rules.prices));
    let apart = groups.iter().flat_map(|group| &group.seats).map(part_apart);
    let apart = groups.len() as f64 * apart.sum::<f64>();
    pipeline_seconds(together) <= apart * (1.0 + ROUNDING)
}

fn part_apart(seat: &Seat) -> f64 {
    seat.profile.alone / seat.parts as f64
}

fn slowdown(group: &Group, rules: &Rules) -> f64 {
    let shared = group.pass.seconds(&rules.prices) / group.seats.len() as f64;
    let slowdowns = group.seats.iter().map(|seat| shared / part_apart(seat));
    slowdowns.fold(0.0, f64::max)
}
