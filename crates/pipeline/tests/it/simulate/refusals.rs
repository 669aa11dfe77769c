//! Lists, costs and links that cannot be executed.

use loraloom_pipeline::{
    schedule::{Operation, PipelineShape, Schedule, operations},
    simulate::{Link, Links, ScheduleCosts, TimelineError, simulate, submission_order},
};

use crate::simulate::support::passes;

#[test]
fn a_circular_wait_is_named() {
    let mut lists = operations(Schedule::LoraPp, &PipelineShape::new(2, 2, 1, 1));
    // The last stage now wants group 1 first, the first stage group 0's gradient before sending it.
    lists[1].rotate_left(3);
    let first = lists[0].remove(1);
    lists[0].push(first);
    let costs = ScheduleCosts::uniform(2, 2, passes(1.0, 1.0)).unwrap();
    let error = simulate(&lists, &costs, &Links::instant(2, 2)).unwrap_err();
    let operation = Operation::Backward {
        group: 0,
        microbatch: 0,
        iteration: 0,
    };
    let expected = TimelineError::Deadlock {
        stage: 0,
        position: 1,
        operation,
    };
    assert_eq!(error, expected);
    assert_eq!(
        error.to_string(),
        "deadlock: stage 0 waits forever before operation 1, backward of group 0, micro-batch 0, \
         iteration 0"
    );
    assert_eq!(submission_order(&lists).unwrap_err(), expected);
}

/// Each of the three rules within one stage, broken.
#[test]
fn lists_that_break_a_rule_are_refused() {
    let one = operations(Schedule::LoraPp, &PipelineShape::new(1, 1, 1, 2));
    let costs = ScheduleCosts::uniform(1, 1, passes(1.0, 1.0)).unwrap();
    let refused_at = |list: Vec<Operation>| match simulate(&[list], &costs, &Links::instant(1, 1))
        .unwrap_err()
    {
        TimelineError::Deadlock { position, .. } => position,
        other => panic!("{other}"),
    };
    let swapped = |left, right| {
        let mut list = one[0].clone();
        list.swap(left, right);
        list
    };
    assert_eq!(refused_at(swapped(0, 1)), 0);
    assert_eq!(refused_at(swapped(1, 2)), 1);
    assert_eq!(refused_at(swapped(2, 3)), 2);
    let mut repeated = one[0].clone();
    repeated.push(one[0][0]);
    let error = simulate(&[repeated], &costs, &Links::instant(1, 1)).unwrap_err();
    assert!(matches!(error, TimelineError::Repeated { position: 6, .. }));
}

#[test]
fn what_does_not_fit_is_refused_with_its_numbers() {
    let lists = operations(Schedule::LoraPp, &PipelineShape::new(3, 2, 1, 1));
    let refusal = |stages, groups, links: &Links| {
        let costs = ScheduleCosts::uniform(stages, groups, passes(1.0, 1.0)).unwrap();
        simulate(&lists, &costs, links).unwrap_err().to_string()
    };
    let links = Links::instant(3, 2);
    assert_eq!(
        refusal(2, 2, &links),
        "3 stages with costs expected, 2 found"
    );
    assert_eq!(
        refusal(3, 1, &links),
        "2 groups with costs expected, 1 found"
    );
    assert_eq!(
        refusal(3, 2, &Links::instant(2, 2)),
        "2 links expected, 1 found"
    );
    assert_eq!(
        refusal(3, 2, &Links::instant(3, 1)),
        "2 groups with a size expected, 1 found"
    );
    assert!(ScheduleCosts::uniform(1, 1, passes(-1.0, 1.0)).is_err());
    let link = |bytes_per_second, latency| Link {
        bytes_per_second,
        latency,
    };
    for refused in [
        link(0.0, 0.0),
        link(f64::NAN, 0.0),
        link(1.0, -1.0),
        link(1.0, f64::NAN),
    ] {
        assert!(Links::new(vec![refused], vec![1.0]).is_err());
    }
    assert!(Links::new(vec![link(1.0, 0.0)], vec![f64::NAN]).is_err());
}
