use std::cmp::Reverse;

/// Spreads tasks over groups so that all groups have about the same number of tokens in a step: the
/// longest task first, each to the group with the fewest tokens. Returns the places of each group's
/// tasks in `tokens_per_step`, in ascending order.
///
/// There are `groups` groups (0 counts as 1), or as many as tasks if those are fewer: no group is
/// empty. The same numbers give the same groups; of equal tasks the earlier one goes first, of equal
/// groups the one with fewer tasks is filled, then the first.
///
/// The largest group has at most 4/3 − 1/(3·groups) times the tokens that it has in the best spread
/// there is (Graham's bound).
pub fn balanced_groups(tokens_per_step: &[usize], groups: usize) -> Vec<Vec<usize>> {
    let count = groups.max(1).min(tokens_per_step.len());
    let mut spread = vec![(0_usize, Vec::new()); count];
    let mut order: Vec<usize> = (0..tokens_per_step.len()).collect();
    order.sort_by_key(|&task| Reverse(tokens_per_step[task]));
    for task in order {
        let emptiest = spread
            .iter_mut()
            .min_by_key(|(tokens, tasks)| (*tokens, tasks.len()));
        // There is a group wherever there is a task.
        if let Some((tokens, tasks)) = emptiest {
            *tokens = tokens.saturating_add(tokens_per_step[task]);
            tasks.push(task);
        }
    }
    spread
        .into_iter()
        .map(|(_, mut tasks)| {
            tasks.sort_unstable();
            tasks
        })
        .collect()
}

/// How many groups keep a pipeline of so many stages full: as many as stages, if there are as many
/// tasks. A single stage has nothing to fill, and one large batch is the best it can have.
pub fn group_count(stages: usize, tasks: usize) -> usize {
    stages.min(tasks)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{balanced_groups, group_count};

    fn tokens(groups: &[Vec<usize>], sizes: &[usize]) -> Vec<usize> {
        let sum = |group: &Vec<usize>| group.iter().map(|&task| sizes[task]).sum();
        groups.iter().map(sum).collect()
    }

    #[test]
    fn the_longest_go_first_and_groups_keep_the_given_order() {
        assert_eq!(
            balanced_groups(&[10, 40, 20, 30], 2),
            [vec![0, 1], vec![2, 3]]
        );
        assert_eq!(balanced_groups(&[1, 9, 1, 1], 2), [vec![1], vec![0, 2, 3]]);
        assert_eq!(balanced_groups(&[5, 5, 5], 3), [[0], [1], [2]]);
    }

    #[test]
    fn one_group_has_every_task_and_fewer_tasks_are_fewer_groups() {
        assert_eq!(balanced_groups(&[3, 1, 2], 1), [[0, 1, 2]]);
        assert_eq!(balanced_groups(&[3, 1, 2], 0), [[0, 1, 2]]);
        assert_eq!(balanced_groups(&[7, 8], 4), [[1], [0]]);
        assert_eq!(balanced_groups(&[], 3), Vec::<Vec<usize>>::new());
        assert_eq!((group_count(1, 5), group_count(4, 3)), (1, 3));
        assert_eq!((group_count(2, 5), group_count(4, 0)), (2, 0));
    }

    #[test]
    fn tasks_without_tokens_fill_empty_groups() {
        assert_eq!(balanced_groups(&[5, 0, 0], 3), [[0], [1], [2]]);
        assert_eq!(balanced_groups(&[0; 4], 2), [[0, 2], [1, 3]]);
        let huge = balanced_groups(&[usize::MAX, usize::MAX, 1], 1);
        assert_eq!(huge, [[0, 1, 2]]);
    }

    /// The largest group of the best of all spreads, by trying them all.
    fn best(sizes: &[usize], groups: usize) -> usize {
        let spreads = groups.pow(sizes.len() as u32);
        let largest = |spread: usize| {
            let mut sums = vec![0; groups];
            let mut code = spread;
            for size in sizes {
                sums[code % groups] += size;
                code /= groups;
            }
            sums.into_iter().max().unwrap_or(0)
        };
        (0..spreads).map(largest).min().unwrap_or(0)
    }

    proptest! {
        #[test]
        fn every_task_is_in_one_group_and_no_group_is_empty(
            sizes in prop::collection::vec(0_usize..5000, 0..40), groups in 0_usize..12,
        ) {
            let spread = balanced_groups(&sizes, groups);
            prop_assert_eq!(spread.len(), groups.max(1).min(sizes.len()));
            prop_assert!(spread.iter().all(|group| !group.is_empty() && group.is_sorted()));
            let mut tasks: Vec<usize> = spread.concat();
            tasks.sort_unstable();
            prop_assert_eq!(tasks, (0..sizes.len()).collect::<Vec<_>>());
            prop_assert_eq!(balanced_groups(&sizes, groups), spread);
        }

        #[test]
        fn the_largest_group_is_within_grahams_bound(
            sizes in prop::collection::vec(1_usize..100, 1..8), groups in 1_usize..4,
        ) {
            let spread = balanced_groups(&sizes, groups);
            let largest = tokens(&spread, &sizes).into_iter().max().unwrap_or(0);
            let bound = best(&sizes, groups) * (4 * groups - 1);
            prop_assert!(3 * groups * largest <= bound, "{} {}", largest, bound);
        }
    }
}
