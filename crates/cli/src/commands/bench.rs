//! `bench`: measures the operator alone, whole training steps, and answers on this machine.

mod serving;

use burn::tensor::FloatDType;
use loraloom_benches::{
    EndToEndBench, EndToEndMeasurement, KernelBench, KernelMeasurement, ServingMeasurement,
};
use loraloom_model::{LlamaConfig, Projection, TensorDtype};
use loraloom_scheduler::size;
use loraloom_trainer::{TrainerError, quantized, resolve_dtype};
use serde::Serialize;

use crate::{
    arguments::{BenchArguments, QuantizationArgument},
    device::{self, Opened},
    exit::Exit,
    failure::Failure,
    printer::Printer,
    table,
};

/// Numbers of adapters that share a layer's rows.
const KERNEL_ADAPTERS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];

/// Rank of adapters end to end.
const RANK: usize = 16;
/// Timed steps of a run.
const STEPS: usize = 5;

/// Defaults of omitted options.
struct Defaults {
    rows: usize,
    width: usize,
    shape: &'static str,
    batch: usize,
    length: usize,
    adapters: [usize; 2],
    requests: usize,
    prompt_tokens: usize,
    answer_tokens: usize,
}

/// Sizes that fill a GPU.
const LARGE: Defaults = Defaults {
    rows: 8192,
    width: 4096,
    shape: "tinyllama-1.1b",
    batch: 8,
    length: 512,
    adapters: [1, 4],
    requests: 256,
    prompt_tokens: 512,
    answer_tokens: 128,
};
/// Sizes that take seconds on a CPU.
const SMALL: Defaults = Defaults {
    rows: 256,
    width: 512,
    shape: "micro",
    batch: 2,
    length: 128,
    adapters: [1, 8],
    requests: 64,
    prompt_tokens: 64,
    answer_tokens: 64,
};

/// The output of `--json`. Values that cannot be measured are `null`.
#[derive(Serialize)]
struct Report {
    device: String,
    kernels: Vec<KernelMeasurement>,
    end_to_end: Vec<EndToEndMeasurement>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    serving: Vec<ServingMeasurement>,
}

pub(super) fn run(arguments: &BenchArguments, printer: &Printer) -> anyhow::Result<Exit> {
    let opened = device::open(arguments.compute.device)?;
    printer.warnings(&opened.warnings);
    if arguments.profile && opened.name == "cpu" {
        let failure = Failure::usage("--profile times kernels of a GPU");
        let hint = "name a GPU with --device, or leave --profile out";
        return Err(failure.hint(hint).into());
    }
    let small = opened.name == "cpu" || opened.software;
    let defaults = if small { &SMALL } else { &LARGE };
    let stored = Some(TensorDtype::Bfloat16);
    let dtype = resolve_dtype(arguments.compute.dtype, &opened.device, stored)?;
    let is_serving = arguments.serving.serving;
    if arguments.adapters.contains(&0) && !is_serving {
        let problem = "`--adapters` has 0: expected whole numbers above 0";
        return Err(Failure::usage(problem).into());
    }
    let kernels = kernels(arguments, defaults, dtype, &opened)?;
    let end_to_end = end_to_end(arguments, defaults, dtype)?;
    let serving = is_serving
        .then(|| serving::bench(arguments, defaults, end_to_end.clone(), printer))
        .transpose()?;
    let device = opened.to_string();
    printer.note(&format!("device  {device}"));
    let mut progress = |line: &str| printer.note(&format!("bench   {line}"));
    let mut report = Report {
        device,
        kernels: Vec::new(),
        end_to_end: Vec::new(),
        serving: Vec::new(),
    };
    if let Some(serving) = &serving {
        let measured = serving.run(&opened.device, &mut progress);
        report.serving = measured.map_err(TrainerError::from)?;
    }
    if !arguments.end_to_end_only && !is_serving {
        if opened.software {
            progress("skips `composed`: Burn tunes it for minutes on a software adapter");
        }
        let measured = kernels.run(&opened.device, &mut progress);
        report.kernels = measured.map_err(TrainerError::from)?;
    }
    if !arguments.kernels_only && !is_serving {
        let measured = end_to_end.run(&opened.device, &mut progress);
        report.end_to_end = measured.map_err(TrainerError::from)?;
    }
    if arguments.json {
        printer.json(&report)?;
    } else {
        let mut tables = Vec::from_iter(kernel_table(&report.kernels));
        tables.extend(step_table(&report.end_to_end));
        tables.extend(report.end_to_end.iter().filter_map(profile_table));
        tables.extend(serving.and_then(|bench| serving::table(&bench, &report.serving)));
        printer.data(&tables.join("\n"))?;
    }
    Ok(Exit::Success)
}

fn kernels(
    arguments: &BenchArguments,
    defaults: &Defaults,
    dtype: FloatDType,
    opened: &Opened,
) -> Result<KernelBench, Failure> {
    let rows = arguments.rows.unwrap_or(defaults.rows);
    let mut adapters = arguments.adapters.clone();
    if let Some(most) = adapters.iter().find(|&&k| k > rows)
        && !arguments.end_to_end_only
        && !arguments.serving.serving
    {
        let message = format!("{most} adapters cannot share {rows} rows");
        return Err(Failure::usage(message).hint("raise `--rows`, or lower `--adapters`"));
    }
    if adapters.is_empty() {
        adapters.extend(KERNEL_ADAPTERS);
    }
    Ok(KernelBench {
        rows,
        d_in: arguments.d_in.unwrap_or(defaults.width),
        d_out: arguments.d_out.unwrap_or(defaults.width),
        adapters,
        dtype,
        nf4: arguments.compute.quantization == Some(QuantizationArgument::Nf4),
        composed: !opened.software && !arguments.no_composed,
    })
}

fn end_to_end(
    arguments: &BenchArguments,
    defaults: &Defaults,
    dtype: FloatDType,
) -> anyhow::Result<EndToEndBench> {
    let shape = arguments.shape.as_deref().unwrap_or(defaults.shape);
    let mut model = LlamaConfig::named(shape)
        .ok_or_else(|| Failure::usage(format!("unknown shape `{shape}`")))?;
    let quantization = arguments.compute.quantization;
    if let Some(settings) = quantization.and_then(QuantizationArgument::settings) {
        model = quantized(model, &settings)?;
    }
    let mut adapters = arguments.adapters.clone();
    if adapters.is_empty() {
        adapters.extend(defaults.adapters);
    }
    let batch = arguments.batch.unwrap_or(defaults.batch);
    let microbatches = arguments.microbatches;
    if microbatches > batch {
        let problem =
            format!("cannot cut {batch} sequences of an adapter into {microbatches} micro-batches");
        return Err(Failure::usage(problem)
            .hint("lower --microbatches, or raise --batch")
            .into());
    }
    Ok(EndToEndBench {
        shape: shape.to_owned(),
        model,
        adapters,
        rank: arguments.rank.unwrap_or(RANK),
        use_dora: arguments.use_dora,
        targets: targets(&arguments.target_modules)?,
        batch,
        microbatches,
        length: arguments.length.unwrap_or(defaults.length),
        dtype,
        steps: arguments.steps.unwrap_or(STEPS),
        gradient_checkpointing: arguments.gradient_checkpointing,
        vs_sequential: arguments.vs_sequential,
        profile: arguments.profile,
    })
}

fn targets(names: &[String]) -> Result<Vec<Projection>, Failure> {
    if names == ["all-linear"] {
        return Ok(Projection::applied(false).to_vec());
    }
    let named = |name: &String| {
        let all = Projection::applied(false);
        let found = all.iter().find(|projection| projection.name() == name);
        found.copied().ok_or_else(|| {
            let all: Vec<_> = all.iter().map(|projection| projection.name()).collect();
            let all = all.join(", ");
            Failure::usage(format!("unknown projection `{name}`"))
                .hint(format!("expected any of {all}, or all-linear"))
        })
    };
    let mut before = names.iter().enumerate();
    if let Some((_, name)) = before.find(|(at, name)| names[..*at].contains(name)) {
        let problem = format!("`--target-modules` has {name} twice");
        return Err(Failure::usage(problem));
    }
    names.iter().map(named).collect()
}

/// A table of kernels under a line with their common sizes.
fn kernel_table(measured: &[KernelMeasurement]) -> Option<String> {
    let first = measured.first()?;
    let heading = [
        "<kernel",
        "adapters",
        "<ranks",
        "ms",
        "vs frozen",
        "launches",
        "moved",
    ];
    let rows: Vec<_> = measured.iter().map(kernel_row).collect();
    Some(format!(
        "layer [{}, {}], rows {}, {}: forward and backward, or one kernel\n{}",
        first.d_in,
        first.d_out,
        first.rows,
        types(first.dtype, first.quantization),
        table::aligned(heading, &rows)
    ))
}

fn kernel_row(measured: &KernelMeasurement) -> [String; 7] {
    let ratio = measured.milliseconds / measured.frozen_milliseconds;
    [
        measured.name.to_owned(),
        measured.ranks.len().to_string(),
        ranks(&measured.ranks),
        format!("{:.3}", measured.milliseconds),
        format!("{ratio:.2}"),
        table::or_dash(measured.launches),
        table::or_dash(measured.bytes_moved.map(size)),
    ]
}

/// The types of activations and of linear layers, if these differ.
fn types(dtype: &str, quantization: Option<&str>) -> String {
    match quantization {
        Some(stored) => format!("{dtype} over {stored}"),
        None => dtype.to_owned(),
    }
}

/// The distinct ranks, in the order of the adapters.
fn ranks(all: &[usize]) -> String {
    let mut distinct: Vec<String> = Vec::new();
    for rank in all.iter().map(usize::to_string) {
        if !distinct.contains(&rank) {
            distinct.push(rank);
        }
    }
    table::or_dash(Some(distinct.join(",")).filter(|ranks| !ranks.is_empty()))
}

/// A table of training steps.
fn step_table(measured: &[EndToEndMeasurement]) -> Option<String> {
    let first = measured.first()?;
    let heading = [
        "adapters",
        "tok/s",
        "one by one",
        "ratio",
        "TFLOP/s",
        "memory",
    ];
    let rows: Vec<_> = measured.iter().map(step_row).collect();
    Some(format!(
        "{}, {}rank {} on {}, batch {}, length {}, {}: training steps\n{}",
        first.shape,
        if first.use_dora { "DoRA of " } else { "" },
        first.rank,
        first.target_modules.join(","),
        first.batch,
        first.length,
        types(first.dtype, first.quantization),
        table::aligned(heading, &rows)
    ))
}

fn step_row(measured: &EndToEndMeasurement) -> [String; 6] {
    let sequential = measured.sequential_tokens_per_second;
    [
        measured.adapters.to_string(),
        format!("{:.0}", measured.tokens_per_second),
        table::or_dash(sequential.map(|rate| format!("{rate:.0}"))),
        table::or_dash(sequential.map(|rate| format!("{:.2}", measured.tokens_per_second / rate))),
        format!("{:.3}", measured.model_tflops),
        table::or_dash(measured.peak_bytes.map(size)),
    ]
}

/// A table of one step's time by kernel.
fn profile_table(measured: &EndToEndMeasurement) -> Option<String> {
    let all: f64 = measured
        .profile
        .iter()
        .map(|share| share.milliseconds)
        .sum();
    let heading = ["<kernel", "launches", "ms", "share", "moved", "GB/s"];
    let rows = measured.profile.iter().map(|share| {
        let bytes = Some(share.bytes_moved).filter(|&bytes| bytes > 0);
        [
            share.kernel.clone(),
            share.launches.to_string(),
            format!("{:.3}", share.milliseconds),
            format!("{:.1} %", 100.0 * share.milliseconds / all),
            table::or_dash(bytes.map(size)),
            table::or_dash(
                bytes.map(|bytes| format!("{:.0}", bytes as f64 / 1e6 / share.milliseconds)),
            ),
        ]
    });
    let rows: Vec<_> = rows.collect();
    (!rows.is_empty()).then(|| {
        format!(
            "{} adapters, one step: {all:.1} ms on the device\n{}",
            measured.adapters,
            table::aligned(heading, &rows)
        )
    })
}
