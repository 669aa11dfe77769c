//! `plan CONFIG`: estimates memory, grouping and time of a run.

use std::{fmt::Write, fs};

use loraloom_scheduler::size;
use loraloom_trainer::{Plan, PlannedGroup, PlannedLink, PlannedStage, Speeds, TO_FIT, quoted};

use super::config;
use crate::{
    arguments::PlanArguments,
    device,
    exit::Exit,
    failure::{self, Failure},
    printer::Printer,
    table,
};

pub(super) fn run(arguments: &PlanArguments, printer: &Printer) -> anyhow::Result<Exit> {
    if arguments.link_gbits.is_some() && arguments.tflops.is_none() {
        let message =
            "`--link-gbits` needs `--tflops`: times are predicted from the speed of the stages";
        let hint = "`loraloom bench` prints the speed of this machine";
        return Err(Failure::usage(message).hint(hint).into());
    }
    if let Some(path) = &arguments.gantt
        && !path
            .extension()
            .is_some_and(|name| name.eq_ignore_ascii_case("svg"))
    {
        let message = format!(
            "the chart is an SVG file: `{}` must end in .svg",
            path.display()
        );
        let named = quoted(path.with_extension("svg"));
        return Err(Failure::usage(message)
            .hint(format!("write `--gantt {named}`"))
            .into());
    }
    let options = config::options(&arguments.config);
    let mut config = config::load(&options, &arguments.config, printer)?;
    device::take_auto_for_the_cpu(&mut config);
    let speeds = Speeds {
        tflops: arguments.tflops,
        link_bytes_per_second: arguments.link_gbits.map(|gigabits| gigabits * 1e9 / 8.0),
    };
    let plan = printer.while_busy("reading data", || Plan::prepare(&config, speeds))?;
    printer.warnings(&plan.warnings);
    if let Some(path) = &arguments.gantt {
        failure::written(path, fs::write(path, plan.gantt_svg()))?;
        printer.note(&format!("chart   {}", path.display()));
    }
    if arguments.json {
        printer.json(&plan)?;
    } else {
        printer.data(&text(&plan, arguments.link_gbits))?;
    }
    match refusal(&plan) {
        Some(failure) => Err(failure.into()),
        None => Ok(Exit::Success),
    }
}

/// The failure of a run that refuses adapters: it names the first of them.
pub(super) fn refusal(plan: &Plan) -> Option<Failure> {
    let first = plan.refused.first()?;
    let reason = plan.waiting_reasons.get(first).map_or("", String::as_str);
    Some(Failure::new(Exit::Memory, reason).hint(TO_FIT))
}

fn text(plan: &Plan, link_gbits: Option<f64>) -> String {
    let mut sections = vec![stages(plan)];
    sections.extend(plan.partitions.as_deref().map(partitions));
    sections.push(groups(plan));
    sections.extend(links(&plan.links, link_gbits));
    sections.push(time(plan));
    if plan.stages.len() > 1 && !plan.gantt.is_empty() {
        sections.push(format!(
            "three iterations: groups a, b, ... forward, A, B, ... backward\n{}",
            plan.gantt
        ));
    }
    let notes = plan.notes.iter().map(|note| format!("- {note}\n"));
    let notes: String = notes.collect();
    sections.push(format!("* is an estimate\n{notes}"));
    sections.join("\n")
}

fn stages(plan: &Plan) -> String {
    let heading = [
        "stage",
        "<on",
        "<layers",
        "weights",
        "adapters",
        "copies*",
        "gradients",
        "a micro-batch*",
        "in flight",
        "activations*",
        "buffers*",
        "all*",
        "of the work*",
        "idle*",
    ];
    let row = |(index, stage): (usize, &PlannedStage)| {
        [
            index.to_string(),
            shortened(&stage.on),
            held(stage),
            size(stage.weight_bytes as u64),
            size(stage.adapter_bytes as u64),
            size(stage.estimated_copy_bytes as u64),
            size(stage.gradient_bytes as u64),
            size(stage.estimated_activation_bytes_per_microbatch as u64),
            stage.microbatches_in_flight.to_string(),
            size(stage.estimated_activation_bytes as u64),
            size(stage.estimated_buffer_bytes as u64),
            size(stage.estimated_bytes as u64),
            percent(stage.estimated_share),
            percent(stage.simulated_bubble),
        ]
    };
    let rows: Vec<_> = plan.stages.iter().enumerate().map(row).collect();
    format!(
        "memory and work of each stage, {}\n{}",
        plan.dtype,
        table::aligned(heading, &rows)
    )
}

/// The layers of a stage, with embedding and head.
fn held(stage: &PlannedStage) -> String {
    let (first, last) = (stage.first_layer, stage.first_layer + stage.layers);
    let layers = match stage.layers {
        1 => first.to_string(),
        _ => format!("{first}-{}", last.saturating_sub(1)),
    };
    let embedding = if stage.embedding { " + embedding" } else { "" };
    let head = if stage.head { " + head" } else { "" };
    format!("{layers}{embedding}{head}")
}

/// The layers of each stage by partition, if groups differ.
fn partitions(partitions: &[Vec<usize>]) -> String {
    let row = |(index, counts): (usize, &Vec<usize>)| {
        let counts: Vec<_> = counts.iter().map(usize::to_string).collect();
        [index.to_string(), counts.join(" ")]
    };
    let rows: Vec<_> = partitions.iter().enumerate().map(row).collect();
    format!(
        "layers of the groups, which take these partitions in turn\n{}",
        table::aligned(["partition", "<layers on each stage"], &rows)
    )
}

fn groups(plan: &Plan) -> String {
    let heading = [
        "group",
        "micro-batches",
        "tokens a step*",
        "most a micro-batch",
        "<adapters",
    ];
    let row = |(index, group): (usize, &PlannedGroup)| {
        [
            index.to_string(),
            group.microbatches.to_string(),
            format!("{:.0}", group.estimated_tokens_per_step),
            group.most_tokens_per_microbatch.to_string(),
            group.adapters.join(", "),
        ]
    };
    let rows: Vec<_> = plan.groups.iter().enumerate().map(row).collect();
    let mut text = table::aligned(heading, &rows);
    for name in &plan.waiting {
        let reason = plan.waiting_reasons.get(name).map_or("", String::as_str);
        let _ = writeln!(text, "waiting: {name}: {reason}");
    }
    for (name, reason) in &plan.may_not_fit {
        let _ = writeln!(text, "may not fit: {name}: {reason}");
    }
    text
}

fn links(links: &[PlannedLink], gigabits: Option<f64>) -> Option<String> {
    links.first()?;
    let heading = ["<link", "a micro-batch each way*", "an iteration*"];
    let row = |link: &PlannedLink| {
        let largest = link.estimated_bytes_per_microbatch.iter().copied();
        [
            format!("{} - {}", link.from, link.to),
            bytes(largest.fold(0.0, f64::max)),
            bytes(link.estimated_bytes_per_iteration),
        ]
    };
    let rows: Vec<_> = links.iter().map(row).collect();
    let speed = gigabits.map_or_else(String::new, |gigabits| format!(", {gigabits} Gbit/s"));
    Some(format!(
        "bytes between stages{speed}\n{}",
        table::aligned(heading, &rows)
    ))
}

fn time(plan: &Plan) -> String {
    let bubble = &plan.bubble;
    let schedule = serde_json::to_value(plan.schedule).ok();
    let schedule = schedule.as_ref().and_then(|name| name.as_str());
    let mut text = format!(
        "idle under {}: {} by the formula, for equal stages and groups; {}* simulated; {}* if every \
         iteration is drained\n",
        schedule.unwrap_or_default(),
        percent(bubble.closed_form),
        percent(bubble.simulated),
        percent(bubble.simulated_if_drained),
    );
    if let Some(seconds) = plan.estimated_seconds_per_iteration {
        let tokens = plan
            .groups
            .iter()
            .map(|group| group.estimated_tokens_per_step);
        let rate = tokens.sum::<f64>() / seconds.max(f64::MIN_POSITIVE);
        let _ = writeln!(text, "time: {seconds:.3} s* an iteration, {rate:.0} tok/s*");
    }
    text
}

/// A worker with its key abbreviated; devices unchanged.
fn shortened(stage: &str) -> String {
    const SHOWN: usize = 8;
    let worker = stage.strip_prefix("remote:");
    match worker.and_then(|worker| worker.split_once('@')) {
        Some((id, place)) if id.len() > SHOWN => {
            let shown: String = id.chars().take(SHOWN).collect();
            format!("remote:{shown}..@{place}")
        }
        _ => stage.to_owned(),
    }
}

fn percent(part: f64) -> String {
    format!("{:.1} %", part * 100.0)
}

/// Estimated bytes.
fn bytes(count: f64) -> String {
    size(count.round() as u64)
}

#[cfg(test)]
mod tests {
    use super::shortened;

    #[test]
    fn keys_are_shortened() {
        assert_eq!(shortened("cuda:1"), "cuda:1");
        let remote = format!("remote:{}@[::1]:7", "0123456789abcdef".repeat(4));
        assert_eq!(shortened(&remote), "remote:01234567..@[::1]:7");
    }
}
