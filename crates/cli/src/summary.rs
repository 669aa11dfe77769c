//! The report of a run as text.

use std::fmt::Write;

use loraloom_data::EncodeReport;
use loraloom_report::{SweepReport, SweepStanding};
use loraloom_scheduler::size;
use loraloom_trainer::{AdapterReport, DatasetSummary, Outcome, Run, RunReport};

use crate::{
    printer::printable,
    table::{self, or_dash},
};

const HEADING: [&str; 7] = [
    "<adapter",
    "<outcome",
    "steps",
    "first loss",
    "last loss",
    "best validation",
    "<directory",
];
/// Datasets with a line of their own.
const DATASETS: usize = 8;

/// A line for each dataset of the adapters; one line for the rest if there are many.
pub(crate) fn datasets(summaries: &[DatasetSummary]) -> Vec<String> {
    // Adapters may cut the rows of one dataset to different lengths.
    let mut distinct: Vec<(&DatasetSummary, usize)> = Vec::new();
    for summary in summaries {
        let same = |(other, _): &&mut (&DatasetSummary, usize)| {
            other.dataset == summary.dataset
                && other.train == summary.train
                && other.validation == summary.validation
        };
        match distinct.iter_mut().find(same) {
            Some((_, adapters)) => *adapters += 1,
            None => distinct.push((summary, 1)),
        }
    }
    let name = |(summary, adapters): &(&DatasetSummary, usize)| {
        let dataset = &summary.dataset;
        let same = |(other, _): &&(&DatasetSummary, usize)| other.dataset == *dataset;
        match (distinct.iter().filter(same).count(), adapters - 1) {
            (1, _) => dataset.clone(),
            (_, 0) => format!("{dataset} for {}", summary.adapter),
            (_, more) => format!("{dataset} for {} and {more} more", summary.adapter),
        }
    };
    let shown = match distinct.len() {
        count if count > DATASETS + 1 => DATASETS,
        count => count,
    };
    let (shown, rest) = distinct.split_at(shown);
    let line = |entry: &(&DatasetSummary, usize)| {
        let text = format!("{}: {}", name(entry), entry.0.train.format);
        rows(&text, &[entry.0])
    };
    let mut lines: Vec<String> = shown.iter().map(line).collect();
    if !rest.is_empty() {
        let rest: Vec<&DatasetSummary> = rest.iter().map(|(summary, _)| *summary).collect();
        lines.push(rows(&format!("and {} more", rest.len()), &rest));
    }
    lines
}

/// Sums of the rows of several datasets.
fn rows(text: &str, summaries: &[&DatasetSummary]) -> String {
    let sum = |of: fn(&EncodeReport) -> usize| {
        let reports = summaries.iter().map(|summary| &summary.train);
        reports.map(of).sum::<usize>()
    };
    let (kept, all) = (sum(|train| train.kept), sum(|train| train.rows));
    let mut line = format!("data    {text}; {kept} of {all} rows");
    for (count, what) in [
        (sum(|train| train.dropped_without_target), "dropped"),
        (sum(|train| train.truncated), "cut"),
    ] {
        if count > 0 {
            let _ = write!(line, ", {count} {what}");
        }
    }
    let validation = summaries.iter().flat_map(|summary| &summary.validation);
    let validation: usize = validation.map(|report| report.kept).sum();
    if validation > 0 {
        let _ = write!(line, "; {validation} for validation");
    }
    line
}

/// A table with a row per adapter, and the run's totals below it.
pub(crate) fn table(report: &RunReport) -> String {
    let rows: Vec<_> = report.adapters.iter().map(row).collect();
    let mut text = table::aligned(HEADING, &rows);
    let rate = report.tokens as f64 / report.seconds.max(f64::MIN_POSITIVE);
    let _ = write!(
        text,
        "\n{} tokens in {:.1} s, {rate:.0} tok/s",
        report.tokens, report.seconds
    );
    if let Some(memory) = report.memory {
        let _ = write!(text, "; at most {} of memory", size(memory.bytes));
        if let Some(predicted) = memory.predicted_bytes {
            let _ = write!(text, ", {} predicted", size(predicted));
        }
    }
    if report.interrupted {
        text.push_str("; interrupted, everything is saved");
    }
    for adapter in &report.adapters {
        if let Outcome::Failed { reason, .. } = &adapter.outcome {
            let _ = write!(text, "\n{} failed: {reason}", adapter.name);
        }
    }
    text
}

/// A sweep's adapters, the best first.
pub(crate) fn leaderboard(sweep: &SweepReport) -> String {
    let heading = ["rank", "<adapter", sweep.metric.as_str(), "steps", "<state"];
    let row = |standing: &SweepStanding| {
        [
            or_dash(standing.rank),
            standing.name.clone(),
            or_dash(standing.metric.map(|metric| format!("{metric:.4}"))),
            standing.steps.to_string(),
            standing.state.clone(),
        ]
    };
    let rows: Vec<_> = sweep.standings.iter().map(row).collect();
    format!("sweep {}\n{}", sweep.name, table::aligned(heading, &rows))
}

fn row(adapter: &AdapterReport) -> [String; 7] {
    let loss = |loss: Option<f64>| or_dash(loss.map(|loss| format!("{loss:.4}")));
    let best = adapter
        .best
        .map(|best| format!("{:.4} at {}", best.loss, best.step));
    let directory = adapter
        .directory
        .as_ref()
        .map(|directory| directory.display());
    [
        adapter.name.clone(),
        adapter.state().to_owned(),
        format!("{}/{}", adapter.steps, adapter.total_steps),
        loss(adapter.first_loss),
        loss(adapter.last_loss),
        or_dash(best),
        or_dash(directory),
    ]
}

/// Prompts with the model's answers before and after, under the names of the adapters. `some` adds that only some
/// adapters were asked.
pub(crate) fn samples(report: &RunReport, some: bool) -> String {
    let mut text = String::new();
    for adapter in &report.adapters {
        if adapter.samples.is_empty() {
            continue;
        }
        let _ = writeln!(text, "{}", adapter.name);
        for sample in &adapter.samples {
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
    let unasked = report.adapters.iter().filter(|adapter| {
        let ended = matches!(adapter.outcome, Outcome::Done | Outcome::Stopped { .. });
        ended && adapter.samples.is_empty()
    });
    let (unasked, all) = (unasked.count(), report.adapters.len());
    if some && all > Run::ANSWERING && unasked > 0 {
        let _ = writeln!(
            text,
            "… and {unasked} more adapters; `--samples 2` includes all of them"
        );
    }
    text
}

/// The text with visible line ends and control characters, shortened if it is long.
fn one_line(text: &str) -> String {
    const LONGEST: usize = 100;
    let escaped = printable(text.trim()).replace('\n', "\\n");
    if escaped.chars().count() <= LONGEST {
        return escaped;
    }
    let cut: String = escaped.chars().take(LONGEST).collect();
    format!("{cut}...")
}

#[cfg(test)]
mod tests {
    use loraloom_data::EncodeReport;
    use loraloom_trainer::{
        AdapterReport, AnswerSample, Best, DatasetSummary, Outcome, PeakMemory, RunReport,
    };

    use super::{datasets, one_line, samples, table};

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
        let failed = Outcome::Failed {
            reason: "loss is not finite".to_owned(),
            does_not_fit: false,
        };
        let stopped = Outcome::Stopped {
            reason: "2 evaluations without a new best".to_owned(),
        };
        let mut first = adapter(
            "shout-r4",
            stopped,
            Some(Best {
                step: 5,
                loss: 0.5,
                margins: None,
                accuracies: None,
            }),
        );
        first.samples.push(AnswerSample {
            prompt: "what\nsay".to_owned(),
            reference: "RED!".to_owned(),
            before: "red".to_owned(),
            after: "RED!".to_owned(),
        });
        RunReport {
            adapters: vec![first, adapter("b", failed, None)],
            interrupted: false,
            seconds: 2.0,
            tokens: 1000,
            sweeps: Vec::new(),
            memory: Some(PeakMemory {
                bytes: 50 << 20,
                predicted_bytes: Some(49 << 20),
            }),
        }
    }

    #[test]
    fn the_table_is_aligned_and_says_why_an_adapter_failed() {
        insta::assert_snapshot!(table(&report()), @r"
        adapter   outcome  steps  first loss  last loss  best validation  directory
        shout-r4  stopped  9/150      3.2500          -      0.5000 at 5  runs/x/adapters/shout-r4/last
        b         failed   9/150      3.2500          -                -  runs/x/adapters/b/last

        1000 tokens in 2.0 s, 500 tok/s; at most 50.0 MiB of memory, 49.0 MiB predicted
        b failed: loss is not finite
        ");
    }

    #[test]
    fn samples_are_under_the_name_of_their_adapter() {
        insta::assert_snapshot!(samples(&report(), true), @r"
        shout-r4
          prompt    what\nsay
          expected  RED!
          before    red
          after     RED!
        ");
    }

    #[test]
    fn adapters_that_were_not_asked_are_counted() {
        let mut report = report();
        let mut unasked = report.adapters[0].clone();
        unasked.samples.clear();
        report.adapters.extend(vec![unasked; 4]);
        let more = "… and 4 more adapters; `--samples 2` includes all of them\n";
        assert!(samples(&report, true).ends_with(more));
        assert!(!samples(&report, false).contains("more adapters"));
        report.adapters.truncate(4);
        assert!(!samples(&report, true).contains("more adapters"));
    }

    fn dataset(adapter: &str, dataset: &str, truncated: usize) -> DatasetSummary {
        let report = EncodeReport {
            rows: 100,
            kept: 98,
            dropped_without_target: 2,
            truncated,
            tokens_cut: 0,
            with_eos_target: 98,
            tokens: 1000,
            target_tokens: 500,
            longest: 20,
            format: "text (text)".to_owned(),
        };
        DatasetSummary {
            adapter: adapter.to_owned(),
            dataset: dataset.to_owned(),
            train: report.clone(),
            validation: (truncated == 0).then_some(report),
        }
    }

    #[test]
    fn a_dataset_has_a_line_for_all_that_read_it_alike() {
        let summaries = [
            dataset("a", "mail", 0),
            dataset("b", "books", 3),
            dataset("c", "mail", 0),
            dataset("d", "books", 0),
            dataset("e", "books", 3),
        ];
        insta::assert_snapshot!(datasets(&summaries).join("\n"), @"
        data    mail: text (text); 98 of 100 rows, 2 dropped; 98 for validation
        data    books for b and 1 more: text (text); 98 of 100 rows, 2 dropped, 3 cut
        data    books for d: text (text); 98 of 100 rows, 2 dropped; 98 for validation
        ");
    }

    #[test]
    fn many_datasets_are_summed_up_and_no_lost_row_is_left_out() {
        let summaries: Vec<DatasetSummary> = (0..256)
            .map(|index| dataset("a", &format!("d{index}"), index % 2))
            .collect();
        let lines = datasets(&summaries);
        assert_eq!(lines.len(), 9);
        insta::assert_snapshot!(lines[7..].join("\n"), @"
        data    d7: text (text); 98 of 100 rows, 2 dropped, 1 cut
        data    and 248 more; 24304 of 24800 rows, 496 dropped, 124 cut; 12152 for validation
        ");
        assert_eq!(datasets(&summaries[..9]).len(), 9);
    }

    #[test]
    fn long_texts_are_cut_by_characters() {
        assert_eq!(one_line(" a\nb\u{1b}[31m "), "a\\nb\\u{1b}[31m");
        assert_eq!(
            one_line(&"ü".repeat(101)),
            format!("{}...", "ü".repeat(100))
        );
    }
}
