//! Keys of the interface that this version does not serve: refused, never accepted and ignored.

use crate::{
    ConfigError, DeviceChoice,
    place::Source,
    suggest::Candidates,
    tree::{Key, Node, Value},
};

const PIPELINE_KEYS: [&str; 4] = ["stages", "balance", "schedule", "microbatches"];
const POLICIES: [&str; 3] = ["strict_fifo", "best_effort_fifo", "fair"];
const SCHEDULES: [&str; 3] = ["lorapp", "one_f_one_b", "gpipe"];

/// Takes the keys out of the tree that mean no more than what this version does anyway, and
/// refuses the others. A pipeline of one stage becomes `device`.
///
/// # Errors
///
/// [`ConfigError::Unsupported`] for the first key that asks for more.
pub(crate) fn refuse_unserved(tree: &mut Node, source: &Source<'_>) -> Result<(), ConfigError> {
    let refuse = Refuse { source };
    if let Some(device) = tree.get("device")
        && device
            .text()
            .is_some_and(|text| text.starts_with("remote:"))
    {
        return Err(refuse.unsupported(device, "device", REMOTE));
    }
    if let Some((_, pipeline)) = tree.take("pipeline") {
        refuse.pipeline(tree, pipeline)?;
    }
    if let Some((key, sweep)) = tree.take("sweep") {
        let node = sweep.at(key.location);
        let reason = "sweeps are not supported in this version; write the adapters out";
        return Err(refuse.unsupported(&node, "sweep", reason));
    }
    if let Some(scheduler) = tree.get_mut("scheduler") {
        refuse.scheduler(scheduler)?;
    }
    if let Some(defaults) = tree.get_mut("defaults") {
        refuse.keep(defaults, "defaults")?;
    }
    if let Some(adapters) = tree.get_mut("adapters") {
        for (index, adapter) in adapters.items_mut().iter_mut().enumerate() {
            refuse.keep(adapter, &format!("adapters[{index}]"))?;
        }
    }
    Ok(())
}

const REMOTE: &str = "remote workers are not supported in this version; name a local device";

struct Refuse<'a> {
    source: &'a Source<'a>,
}

impl Refuse<'_> {
    fn unsupported(&self, node: &Node, key: &str, reason: &str) -> ConfigError {
        ConfigError::Unsupported {
            place: self.source.place(node.location),
            key: key.to_owned(),
            reason: reason.to_owned(),
        }
    }

    fn invalid(&self, node: &Node, key: &str, expected: &str) -> ConfigError {
        ConfigError::Invalid {
            place: self.source.place(node.location),
            key: key.to_owned(),
            problem: format!("expected {expected}, found {}", node.describe()),
        }
    }

    fn unknown_name(&self, node: &Node, key: &str, name: &str, valid: &[&str]) -> ConfigError {
        ConfigError::UnknownName {
            place: self.source.place(node.location),
            key: key.to_owned(),
            what: "value",
            name: name.to_owned(),
            valid: Candidates::of(name, valid.iter().copied()),
        }
    }

    fn pipeline(&self, tree: &mut Node, mut pipeline: Node) -> Result<(), ConfigError> {
        let Value::Mapping(entries) = &pipeline.value else {
            return Err(self.invalid(&pipeline, "pipeline", "a mapping"));
        };
        if let Some((key, _)) = entries
            .iter()
            .find(|(key, _)| !PIPELINE_KEYS.contains(&key.name.as_str()))
        {
            return Err(self.unknown_key(key, "pipeline", &PIPELINE_KEYS));
        }
        if let Some((_, stages)) = pipeline.take("stages") {
            self.stages(tree, stages)?;
        }
        if let Some((_, balance)) = pipeline.take("balance")
            && balance.text() != Some("auto")
        {
            let reason = "only `auto` is supported in this version, which has one stage";
            return Err(self.unsupported(&balance, "pipeline.balance", reason));
        }
        if let Some((_, schedule)) = pipeline.take("schedule") {
            match schedule.text() {
                Some("lorapp") => {}
                Some(name) if SCHEDULES.contains(&name) => {
                    let reason = format!(
                        "`{name}` is not supported in this version, which has one stage; \
                         leave it out or write `lorapp`"
                    );
                    return Err(self.unsupported(&schedule, "pipeline.schedule", &reason));
                }
                Some(name) => {
                    let key = "pipeline.schedule";
                    return Err(self.unknown_name(&schedule, key, name, &SCHEDULES));
                }
                None => return Err(self.invalid(&schedule, "pipeline.schedule", "a schedule")),
            }
        }
        if let Some((_, microbatches)) = pipeline.take("microbatches")
            && !matches!(microbatches.value, Value::Integer(1))
        {
            let reason = "only 1 is supported in this version, which has one stage; \
                          `train.gradient_accumulation_steps` splits a step";
            return Err(self.unsupported(&microbatches, "pipeline.microbatches", reason));
        }
        Ok(())
    }

    fn stages(&self, tree: &mut Node, stages: Node) -> Result<(), ConfigError> {
        let key = "pipeline.stages";
        let Value::Sequence(items) = &stages.value else {
            return Err(self.invalid(&stages, key, "a list of devices"));
        };
        if let Some(remote) = items
            .iter()
            .find(|item| item.text().is_some_and(|text| text.starts_with("remote:")))
        {
            return Err(self.unsupported(remote, key, REMOTE));
        }
        let [stage] = items.as_slice() else {
            return Err(match items.len() {
                0 => self.invalid(&stages, key, "a list with one device"),
                count => self.unsupported(
                    &stages,
                    key,
                    &format!("more than one stage is not supported in this version, found {count}"),
                ),
            });
        };
        let chosen: DeviceChoice = stage.deserialize(self.source, "pipeline.stages[0]")?;
        if let Some(device) = tree.get("device") {
            let written: Option<DeviceChoice> = device.deserialize(self.source, "device")?;
            if written.is_some_and(|device| device != DeviceChoice::Auto && device != chosen) {
                let expected = format!("`{chosen}`, the stage of the pipeline");
                return Err(self.invalid(device, "device", &expected));
            }
        }
        tree.set(
            "device",
            Node::string(chosen.to_string()).at(stage.location),
        );
        Ok(())
    }

    fn scheduler(&self, scheduler: &mut Node) -> Result<(), ConfigError> {
        if let Some((_, policy)) = scheduler.take("policy") {
            let key = "scheduler.policy";
            match policy.text() {
                Some("strict_fifo") => {}
                Some(name) if POLICIES.contains(&name) => {
                    let reason = format!(
                        "`{name}` is not supported in this version; leave it out or write \
                         `strict_fifo`"
                    );
                    return Err(self.unsupported(&policy, key, &reason));
                }
                Some(name) => return Err(self.unknown_name(&policy, key, name, &POLICIES)),
                None => return Err(self.invalid(&policy, key, "a policy")),
            }
        }
        for key in ["memory_limit", "max_slowdown"] {
            if let Some((_, node)) = scheduler.take(key) {
                let reason = "not supported in this version; `scheduler.max_adapters` caps how \
                              many adapters train at the same time";
                return Err(self.unsupported(&node, &format!("scheduler.{key}"), reason));
            }
        }
        Ok(())
    }

    fn keep(&self, adapter: &mut Node, parent: &str) -> Result<(), ConfigError> {
        match adapter.get_mut("save").and_then(|save| save.take("keep")) {
            Some((_, keep)) => {
                let reason = "not supported in this version, which keeps `last` and `best` only";
                Err(self.unsupported(&keep, &format!("{parent}.save.keep"), reason))
            }
            None => Ok(()),
        }
    }

    fn unknown_key(&self, key: &Key, parent: &str, valid: &[&str]) -> ConfigError {
        ConfigError::UnknownKey {
            place: self.source.place(key.location),
            key: key.name.clone(),
            parent: parent.to_owned(),
            valid: Candidates::of(&key.name, valid.iter().copied()),
        }
    }
}
