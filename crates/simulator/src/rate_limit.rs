use std::collections::BTreeMap;

use super::Job;

/// Delays jobs so that no more than `tasks` of a tenant are submitted within any `window`
/// nanoseconds, first come, first served. The requests per minute of serving, but a job over the limit
/// waits where a request is rejected: all policies train the same jobs. `jobs` are in order of arrival.
pub(super) fn limit_rate(jobs: &mut [Job], tasks: usize, window: u64) {
    let mut submitted: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for job in jobs {
        let earlier = submitted.entry(job.task.tenant.clone()).or_default();
        if let Some(last) = earlier.len().checked_sub(tasks.max(1)) {
            job.submitted = job.arrival.max(earlier[last].saturating_add(window));
        }
        earlier.push(job.submitted);
    }
}

#[cfg(test)]
mod tests {
    use loraloom_scheduler::{Load, Task, TaskId};

    use super::{Job, limit_rate};
    use crate::random::Random;

    fn jobs(arrivals: &[(u64, u64)]) -> Vec<Job> {
        let job = |(id, &(arrival, tenant)): (u64, &(u64, u64))| Job {
            arrival,
            submitted: arrival,
            task: Task {
                id: TaskId(id),
                name: format!("job-{id}"),
                tenant: format!("tenant-{tenant}"),
                priority: 0,
                arrival: id,
                rank: 8,
                rows_per_step: 1,
                tokens_per_step: 1,
                total_steps: 1,
                passes_per_step: 1,
                max_parts: 1,
                load: Load::default(),
            },
        };
        (0..).zip(arrivals).map(job).collect()
    }

    fn limited(arrivals: &[(u64, u64)], tasks: usize, window: u64) -> Vec<u64> {
        let mut jobs = jobs(arrivals);
        limit_rate(&mut jobs, tasks, window);
        jobs.iter().map(|job| job.submitted).collect()
    }

    #[test]
    fn a_burst_of_one_tenant_is_spread_and_others_are_not_held_back() {
        let arrivals = [(0, 0), (0, 0), (1, 0), (2, 1), (3, 0), (25, 0), (99, 0)];
        assert_eq!(limited(&arrivals, 2, 10), [0, 0, 10, 2, 10, 25, 99]);
    }

    /// Nanosecond by nanosecond, each tenant's first waiting job is submitted if fewer than the limit
    /// were within the window.
    #[test]
    fn submissions_are_those_of_a_clock_that_counts() {
        let mut random = Random::new(7);
        for _ in 0..200 {
            let (tasks, window) = (1 + random.below(4), 1 + random.below(12) as u64);
            let mut arrivals: Vec<(u64, u64)> = (0..30)
                .map(|_| (random.below(40) as u64, random.below(3) as u64))
                .collect();
            arrivals.sort_by_key(|&(arrival, _)| arrival);
            let mut expected = vec![None; arrivals.len()];
            let mut now = 0;
            while expected.contains(&None) {
                for (job, &(arrival, tenant)) in arrivals.iter().enumerate() {
                    let of_tenant = |other: &usize| arrivals[*other].1 == tenant;
                    let recent = (0..arrivals.len()).filter(of_tenant).filter(|&other| {
                        expected[other].is_some_and(|submitted| submitted + window > now)
                    });
                    if arrival <= now && expected[job].is_none() && recent.count() < tasks {
                        expected[job] = Some(now);
                    }
                }
                now += 1;
            }
            let expected: Vec<u64> = expected.into_iter().flatten().collect();
            assert_eq!(limited(&arrivals, tasks, window), expected);
        }
    }
}
