use loraloom_scheduler::{Asha, Rungs, Stop, TaskId};
use proptest::prelude::*;

const TOTAL: usize = 100;

fn asha(trials: u64) -> Asha {
    let mut asha = Asha::new(Rungs::new(4, 3).expect("legal rungs"));
    for trial in 0..trials {
        asha.enter(TaskId(trial), TOTAL);
    }
    asha
}

/// Reports of different trials at one step, in this order; the trials that are stopped by them.
fn stopped(asha: &mut Asha, step: usize, values: &[(u64, f64)]) -> Vec<u64> {
    values
        .iter()
        .filter_map(|&(trial, value)| asha.report(TaskId(trial), step, value))
        .map(|stop| stop.trial.0)
        .collect()
}

#[test]
fn the_best_third_of_those_that_came_passes() {
    let mut asha = asha(7);
    // 1 of 1, 1 of 2, 2 of 2: stopped, 2 of 4, 5 of 5: stopped, 3 of 6: stopped, 1 of 7.
    let values = [5.0, 4.0, 4.5, 4.2, 9.0, 4.4, 1.0];
    let values: Vec<_> = (0..7).zip(values).collect();
    assert_eq!(stopped(&mut asha, 4, &values), [2, 4, 5]);
}

#[test]
fn a_stop_says_why() {
    let mut asha = asha(2);
    assert_eq!(asha.report(TaskId(1), 12, 1.0), None);
    let stop = Stop {
        trial: TaskId(0),
        rung: 1,
        milestone: 12,
        value: 2.0,
        rank: 2,
        results: 2,
        top: 1,
    };
    assert_eq!(asha.report(TaskId(0), 15, 2.0), Some(stop));
}

#[test]
fn of_equal_values_the_first_to_come_is_better() {
    let values: Vec<_> = [3, 1, 0, 2].map(|trial| (trial, 1.0)).into();
    // Ranks 1 to 4; one place, and two for the fourth.
    assert_eq!(stopped(&mut asha(4), 4, &values), [1, 0, 2]);
}

#[test]
fn a_value_that_is_no_number_never_passes_and_is_behind_all_others() {
    let mut asha = asha(5);
    let values = [
        (0, f64::NAN),
        (1, f64::INFINITY),
        (2, 7.0),
        (3, f64::NEG_INFINITY),
        (4, 8.0),
    ];
    assert_eq!(stopped(&mut asha, 4, &values), [0, 1, 3]);
}

#[test]
fn what_is_passed_once_is_passed() {
    let mut asha = asha(3);
    assert_eq!(
        stopped(&mut asha, 4, &[(0, 9.0), (1, 2.0), (2, 1.0)]),
        [] as [u64; 0]
    );
    // Worse than before, but between rungs; late reports of an earlier step.
    assert_eq!(
        stopped(&mut asha, 5, &[(0, 99.0), (1, 99.0)]),
        [] as [u64; 0]
    );
    assert_eq!(
        stopped(&mut asha, 4, &[(0, 99.0), (2, 0.0)]),
        [] as [u64; 0]
    );
}

#[test]
fn a_report_beyond_several_rungs_counts_at_the_highest() {
    let mut asha = asha(3);
    assert_eq!(asha.report(TaskId(0), 40, 1.0), None);
    // The first at step 4: what came at step 40 is not compared with it.
    assert_eq!(asha.report(TaskId(1), 4, 5.0), None);
    assert_eq!(asha.report(TaskId(2), 36, 2.0).unwrap().milestone, 36);
}

#[test]
fn rungs_at_the_end_of_a_trial_are_not_its_rungs() {
    let mut asha = Asha::new(Rungs::new(4, 3).expect("legal rungs"));
    asha.enter(TaskId(0), 40);
    asha.enter(TaskId(1), 12);
    assert_eq!(asha.report(TaskId(0), 12, 1.0), None);
    assert_eq!(asha.report(TaskId(1), 12, 2.0), None);
    assert_eq!(asha.report(TaskId(0), 36, 9.0), None);
}

#[test]
fn a_task_outside_the_sweep_is_never_stopped() {
    let mut asha = asha(1);
    assert_eq!(asha.report(TaskId(0), 4, 1.0), None);
    for step in 0..TOTAL {
        assert_eq!(asha.report(TaskId(7), step, f64::NAN), None);
    }
}

/// Entered again, a trial is not new.
#[test]
fn a_trial_is_entered_once() {
    let mut asha = asha(2);
    assert_eq!(stopped(&mut asha, 4, &[(0, 1.0), (1, 2.0)]), [1]);
    asha.enter(TaskId(1), TOTAL);
    assert_eq!(stopped(&mut asha, 12, &[(1, 9.0)]), [] as [u64; 0]);
}

#[derive(Debug, Clone, Copy)]
struct Report {
    trial: u64,
    step: usize,
    value: f64,
}

/// Steps of each trial go up; values are few, so that many are equal, and some are no numbers.
fn reports(trials: u64) -> impl Strategy<Value = Vec<Report>> {
    let value = prop_oneof![
        12 => (0_u8..9).prop_map(f64::from),
        1 => Just(f64::NAN),
        1 => Just(f64::INFINITY),
    ];
    let report = (0..trials, 1_usize..9, value);
    prop::collection::vec(report, 0..120).prop_map(move |drawn| {
        let mut steps = vec![0; trials as usize];
        let advance = |(trial, by, value)| {
            let step: &mut usize = &mut steps[trial as usize];
            *step += by;
            Report {
                trial,
                step: *step,
                value,
            }
        };
        drawn.into_iter().map(advance).collect()
    })
}

/// The step of the rung that a report is for, from the definition.
fn rung_of(report: Report) -> Option<usize> {
    [36, 12, 4].into_iter().find(|&rung| report.step >= rung)
}

/// The verdict on the last of these reports, from nothing but all of them.
fn reference(reports: &[Report]) -> bool {
    let Some((last, before)) = reports.split_last() else {
        return false;
    };
    let first_at = |index: usize| {
        let report = reports[index];
        let same =
            |other: &&Report| other.trial == report.trial && rung_of(**other) == rung_of(report);
        reports[..index].iter().find(same).is_none()
    };
    let Some(rung) = rung_of(*last).filter(|_| first_at(before.len())) else {
        return false;
    };
    let was_stopped = |trial, until: usize| {
        (0..until).any(|index| reports[index].trial == trial && reference(&reports[..=index]))
    };
    if was_stopped(last.trial, before.len()) {
        return false;
    }
    let results: Vec<f64> = (0..before.len())
        .filter(|&index| rung_of(reports[index]) == Some(rung) && first_at(index))
        .filter(|&index| !was_stopped(reports[index].trial, index))
        .map(|index| reports[index].value)
        .collect();
    let better = results.iter().filter(|&&value| value <= last.value).count();
    let top = (results.len() + 1).div_ceil(3);
    !last.value.is_finite() || better >= top
}

/// The step whose report stopped a trial.
fn step_of_the_stop(reports: &[Report], trial: u64) -> usize {
    let mut asha = asha(6);
    let mut reports = reports.iter();
    let stopped = reports.find(|report| {
        let stop = asha.report(TaskId(report.trial), report.step, report.value);
        stop.is_some() && report.trial == trial
    });
    stopped.map_or(usize::MAX, |report| report.step)
}

proptest! {
    #[test]
    fn verdicts_are_those_of_the_definition(reports in reports(5).prop_map(|mut all| {
        // The reference asks itself again for every report before.
        all.truncate(30);
        all
    })) {
        let mut asha = asha(5);
        for (index, report) in reports.iter().enumerate() {
            let stop = asha.report(TaskId(report.trial), report.step, report.value);
            prop_assert_eq!(stop.is_some(), reference(&reports[..=index]), "report {}", index);
        }
    }

    #[test]
    fn a_trial_stops_once_and_at_a_rung(reports in reports(6)) {
        let mut asha = asha(6);
        let mut ended = Vec::new();
        for report in reports {
            if let Some(stop) = asha.report(TaskId(report.trial), report.step, report.value) {
                prop_assert_eq!(stop.trial, TaskId(report.trial));
                prop_assert!(!ended.contains(&stop.trial));
                prop_assert_eq!(Some(stop.milestone), rung_of(report));
                prop_assert!(stop.rank > stop.top || !report.value.is_finite());
                prop_assert!(stop.rank <= stop.results && stop.top == stop.results.div_ceil(3));
                ended.push(stop.trial);
            }
        }
    }

    #[test]
    fn a_trial_that_is_ahead_whenever_it_reports_is_never_stopped(
        mut reports in reports(6), leader in 0_u64..6,
    ) {
        let mut asha = asha(6);
        for report in &mut reports {
            if report.trial == leader {
                report.value = -1.0;
            }
            let stop = asha.report(TaskId(report.trial), report.step, report.value);
            prop_assert!(stop.is_none_or(|stop| stop.trial != TaskId(leader)));
        }
    }

    /// Stopped trials report no more; all others are judged after a restart as without one, in
    /// whatever order trials are taken up again.
    #[test]
    fn a_restart_changes_nothing(reports in reports(6), cut in 0_usize..120) {
        let mut undisturbed = asha(6);
        let mut restarted = asha(6);
        let mut ended = Vec::new();
        let (before, after) = reports.split_at(cut.min(reports.len()));
        for report in before {
            let trial = TaskId(report.trial);
            if undisturbed.report(trial, report.step, report.value).is_some() {
                ended.push(trial);
            }
        }
        let mut taken_up = before.to_vec();
        taken_up.sort_by_key(|report| std::cmp::Reverse(report.trial));
        for report in taken_up {
            let trial = TaskId(report.trial);
            // What was reported after a stop never counted, and is not kept.
            let stop = ended.contains(&trial) && step_of_the_stop(before, report.trial) < report.step;
            if !stop {
                restarted.restore(trial, report.step, report.value);
            }
        }
        for report in after.iter().filter(|report| !ended.contains(&TaskId(report.trial))) {
            let trial = TaskId(report.trial);
            // Not the value: it may be no number.
            let verdict = |stop: Stop| (stop.rung, stop.rank, stop.results, stop.top);
            prop_assert_eq!(
                undisturbed.report(trial, report.step, report.value).map(verdict),
                restarted.report(trial, report.step, report.value).map(verdict)
            );
        }
    }

    #[test]
    fn strangers_change_nothing(reports in reports(6)) {
        let (mut alone, mut beside) = (asha(4), asha(4));
        for report in reports {
            let trial = TaskId(report.trial);
            let stop = beside.report(trial, report.step, report.value);
            if report.trial < 4 {
                prop_assert_eq!(
                    stop.map(|stop| (stop.rung, stop.rank, stop.results)),
                    alone
                        .report(trial, report.step, report.value)
                        .map(|stop| (stop.rung, stop.rank, stop.results))
                );
            } else {
                prop_assert_eq!(stop, None);
            }
        }
    }
}
