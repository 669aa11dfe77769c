use super::{
    group::{Group, GroupMember},
    layout::pipeline_seconds,
    options::{ROUNDING, Rules},
};

/// Idle part of an iteration that is not worth a split.
const NEGLIGIBLE: f64 = 0.01;

/// Splits steps of the longest of a pipeline's groups, beyond what its own tasks need, if the pipeline gains
/// tokens a second by it: all groups wait for the longest one where groups cannot be made equal, for
/// example with one task each.
///
/// No task is slowed down beyond the bound by it, and an iteration stays shorter than its steps one after
/// another. Of two equally long groups, splitting one gains nothing before the other is split as well;
/// so splitting goes on as far as possible, and the best state on the way is kept.
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
        let Some(member) = longest_part(&groups[longest]) else {
            break;
        };
        groups[longest].halve(member);
        halved.push((longest, member));
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
        for &(group, member) in &halved[..useful] {
            groups[group].halve(member);
        }
    }
}

/// The member with the most costly part of a step that can be split.
fn longest_part(group: &Group) -> Option<usize> {
    let members = group.members.iter().enumerate();
    let (least_work, several) = (group.least_work(None), group.members.len() > 1);
    let splittable = members.filter(|(_, member)| {
        let stays = several && least_work.is_of(&member.profile);
        member.parts < member.profile.most_parts && !stays
    });
    let longest = splittable.max_by(|(_, a), (_, b)| part_apart(a).total_cmp(&part_apart(b)));
    longest.map(|(member, _)| member)
}

/// Tokens a second of all groups.
fn rate(groups: &[Group], rules: &Rules) -> f64 {
    let tokens: f64 = groups.iter().map(|group| group.pass.tokens).sum();
    let seconds = groups.iter().map(|group| group.pass.seconds(&rules.prices));
    tokens / pipeline_seconds(seconds).max(f64::MIN_POSITIVE)
}

fn beats_time_sharing(groups: &[Group], rules: &Rules) -> bool {
    let together = groups.iter().map(|group| group.pass.seconds(&rules.prices));
    let members = groups.iter().flat_map(|group| &group.members);
    let apart = groups.len() as f64 * members.map(part_apart).sum::<f64>();
    pipeline_seconds(together) <= apart * (1.0 + ROUNDING)
}

fn part_apart(member: &GroupMember) -> f64 {
    member.profile.alone / member.parts as f64
}

fn slowdown(group: &Group, rules: &Rules) -> f64 {
    let shared = group.pass.seconds(&rules.prices) / group.members.len() as f64;
    group
        .members
        .iter()
        .map(|member| shared / part_apart(member))
        .fold(0.0, f64::max)
}
