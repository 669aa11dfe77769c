//! `doctor`: checks this machine.

use std::{fmt, path::Path};

use batchlora::{check_device, check_product, products};
use burn::tensor::{Device, FloatDType};
use loraloom_model::{Deviation, LlamaConfig, check_operations};
use loraloom_pipeline::device_memory;
use loraloom_scheduler::size;

use super::{check, findings::Findings};
use crate::{
    arguments::DoctorArguments,
    device::{self, Listed},
    exit::Exit,
    failure::{self, Failure},
    panics,
    printer::Printer,
    run_directory,
};

/// Hint for a device whose results differ from the CPU's.
const WRONG: &str = "do not train on it: update its driver, and report this";

/// Free space below which `doctor` warns: a run of a few large adapters writes as much.
#[cfg(unix)]
const LITTLE_SPACE: u64 = 2 << 30;

pub(super) fn run(arguments: &DoctorArguments, printer: &Printer) -> anyhow::Result<Exit> {
    let mut findings = Findings::new(printer, arguments.json);
    let version = format!(
        "loraloom {} on {} {}",
        env!("CARGO_PKG_VERSION"),
        std::env::consts::OS,
        std::env::consts::ARCH
    );
    findings.pass("version", version)?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let backends = device::BACKENDS.join(", ");
    let without = match device::left_out()[..] {
        [] => String::new(),
        ref left_out => format!(", built without {}", left_out.join(" and ")),
    };
    let found = format!("{backends}{without}; {threads} threads");
    findings.pass("backends", found)?;
    if let Some((gpu, backend)) = device::unused_gpu() {
        let found = format!("this machine has {gpu}, but this build has no {backend} backend");
        let hint = format!("build with `{}`", device::build_with(backend));
        findings.warn("gpu", found, Some(&hint))?;
    }

    let thorough = arguments.thorough.as_deref().and_then(LlamaConfig::named);
    compute(&device::cpu(), None, &mut findings)?;
    for (backend, listed) in [("cuda", device::cuda()), ("wgpu", device::wgpu())] {
        if listed.is_empty() && device::BACKENDS.contains(&backend) {
            let hint = "install or update the driver if this machine has a GPU";
            findings.warn(backend, "no device found".to_owned(), Some(hint))?;
        }
        for device in listed {
            compute(&device, thorough.as_ref(), &mut findings)?;
        }
    }
    disk(&mut findings)?;
    if let Some(directory) = &arguments.model {
        check::model(directory, &mut findings)?;
        check::tokenizer(directory, &mut findings)?;
    }
    findings.finish()
}

/// Opens a device and runs the operator on it. A failing GPU is only a warning: the CPU still works.
fn compute(
    listed: &Listed,
    thorough: Option<&LlamaConfig>,
    findings: &mut Findings<'_>,
) -> anyhow::Result<()> {
    if listed.software && thorough.is_none() {
        let hint = "`auto` does not choose it: the CPU backend is faster";
        return findings.warn(&listed.name, "emulated by the CPU".to_owned(), Some(hint));
    }
    let works = device::open_listed(listed)
        .map_err(anyhow::Error::from)
        .and_then(|opened| {
            let checked = panics::catch_of_device(|| check_device(&opened.device, FloatDType::F32));
            let difference = checked.map_err(anyhow::Error::msg)??;
            Ok((difference, opened))
        });
    match works {
        Ok((difference, opened)) => {
            let memory = device_memory(&opened.device).map(size);
            let known: String = opened
                .hardware
                .into_iter()
                .chain(memory)
                .map(|known| known + ", ")
                .collect();
            let products = products(&opened.device);
            let found =
                format!("{known}computes (off by {difference:.1e}), products by {products}");
            findings.pass(&listed.name, found)?;
            for warning in opened.warnings {
                findings.warn(&listed.name, warning, None)?;
            }
            match thorough {
                Some(model) => compare(&listed.name, &opened.device, model, findings),
                None => Ok(()),
            }
        }
        Err(problem) if listed.name == "cpu" => {
            let failure = Failure::new(Exit::Device, problem.to_string());
            findings.fail(&listed.name, &failure.into())
        }
        Err(problem) => {
            let hint = match failure::hint(&problem) {
                Some(hint) => format!("`auto` skips it; {hint}"),
                None => "`auto` skips it".to_owned(),
            };
            findings.warn(&listed.name, problem.to_string(), Some(&hint))
        }
    }
}

/// Compares every operation of a device with the CPU, in the types that it supports, and matrix
/// products of a model's sizes.
fn compare(
    name: &str,
    device: &Device,
    model: &LlamaConfig,
    findings: &mut Findings<'_>,
) -> anyhow::Result<()> {
    for (dtype, called) in [
        (FloatDType::F32, "float32"),
        (FloatDType::BF16, "bfloat16"),
        (FloatDType::F16, "float16"),
    ] {
        if !device.supports_dtype(dtype) {
            findings.pass(name, format!("has no {called}"))?;
            continue;
        }
        let operator = attempt(|| check_device(device, dtype))
            .map(|difference| format!("the operator in {called} is off by {difference:.1e}"));
        judge(name, operator, findings)?;
        match attempt(|| check_operations(device, dtype)) {
            Ok(deviations) => {
                for deviation in deviations {
                    judge(name, describe(&deviation, called), findings)?;
                }
            }
            Err(problem) => judge(name, Err(problem), findings)?,
        }
        let linears = model.linears().into_iter();
        let mut widths: Vec<_> = linears.map(|linear| [linear.d_in, linear.d_out]).collect();
        widths.push([model.d_model, model.vocab_size]);
        widths.sort_unstable();
        widths.dedup();
        for ([d_in, d_out], rows) in widths.into_iter().flat_map(|widths| {
            // Many rows, and a single one, which uses other kernels.
            [(widths, model.d_model), (widths, 1)]
        }) {
            let told = format!("products of {rows} rows with [{d_in}, {d_out}] in {called}");
            let product = match attempt(|| check_product(device, dtype, [rows, d_in, d_out])) {
                Ok(()) => Ok(told),
                Err(problem) => Err(format!("{told}: {problem}")),
            };
            judge(name, product, findings)?;
        }
    }
    Ok(())
}

/// Reports whether a device's results match the CPU's.
fn judge(
    name: &str,
    compared: Result<String, String>,
    findings: &mut Findings<'_>,
) -> anyhow::Result<()> {
    match compared {
        Ok(told) => findings.pass(name, told),
        Err(problem) => findings.warn(name, problem, Some(WRONG)),
    }
}

/// An operation's deviation from the CPU; an error if rounding does not explain it.
fn describe(deviation: &Deviation, called: &str) -> Result<String, String> {
    let told = format!(
        "{} in {called} is off by {:.1e}",
        deviation.operation, deviation.found
    );
    if deviation.is_small() {
        return Ok(told);
    }
    let allowed = deviation.allowed;
    Err(format!(
        "{told}, but rounding explains at most {allowed:.0e}"
    ))
}

/// The message of an error or a panic.
fn attempt<T, E: fmt::Display>(work: impl FnOnce() -> Result<T, E>) -> Result<T, String> {
    panics::catch_of_device(work)?.map_err(|error| error.to_string())
}

/// Checks that the working directory can be written, and its free space.
fn disk(findings: &mut Findings<'_>) -> anyhow::Result<()> {
    let here = Path::new(".");
    if let Err(error) = run_directory::writable(here) {
        let message = format!("cannot write to the working directory: {error}");
        let hint = "set `output_dir` to a writable directory";
        return findings.warn("disk", message, Some(hint));
    }
    #[cfg(unix)]
    if let Ok(space) = rustix::fs::statvfs(here) {
        let free = space.f_bavail.saturating_mul(space.f_frsize);
        let found = format!("{} free in the working directory", size(free));
        if free >= LITTLE_SPACE {
            return findings.pass("disk", found);
        }
        let hint = "free some space: a run needs it for its adapters";
        return findings.warn("disk", found, Some(hint));
    }
    findings.pass("disk", "the working directory is writable".to_owned())
}
