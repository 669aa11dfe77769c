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

/// Reports of different trials at one step, each judged before the next; the trials that are stopped.
fn one_by_one(asha: &mut Asha, step: usize, values: &[(u64, f64)]) -> Vec<u64> {
    let stops = values
        .iter()
        .flat_map(|value| together(asha, step, std::slice::from_ref(value)));
    stops.collect()
}

/// Reports of different trials at one step, which are judged together; the trials that are stopped.
fn together(asha: &mut Asha, step: usize, values: &[(u64, f64)]) -> Vec<u64> {
    for &(trial, value) in values {
        asha.report(TaskId(trial), step, value);
    }
    asha.judge().iter().map(|stop| stop.trial.0).collect()
}

/// Of nine that come together three go on, of those three one, in whatever order they are reported: the
/// losses of a sweep in which 0.3, the last learning rate, was the worst at every rung.
#[test]
fn results_that_come_together_are_judged_together() {
    let at_3 = [5.8, 5.4, 4.3, 3.3, 5.7, 5.0, 3.6, 10.7, 11.2];
    let at_9 = [(2, 2.1), (3, 0.97), (6, 1.4)];
    let at_3: Vec<(u64, f64)> = (0..).zip(at_3).collect();
    for turn in 0..9 {
        let mut asha = Asha::new(Rungs::new(3, 3).expect("legal rungs"));
        let mut reports = at_3.clone();
        reports.rotate_left(turn);
        for &(trial, _) in &reports {
            asha.enter(TaskId(trial), 81);
        }
        assert_eq!(together(&mut asha, 3, &reports), [5, 1, 4, 0, 7, 8]);
        let mut reports = at_9;
        reports.rotate_left(turn % 3);
        assert_eq!(together(&mut asha, 9, &reports), [6, 2]);
        assert_eq!(together(&mut asha, 27, &[(3, 9.0)]), [] as [u64; 0]);
    }
}

/// One that comes later is compared with those that came before it and with those beside it.
#[test]
fn a_late_result_may_still_be_among_the_best() {
    let mut asha = asha(6);
    assert_eq!(together(&mut asha, 4, &[(0, 3.0), (1, 4.0)]), [1]);
    assert_eq!(together(&mut asha, 5, &[(4, 2.0), (2, 1.0), (3, 2.5)]), [3]);
    assert_eq!(together(&mut asha, 4, &[(5, 1.0)]), [] as [u64; 0]);
}

#[test]
fn of_equal_values_the_trial_submitted_first_goes_on() {
    for order in [[0, 1, 2], [2, 1, 0]] {
        let values = order.map(|trial| (trial, 1.0));
        assert_eq!(together(&mut asha(3), 4, &values), [1, 2]);
    }
    let none = [(0, f64::NAN), (1, f64::NAN)];
    assert_eq!(together(&mut asha(2), 4, &none), [0, 1]);
}

#[test]
fn the_best_third_of_those_that_came_passes() {
    let mut asha = asha(7);
    // 1 of 1, 1 of 2, 2 of 2: stopped, 2 of 4, 5 of 5: stopped, 3 of 6: stopped, 1 of 7.
    let values = [5.0, 4.0, 4.5, 4.2, 9.0, 4.4, 1.0];
    let values: Vec<_> = (0..7).zip(values).collect();
    assert_eq!(one_by_one(&mut asha, 4, &values), [2, 4, 5]);
}

#[test]
fn a_stop_says_why() {
    let mut asha = asha(2);
    asha.report(TaskId(1), 12, 1.0);
    asha.report(TaskId(0), 15, 2.0);
    let stop = Stop {
        trial: TaskId(0),
        rung: 1,
        step: 15,
        value: 2.0,
        rank: 2,
        results: 2,
        top: 1,
    };
    assert_eq!(asha.judge(), [stop]);
}

#[test]
fn of_equal_values_the_first_to_come_is_better() {
    let values: Vec<_> = [3, 1, 0, 2].map(|trial| (trial, 1.0)).into();
    // Ranks 1 to 4; one place, and two for the fourth.
    assert_eq!(one_by_one(&mut asha(4), 4, &values), [1, 0, 2]);
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
    assert_eq!(one_by_one(&mut asha, 4, &values), [0, 1, 3]);
}

#[test]
fn what_is_passed_once_is_passed() {
    let mut asha = asha(3);
    assert_eq!(
        one_by_one(&mut asha, 4, &[(0, 9.0), (1, 2.0), (2, 1.0)]),
        [] as [u64; 0]
    );
    // Worse than before, but between rungs; late reports of an earlier step.
    assert_eq!(
        one_by_one(&mut asha, 5, &[(0, 99.0), (1, 99.0)]),
        [] as [u64; 0]
    );
    assert_eq!(
        one_by_one(&mut asha, 4, &[(0, 99.0), (2, 0.0)]),
        [] as [u64; 0]
    );
}

#[test]
fn a_report_beyond_several_rungs_counts_at_the_highest() {
    let mut asha = asha(3);
    asha.report(TaskId(0), 40, 1.0);
    // The first at step 4: what came at step 40 is not compared with it.
    asha.report(TaskId(1), 4, 5.0);
    asha.report(TaskId(2), 36, 2.0);
    let stops = asha.judge();
    assert_eq!(stops.len(), 1);
    assert_eq!((stops[0].trial, stops[0].rung), (TaskId(2), 2));
}

#[test]
fn rungs_at_the_end_of_a_trial_are_not_its_rungs() {
    let mut asha = Asha::new(Rungs::new(4, 3).expect("legal rungs"));
    asha.enter(TaskId(0), 40);
    asha.enter(TaskId(1), 12);
    asha.report(TaskId(0), 12, 1.0);
    asha.report(TaskId(1), 12, 2.0);
    asha.report(TaskId(0), 36, 9.0);
    assert_eq!(asha.judge(), []);
}

#[test]
fn a_task_outside_the_sweep_is_never_stopped() {
    let mut asha = asha(1);
    asha.report(TaskId(0), 4, 1.0);
    for step in 0..TOTAL {
        asha.report(TaskId(7), step, f64::NAN);
        assert_eq!(asha.judge(), []);
    }
}

/// Entered again, a trial is not new.
#[test]
fn a_trial_is_entered_once() {
    let mut asha = asha(2);
    assert_eq!(one_by_one(&mut asha, 4, &[(0, 1.0), (1, 2.0)]), [1]);
    asha.enter(TaskId(1), TOTAL);
    assert_eq!(one_by_one(&mut asha, 12, &[(1, 9.0)]), [] as [u64; 0]);
}

#[derive(Debug, Clone, Copy)]
struct Report {
    trial: u64,
    step: usize,
    value: f64,
    /// Whether it is judged before the next one comes.
    judged: bool,
}

/// Steps of each trial go up; values are few, so that many are equal, and some are no numbers.
fn reports(trials: u64) -> impl Strategy<Value = Vec<Report>> {
    let value = prop_oneof![
        12 => (0_u8..9).prop_map(f64::from),
        1 => Just(f64::NAN),
        1 => Just(f64::INFINITY),
    ];
    let report = (0..trials, 1_usize..9, value, any::<bool>());
    prop::collection::vec(report, 0..120).prop_map(move |drawn| {
        let mut steps = vec![0; trials as usize];
        let advance = |(trial, by, value, judged)| {
            let step: &mut usize = &mut steps[trial as usize];
            *step += by;
            Report {
                trial,
                step: *step,
                value,
                judged,
            }
        };
        drawn.into_iter().map(advance).collect()
    })
}

/// The step of the rung that a report is for, from the definition.
fn rung_of(step: usize) -> Option<usize> {
    [36, 12, 4].into_iter().find(|&rung| step >= rung)
}

/// Which trials stop, and after how many reports, from the definition: results are kept as they came
/// and counted anew for every decision.
fn reference(reports: &[Report]) -> Vec<(u64, usize)> {
    let mut stops: Vec<(u64, usize)> = Vec::new();
    // The rung, trial and value of every result.
    let mut results: Vec<(usize, u64, f64)> = Vec::new();
    let mut judged = 0;
    for (index, report) in reports.iter().enumerate() {
        let ended = stops.iter().any(|&(trial, _)| trial == report.trial);
        if let Some(rung) = rung_of(report.step).filter(|_| !ended) {
            let mut own = results
                .iter()
                .filter(|(_, trial, _)| *trial == report.trial);
            if own.all(|&(passed, ..)| passed < rung) {
                results.push((rung, report.trial, report.value));
            }
        }
        if !report.judged {
            continue;
        }
        for (place, &(rung, trial, value)) in results.iter().enumerate().skip(judged) {
            let beside = results
                .iter()
                .enumerate()
                .filter(|(_, (at, ..))| *at == rung);
            let better = beside.clone().filter(|&(at, &(_, other, result))| {
                let first = at < judged || other < trial;
                let is_better = if first {
                    result <= value
                } else {
                    result < value
                };
                at != place && result.is_finite() && is_better
            });
            let top = beside.clone().count().div_ceil(3);
            let ended = stops.iter().any(|&(stopped, _)| stopped == trial);
            if !ended && (!value.is_finite() || better.count() >= top) {
                stops.push((trial, index));
            }
        }
        judged = results.len();
    }
    stops
}

/// What is stopped by these reports, and after how many of them.
fn found(asha: &mut Asha, reports: &[Report]) -> Vec<(u64, usize)> {
    let mut stops = Vec::new();
    for (index, report) in reports.iter().enumerate() {
        asha.report(TaskId(report.trial), report.step, report.value);
        if report.judged {
            stops.extend(asha.judge().iter().map(|stop| (stop.trial.0, index)));
        }
    }
    stops
}

fn sorted(mut stops: Vec<(u64, usize)>) -> Vec<(u64, usize)> {
    stops.sort_unstable();
    stops
}

proptest! {
    #[test]
    fn verdicts_are_those_of_the_definition(reports in reports(5)) {
        prop_assert_eq!(sorted(found(&mut asha(5), &reports)), sorted(reference(&reports)));
    }

    #[test]
    fn a_trial_stops_once_and_at_a_rung(reports in reports(6)) {
        let mut asha = asha(6);
        let mut ended = Vec::new();
        for report in reports {
            asha.report(TaskId(report.trial), report.step, report.value);
            if !report.judged {
                continue;
            }
            for stop in asha.judge() {
                prop_assert!(!ended.contains(&stop.trial));
                ended.push(stop.trial);
                prop_assert_eq!(rung_of(stop.step), Some(4 * 3_usize.pow(stop.rung as u32)));
                prop_assert!(stop.rank > stop.top || !stop.value.is_finite());
                prop_assert!(stop.rank <= stop.results && stop.top == stop.results.div_ceil(3));
            }
        }
    }

    #[test]
    fn a_trial_that_is_ahead_whenever_it_reports_is_never_stopped(
        mut reports in reports(6), leader in 0_u64..6,
    ) {
        for report in &mut reports {
            if report.trial == leader {
                report.value = -1.0;
            }
        }
        let stops = found(&mut asha(6), &reports);
        prop_assert!(stops.iter().all(|&(trial, _)| trial != leader));
    }

    /// Stopped trials report no more; all others are judged after a restart as without one, in
    /// whatever order trials are taken up again.
    #[test]
    fn a_restart_changes_nothing(mut reports in reports(6), cut in 0_usize..120) {
        let cut = cut.min(reports.len());
        if let Some(last) = reports[..cut].last_mut() {
            last.judged = true;
        }
        let (before, after) = reports.split_at(cut);
        let mut undisturbed = asha(6);
        let ended = found(&mut undisturbed, before);
        let mut restarted = asha(6);
        let mut taken_up: Vec<(usize, &Report)> = before.iter().enumerate().collect();
        taken_up.sort_by_key(|(_, report)| std::cmp::Reverse(report.trial));
        for (index, report) in taken_up {
            // What was reported after a stop never counted, and is not kept.
            if !ended.iter().any(|&(trial, at)| trial == report.trial && at < index) {
                restarted.restore(TaskId(report.trial), report.step, report.value);
            }
        }
        let goes_on = |report: &&Report| ended.iter().all(|&(trial, _)| trial != report.trial);
        let after: Vec<Report> = after.iter().filter(goes_on).copied().collect();
        prop_assert_eq!(found(&mut undisturbed, &after), found(&mut restarted, &after));
    }

    #[test]
    fn strangers_change_nothing(reports in reports(6)) {
        let known = |report: &&Report| report.trial < 4;
        let mut alone: Vec<Report> = reports.iter().filter(known).copied().collect();
        // Those that are judged together stay so.
        let mut at = 0;
        for report in &reports {
            at += usize::from(report.trial < 4);
            if report.judged && at > 0 {
                alone[at - 1].judged = true;
            }
        }
        let trials = |stops: Vec<(u64, usize)>| -> Vec<u64> {
            stops.into_iter().map(|(trial, _)| trial).collect()
        };
        prop_assert_eq!(
            trials(found(&mut asha(4), &reports)),
            trials(found(&mut asha(4), &alone))
        );
    }
}
