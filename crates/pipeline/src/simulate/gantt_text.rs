use std::fmt::Write;

use super::Simulation;
use crate::schedule::Operation;

/// The simulation as text, a line a stage and a column per `seconds_per_column`: groups are letters
/// from `a` on (from `a` again after 26), small for forward, capital for backward passes, and `.` is
/// idle.
///
/// Each column shows what the stage does in its middle, so operations shorter than a column may not
/// appear.
pub fn gantt_text(simulation: &Simulation, seconds_per_column: f64) -> String {
    let columns = (simulation.makespan / seconds_per_column).ceil() as usize;
    let mut text = String::new();
    for (stage, report) in simulation.stages.iter().enumerate() {
        let mut line = vec!['.'; columns];
        for interval in &report.intervals {
            // A letter of the alphabet always fits into a byte.
            let small = (b'a' + (interval.operation.group() % 26) as u8) as char;
            let letter = match interval.operation {
                Operation::Forward { .. } => small,
                Operation::Backward { .. } => small.to_ascii_uppercase(),
                Operation::Step { .. } => continue,
            };
            let column = |seconds: f64| (seconds / seconds_per_column - 0.5).ceil() as usize;
            let end = column(interval.end).min(columns);
            for place in &mut line[column(interval.start).min(end)..end] {
                *place = letter;
            }
        }
        let line: String = line.into_iter().collect();
        // Writing to a string cannot fail.
        let _ = writeln!(text, "stage {stage} |{line}");
    }
    text
}
