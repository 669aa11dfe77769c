//! Explains why an adapter fails, from its weights, losses and settings.

use burn::tensor::Tensor;
use loraloom_config::AdapterConfig;
use loraloom_model::{LayerAdapter, Projection, to_host};

use super::Task;
use crate::error::Result;

/// Above this, `lora_alpha / r` may be the cause of large losses and first steps.
const LARGE_SCALE: f64 = 64.0;
/// Below this share of kept inputs, whole batches have none.
const LEAST_KEPT: f64 = 1e-2;
/// Gradients of an adapter that trains are not far below this.
const LARGE_EPSILON: f64 = 1e-3;

/// A factor of an adapted module that has not changed since the start.
struct UnchangedFactor {
    name: String,
    /// Its largest absolute value.
    largest: f32,
    /// True if it had a gradient.
    reached: bool,
    /// True if the module's other factor has changed.
    other_changed: bool,
}

/// Result of the check that training changes an adapter.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Liveness {
    /// All of it.
    Changed,
    /// All of it has a gradient, but the steps of its warm-up were too small to change every part of it.
    Unknown,
    /// Not all of it, for this reason.
    Unchanged(String),
}

/// Compares the weights of a task with `before`, after at least two steps whose learning rate was above zero.
pub(crate) fn liveness(
    task: &Task,
    before: &[LayerAdapter],
    after: &[LayerAdapter],
) -> Result<Liveness> {
    let factors = unchanged_factors(before, after)?;
    Ok(if factors.is_empty() {
        Liveness::Changed
    } else {
        why_unchanged(task, &factors).map_or(Liveness::Unknown, Liveness::Unchanged)
    })
}

/// `None` if they may still change.
fn why_unchanged(task: &Task, factors: &[UnchangedFactor]) -> Option<String> {
    // A of an embedding begins as zero, and so B has no gradient until a token comes again.
    let waits = |factor: &UnchangedFactor| {
        factor.other_changed && factor.name == format!("{}.lora_B", Projection::EmbedTokens.path())
    };
    if factors.iter().all(waits) {
        return None;
    }
    let train = &task.config.train;
    let rate = train.learning_rate;
    let losses = match task.first_loss.zip(task.last_loss) {
        Some((first, last)) => format!("the loss was {first:.4}, then {last:.4}"),
        None => "there is no loss".to_owned(),
    };
    let (clip, epsilon) = (train.max_grad_norm, train.adam_epsilon);
    if clip > 0.0 && clip <= epsilon && epsilon <= LARGE_EPSILON {
        return Some(format!(
            "the weights do not change ({losses}): `train.max_grad_norm` {clip:?} scales gradients \
             below `train.adam_epsilon` {epsilon:?}; raise it, or set it to 0 to turn clipping off"
        ));
    }
    let dropout = task.config.dropout();
    if 1.0 - dropout < LEAST_KEPT && !factors.iter().any(|factor| factor.reached) {
        return Some(format!(
            "the weights do not change ({losses}): `lora.lora_dropout` {dropout:?} drops the adapter's \
             whole input; lower it"
        ));
    }
    let rounded = |factor: &UnchangedFactor| rate < f64::from(factor.largest * f32::EPSILON);
    if factors.iter().all(rounded) {
        return Some(format!(
            "the weights do not change ({losses}): a learning rate of {rate:?} changes them by less \
             than the precision of float32; raise `train.learning_rate`"
        ));
    }
    // The loss of a preference is flat where its margin is reached, for all rows of a step perhaps.
    if task.preference.is_some() {
        return None;
    }
    let unreached = |factor: &&UnchangedFactor| !factor.reached && !factor.other_changed;
    if let Some(names) = named(factors.iter().filter(unreached)) {
        return Some(format!("no gradient reaches {names}"));
    }
    if epsilon > LARGE_EPSILON {
        return Some(format!(
            "the weights do not change ({losses}): `train.adam_epsilon` {epsilon:?} is far above their \
             gradients; lower it"
        ));
    }
    // In a long warm-up the first B are so small that gradients of A are far below epsilon.
    if task.warms_up() && factors.iter().all(|factor| factor.reached) {
        return None;
    }
    let names = named(factors.iter()).unwrap_or_default();
    Some(format!(
        "the first step was too large ({losses}, at a learning rate of {rate:?}): afterwards {names} \
         have no gradient; {}",
        lower(&task.config)
    ))
}

/// The reason why the loss, or the norm of the gradient, of a task's next step is not finite.
pub(crate) fn not_finite(task: &Task, loss: f64, grad_norm: f64, learning_rate: f64) -> String {
    let found = format!("loss {loss:.4}, gradient norm {grad_norm:.4}");
    let Some(last) = task.last_loss else {
        let scale = scale(&task.config);
        let beta = task.config.objective.beta;
        let beta = beta.map_or_else(String::new, |beta| {
            format!(", and `objective.beta` {beta:?}")
        });
        return format!(
            "{found} at the first step: check the weights of the model and of `init_from` for damage, \
             the range of `dtype`, and the scale of {scale:?} (`lora.lora_alpha`, `lora.r`){beta}"
        );
    };
    let decay = task.config.train.weight_decay;
    let what = if decay * learning_rate >= 1.0 {
        format!("`train.weight_decay` {decay:?} subtracts more than the whole weight; lower it")
    } else {
        lower(&task.config)
    };
    format!("{found} after a loss of {last:.4}, at a learning rate of {learning_rate:.3e}: {what}")
}

fn lower(config: &AdapterConfig) -> String {
    let scale = scale(config);
    if scale > LARGE_SCALE {
        format!(
            "lower `train.learning_rate`, or `lora.lora_alpha`: outputs are multiplied by {scale:?}"
        )
    } else if let Some(beta) = config.objective.beta {
        format!("lower `train.learning_rate`, or change `objective.beta` {beta:?}")
    } else {
        "lower `train.learning_rate`".to_owned()
    }
}

fn scale(config: &AdapterConfig) -> f64 {
    let (lora, rank) = (&config.lora, config.lora.r as f64);
    lora.lora_alpha / if lora.use_rslora { rank.sqrt() } else { rank }
}

fn unchanged_factors(
    before: &[LayerAdapter],
    after: &[LayerAdapter],
) -> Result<Vec<UnchangedFactor>> {
    let mut factors = Vec::new();
    for (layer, (before, after)) in before.iter().zip(after).enumerate() {
        for (projection, (before, after)) in
            Projection::ALL.into_iter().zip(before.iter().zip(after))
        {
            let Some((before, after)) = before.as_ref().zip(after.as_ref()) else {
                continue;
            };
            let (old, new, moments) = (&before.weights, &after.weights, &after.first_moment);
            let host = |tensor: &Tensor<2>| to_host(tensor.clone());
            let (a, b) = (host(&new.a)?, host(&new.b)?);
            let (a_changed, b_changed) = (host(&old.a)? != a, host(&old.b)? != b);
            let frozen = after.spec.freeze_a;
            for (factor, values, moment, changed, other_changed) in [
                ("lora_A", &a, &moments.a, a_changed || frozen, b_changed),
                ("lora_B", &b, &moments.b, b_changed, a_changed),
            ] {
                if !changed {
                    factors.push(UnchangedFactor {
                        name: format!("{}.{factor}", projection.module(layer)),
                        largest: values.iter().fold(0.0, |most, value| value.abs().max(most)),
                        reached: host(moment)?.iter().any(|value| *value != 0.0),
                        other_changed,
                    });
                }
            }
        }
    }
    Ok(factors)
}

/// The names of the first few, if there are any.
fn named<'a>(factors: impl Iterator<Item = &'a UnchangedFactor>) -> Option<String> {
    let names: Vec<&str> = factors.map(|factor| factor.name.as_str()).collect();
    let shown = names.get(..3).unwrap_or(&names).join(", ");
    match names.len() {
        0 => None,
        1..=3 => Some(shown),
        all => Some(format!("{shown} and {} more", all - 3)),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use loraloom_config::{LoadOptions, RunConfig};

    use super::lower;

    #[test]
    fn a_preference_has_a_beta_to_change() {
        for (settings, advice) in [
            ("seed: 1", "lower `train.learning_rate`"),
            (
                "objective: {type: dpo}",
                "lower `train.learning_rate`, or change `objective.beta` 0.1",
            ),
            (
                "lora: {r: 1, lora_alpha: 128}",
                "lower `train.learning_rate`, or `lora.lora_alpha`: outputs are multiplied by 128.0",
            ),
        ] {
            let text = format!(
                "model: m\ndatasets: {{d: {{path: p}}}}\nadapters: [{{name: a, {settings}}}]\n"
            );
            let loaded = RunConfig::load_yaml(&text, Path::new("x.yaml"), &LoadOptions::default());
            let config = loaded.expect("a configuration").config;
            assert_eq!(lower(&config.adapters[0]), advice);
        }
    }
}
