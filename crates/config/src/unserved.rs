//! Keys of the interface that this version does not serve: refused, never accepted and ignored.

use crate::{ConfigError, place::Source, suggest::Candidates, tree::Node};

const POLICIES: [&str; 3] = ["strict_fifo", "best_effort_fifo", "fair"];

/// Takes the keys out of the tree that mean no more than what this version does anyway, and
/// refuses the others.
///
/// # Errors
///
/// [`ConfigError::Unsupported`] for the first key that asks for more.
pub(crate) fn refuse_unserved(tree: &mut Node, source: &Source<'_>) -> Result<(), ConfigError> {
    let refuse = Refuse { source };
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

    fn scheduler(&self, scheduler: &mut Node) -> Result<(), ConfigError> {
        if let Some((_, policy)) = scheduler.take("policy") {
            let key = "scheduler.policy";
            let place = || self.source.place(policy.location);
            match policy.text() {
                Some("strict_fifo") => {}
                Some(name) if POLICIES.contains(&name) => {
                    let reason = format!(
                        "`{name}` is not supported in this version; leave it out or write \
                         `strict_fifo`"
                    );
                    return Err(self.unsupported(&policy, key, &reason));
                }
                Some(name) => {
                    return Err(ConfigError::UnknownName {
                        place: place(),
                        key: key.to_owned(),
                        what: "value",
                        name: name.to_owned(),
                        valid: Candidates::of(name, POLICIES),
                    });
                }
                None => {
                    return Err(ConfigError::Invalid {
                        place: place(),
                        key: key.to_owned(),
                        problem: format!("expected a policy, found {}", policy.describe()),
                    });
                }
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
}
