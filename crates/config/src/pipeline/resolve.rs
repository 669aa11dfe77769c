//! Resolves the section `pipeline`, with all checks that need no model.

use super::{BalanceChoice, PipelineConfig, Schedule, StageLocation};
use crate::{ConfigError, DeviceChoice, file::PipelineFile, written_config::WrittenConfig};

const STAGES: &str = "pipeline.stages";
const BALANCE: &str = "pipeline.balance";
const TOKEN_FILE: &str = "pipeline.token_file";

/// The device and the pipeline of the run. The device is that of the first stage on this machine, or
/// the CPU where all stages are workers.
///
/// # Errors
/// The first value that is out of its range or contradicts another, with its place.
pub(crate) fn resolve(
    file: Option<PipelineFile>,
    device: Option<DeviceChoice>,
    written: WrittenConfig<'_>,
) -> Result<(DeviceChoice, PipelineConfig), ConfigError> {
    let file = file.unwrap_or_default();
    let only = || vec![StageLocation::Device(device.unwrap_or(DeviceChoice::Auto))];
    let mut stages = file.stages.unwrap_or_else(only);
    check_stages(&stages, written)?;
    let device = run_device(&mut stages, device, written)?;
    let pipeline = PipelineConfig {
        stages,
        balance: file.balance.unwrap_or(BalanceChoice::Auto),
        schedule: file.schedule.unwrap_or(Schedule::LoraPp),
        microbatches: file.microbatches.unwrap_or(1),
        extra_warmup: file.extra_warmup.unwrap_or(0),
        token_file: file.token_file.map(Into::into),
        step_deadline: file.step_deadline.unwrap_or(PipelineConfig::STEP_DEADLINE),
    };
    check_numbers(&pipeline, written)?;
    check_balance(&pipeline, written)?;
    check_token_file(&pipeline, written)?;
    Ok((device, pipeline))
}

/// Warnings about legal but probably unintended settings, a sentence each.
pub(crate) fn warn(pipeline: &PipelineConfig) -> Vec<String> {
    let mut warnings = Vec::new();
    for (index, stage) in pipeline.stages.iter().enumerate() {
        // Each stage on the CPU has its own threads.
        let shares = *stage != StageLocation::Device(DeviceChoice::Cpu);
        if let Some(first) = pipeline.stages[..index].iter().position(|s| s == stage)
            && shares
        {
            warnings.push(format!(
                "stages {first} and {index} of the pipeline are both on `{stage}` and take turns"
            ));
        }
    }
    if pipeline.token_file.is_some() && !pipeline.has_workers() {
        warnings.push(format!(
            "`{TOKEN_FILE}` has no effect: no stage is a worker"
        ));
    }
    let staggered = match &pipeline.balance {
        BalanceChoice::Staggered => Some("staggered"),
        BalanceChoice::Partitions(_) => Some("[[…], …]"),
        BalanceChoice::Auto | BalanceChoice::Layers(_) => None,
    };
    if let Some(staggered) = staggered {
        let why = match (pipeline.stages.len(), pipeline.schedule) {
            (1, _) => Some("the pipeline has one stage"),
            (_, Schedule::LoraPp) => None,
            _ => Some("this schedule does not interleave groups"),
        };
        warnings.extend(why.map(|why| format!("`{BALANCE}: {staggered}` has no effect: {why}")));
    }
    warnings
}

fn check_stages(stages: &[StageLocation], written: WrittenConfig<'_>) -> Result<(), ConfigError> {
    if stages.is_empty() {
        let problem = "must name at least one stage; leave it out for one stage on `device`";
        return Err(written.invalid(STAGES, problem));
    }
    for (index, stage) in stages.iter().enumerate() {
        if stages.len() > 1 && *stage == StageLocation::Device(DeviceChoice::Auto) {
            let problem = "`auto` cannot be one of several stages; name the device";
            return Err(written.invalid_item(STAGES, index, problem));
        }
        let earlier = stages[..index].iter().position(|other| other == stage);
        if let (StageLocation::Remote(address), Some(first)) = (stage, earlier) {
            let problem = format!(
                "the worker at {}:{} is already stage {first}: a worker holds one stage, so start \
                 another one",
                address.host, address.port
            );
            return Err(written.invalid_item(STAGES, index, problem));
        }
    }
    Ok(())
}

/// The device of the run. A single stage with `auto` uses the value of `device`.
fn run_device(
    stages: &mut [StageLocation],
    device: Option<DeviceChoice>,
    written: WrittenConfig<'_>,
) -> Result<DeviceChoice, ConfigError> {
    let device = device.filter(|device| *device != DeviceChoice::Auto);
    let local = stages.iter_mut().find_map(|stage| match stage {
        StageLocation::Device(device) => Some(device),
        StageLocation::Remote(_) => None,
    });
    let problem = match (local, device) {
        (None, None | Some(DeviceChoice::Cpu)) => return Ok(DeviceChoice::Cpu),
        (None, Some(device)) => {
            format!("`{device}` has no effect, since all stages are workers; leave it out")
        }
        (Some(local), None) => return Ok(*local),
        (Some(local), Some(device)) if *local == DeviceChoice::Auto || *local == device => {
            *local = device;
            return Ok(device);
        }
        (Some(local), Some(device)) => format!(
            "`{device}` contradicts `{STAGES}`, whose first stage on this machine is `{local}`; leave \
             `device` out"
        ),
    };
    Err(written.invalid("device", problem))
}

fn check_numbers(pipeline: &PipelineConfig, written: WrittenConfig<'_>) -> Result<(), ConfigError> {
    if pipeline.microbatches == 0 {
        return Err(written.invalid("pipeline.microbatches", "must be at least 1, got 0"));
    }
    let (warmup, most) = (pipeline.extra_warmup, PipelineConfig::MOST_WARMUP);
    if warmup > most {
        let problem = format!("must be at most {most}, got {warmup}");
        return Err(written.invalid("pipeline.extra_warmup", problem));
    }
    let deadline = pipeline.step_deadline;
    if !(deadline.is_finite() && deadline > 0.0) {
        let problem = format!("must be finite and above 0, got {deadline}");
        return Err(written.invalid("pipeline.step_deadline", problem));
    }
    Ok(())
}

fn check_balance(pipeline: &PipelineConfig, written: WrittenConfig<'_>) -> Result<(), ConfigError> {
    let mistake = |layers: &Vec<usize>| layer_mistake(layers, pipeline.stages.len());
    match &pipeline.balance {
        BalanceChoice::Auto | BalanceChoice::Staggered => {}
        BalanceChoice::Layers(layers) => {
            if let Some(problem) = mistake(layers) {
                return Err(written.invalid(BALANCE, problem));
            }
        }
        BalanceChoice::Partitions(partitions) => {
            for (index, layers) in partitions.iter().enumerate() {
                if let Some(problem) = mistake(layers) {
                    return Err(written.invalid_item(BALANCE, index, problem));
                }
            }
        }
    }
    Ok(())
}

fn check_token_file(
    pipeline: &PipelineConfig,
    written: WrittenConfig<'_>,
) -> Result<(), ConfigError> {
    match &pipeline.token_file {
        Some(path) if path.as_os_str().is_empty() => {
            Err(written.invalid(TOKEN_FILE, "must not be empty"))
        }
        None if pipeline.has_workers() => Err(written
            .source
            .missing(written.tree.locate(STAGES), TOKEN_FILE)),
        _ => Ok(()),
    }
}

/// The mistake in the numbers of layers on each stage, if it can be found without the model.
fn layer_mistake(layers: &[usize], stages: usize) -> Option<String> {
    let counts = layers.len();
    if counts != stages {
        let noun = if counts == 1 { "stage" } else { "stages" };
        return Some(format!(
            "has layers for {counts} {noun}, the pipeline has {stages}"
        ));
    }
    let empty = layers.iter().position(|&count| count == 0)?;
    Some(format!(
        "stage {empty} has 0 layers; every stage needs at least 1"
    ))
}
