use super::{MemoryLimit, SchedulerConfig};
use crate::{ConfigError, place::Source, tree::Node};

/// Checks the ranges of the section.
///
/// # Errors
///
/// The first value out of its range, with its place.
pub(crate) fn check(
    config: &SchedulerConfig,
    tree: &Node,
    source: &Source<'_>,
) -> Result<(), ConfigError> {
    match mistake(config) {
        None => Ok(()),
        Some((field, problem)) => {
            let key = format!("scheduler.{field}");
            Err(ConfigError::Invalid {
                place: source.place(tree.find(&key).unwrap_or(tree).location),
                key,
                problem,
            })
        }
    }
}

/// The first field out of its range and what is wrong with it.
fn mistake(config: &SchedulerConfig) -> Option<(&'static str, String)> {
    match config.memory_limit {
        MemoryLimit::Fraction(fraction) if !(fraction > 0.0 && fraction <= 1.0) => {
            let problem = format!(
                "a fraction must be above 0 and at most 1, got {fraction}; a size has a unit, \
                 such as 20GiB"
            );
            return Some(("memory_limit", problem));
        }
        MemoryLimit::Bytes(0) => {
            return Some(("memory_limit", "must be above 0, got 0 bytes".to_owned()));
        }
        _ => {}
    }
    let slowdown = config.max_slowdown;
    if !(slowdown.is_finite() && slowdown >= 1.0) {
        let problem = format!("must be finite and at least 1, got {slowdown}");
        return Some(("max_slowdown", problem));
    }
    if config.max_adapters == Some(0) {
        let problem = "must be at least 1, got 0; leave it out for no cap".to_owned();
        return Some(("max_adapters", problem));
    }
    match config.aging {
        Some(seconds) if !(seconds.is_finite() && seconds > 0.0) => {
            let problem =
                format!("must be finite and above 0, got {seconds}; leave it out for none");
            Some(("aging", problem))
        }
        _ => None,
    }
}
