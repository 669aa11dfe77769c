use super::{Costs, Links, PassCosts, SimulationError, simulate};
use crate::schedule::Operation;

/// One order of all stages' operations, as `(stage, operation)`, in which a single thread can submit
/// them to devices that work through what they are given by themselves.
///
/// It keeps each stage's order, and what an operation needs comes before it. It follows a clock on
/// which all passes take the same time, so no stage's next operation is held back behind work that
/// other stages only do later.
///
/// # Errors
///
/// If the lists deadlock or an operation is repeated.
pub fn submission_order(
    lists: &[Vec<Operation>],
) -> Result<Vec<(usize, Operation)>, SimulationError> {
    let groups = lists
        .iter()
        .flatten()
        .map(|operation| operation.group() + 1)
        .max()
        .unwrap_or(0);
    let pass = PassCosts {
        forward: 1.0,
        backward: 1.0,
        step: 0.0,
    };
    let costs = Costs::uniform(lists.len(), groups, pass)?;
    let simulation = simulate(lists, &costs, &Links::instant(lists.len(), groups))?;
    let mut order: Vec<(f64, usize, Operation)> = simulation
        .stages
        .iter()
        .flat_map(|stage| &stage.intervals)
        .map(|interval| (interval.start, interval.stage, interval.operation))
        .collect();
    // Stable, so a stage's operations that start together, a step and the pass after it, stay in
    // order. Across stages what is needed started a whole pass earlier.
    order.sort_by(|left, right| left.0.total_cmp(&right.0).then(left.1.cmp(&right.1)));
    Ok(order
        .into_iter()
        .map(|(_, stage, operation)| (stage, operation))
        .collect())
}
