//! `simulate TRACE`: replays a job trace on a virtual clock, under one policy or all.

use std::fs;

use anyhow::Context;
use loraloom_simulator::{
    Comparison, Costs, PolicyResult, SimulatedPolicy, Simulation, Workload, chart_svg, read_trace,
};

use crate::{
    arguments::SimulateArguments,
    exit::Exit,
    failure::{self, Failure},
    printer::Printer,
    table,
};

pub(super) fn run(arguments: &SimulateArguments, printer: &Printer) -> anyhow::Result<Exit> {
    if !arguments.compare {
        refuse_unused(arguments)?;
    }
    let simulation = simulation(arguments)?;
    let policies = if arguments.compare {
        SimulatedPolicy::ALL.to_vec()
    } else {
        vec![arguments.policy]
    };
    let mut replays = Vec::with_capacity(policies.len());
    for policy in policies {
        printer.note(&format!("replay  {policy}"));
        replays.push((policy, simulation.run(policy)?));
    }
    if let Some(path) = &arguments.chart {
        let named = replays
            .iter()
            .map(|(policy, replay)| (policy.name(), replay));
        let chart = chart_svg(&named.collect::<Vec<_>>());
        failure::written(path, fs::write(path, chart))?;
        printer.note(&format!("chart   {}", path.display()));
    }
    let comparison = Comparison::of(&simulation, &replays);
    if arguments.json {
        printer.json(&comparison)?;
    } else {
        printer.data(&text(&comparison))?;
    }
    Ok(Exit::Success)
}

/// Options that would do nothing under the policy.
fn refuse_unused(arguments: &SimulateArguments) -> anyhow::Result<()> {
    use SimulatedPolicy::{
        BestEffortFifo, Fair, LeastCounterFirst, NaiveGrouping, RequestRate, StrictFifo,
    };
    let grouping = [
        RequestRate,
        LeastCounterFirst,
        StrictFifo,
        BestEffortFifo,
        Fair,
    ];
    let options = [
        (
            "--rate-limit",
            arguments.rate_limit.is_some(),
            &[RequestRate][..],
        ),
        (
            "--naive-padding",
            arguments.naive_padding.is_some(),
            &[NaiveGrouping],
        ),
        (
            "--max-slowdown",
            arguments.max_slowdown.is_some(),
            &grouping,
        ),
    ];
    for (name, is_given, of) in options {
        if is_given && !of.contains(&arguments.policy) {
            let problem = format!("{name} does nothing under {}", arguments.policy);
            let names: Vec<&str> = of.iter().map(|policy| policy.name()).collect();
            let hint = format!("it is for {}, and for --compare", names.join(", "));
            return Err(Failure::usage(problem).hint(hint).into());
        }
    }
    Ok(())
}

fn simulation(arguments: &SimulateArguments) -> anyhow::Result<Simulation> {
    let path = arguments.trace.display();
    let text = fs::read_to_string(&arguments.trace)
        .map_err(|error| Failure::new(Exit::Data, format!("cannot read `{path}`: {error}")))?;
    let trace = read_trace(&text).with_context(|| format!("cannot replay `{path}`"))?;
    let costs = match &arguments.costs {
        Some(path) => costs(path)?,
        None => Costs::default(),
    };
    let there = trace.len().saturating_sub(arguments.start.unwrap_or(0));
    let usual = Workload::default().jobs.min(there).max(1);
    let workload = Workload {
        jobs: arguments.jobs.unwrap_or(usual),
        start: arguments.start,
        seed: arguments.seed,
        load: (!arguments.as_recorded).then_some(arguments.load),
        devices: arguments.devices,
        ..Workload::default()
    };
    let mut simulation = Simulation::new(&trace, workload, costs)?;
    if let Some(padding) = arguments.naive_padding {
        simulation.naive_padding = padding;
    }
    if let Some(limit) = arguments.rate_limit {
        simulation.rate_limit = limit;
    }
    simulation.noise = arguments.noise;
    if let Some(bound) = arguments.max_slowdown {
        simulation.max_slowdown = bound;
    }
    Ok(simulation)
}

fn costs(path: &std::path::Path) -> anyhow::Result<Costs> {
    let shown = path.display();
    let failed = |message| Failure::new(Exit::Data, message);
    let text = fs::read_to_string(path)
        .map_err(|error| failed(format!("cannot read `{shown}`: {error}")))?;
    let costs: Costs = serde_json::from_str(&text)
        .map_err(|error| failed(format!("`{shown}` does not hold costs: {error}")))?;
    let valid = costs.validate();
    valid.map_err(|error| failed(format!("`{shown}`: {error}")))?;
    Ok(costs)
}

fn text(comparison: &Comparison) -> String {
    let heading = [
        "<policy",
        "average",
        "95 %",
        "makespan",
        "tok/s",
        "while jobs came",
        "used",
        "busy",
        "fairness gap",
        "parked",
        "a decision",
    ];
    let row = |result: &PolicyResult| {
        let metrics = &result.metrics;
        [
            result.policy.to_string(),
            duration(metrics.average_completion_seconds),
            duration(metrics.p95_completion_seconds),
            duration(metrics.makespan_seconds),
            format!("{:.0}", metrics.tokens_per_second),
            format!("{:.0}", metrics.arriving_tokens_per_second),
            format!("{:.1} %", metrics.utilisation * 100.0),
            format!("{:.1} %", metrics.busy * 100.0),
            format!("{} tok", metrics.fairness_gap),
            metrics.preemptions.to_string(),
            format!("{:.2} ms", metrics.decision_milliseconds_p99),
        ]
    };
    let rows: Vec<_> = comparison.policies.iter().map(row).collect();
    let load = match comparison.load {
        Some(load) => format!("arrivals spread to a load of {load}"),
        None => "arrivals as recorded".to_owned(),
    };
    let failed = |result: &PolicyResult| result.metrics.iterations_out_of_memory;
    let out_of_memory: u64 = comparison.policies.iter().map(failed).sum();
    format!(
        "simulated: {} jobs from job {} of the trace on {} devices, {load}, seed {}\n{}\n\
         times are from arrival to end; used is the part of the devices' time that the trained tokens\n\
         are worth; a decision is this machine's time, the 99th of 100; {out_of_memory} iterations\n\
         out of memory\n",
        comparison.jobs,
        comparison.first_job,
        comparison.devices,
        comparison.seed,
        table::aligned(heading, &rows)
    )
}

/// Seconds in the largest unit that they fill.
fn duration(seconds: f64) -> String {
    let units = [("d", 86_400.0), ("h", 3600.0), ("min", 60.0)];
    match units.into_iter().find(|(_, length)| seconds >= *length) {
        Some((unit, length)) => format!("{:.2} {unit}", seconds / length),
        None => format!("{seconds:.1} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::duration;

    #[test]
    fn durations_have_the_unit_that_is_full() {
        let shown = [0.0, 59.9, 60.0, 5400.0, 86_400.0, 1e6].map(duration);
        assert_eq!(
            shown,
            ["0.0 s", "59.9 s", "1.00 min", "1.50 h", "1.00 d", "11.57 d"]
        );
    }
}
