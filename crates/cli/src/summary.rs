//! What a run made, as text.

use std::fmt::Write;

use loraloom_trainer::{
    AdapterReport, DatasetSummary, Outcome, RunReport, SweepReport, SweepStanding,
};

use crate::table;

/// Columns of the table; text to the left, numbers to the right.
const COLUMNS: [(&str, bool); 7] = [
    ("adapter", true),
    ("outcome", true),
    ("steps", false),
    ("first loss", false),
    ("last loss", false),
    ("best validation", false),
    ("directory", true),
];
/// Samples shown of each adapter.
const SAMPLES: usize = 2;

/// A line on the data an adapter trains on.
pub(crate) fn dataset(summary: &DatasetSummary) -> String {
    let train = &summary.train;
    let mut line = format!(
        "data    {}: {}; {} of {} rows",
        summary.adapter, train.format, train.kept, train.rows
    );
    for (count, what) in [
        (train.dropped_without_target, "dropped"),
        (train.truncated, "cut"),
    ] {
        if count > 0 {
            let _ = write!(line, ", {count} {what}");
        }
    }
    if let Some(validation) = &summary.validation {
        let _ = write!(line, "; {} for validation", validation.kept);
    }
    line
}

/// A table with a row per adapter, and the run's totals below it.
pub(crate) fn table(report: &RunReport) -> String {
    let rows: Vec<_> = report.adapters.iter().map(row).collect();
    let mut text = table::aligned(COLUMNS, &rows);
    let rate = report.tokens as f64 / report.seconds.max(f64::MIN_POSITIVE);
    let _ = write!(
        text,
        "\n{} tokens in {:.1} s, {rate:.0} tok/s",
        report.tokens, report.seconds
    );
    if report.interrupted {
        text.push_str("; interrupted, everything is saved");
    }
    for adapter in &report.adapters {
        if let Outcome::Failed { reason } = &adapter.outcome {
            let _ = write!(text, "\n{} failed: {reason}", adapter.name);
        }
    }
    text
}

/// A sweep's adapters, the best first.
pub(crate) fn leaderboard(sweep: &SweepReport) -> String {
    let columns = [
        ("rank", false),
        ("adapter", true),
        (sweep.metric.as_str(), false),
        ("steps", false),
        ("state", true),
    ];
    let row = |standing: &SweepStanding| {
        let rank = standing.rank.map(|rank| rank.to_string());
        let metric = standing.metric.map(|metric| format!("{metric:.4}"));
        [
            rank.unwrap_or_else(|| "-".to_owned()),
            standing.name.clone(),
            metric.unwrap_or_else(|| "-".to_owned()),
            standing.steps.to_string(),
            standing.state.clone(),
        ]
    };
    let rows: Vec<_> = sweep.standings.iter().map(row).collect();
    format!("sweep {}\n{}", sweep.name, table::aligned(columns, &rows))
}

fn row(adapter: &AdapterReport) -> [String; COLUMNS.len()] {
    let loss = |loss: Option<f64>| loss.map_or_else(|| "-".to_owned(), |loss| format!("{loss:.4}"));
    let best = adapter.best.as_ref().map_or_else(
        || "-".to_owned(),
        |best| format!("{:.4} at {}", best.loss, best.step),
    );
    [
        adapter.name.clone(),
        adapter.state().to_owned(),
        format!("{}/{}", adapter.steps, adapter.total_steps),
        loss(adapter.first_loss),
        loss(adapter.last_loss),
        best,
        adapter.directory.as_ref().map_or_else(
            || "-".to_owned(),
            |directory| directory.display().to_string(),
        ),
    ]
}

/// Prompts with what the model said before and after, under the names of the adapters.
pub(crate) fn samples(report: &RunReport) -> String {
    let mut text = String::new();
    for adapter in &report.adapters {
        if adapter.samples.is_empty() {
            continue;
        }
        let _ = writeln!(text, "{}", adapter.name);
        for sample in adapter.samples.iter().take(SAMPLES) {
            for (label, value) in [
                ("prompt", &sample.prompt),
                ("expected", &sample.reference),
                ("before", &sample.before),
                ("after", &sample.after),
            ] {
                let _ = writeln!(text, "  {label:<9} {}", one_line(value));
            }
        }
    }
    text
}

/// The text with its line ends shown, cut where it is long.
fn one_line(text: &str) -> String {
    const LONGEST: usize = 100;
    let escaped = text.trim().replace('\n', "\\n");
    if escaped.chars().count() <= LONGEST {
        return escaped;
    }
    let cut: String = escaped.chars().take(LONGEST).collect();
    format!("{cut}...")
}

#[cfg(test)]
mod tests {
    use loraloom_trainer::{AdapterReport, AnswerSample, Best, Outcome, RunReport};

    use super::{one_line, samples, table};

    fn report() -> RunReport {
        let adapter = |name: &str, outcome, best| AdapterReport {
            name: name.to_owned(),
            outcome,
            steps: 9,
            total_steps: 150,
            first_loss: Some(3.25),
            last_loss: None,
            best,
            directory: Some(format!("runs/x/adapters/{name}/last").into()),
            samples: Vec::new(),
        };
        let reason = "loss is not finite".to_owned();
        let stopped = Outcome::Stopped {
            reason: "2 evaluations without a new best".to_owned(),
        };
        let mut first = adapter("shout-r4", stopped, Some(Best { step: 5, loss: 0.5 }));
        first.samples.push(AnswerSample {
            prompt: "what\nsay".to_owned(),
            reference: "RED!".to_owned(),
            before: "red".to_owned(),
            after: "RED!".to_owned(),
        });
        RunReport {
            adapters: vec![first, adapter("b", Outcome::Failed { reason }, None)],
            interrupted: false,
            seconds: 2.0,
            tokens: 1000,
            sweeps: Vec::new(),
        }
    }

    #[test]
    fn the_table_is_aligned_and_says_why_an_adapter_failed() {
        insta::assert_snapshot!(table(&report()), @r"
        adapter   outcome  steps  first loss  last loss  best validation  directory
        shout-r4  stopped  9/150      3.2500          -      0.5000 at 5  runs/x/adapters/shout-r4/last
        b         failed   9/150      3.2500          -                -  runs/x/adapters/b/last

        1000 tokens in 2.0 s, 500 tok/s
        b failed: loss is not finite
        ");
    }

    #[test]
    fn samples_are_under_the_name_of_their_adapter() {
        insta::assert_snapshot!(samples(&report()), @r"
        shout-r4
          prompt    what\nsay
          expected  RED!
          before    red
          after     RED!
        ");
    }

    #[test]
    fn long_texts_are_cut_by_characters() {
        assert_eq!(one_line(" a\nb "), "a\\nb");
        assert_eq!(
            one_line(&"ü".repeat(101)),
            format!("{}...", "ü".repeat(100))
        );
    }
}
