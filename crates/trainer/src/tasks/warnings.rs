//! Warnings about settings that are legal and probably not intended.

use std::{collections::BTreeMap, path::Path};

use loraloom_config::{AdapterConfig, LrSchedulerType, RunConfig, SweepConfig, TargetModule};
use loraloom_data::{Encoded, Warning};
use loraloom_model::{LlamaConfig, PeftLoraConfig, Projection, TargetModules};

use super::{step_rows::estimates_divergence, task::total_steps};
use crate::adapter::targets;

const ALL_LINEAR: &str = "all-linear";

/// A warning of a rank larger than the adapted layers allow.
pub fn rank_warning(config: &AdapterConfig, model: &LlamaConfig) -> Option<String> {
    let lora = &config.lora;
    let targets = targets(lora, model.fused);
    let narrowest = model
        .linears()
        .into_iter()
        .chain(
            Projection::ENDS
                .into_iter()
                .filter_map(|end| model.linear(end)),
        )
        .filter(|linear| targets.contains(&linear.projection))
        .min_by_key(|linear| linear.d_in.min(linear.d_out))?;
    let width = narrowest.d_in.min(narrowest.d_out);
    (lora.r > width).then(|| {
        format!(
            "adapter `{}`: rank {} is above {width}, the width of `{}`: the adapter is not low-rank",
            config.name, lora.r, narrowest.projection.path()
        )
    })
}

/// Warnings of dropout that other programs apply to the frozen model in training, and of quantised layers that are made
/// dense.
pub fn model_warnings(model: &LlamaConfig) -> Vec<Warning> {
    let warning = |message| Warning {
        about: "model".to_owned(),
        message,
        hint: None,
    };
    let dropout = model.dropout.iter().map(|(key, share)| {
        format!(
            "`{key}` {share} of its config.json is not applied; transformers applies it in training"
        )
    });
    let mut warnings: Vec<_> = dropout.map(warning).collect();
    if let Some(stored) = model.stored.as_ref().filter(|stored| !stored.is_nf4) {
        let is_again = model.quantization.is_some();
        let made = if is_again {
            "quantised again in NF4 (made dense where `quantization.skip` names them)"
        } else {
            "made dense"
        };
        let message = format!(
            "its layers are stored as {}, and are {made} as they are read",
            stored.name
        );
        let hint = "`quantization: {type: nf4}` stores them in 4 bits, rounded once more";
        warnings.push(Warning {
            hint: Some(hint).filter(|_| !is_again),
            ..warning(message)
        });
    }
    warnings
}

/// Warnings of an `init_from` directory with a shape other than the configuration's, or another base model than
/// `model`.
pub fn init_from_warnings(
    config: &AdapterConfig,
    peft: &PeftLoraConfig,
    model: &Path,
) -> Vec<String> {
    let name = &config.name;
    let shape = other_shape(config, peft);
    let shape = (!shape.is_empty()).then(|| {
        let differences = shape.join("; ");
        format!("adapter `{name}` keeps the shape of its `init_from`: {differences}")
    });
    let base = peft.base_model_name_or_path.as_deref();
    let base = base.filter(|base| !is_called(model, base)).map(|base| {
        format!(
            "adapter `{name}`: its `init_from` was trained over `{base}`, but the model is `{}`",
            model.display()
        )
    });
    shape.into_iter().chain(base).collect()
}

/// Warnings of other settings, given rows and model.
pub fn setting_warnings(
    adapter: &AdapterConfig,
    model: &LlamaConfig,
    rows: &Encoded,
) -> Vec<Warning> {
    let train = &adapter.train;
    let warning = |message, hint| Warning {
        about: format!("adapter {}", adapter.name),
        message,
        hint: Some(hint),
    };
    let mut warnings = Vec::new();
    let validation = rows.validation.as_ref();
    let validated = validation.map_or(0, |rows| rows.samples.longest());
    let longest = rows.train.samples.longest().max(validated);
    let most = model.max_position_embeddings;
    if longest > most {
        warnings.push(warning(
            format!("its rows have up to {longest} tokens, but the model supports {most}"),
            "lower train.max_seq_len",
        ));
    }
    let (batch, times) = (train.batch_size, train.gradient_accumulation_steps);
    let (asked, there) = (batch.saturating_mul(times), rows.train.samples.rows());
    if asked > there {
        warnings.push(warning(
            format!(
                "a step of {batch} × {times} rows is more than the {there} rows of the dataset: each \
                 step is an epoch"
            ),
            "lower train.batch_size or train.gradient_accumulation_steps",
        ));
    }
    let batch = batch.min(there).max(1);
    let validated = validation.map_or(0, |rows| rows.samples.rows());
    for (name, count) in [("training", there), ("validation", validated)] {
        if count % batch == 1 && compares_rows(adapter) {
            warnings.push(warning(
                format!(
                    "the last batch of its {count} {name} rows has one row, which `{}` has nothing to compare with: \
                     its loss there means little",
                    adapter.objective.r#type.name()
                ),
                "change the number of rows or train.batch_size",
            ));
        }
    }
    if let Ok(steps) = total_steps(adapter, &rows.train.samples) {
        warnings.extend(warmup_warning(adapter, steps));
        warnings.extend(decay_warning(adapter, steps));
        warnings.extend(flat_warning(adapter, steps));
        warnings.extend(patience_warning(adapter, steps));
    }
    warnings
}

/// True if the loss of a row depends on the other rows of its batch.
fn compares_rows(adapter: &AdapterConfig) -> bool {
    let preference = adapter.objective.loss().unwrap_or(None);
    estimates_divergence(preference.as_ref()) || adapter.objective.contrast().is_some()
}

/// A warning of a warm-up that takes all steps.
fn warmup_warning(adapter: &AdapterConfig, total_steps: usize) -> Option<Warning> {
    let train = &adapter.train;
    let warmup = train.warmup(total_steps);
    if train.lr_scheduler_type == LrSchedulerType::Constant || warmup < total_steps {
        return None;
    }
    Some(Warning {
        about: format!("adapter {}", adapter.name),
        message: format!(
            "its warm-up takes {warmup} steps, but its training only {total_steps}: the learning rate \
             never reaches its peak"
        ),
        hint: Some("lower train.warmup_steps or train.warmup_ratio"),
    })
}

/// A warning of a decay whose settings leave the peak as it is.
fn flat_warning(adapter: &AdapterConfig, total_steps: usize) -> Option<Warning> {
    use LrSchedulerType::{Constant, ConstantWithWarmup, WarmupStableDecay};
    let train = &adapter.train;
    let warmup = train.warmup(total_steps);
    let kind = train.lr_scheduler_type;
    if [Constant, ConstantWithWarmup, WarmupStableDecay].contains(&kind)
        || warmup + 1 >= total_steps
    {
        return None;
    }
    let each = ((total_steps - warmup) / 16).max(1);
    let mut factors = (warmup + 1..total_steps).step_by(each);
    let is_flat = factors.all(|step| train.lr_factor(step, total_steps) >= 1.0);
    is_flat.then(|| Warning {
        about: format!("adapter {}", adapter.name),
        message: "its learning rate never decays".to_owned(),
        hint: Some("change train.lr_scheduler_kwargs, or use constant_with_warmup"),
    })
}

/// A warning of a `warmup_stable_decay` whose parts are not as long as the training.
fn decay_warning(adapter: &AdapterConfig, total_steps: usize) -> Option<Warning> {
    let (train, kwargs) = (&adapter.train, &adapter.train.lr_scheduler_kwargs);
    let warmup = train.warmup(total_steps);
    let (stable, decay) = (kwargs.num_stable_steps, kwargs.num_decay_steps?);
    if train.lr_scheduler_type != LrSchedulerType::WarmupStableDecay || warmup >= total_steps {
        return None;
    }
    let before = warmup.saturating_add(stable.unwrap_or(0));
    let all = before.saturating_add(decay);
    let message = if stable.is_none() && decay == 0 {
        "its num_decay_steps is 0: the learning rate never decays".to_owned()
    } else if before >= total_steps {
        format!(
            "its warm-up and stable steps are {before}, but its training has only {total_steps}: the learning \
             rate never decays"
        )
    } else if all > total_steps {
        let end = match stable {
            Some(_) => "it ends before the decay does",
            None => "the decay begins after its start, with a jump",
        };
        format!(
            "the parts of its schedule take {all} steps, but its training only {total_steps}: {end}"
        )
    } else if stable.is_some() && all < total_steps {
        format!(
            "the parts of its schedule take {all} of its {total_steps} steps: the last {} have a learning rate of {:e}",
            total_steps - all,
            train.learning_rate_at(total_steps, total_steps)
        )
    } else {
        return None;
    };
    Some(Warning {
        about: format!("adapter {}", adapter.name),
        message,
        hint: Some(
            "leave num_stable_steps out, which makes it all steps between warm-up and decay, or change num_decay_steps",
        ),
    })
}

/// A warning of a patience that can end training early only if the first evaluation is the best.
fn patience_warning(adapter: &AdapterConfig, total_steps: usize) -> Option<Warning> {
    let (every, patience) = (adapter.eval.steps, adapter.eval.patience?);
    // The end of the training is evaluated as well, but nothing is left to stop then.
    let before_the_end = total_steps.saturating_sub(1);
    let (evaluations, needed) = (before_the_end / every, patience.saturating_add(1));
    if evaluations >= needed {
        return None;
    }
    let most = match before_the_end / needed {
        0 => String::new(),
        most => format!(", which eval.steps {most} or less would give"),
    };
    Some(Warning {
        about: format!("adapter {}", adapter.name),
        message: format!(
            "patience {patience} cannot end it early: that takes {needed} evaluations before the last \
             of its {total_steps} steps{most}, and eval.steps {every} gives {evaluations}"
        ),
        hint: Some("lower eval.steps, or leave eval.patience out"),
    })
}

/// Warnings of early stopping that compares nothing. `total_steps` has the steps of adapters by name; a sweep of other
/// adapters is skipped.
pub fn sweep_warnings(config: &RunConfig, total_steps: &BTreeMap<&str, usize>) -> Vec<Warning> {
    let warning = |sweep: &SweepConfig| {
        let stopping = sweep.early_stopping.as_ref()?;
        let grace = stopping.grace_period;
        let members = sweep.adapters.iter();
        let steps = members.map(|name| total_steps.get(name.as_str()).copied());
        let steps: Vec<usize> = steps.collect::<Option<_>>()?;
        let compared = steps.iter().filter(|steps| **steps > grace).count();
        (compared < 2 && stopping.divergence.is_none()).then(|| Warning {
            about: format!("sweep {}", sweep.name),
            message: format!(
                "early stopping stops none of its {} adapters: it compares those that take more than \
                 grace_period {grace} steps, and {compared} do; the longest takes {}",
                steps.len(),
                steps.iter().max().unwrap_or(&0)
            ),
            hint: Some("lower early_stopping.grace_period, or leave early_stopping out"),
        })
    };
    config.sweep.iter().filter_map(warning).collect()
}

fn other_shape(config: &AdapterConfig, peft: &PeftLoraConfig) -> Vec<String> {
    let lora = &config.lora;
    let mut different = Vec::new();
    let mut compare = |key: &str, ours: String, theirs: String| {
        if ours != theirs {
            different.push(format!("{key} {theirs} instead of {ours}"));
        }
    };
    let alphas = (lora.lora_alpha, peft.lora_alpha);
    let rslora = (lora.use_rslora, peft.use_rslora);
    compare("r", lora.r.to_string(), peft.r.to_string());
    compare("lora_alpha", alphas.0.to_string(), alphas.1.to_string());
    compare("use_rslora", rslora.0.to_string(), rslora.1.to_string());
    let dora = (lora.use_dora, peft.use_dora);
    compare("use_dora", dora.0.to_string(), dora.1.to_string());
    let theirs = listed(&peft.target_modules);
    let ours = if lora.target_modules[..] == TargetModule::ALL {
        ALL_LINEAR.to_owned()
    } else {
        names(lora.target_modules.iter().map(|module| module.name()))
    };
    compare("target_modules", ours, theirs);
    if let Some(excluded) = &peft.exclude_modules {
        different.push(format!("exclude_modules {}", listed(excluded)));
    }
    if !peft.layers_to_transform.is_empty() {
        let layers = &peft.layers_to_transform;
        different.push(format!("layers_to_transform {layers:?}"));
    }
    let ranks = peft.rank_pattern.iter().map(|(of, r)| (of, *r as f64));
    let alphas = peft.alpha_pattern.iter().map(|(of, alpha)| (of, *alpha));
    for (key, values) in [
        ("rank_pattern", ranks.collect::<Vec<_>>()),
        ("alpha_pattern", alphas.collect()),
    ] {
        let values = values.iter().map(|(of, value)| format!("{of}: {value}"));
        let values = values.collect::<Vec<_>>().join(", ");
        if !values.is_empty() {
            different.push(format!("{key} {values}"));
        }
    }
    different
}

fn listed(modules: &TargetModules) -> String {
    match modules {
        TargetModules::Names(listed) => names(listed.iter().map(String::as_str)),
        TargetModules::Pattern(pattern) => format!("`{pattern}`"),
        TargetModules::AllLinear => ALL_LINEAR.to_owned(),
    }
}

/// Names in alphabetical order, or `all-linear` for all those of a model.
fn names<'a>(listed: impl IntoIterator<Item = &'a str>) -> String {
    let listed = sorted(listed);
    let all = [false, true].map(|fused| {
        let all = Projection::applied(fused).iter();
        sorted(all.map(|projection| projection.name()))
    });
    if all.contains(&listed) {
        ALL_LINEAR.to_owned()
    } else {
        listed
    }
}

fn sorted<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let mut names: Vec<_> = names.into_iter().collect();
    names.sort_unstable();
    names.join(", ")
}

/// True if a model's directory may be the base that an adapter names: a directory, a name on the Hub, or a directory
/// of another machine. Snapshots of the Hub have the name further up in the path.
fn is_called(model: &Path, base: &str) -> bool {
    let real = |path: &Path| std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let model = real(model);
    if Path::new(base).exists() {
        return real(Path::new(base)) == model;
    }
    let name = base.trim_end_matches('/').rsplit('/').next();
    let name = name.unwrap_or(base).to_lowercase();
    let called = |part: std::path::Component<'_>| {
        let part = part.as_os_str().to_string_lossy().to_lowercase();
        part == name || part.ends_with(&format!("--{name}"))
    };
    name.is_empty() || model.components().any(called)
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, path::Path};

    use loraloom_config::{LoadOptions, RunConfig};
    use loraloom_data::{EncodeReport, Encoded, EncodedDataset, Sample, Samples};
    use loraloom_model::LlamaConfig;

    use super::{
        decay_warning, flat_warning, is_called, patience_warning, rank_warning, setting_warnings,
        sweep_warnings, warmup_warning,
    };

    fn config(rest: &str) -> RunConfig {
        let text = format!("model: m\ndatasets: {{d: {{path: p, validation: 0.1}}}}\n{rest}");
        let loaded = RunConfig::load_yaml(&text, Path::new("a.yaml"), &LoadOptions::default());
        loaded.unwrap().config
    }

    #[test]
    fn a_warm_up_ends_before_the_training() {
        for (train, total_steps, is_warned) in [
            ("warmup_steps: 1000", 6, true),
            ("warmup_steps: 6", 6, true),
            ("warmup_steps: 5", 6, false),
            ("warmup_ratio: 1", 6, true),
            ("warmup_ratio: 0.9", 6, true),
            ("warmup_ratio: 0.8", 6, false),
            ("warmup_steps: 1000, lr_scheduler_type: constant", 6, false),
            ("warmup_steps: 0", 1, false),
        ] {
            let config = config(&format!("adapters: [{{name: a, train: {{{train}}}}}]"));
            let warning = warmup_warning(&config.adapters[0], total_steps);
            assert_eq!(warning.is_some(), is_warned, "{train}: {warning:?}");
        }
    }

    /// Of 10 steps.
    #[test]
    fn a_schedule_with_a_decay_has_as_many_steps_as_the_training() {
        for (train, warned) in [
            ("num_decay_steps: 4}", None),
            ("num_decay_steps: 8}, warmup_steps: 2", None),
            (
                "num_decay_steps: 9}, warmup_steps: 2",
                Some("11 steps, but its training only 10: the decay begins after"),
            ),
            ("num_decay_steps: 0}", Some("never decays")),
            (
                "num_decay_steps: 3, num_stable_steps: 5}, warmup_steps: 2",
                None,
            ),
            (
                "num_decay_steps: 3, num_stable_steps: 8}, warmup_steps: 2",
                Some("stable steps are 10"),
            ),
            (
                "num_decay_steps: 3, num_stable_steps: 6}, warmup_steps: 2",
                Some("ends before the decay does"),
            ),
            (
                "num_decay_steps: 3, num_stable_steps: 4, min_lr_ratio: 0.1}, warmup_steps: 2, learning_rate: 1e-3",
                Some("9 of its 10 steps: the last 1 have a learning rate of 1e-4"),
            ),
            (
                "num_decay_steps: 3, num_stable_steps: 6}, warmup_steps: 10",
                None,
            ),
        ] {
            let train =
                format!("lr_scheduler_type: warmup_stable_decay, lr_scheduler_kwargs: {{{train}");
            let config = config(&format!("adapters: [{{name: a, train: {{{train}}}}}]"));
            let said = decay_warning(&config.adapters[0], 10).map(|warning| warning.message);
            match warned {
                Some(words) => assert!(
                    said.as_ref().is_some_and(|said| said.contains(words)),
                    "{train}: {said:?}"
                ),
                None => assert_eq!(said, None, "{train}"),
            }
        }
    }

    #[test]
    fn schedules_decay() {
        for (kind, kwargs, total_steps, is_warned) in [
            ("cosine", "num_cycles: 0", 100, true),
            ("cosine_with_restarts", "num_cycles: 0", 100, true),
            ("polynomial", "power: 0", 100, true),
            ("cosine", "num_cycles: 1", 100, false),
            ("cosine", "", 2, false),
            ("linear", "", 2, false),
            ("inverse_sqrt", "", 3, false),
            ("cosine_with_min_lr", "min_lr_rate: 1", 100, true),
            ("constant_with_warmup", "", 100, false),
        ] {
            let train = format!("lr_scheduler_type: {kind}, lr_scheduler_kwargs: {{{kwargs}}}");
            let config = config(&format!("adapters: [{{name: a, train: {{{train}}}}}]"));
            let warning = flat_warning(&config.adapters[0], total_steps);
            assert_eq!(warning.is_some(), is_warned, "{kind} {kwargs}: {warning:?}");
        }
    }

    /// The first evaluation is the best one; `patience` more must come before the last step.
    #[test]
    fn patience_needs_evaluations_before_the_end() {
        for (every, patience, total_steps, ends) in [
            (200, 3, 150, false),
            (10, 2, 30, false),
            (10, 2, 31, true),
            (15, 1, 30, false),
            (14, 1, 30, true),
            (1, 5, 3, false),
            (usize::MAX, usize::MAX, usize::MAX, false),
        ] {
            let config = config(&format!(
                "adapters: [{{name: a, eval: {{steps: {every}, patience: {patience}}}}}]"
            ));
            let warning = patience_warning(&config.adapters[0], total_steps);
            assert_eq!(
                warning.is_none(),
                ends,
                "{every} {patience} {total_steps}: {warning:?}"
            );
        }
        let without = config("adapters: [{name: a}]");
        assert_eq!(patience_warning(&without.adapters[0], 3), None);
    }

    #[test]
    fn early_stopping_needs_two_adapters_beyond_the_grace_period() {
        let grid =
            "sweep: [{name: s, grid: {lora.r: [2, 4, 8]}, early_stopping: {grace_period: 9}}]";
        for (steps, is_warned) in [
            (&[9, 9, 9][..], true),
            (&[10, 9, 9], true),
            (&[10, 10, 1], false),
            (&[1, 1], false),
        ] {
            let names = ["s-r2", "s-r4", "s-r8"];
            let steps: BTreeMap<_, _> = names.into_iter().zip(steps.iter().copied()).collect();
            let warnings = sweep_warnings(&config(grid), &steps);
            assert_eq!(!warnings.is_empty(), is_warned, "{steps:?}: {warnings:?}");
        }
        let to_the_end = config("sweep: [{name: s, grid: {lora.r: [2]}}]");
        assert_eq!(
            sweep_warnings(&to_the_end, &BTreeMap::from([("s-r2", 1)])),
            []
        );
    }

    #[test]
    fn a_base_is_known_by_its_name_wherever_it_is() {
        let here = std::env::current_dir().unwrap();
        for (model, base, known) in [
            ("/m/Llama-3.1-8B", "meta-llama/Llama-3.1-8B", true),
            ("/m/llama-3.1-8b", "/elsewhere/Llama-3.1-8B/", true),
            (
                "/hub/models--meta-llama--Llama-3.1-8B/snapshots/0e9e",
                "meta-llama/Llama-3.1-8B",
                true,
            ),
            ("/m/Llama-3.1-8B", "meta-llama/Llama-3.1-8B-Instruct", false),
            ("/m/Llama-3.1-8B", "gpt2", false),
            ("/m/Llama-3.1-8B", "", true),
            (".", here.to_str().unwrap(), true),
            ("src", here.to_str().unwrap(), false),
        ] {
            assert_eq!(is_called(Path::new(model), base), known, "{model} {base}");
        }
    }
    #[test]
    fn ranks_above_the_width_of_an_end_are_told() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/tiny-llama");
        let model = LlamaConfig::from_directory(&directory).unwrap();
        let width = model.d_model;
        for end in ["lm_head", "embed_tokens"] {
            for (r, told) in [(width, false), (width + 1, true)] {
                let lora = format!("r: {r}, target_modules: {end}");
                let config = config(&format!("adapters: [{{name: a, lora: {{{lora}}}}}]"));
                let warning = rank_warning(&config.adapters[0], &model);
                assert_eq!(warning.is_some(), told, "{lora}: {warning:?}");
                let named = |warning: String| warning.contains(&format!("{width}, the width of `"));
                assert!(warning.is_none_or(named), "{lora}");
            }
        }
    }

    fn model() -> LlamaConfig {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/tiny-llama");
        LlamaConfig::from_directory(&directory).unwrap()
    }

    fn rows(lengths: &[usize]) -> EncodedDataset {
        let mut samples = Samples::default();
        for &length in lengths {
            let sample = Sample {
                ids: vec![1; length],
                is_target: (0..length).map(|at| at > 0).collect(),
                preferred: None,
            };
            samples.push(&sample).unwrap();
        }
        EncodedDataset {
            samples,
            report: EncodeReport::default(),
        }
    }

    fn warns(adapter: &str, train: &[usize], validation: &[usize], of: &str) -> bool {
        let config = config(&format!("adapters: [{{name: a, {adapter}}}]"));
        let rows = Encoded {
            train: rows(train),
            validation: Some(rows(validation)),
            warnings: Vec::new(),
        };
        let said = setting_warnings(&config.adapters[0], &model(), &rows);
        said.iter().any(|warning| warning.message.contains(of))
    }

    #[test]
    fn rows_beyond_the_positions_of_the_model_are_told_of_either_split() {
        let most = model().max_position_embeddings;
        let train = "train: {batch_size: 1, max_steps: 9, warmup_steps: 0}";
        for (longest, validated, is_warned) in
            [(9, most, false), (9, most + 1, true), (most + 1, 9, true)]
        {
            let is_said = warns(train, &[longest], &[validated], "supports");
            assert_eq!(is_said, is_warned, "{longest} and {validated}");
        }
    }

    #[test]
    fn batches_of_one_row_are_told_if_rows_are_compared() {
        let [four, five] = [&[3; 4][..], &[3; 5]];
        for (objective, train, validation, is_warned) in [
            ("kto", four, four, false),
            ("kto", five, four, true),
            ("kto", four, five, true),
            ("kto", four, &[3], true),
            ("kto, loss_type: apo_zero_unpaired", five, five, false),
            ("cit", four, five, true),
            ("sft", five, five, false),
        ] {
            let adapter = format!("objective: {{type: {objective}}}, train: {{batch_size: 4}}");
            let is_said = warns(&adapter, train, validation, "nothing to compare with");
            assert_eq!(
                is_said, is_warned,
                "{adapter}: {train:?} and {validation:?}"
            );
        }
    }
}
