use loraloom_pipeline::{
    schedule::{PipelineShape, Schedule, operations},
    simulate::{Links, PassCosts, ScheduleCosts, Timeline, simulate},
};

pub(crate) const ALL: [Schedule; 3] = [Schedule::LoraPp, Schedule::OneFOneB, Schedule::GPipe];

/// No time for optimizer steps.
pub(crate) fn passes(forward: f64, backward: f64) -> PassCosts {
    PassCosts {
        forward,
        backward,
        step: 0.0,
    }
}

pub(crate) fn run(
    schedule: Schedule,
    shape: &PipelineShape,
    costs: PassCosts,
    links: &Links,
) -> Timeline {
    let costs = ScheduleCosts::uniform(shape.stages, shape.groups, costs).expect("costs");
    simulate(&operations(schedule, shape), &costs, links).expect("no deadlock")
}

/// Equal stages and groups, hops without cost.
pub(crate) fn run_uniform(schedule: Schedule, shape: &PipelineShape, costs: PassCosts) -> Timeline {
    let links = Links::instant(shape.stages, shape.groups);
    run(schedule, shape, costs, &links)
}
