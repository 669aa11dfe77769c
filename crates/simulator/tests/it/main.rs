//! The virtual clock, and traces under every policy.

mod replay;
mod simulate;

use loraloom_simulator::Replay;

/// All but what this machine's clock says.
fn without_decision_times(mut replay: Replay) -> Replay {
    for decision in &mut replay.decisions {
        decision.seconds = 0.0;
    }
    replay
}
