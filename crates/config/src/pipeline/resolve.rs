//! From the section as written to the pipeline of the run, with everything checked that needs no
//! model.

use super::{BalanceChoice, PipelineConfig, ScheduleChoice, StageChoice};
use crate::{
    ConfigError, DeviceChoice,
    file::PipelineFile,
    place::{Location, Source},
    tree::Node,
};

const STAGES: &str = "pipeline.stages";
const BALANCE: &str = "pipeline.balance";
const TOKEN_FILE: &str = "pipeline.token_file";

/// The run's device and pipeline, which agree: the device is the first stage of this machine, or
/// the CPU where all stages are workers.
///
/// # Errors
///
/// The first value that is out of its range or contradicts another, with its place.
pub(crate) fn resolve(
    file: Option<PipelineFile>,
    device: Option<DeviceChoice>,
    tree: &Node,
    source: &Source<'_>,
) -> Result<(DeviceChoice, PipelineConfig), ConfigError> {
    let file = file.unwrap_or_default();
    let check = Check { tree, source };
    let mut stages = match file.stages {
        Some(stages) => stages,
        None => vec![StageChoice::Device(device.unwrap_or(DeviceChoice::Auto))],
    };
    check.stages(&stages)?;
    let device = check.device(&mut stages, device)?;
    let pipeline = PipelineConfig {
        stages,
        balance: file.balance.unwrap_or(BalanceChoice::Auto),
        schedule: file.schedule.unwrap_or(ScheduleChoice::Lorapp),
        microbatches: file.microbatches.unwrap_or(1),
        extra_warmup: file.extra_warmup.unwrap_or(0),
        token_file: file.token_file.map(Into::into),
        step_deadline: file.step_deadline.unwrap_or(PipelineConfig::STEP_DEADLINE),
    };
    check.numbers(&pipeline)?;
    check.balance(&pipeline)?;
    check.token_file(&pipeline)?;
    Ok((device, pipeline))
}

/// Warnings about legal but probably unintended settings, a sentence each.
pub(crate) fn warn(pipeline: &PipelineConfig) -> Vec<String> {
    let mut warnings = Vec::new();
    for (index, stage) in pipeline.stages.iter().enumerate() {
        let first = pipeline.stages.iter().position(|other| other == stage);
        // Each stage on the CPU has threads of its own.
        let shares = *stage != StageChoice::Device(DeviceChoice::Cpu);
        if let Some(first) = first
            && first < index
            && shares
        {
            warnings.push(format!(
                "stages {first} and {index} of the pipeline are both `{stage}`: they take turns \
                 on it"
            ));
        }
    }
    if pipeline.token_file.is_some() && !pipeline.has_workers() {
        warnings.push(format!("`{TOKEN_FILE}` is not used: no stage is a worker"));
    }
    let staggered = match &pipeline.balance {
        BalanceChoice::Staggered => Some("staggered"),
        BalanceChoice::Partitions(_) => Some("[[…], …]"),
        BalanceChoice::Auto | BalanceChoice::Layers(_) => None,
    };
    if let Some(staggered) = staggered {
        let lorapp = pipeline.schedule == ScheduleChoice::Lorapp;
        let why = match pipeline.stages.len() {
            1 => Some("the pipeline has one stage"),
            _ => (!lorapp).then_some("groups are not on their way together under this schedule"),
        };
        warnings.extend(why.map(|why| format!("`{BALANCE}: {staggered}` gains nothing: {why}")));
    }
    warnings
}

struct Check<'a> {
    tree: &'a Node,
    source: &'a Source<'a>,
}

impl Check<'_> {
    fn location(&self, path: &str) -> Location {
        self.tree.find(path).unwrap_or(self.tree).location
    }

    fn invalid(&self, key: &str, problem: String) -> ConfigError {
        self.invalid_at(self.location(key), key.to_owned(), problem)
    }

    fn invalid_at(&self, location: Location, key: String, problem: String) -> ConfigError {
        ConfigError::Invalid {
            place: self.source.place(location),
            key,
            problem,
        }
    }

    /// The error for one item of a list.
    fn invalid_item(&self, list: &str, index: usize, problem: String) -> ConfigError {
        let items = self.tree.find(list).map(Node::items).unwrap_or_default();
        let location = items
            .get(index)
            .map_or_else(|| self.location(list), |item| item.location);
        self.invalid_at(location, format!("{list}[{index}]"), problem)
    }

    fn stages(&self, stages: &[StageChoice]) -> Result<(), ConfigError> {
        if stages.is_empty() {
            let problem = "must name at least one stage; leave it out for one on `device`";
            return Err(self.invalid(STAGES, problem.to_owned()));
        }
        for (index, stage) in stages.iter().enumerate() {
            if stages.len() > 1 && *stage == StageChoice::Device(DeviceChoice::Auto) {
                let problem = "`auto` cannot be one of several stages; name the device";
                return Err(self.invalid_item(STAGES, index, problem.to_owned()));
            }
            let earlier = stages[..index].iter().position(|other| other == stage);
            if let (StageChoice::Remote(address), Some(first)) = (stage, earlier) {
                let problem = format!(
                    "the worker at {}:{} is stage {first} already: a worker holds one stage, \
                     start another one there",
                    address.host, address.port
                );
                return Err(self.invalid_item(STAGES, index, problem));
            }
        }
        Ok(())
    }

    /// The device of the run. A single stage that is `auto` is the device that is written.
    fn device(
        &self,
        stages: &mut [StageChoice],
        written: Option<DeviceChoice>,
    ) -> Result<DeviceChoice, ConfigError> {
        let written = written.filter(|device| *device != DeviceChoice::Auto);
        let local = stages.iter_mut().find_map(|stage| match stage {
            StageChoice::Device(device) => Some(device),
            StageChoice::Remote(_) => None,
        });
        let Some(local) = local else {
            return match written {
                None | Some(DeviceChoice::Cpu) => Ok(DeviceChoice::Cpu),
                Some(device) => {
                    let problem = format!(
                        "all stages of the pipeline are workers; leave it out instead of `{device}`"
                    );
                    Err(self.invalid("device", problem))
                }
            };
        };
        match written {
            None => Ok(*local),
            Some(device) if *local == DeviceChoice::Auto => {
                *local = device;
                Ok(device)
            }
            Some(device) if *local == device => Ok(device),
            Some(device) => {
                let problem = format!(
                    "`{STAGES}` begins with `{local}` on this machine; leave `device` out instead \
                     of `{device}`"
                );
                Err(self.invalid("device", problem))
            }
        }
    }

    fn numbers(&self, pipeline: &PipelineConfig) -> Result<(), ConfigError> {
        if pipeline.microbatches == 0 {
            let problem = "must be at least 1, got 0".to_owned();
            return Err(self.invalid("pipeline.microbatches", problem));
        }
        let (warmup, most) = (pipeline.extra_warmup, PipelineConfig::MOST_WARMUP);
        if warmup > most {
            let problem = format!("must be at most {most}, got {warmup}");
            return Err(self.invalid("pipeline.extra_warmup", problem));
        }
        let deadline = pipeline.step_deadline;
        if !(deadline.is_finite() && deadline > 0.0) {
            let problem = format!("must be finite and above 0, got {deadline}");
            return Err(self.invalid("pipeline.step_deadline", problem));
        }
        Ok(())
    }

    fn balance(&self, pipeline: &PipelineConfig) -> Result<(), ConfigError> {
        let stages = pipeline.stages.len();
        match &pipeline.balance {
            BalanceChoice::Auto | BalanceChoice::Staggered => Ok(()),
            BalanceChoice::Layers(layers) => {
                one_each(layers, stages).map_err(|problem| self.invalid(BALANCE, problem))
            }
            BalanceChoice::Partitions(partitions) => {
                partitions
                    .iter()
                    .enumerate()
                    .try_for_each(|(index, layers)| {
                        one_each(layers, stages)
                            .map_err(|problem| self.invalid_item(BALANCE, index, problem))
                    })
            }
        }
    }

    fn token_file(&self, pipeline: &PipelineConfig) -> Result<(), ConfigError> {
        match &pipeline.token_file {
            Some(path) if path.as_os_str().is_empty() => {
                Err(self.invalid(TOKEN_FILE, "must not be empty".to_owned()))
            }
            None if pipeline.has_workers() => Err(ConfigError::MissingKey {
                place: self.source.place(self.location(STAGES)),
                key: TOKEN_FILE.to_owned(),
            }),
            _ => Ok(()),
        }
    }
}

/// The first mistake in the layers of the stages that is visible without a model.
fn one_each(layers: &[usize], stages: usize) -> Result<(), String> {
    let counts = layers.len();
    if counts != stages {
        return Err(format!(
            "has layers for {counts} {}, the pipeline has {stages}",
            if counts == 1 { "stage" } else { "stages" }
        ));
    }
    match layers.iter().position(|&count| count == 0) {
        Some(stage) => Err(format!(
            "stage {stage} has 0 layers; every stage needs at least 1"
        )),
        None => Ok(()),
    }
}
