//! Bubbles of equal stages and groups.

use loraloom_pipeline::{
    schedule::{PipelineShape, Schedule},
    simulate::{Link, Links, PassCosts, bubble_gpipe, bubble_lorapp},
};

use crate::simulate::support::{ALL, passes, run, run_uniform};

/// Busy and whole time of every stage between two rounds are in the ratio of the closed form,
/// exactly: all times are whole numbers.
fn assert_closed_forms(shape: &PipelineShape, costs: PassCosts) {
    let PipelineShape {
        stages,
        groups,
        microbatches,
        ..
    } = *shape;
    let alone = stages + microbatches - 1;
    let work = groups * microbatches;
    for schedule in ALL {
        let (bubble, round) = match schedule {
            Schedule::LoraPp => {
                let bubble = bubble_lorapp(stages, groups, microbatches);
                (bubble, alone.max(work))
            }
            _ => (bubble_gpipe(stages, microbatches), alone * groups),
        };
        let simulation = run_uniform(schedule, shape, costs);
        for (stage, report) in simulation.stages.iter().enumerate() {
            let steady = report.steady.expect("steps");
            assert_eq!(
                steady.busy * round as f64,
                steady.seconds * work as f64,
                "{schedule:?} {shape:?}, stage {stage}: {steady:?}"
            );
            assert!((steady.bubble() - bubble).abs() < 1e-12);
        }
    }
}

#[test]
fn bubbles_are_those_of_the_closed_forms() {
    for stages in 1..=16 {
        for groups in 1..=16 {
            for microbatches in 1..=8 {
                let shape = PipelineShape::new(stages, groups, microbatches, 4);
                assert_closed_forms(&shape, passes(1.0, 1.0));
            }
        }
    }
}

#[test]
fn closed_forms_hold_for_longer_and_shorter_backward_passes() {
    for stages in [1, 2, 3, 4, 7, 16] {
        for groups in [1, 2, 3, 4, 5, 8, 16] {
            for microbatches in [1, 2, 3, 8] {
                let shape = PipelineShape::new(stages, groups, microbatches, 4);
                assert_closed_forms(&shape, passes(1.0, 2.0));
                assert_closed_forms(&shape, passes(3.0, 2.0));
            }
        }
    }
}

/// The zero-bubble rule with hops of whole passes: they lengthen a group's way, nothing else.
#[test]
fn hops_are_hidden_by_more_groups() {
    for stages in 1..=6usize {
        for groups in 1..=12usize {
            for microbatches in 1..=4usize {
                for hop in 0..=3usize {
                    let shape =
                        PipelineShape::new(stages, groups, microbatches, 6).with_extra_warmup(hop);
                    let link = Link {
                        bytes_per_second: f64::INFINITY,
                        latency: hop as f64,
                    };
                    let links = Links::new(vec![link; stages - 1], vec![1.0; groups]).unwrap();
                    let simulation = run(Schedule::LoraPp, &shape, passes(1.0, 1.0), &links);
                    let alone = stages + microbatches - 1 + (stages - 1) * hop;
                    let round = alone.max(groups * microbatches);
                    for report in &simulation.stages {
                        let steady = report.steady.unwrap();
                        let work = groups * microbatches;
                        assert_eq!(steady.busy * round as f64, steady.seconds * work as f64);
                    }
                }
            }
        }
    }
}
