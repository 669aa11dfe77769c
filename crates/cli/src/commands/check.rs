//! `check CONFIG`: all checks that need no device.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use loraloom_config::{AdapterConfig, Loaded, QuantizationConfig, RunConfig};
use loraloom_data::{Dataset, EncodedDataset, Tokenizer};
use loraloom_model::{Checkpoint, LlamaConfig, PeftAdapter, Projection, parameter_shapes};
use loraloom_trainer::{
    EncodedRows, Plan, Speeds, TO_FIT, advice, check_attention, check_targets, check_tokens,
    init_from_warnings, load_beginning, model_config, model_warnings, rank_warning, ranks,
    setting_warnings, start_warning, sweep_warnings, targets, total_steps,
};

use super::{
    config::{complete, options},
    findings::Findings,
    plan,
};
use crate::{
    arguments::CheckArguments, device, exit::Exit, failure::Failure, printer::Printer,
    run_directory,
};

pub(super) fn run(arguments: &CheckArguments, printer: &Printer) -> anyhow::Result<Exit> {
    let mut findings = Findings::new(printer, arguments.json);
    let path = &arguments.config.config;
    let loaded = complete(path, &options(&arguments.config), printer);
    let loaded = loaded.map(|loaded| {
        let (adapters, datasets) = (loaded.config.adapters.len(), loaded.config.datasets.len());
        let path = path.display();
        (
            format!("{path}: adapters {adapters}, datasets {datasets}"),
            loaded,
        )
    });
    let Some(Loaded {
        config, warnings, ..
    }) = findings.checked("config", loaded)?
    else {
        return findings.finish();
    };
    for warning in warnings {
        findings.warn("config", warning, None)?;
    }
    let model = model(&config.model, config.quantization.as_ref(), &mut findings)?;
    let tokenizer = tokenizer(&config.model, &mut findings)?;
    let (steps, rows) = data(&config, model.as_ref(), tokenizer.as_ref(), &mut findings)?;
    findings.warn_all(&sweep_warnings(&config, &steps))?;
    for adapter in &config.adapters {
        let name = format!("adapter {}", adapter.name);
        let described = describe_adapter(adapter, &config.model, model.as_ref());
        for warning in findings.checked(&name, described)?.into_iter().flatten() {
            findings.warn("config", warning, None)?;
        }
    }
    if findings.passes() {
        // A run has one copy of each in memory.
        drop(tokenizer);
        let plan = || describe_plan(&config, rows);
        let plan = findings.printer.while_busy("planning", plan);
        let tight = findings.checked("plan", plan)?;
        for (name, reason) in tight.into_iter().flatten() {
            findings.warn(
                "plan",
                format!("{name} may not fit: {reason}"),
                Some(TO_FIT),
            )?;
        }
    }
    let output = &config.output_dir;
    let usable = run_directory::refuse_unusable(output);
    let found = |()| (format!("{} is writable", output.display()), ());
    findings.checked("output_dir", usable.map(found).map_err(Into::into))?;
    findings.finish()
}

/// Checks a model directory, from headers only.
pub(super) fn model(
    directory: &Path,
    quantization: Option<&QuantizationConfig>,
    findings: &mut Findings<'_>,
) -> anyhow::Result<Option<LlamaConfig>> {
    let model = findings.checked("model", describe_model(directory, quantization))?;
    if let Some(model) = &model {
        findings.warn_all(&model_warnings(model))?;
    }
    Ok(model)
}

fn describe_model(
    directory: &Path,
    quantization: Option<&QuantizationConfig>,
) -> anyhow::Result<(String, LlamaConfig)> {
    let model = model_config(directory, quantization)?;
    let checkpoint = Checkpoint::open(directory)?;
    checkpoint.verify(&model)?;
    let shapes = parameter_shapes(&model);
    let sizes = shapes
        .iter()
        .map(|(_, shape)| shape.iter().product::<usize>());
    let dtype = checkpoint.dtype().map(|dtype| format!(", {dtype}"));
    let stored = match model.quantized_linears() {
        (0, _) => String::new(),
        (some, all) => format!(", {some} of {all} linear layers in NF4"),
    };
    let found = format!(
        "{}: {}, {} layers, width {}, {:.1} M parameters{}{stored}",
        directory.display(),
        model.architecture,
        model.num_hidden_layers,
        model.d_model,
        sizes.sum::<usize>() as f64 / 1e6,
        dtype.unwrap_or_default()
    );
    Ok((found, model))
}

/// Checks a model directory's tokenizer.
pub(super) fn tokenizer(
    directory: &Path,
    findings: &mut Findings<'_>,
) -> anyhow::Result<Option<Tokenizer>> {
    let loaded = Tokenizer::load(directory).map_err(Into::into);
    let described = loaded.map(|tokenizer| {
        let id = |id: Option<u32>| id.map_or_else(|| "none".to_owned(), |id| id.to_string());
        let (bos, eos) = (id(tokenizer.bos()), id(tokenizer.eos()));
        let has = tokenizer.chat_template().map_or("no", |_| "a");
        let size = tokenizer.vocab_size();
        let found = format!("{size} tokens, BOS {bos}, EOS {eos}, {has} chat template");
        (found, tokenizer)
    });
    findings.checked("tokenizer", described)
}

/// Reads every used dataset and encodes it once per distinct encoding that adapters need. Returns the steps
/// of adapters by name, and the rows.
fn data<'c>(
    config: &'c RunConfig,
    model: Option<&LlamaConfig>,
    tokenizer: Option<&Tokenizer>,
    findings: &mut Findings<'_>,
) -> anyhow::Result<(BTreeMap<&'c str, usize>, EncodedRows)> {
    let (mut steps, mut rows) = (BTreeMap::new(), EncodedRows::new());
    for (name, ways) in uses(config) {
        let Some(settings) = config.datasets.get(name) else {
            continue;
        };
        let label = format!("dataset {name}");
        let printer = findings.printer;
        let read = || Dataset::load(name, settings, config.seed);
        let dataset = printer.while_busy("reading data", read).map_err(Into::into);
        let dataset = dataset.map(|dataset| {
            let found = format!(
                "{}; {} training rows, {} for validation",
                dataset.format(),
                dataset.num_train_rows(),
                dataset.num_validation_rows(),
            );
            (found, dataset)
        });
        let Some(dataset) = findings.checked(&label, dataset)? else {
            continue;
        };
        findings.warn_all(dataset.warnings())?;
        let Some(tokenizer) = tokenizer else { continue };
        for (max_seq_len, train_on_prompt) in ways {
            let label = format!("{label} at max_seq_len {max_seq_len}");
            let encode = || dataset.encode(tokenizer, max_seq_len, train_on_prompt);
            match printer.while_busy("reading data", encode) {
                Ok(encoded) => {
                    samples(&label, &encoded.train, model, findings)?;
                    if let Some(validation) = &encoded.validation {
                        samples(&format!("{label}, validation"), validation, model, findings)?;
                    }
                    findings.warn_all(&encoded.warnings)?;
                    for adapter in &config.adapters {
                        let train = &adapter.train;
                        let way = (train.max_seq_len, train.train_on_prompt);
                        if adapter.dataset != name || way != (max_seq_len, train_on_prompt) {
                            continue;
                        }
                        match total_steps(adapter, &encoded.train.samples) {
                            Ok(total) => drop(steps.insert(adapter.name.as_str(), total)),
                            Err(error) => {
                                findings
                                    .fail(&format!("adapter {}", adapter.name), &error.into())?;
                            }
                        }
                        if let Some(model) = model {
                            let rows = &encoded.train.samples;
                            let checked = check_attention(adapter, model, rows);
                            let checked = checked.and_then(|()| check_tokens(adapter, rows));
                            if adapter.init_from.is_none()
                                && let Err(error) = checked
                            {
                                findings
                                    .fail(&format!("adapter {}", adapter.name), &error.into())?;
                            }
                            findings.warn_all(&setting_warnings(adapter, model, &encoded))?;
                        }
                    }
                    rows.insert((name.to_owned(), max_seq_len, train_on_prompt), encoded);
                }
                Err(error) => findings.fail(&label, &error.into())?,
            }
        }
    }
    Ok((steps, rows))
}

/// The datasets that adapters use, each with the `max_seq_len` and `train_on_prompt` of the adapters.
pub(super) fn uses(config: &RunConfig) -> BTreeMap<&str, BTreeSet<(usize, bool)>> {
    let mut uses: BTreeMap<&str, BTreeSet<(usize, bool)>> = BTreeMap::new();
    for adapter in &config.adapters {
        let train = &adapter.train;
        let ways = uses.entry(&adapter.dataset).or_default();
        ways.insert((train.max_seq_len, train.train_on_prompt));
    }
    uses
}

/// Reports on the samples of one split.
fn samples(
    label: &str,
    encoded: &EncodedDataset,
    model: Option<&LlamaConfig>,
    findings: &mut Findings<'_>,
) -> anyhow::Result<()> {
    let counts = &encoded.report;
    let largest = encoded.samples.largest_id();
    if let Some(model) = model
        && largest as usize >= model.vocab_size
    {
        let size = model.vocab_size;
        let message = format!("token {largest} is outside the model's {size} embeddings");
        let failure = Failure::new(Exit::Data, message)
            .hint("the tokenizer belongs to another model, or its added tokens were not trained");
        return findings.fail(label, &failure.into());
    }
    let what = match encoded.samples.per_row() {
        1 => "samples",
        _ => "pairs",
    };
    let found = format!(
        "{} {what}, {} tokens, {} targets, longest row {} tokens",
        counts.kept, counts.tokens, counts.target_tokens, counts.longest
    );
    findings.pass(label, found)
}

/// Checks an adapter against the model; returns its description and warnings.
fn describe_adapter(
    adapter: &AdapterConfig,
    directory: &Path,
    model: Option<&LlamaConfig>,
) -> anyhow::Result<(String, Vec<String>)> {
    let in_millions = |parameters: usize| format!(", {:.3} M parameters", parameters as f64 / 1e6);
    if let Some(beginning) = &adapter.init_from {
        let loaded = load_beginning(beginning, model)?;
        if model.is_some() {
            PeftAdapter::check_copies(beginning, directory)?;
        }
        let found = format!(
            "{}{}, from {}",
            shape_of(&loaded),
            in_millions(loaded.num_params()),
            beginning.display()
        );
        return Ok((
            found,
            init_from_warnings(adapter, &loaded.config, directory),
        ));
    }
    let lora = &adapter.lora;
    let modules: Vec<_> = match model {
        Some(model) => {
            check_targets(adapter, model)?;
            let targets = targets(lora, model.fused).into_iter();
            targets.map(Projection::name).collect()
        }
        None => lora
            .target_modules
            .iter()
            .map(|module| module.name())
            .collect(),
    };
    let modules = modules.join(", ");
    let mut found = format!("r {} on {modules}", lora.r);
    let mut warnings = Vec::new();
    if let Some(model) = model {
        let ranks = ranks(lora, model);
        found += &in_millions(ranks.parameters(model, 0..model.num_hidden_layers));
        warnings.extend(rank_warning(adapter, model));
        warnings.extend(start_warning(adapter, model));
        warnings.extend(advice(adapter, model));
    }
    Ok((found, warnings))
}

/// The ranks and modules of an adapter's weights.
fn shape_of(adapter: &PeftAdapter) -> String {
    let ranks: BTreeSet<usize> = adapter.modules.values().map(|weights| weights.r).collect();
    let ranks: Vec<String> = ranks.iter().map(usize::to_string).collect();
    let modules = adapter.modules.keys();
    let modules: BTreeSet<&str> = modules
        .map(|path| path.rsplit('.').next().unwrap_or(path))
        .collect();
    let modules = Vec::from_iter(modules).join(", ");
    format!("r {} on {modules}", ranks.join(", "))
}

/// Plans the run from files alone. Returns how many adapters train at first, and those of them that may not fit.
fn describe_plan(
    config: &RunConfig,
    rows: EncodedRows,
) -> anyhow::Result<(String, BTreeMap<String, String>)> {
    let mut config = config.clone();
    device::take_auto_for_the_cpu(&mut config);
    let plan = Plan::of_rows(&config, rows, Speeds::default())?;
    if let Some(refused) = plan::refusal(&plan) {
        return Err(refused.into());
    }
    let waiting = match plan.waiting.len() {
        0 => String::new(),
        waiting => format!("; waiting: {waiting}"),
    };
    let training: usize = plan.groups.iter().map(|group| group.adapters.len()).sum();
    let found = format!("adapters that train first: {training}{waiting}");
    Ok((found, plan.may_not_fit))
}
