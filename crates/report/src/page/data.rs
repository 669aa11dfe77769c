use std::collections::BTreeMap;

use loraloom_chart::{COLOURS, DASHES};
use serde::Serialize;
use serde_json::Value;

use super::{
    curves::{Curve, Evals, Iterations, rows_of_each},
    sweeps::SweepPage,
    text::{self, Truncated},
};
use crate::{
    RunHistory,
    adapter::{AdapterHistory, ReportedState},
    answers::Answered,
    history::RunEvent,
    thin::span,
};

/// Events, warnings and checkpoints on a page.
const EVENTS: usize = 1000;
const WARNINGS: usize = 200;
const CHECKPOINTS: usize = 500;
/// Most settings in which adapters differ.
const SETTINGS: usize = 12;

/// The content of a page. Numbers of `run` and the totals of `adapters` are those of the events, to 15 digits.
#[derive(Debug, Serialize)]
pub(crate) struct Data<'a> {
    run: Run<'a>,
    adapters: Vec<Adapter<'a>>,
    /// Metrics of steps besides loss and gradient norm.
    metrics: &'a [String],
    iterations: Iterations,
    happenings: Truncated<RunEvent>,
    checkpoints: Truncated<(f64, u64)>,
    /// Stage, group, micro-batch, whether backward, start and end in seconds, iteration.
    passes: Vec<(usize, usize, usize, bool, f64, f64, u64)>,
    sweeps: Vec<SweepPage>,
    settings: Vec<(String, Vec<Value>)>,
    answers: Truncated<(&'a str, &'a Answered)>,
    warnings: Truncated<String>,
    config: &'a str,
    config_is_whole: bool,
    thinned: CurveLimits,
    /// Numbers of colours and dashes that lines cycle through.
    palette: [usize; 2],
}

#[derive(Debug, Serialize)]
struct Run<'a> {
    name: &'a str,
    /// `finished`, `interrupted`, or `open`: it continues, or was killed.
    state: &'static str,
    started: &'a str,
    ended: &'a str,
    resumes: usize,
    /// Wall time by the run's own account, or else the time of its iterations.
    seconds: f64,
    tokens: u64,
    /// Seconds of all iterations: the end of the time axis.
    clock: f64,
    stages: &'a [String],
    layers: &'a [[usize; 2]],
    products: &'a [String],
    versions: BTreeMap<&'a str, &'a str>,
    memory_error_percent: Option<f64>,
    memory_predictions: u64,
    events: usize,
    unread: usize,
}

#[derive(Debug, Serialize)]
struct Adapter<'a> {
    name: &'a str,
    standing: ReportedState,
    reason: &'a str,
    steps: u64,
    total_steps: Option<u64>,
    tokens: u64,
    target_tokens: u64,
    first_loss: Option<f64>,
    last_loss: Option<f64>,
    best: Option<Best>,
    spans: &'a [[f64; 2]],
    curve: Curve,
    evals: Evals,
}

#[derive(Debug, Serialize)]
struct Best {
    step: u64,
    loss: f64,
}

/// Limits of the curves.
#[derive(Debug, Serialize)]
struct CurveLimits {
    /// Most rows of an adapter's curve; `null` if all are there.
    rows: Option<usize>,
    /// Window of a smoothed loss in steps, for the longest curve.
    smoothed_over: Option<usize>,
}

impl<'a> Data<'a> {
    pub(crate) fn of(run: &'a RunHistory) -> Self {
        let most = rows_of_each(run.adapters.len(), run.metrics.len());
        let adapters = run.adapters.iter();
        let longest = adapters.clone().map(|adapter| adapter.rows.len());
        let longest = longest.max().unwrap_or(0);
        let names: Vec<&str> = adapters
            .clone()
            .map(|adapter| adapter.name.as_str())
            .collect();
        let mut settings = run.settings.differing(&names);
        settings.truncate(SETTINGS);
        let (config, config_is_whole) = text::config(&run.config);
        let passes = run.passes.iter().flat_map(|of| {
            let iteration = of.iteration;
            of.passes.iter().map(move |pass| {
                let (stage, group, batch) = (pass.stage, pass.group, pass.microbatch);
                (
                    stage,
                    group,
                    batch,
                    pass.backward,
                    pass.start,
                    pass.end,
                    iteration,
                )
            })
        });
        Self {
            adapters: adapters
                .map(|adapter| Adapter::of(adapter, run.metrics.len(), most))
                .collect(),
            metrics: &run.metrics,
            iterations: Iterations::of(&run.iterations),
            happenings: Truncated::last(&run.run_events, EVENTS),
            checkpoints: Truncated::last(&run.checkpoints, CHECKPOINTS),
            passes: passes.collect(),
            sweeps: SweepPage::of(run),
            settings,
            answers: text::answers(&run.answers),
            warnings: Truncated::last(&run.warnings, WARNINGS),
            config,
            config_is_whole,
            thinned: CurveLimits {
                rows: (longest > most).then_some(most),
                smoothed_over: span(longest),
            },
            palette: [COLOURS, DASHES.len()],
            run: Run::of(run),
        }
    }
}

impl<'a> Run<'a> {
    fn of(run: &'a RunHistory) -> Self {
        let begun = run.begun.as_ref().or(run.resumed.as_ref());
        // Devices may differ after a pause.
        let last = run.resumed.as_ref().or(begun);
        let end = run.end.as_ref();
        let versions = last.into_iter().flat_map(|last| &last.versions);
        let tokens = run.iterations.iter().map(|row| row.tokens).sum();
        Self {
            name: &run.name,
            state: match end {
                None => "open",
                Some(end) if end.interrupted => "interrupted",
                Some(_) => "finished",
            },
            started: begun.map_or("", |begun| &begun.time),
            ended: end.map_or("", |end| &end.time),
            resumes: run.resumes,
            seconds: end.and_then(|end| end.seconds).unwrap_or(run.clock),
            tokens: end.and_then(|end| end.tokens).unwrap_or(tokens),
            clock: run.clock,
            stages: last.map_or(&[], |last| &last.stages),
            layers: last.map_or(&[], |last| &last.layers),
            products: last.map_or(&[], |last| &last.products),
            versions: versions
                .map(|(name, version)| (name.as_str(), version.as_str()))
                .collect(),
            memory_error_percent: end.and_then(|end| end.memory_error_percent),
            memory_predictions: end.map_or(0, |end| end.memory_predictions),
            events: run.lines,
            unread: run.unread,
        }
    }
}

impl<'a> Adapter<'a> {
    fn of(adapter: &'a AdapterHistory, metrics: usize, most: usize) -> Self {
        let best = adapter.best().map(|best| Best {
            step: best.step,
            loss: best.loss,
        });
        Self {
            name: &adapter.name,
            standing: adapter.state,
            reason: &adapter.reason,
            steps: adapter.steps(),
            total_steps: adapter.total_steps,
            tokens: adapter.rows.iter().map(|row| row.tokens).sum(),
            target_tokens: adapter.rows.iter().map(|row| row.target_tokens).sum(),
            first_loss: adapter.first_loss(),
            last_loss: adapter.last_loss(),
            best,
            spans: &adapter.spans,
            curve: Curve::of(adapter, metrics, most),
            evals: Evals::of(adapter),
        }
    }
}
