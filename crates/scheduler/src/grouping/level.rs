use super::{
    group::{Group, Seat},
    layout::pipeline_seconds,
    options::{ROUNDING, Rules},
};

/// Part of an iteration in which stages wait that is not worth a split.
const NEGLIGIBLE: f64 = 0.01;

/// Splits steps of the longest of a pipeline's groups, beyond what its own tasks need, as long as
/// all groups together gain tokens a second by it. The longest group is what the pipeline waits for
/// where groups cannot be made equal by other means: with one task each, for example.
///
/// Nobody is slowed down in their group beyond the bound by it, and an iteration stays shorter than
/// its steps one after another.
pub(super) fn level(groups: &mut [Group], rules: &Rules) {
    let seconds = |group: &Group| group.pass.seconds(&rules.prices);
    groups.iter_mut().for_each(Group::make_splits);
    loop {
        let all: f64 = groups.iter().map(seconds).sum();
        let iteration = pipeline_seconds(groups.iter().map(seconds));
        if iteration <= all * (1.0 + NEGLIGIBLE) {
            return;
        }
        let numbers = 0..groups.len();
        let longest = numbers.max_by(|&a, &b| seconds(&groups[a]).total_cmp(&seconds(&groups[b])));
        let Some(longest) = longest else { return };
        let Some(split) = with_longest_split(&groups[longest]) else {
            return;
        };
        let rate = tokens(groups) / iteration;
        let whole = std::mem::replace(&mut groups[longest], split);
        let iteration = pipeline_seconds(groups.iter().map(seconds));
        let gains = tokens(groups) / iteration > rate * (1.0 + ROUNDING);
        let apart = groups.len() as f64 * groups.iter().map(seconds_apart).sum::<f64>();
        let allowed = iteration <= apart * (1.0 + ROUNDING)
            && slowdown(&groups[longest], rules) <= rules.max_slowdown * (1.0 + ROUNDING);
        if !(gains && allowed) {
            groups[longest] = whole;
            return;
        }
    }
}

/// The group with the most costly part of a step split, if it can be.
fn with_longest_split(group: &Group) -> Option<Group> {
    let seats = group.seats.iter().enumerate();
    let (seat, _) = seats
        .filter(|(_, seat)| seat.parts < seat.profile.most_parts)
        .max_by(|(_, a), (_, b)| part_apart(a).total_cmp(&part_apart(b)))?;
    let mut split = group.clone();
    split.halve(seat);
    Some(split)
}

fn tokens(groups: &[Group]) -> f64 {
    groups.iter().map(|group| group.pass.tokens).sum()
}

fn part_apart(seat: &Seat) -> f64 {
    seat.profile.alone / seat.parts as f64
}

fn seconds_apart(group: &Group) -> f64 {
    group.seats.iter().map(part_apart).sum()
}

fn slowdown(group: &Group, rules: &Rules) -> f64 {
    let shared = group.pass.seconds(&rules.prices) / group.seats.len() as f64;
    let slowdowns = group.seats.iter().map(|seat| shared / part_apart(seat));
    slowdowns.fold(0.0, f64::max)
}
