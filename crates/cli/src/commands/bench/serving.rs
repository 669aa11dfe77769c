//! `bench --serving`: answers to requests.

use std::{fs, path::Path};

use loraloom_benches::{
    EndToEndBench, Percentiles, ServingBench, ServingMeasurement, ServingPolicy,
};
use loraloom_simulator::{DrawnRequests, TracedRequest, read_requests};

use super::{Defaults, types};
use crate::{
    arguments::{BenchArguments, ServingBenchArguments},
    exit::Exit,
    failure::Failure,
    printer::Printer,
    table,
};

/// The latest arrival in seconds, 100 years.
const LATEST: f64 = 100.0 * 31_557_600.0;
/// Adapters that requests name.
const ADAPTERS: [usize; 2] = [0, 8];
/// Requests of a tenant in a minute.
const RATE_LIMIT: usize = 60;

pub(super) fn bench(
    arguments: &BenchArguments,
    defaults: &Defaults,
    steps: EndToEndBench,
    printer: &Printer,
) -> anyhow::Result<ServingBench> {
    for (name, is_given) in [
        ("--kernels-only", arguments.kernels_only),
        ("--end-to-end-only", arguments.end_to_end_only),
        ("--no-composed", arguments.no_composed),
        ("--rows", arguments.rows.is_some()),
        ("--d-in", arguments.d_in.is_some()),
        ("--d-out", arguments.d_out.is_some()),
        ("--vs-sequential", arguments.vs_sequential),
        ("--profile", arguments.profile),
    ] {
        if is_given {
            let problem = format!("{name} cannot be used with --serving, which measures answers");
            return Err(Failure::usage(problem).into());
        }
    }
    let serving = &arguments.serving;
    let trains = serving.beside_training.is_some();
    for (name, is_given) in [
        ("--batch", arguments.batch.is_some()),
        ("--length", arguments.length.is_some()),
        ("--rank", arguments.rank.is_some()),
        ("--steps", arguments.steps.is_some()),
        ("--microbatches", arguments.microbatches > 1),
        ("--gradient-checkpointing", arguments.gradient_checkpointing),
    ] {
        if is_given && !trains {
            let problem = format!("{name} is for training steps: add --beside-training K");
            return Err(Failure::usage(problem).into());
        }
    }
    if serving.rate_limit.is_some() && !serving.policies.contains(&ServingPolicy::Rpm) {
        let failure = Failure::usage("--rate-limit is for the policy rpm");
        return Err(failure.hint("add rpm to --policy").into());
    }
    let mut adapters = arguments.adapters.clone();
    if adapters.is_empty() {
        adapters.extend(ADAPTERS);
    }
    Ok(ServingBench {
        steps,
        adapters,
        ranks: serving.ranks.clone(),
        policies: serving.policies.clone(),
        requests: match &serving.trace {
            Some(path) => traced(path, serving, printer)?,
            None => drawn(defaults, serving),
        },
        seed: serving.seed,
        rate_limit: serving.rate_limit.unwrap_or(RATE_LIMIT),
        max_sequences: serving.max_num_seqs,
        batch_tokens: serving.max_num_batched_tokens,
        first_token_target: serving.first_token_target,
        token_target: serving.token_target,
        trained_adapters: serving.beside_training,
        inference_share: serving.inference_share,
    })
}

fn drawn(defaults: &Defaults, serving: &ServingBenchArguments) -> Vec<TracedRequest> {
    let requests = DrawnRequests {
        requests: serving.requests.unwrap_or(defaults.requests),
        rate: serving.request_rate,
        tenants: serving.tenants,
        prompt_tokens: serving.prompt_tokens.unwrap_or(defaults.prompt_tokens),
        answer_tokens: serving.answer_tokens.unwrap_or(defaults.answer_tokens),
        seed: serving.seed,
    };
    requests.draw()
}

fn traced(
    path: &Path,
    serving: &ServingBenchArguments,
    printer: &Printer,
) -> Result<Vec<TracedRequest>, Failure> {
    let shown = path.display();
    let failed = |message| Failure::new(Exit::Data, message);
    let text = fs::read_to_string(path)
        .map_err(|error| failed(format!("cannot read `{shown}`: {error}")))?;
    let requests = read_requests(&text);
    let (mut requests, unanswered) =
        requests.map_err(|error| failed(format!("`{shown}`: {error}")))?;
    if unanswered > 0 {
        printer.warning(&format!(
            "`{shown}`: rows without a token of an answer are left out: {unanswered}"
        ));
    }
    if let Some(count) = serving.requests {
        if count > requests.len() {
            let problem = format!("`{shown}` has {} requests, not {count}", requests.len());
            return Err(Failure::usage(problem).hint("lower --requests"));
        }
        requests.truncate(count);
    }
    let last = requests.last().map_or(0.0, |last| last.arrival);
    if let Some(rate) = serving.request_rate {
        if last <= 0.0 {
            let problem = format!("all requests of `{shown}` arrive at once: no times to scale");
            return Err(Failure::usage(problem).hint("leave --request-rate out"));
        }
        let scale = (requests.len() - 1) as f64 / rate / last;
        for request in &mut requests {
            request.arrival = (request.arrival * scale).min(LATEST);
        }
    }
    Ok(requests)
}

/// A table of answers under a line with what they have in common.
pub(super) fn table(bench: &ServingBench, measured: &[ServingMeasurement]) -> Option<String> {
    let first = measured.first()?;
    let heading = [
        "adapters",
        "<policy",
        "tok/s",
        "first p50",
        "p99",
        "next p50",
        "p99",
        "attained",
        "refused",
        "gap",
        "bound",
        "training",
        "alone",
    ];
    let rows: Vec<_> = measured.iter().map(row).collect();
    let arrivals = match bench.requests.last().map_or(0.0, |last| last.arrival) {
        last if last > 0.0 => format!("in {last:.1} s"),
        _ => "at once".to_owned(),
    };
    let tenants = match first.tenants {
        1 => String::new(),
        tenants => format!(" of {tenants} tenants"),
    };
    Some(format!(
        "{}, {}: answers to {} requests{tenants}, sent {arrivals}, at most {} at a time; seconds\n{}",
        first.shape,
        types(first.dtype, first.quantization),
        first.requests,
        bench.max_sequences,
        table::aligned(heading, &rows)
    ))
}

fn row(measured: &ServingMeasurement) -> [String; 13] {
    let time = |of: Option<Percentiles>, pick: fn(Percentiles) -> f64| {
        table::or_dash(of.map(|of| format!("{:.3}", pick(of))))
    };
    let rate = |rate: Option<f64>| table::or_dash(rate.map(|rate| format!("{rate:.0}")));
    let (first, next) = (measured.first_token_seconds, measured.token_seconds);
    [
        measured.adapters.to_string(),
        measured.policy.to_owned(),
        match measured.tokens_per_second {
            rate if rate < 100.0 => format!("{rate:.2}"),
            rate => format!("{rate:.0}"),
        },
        time(first, |of| of.p50),
        time(first, |of| of.p99),
        time(next, |of| of.p50),
        time(next, |of| of.p99),
        format!("{:.1} %", 100.0 * measured.attainment),
        measured.refused.to_string(),
        measured.fairness_gap.to_string(),
        measured.fairness_bound.to_string(),
        rate(measured.trained_tokens_per_second),
        rate(measured.trained_alone_tokens_per_second),
    ]
}
