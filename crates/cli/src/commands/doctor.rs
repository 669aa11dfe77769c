//! `doctor`: checks this machine.

use std::{env, fmt, fs, path::Path};

use batchlora::{check_device, check_product, products};
use burn::tensor::{Device, FloatDType};
use loraloom_hub::{Cache, Hub, Kind};
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
const LITTLE_SPACE: u64 = 2 << 30;

pub(super) fn run(arguments: &DoctorArguments, printer: &Printer) -> anyhow::Result<Exit> {
    let mut findings = Findings::new(printer, arguments.json);
    let version = format!(
        "loraloom {} on {} {}{}",
        env!("CARGO_PKG_VERSION"),
        env::consts::OS,
        env::consts::ARCH,
        if cfg!(feature = "remote") {
            ", with remote stages"
        } else {
            ""
        }
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
    limits(Path::new("/proc/self/limits"), &mut findings)?;
    disk(&mut findings)?;
    hub(&mut findings)?;
    if let Some(directory) = &arguments.model {
        check::model(directory, None, &mut findings)?;
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

/// Warns of limits of the shell or the service that end a process, as Linux lists them in `file`.
fn limits(file: &Path, findings: &mut Findings<'_>) -> anyhow::Result<()> {
    let listed = fs::read_to_string(file).unwrap_or_default();
    for (limit, option) in [
        ("Max address space", "-v"),
        ("Max cpu time", "-t"),
        ("Max file size", "-f"),
    ] {
        let values = listed.lines().find_map(|line| line.strip_prefix(limit));
        let mut words = values.unwrap_or_default().split_whitespace();
        let (soft, unit) = (words.next(), words.nth(1));
        if let (Some(soft), Some(unit)) = (soft.filter(|&soft| soft != "unlimited"), unit) {
            let found = format!("{} {soft} {unit}", limit.to_lowercase());
            let hint = format!("raise it: `ulimit {option} unlimited`");
            findings.warn("limits", found, Some(&hint))?;
        }
    }
    Ok(())
}

/// Checks that the working directory can be written, and its free space.
fn disk(findings: &mut Findings<'_>) -> anyhow::Result<()> {
    let here = Path::new(".");
    if let Err(error) = run_directory::writable(here) {
        let message = format!("cannot write to the working directory: {error}");
        let hint = "set `output_dir` to a writable directory";
        return findings.warn("disk", message, Some(hint));
    }
    match free(here) {
        Some(free) if free < LITTLE_SPACE => {
            let found = format!("{} free in the working directory", size(free));
            let hint = "free some space: a run needs it for its adapters";
            findings.warn("disk", found, Some(hint))
        }
        Some(free) => {
            let found = format!("{} free in the working directory", size(free));
            findings.pass("disk", found)
        }
        None => findings.pass("disk", "the working directory is writable".to_owned()),
    }
}

/// Free bytes below a directory or its nearest existing parent, where the system reports them.
#[cfg(unix)]
fn free(directory: &Path) -> Option<u64> {
    let space = |existing| rustix::fs::statvfs(existing).ok();
    let space = directory.ancestors().find_map(space)?;
    Some(space.f_bavail.saturating_mul(space.f_frsize))
}

#[cfg(not(unix))]
fn free(_: &Path) -> Option<u64> {
    None
}

/// Checks the Hugging Face cache, and tells how models are downloaded. A token is not shown.
fn hub(findings: &mut Findings<'_>) -> anyhow::Result<()> {
    const NAME: &str = "hugging face";
    let Some(cache) = Cache::of_environment() else {
        let hint = "set HF_HOME to a folder";
        let found = "no cache without a home directory".to_owned();
        return findings.warn(NAME, found, Some(hint));
    };
    let downloads = match Hub::of_environment() {
        None => "no downloads: HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set".to_owned(),
        Some(hub) => {
            let token = if hub.has_token() { "with" } else { "without" };
            format!("downloads from {} {token} a token", hub.endpoint())
        }
    };
    let models = cache.repositories(Kind::Model).len();
    let free = free(&cache.folder).map(|free| format!(", {} free", size(free)));
    let free = free.unwrap_or_default();
    let found = format!("models {models} in {cache}{free}; {downloads}");
    findings.pass(NAME, found)?;
    if let Err(error) = run_directory::writable(&cache.folder) {
        let found = format!("cannot write to {cache}: {error}");
        let hint = "set HF_HOME to a folder that is writable, for downloads";
        findings.warn(NAME, found, Some(hint))?;
    }
    let is_set = |name: &&&str| env::var_os(name).is_some_and(|value| !value.is_empty());
    let proxies = ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"];
    if let Some(proxy) = proxies.iter().find(is_set) {
        let found = format!("{proxy} is set, but downloads use no proxy");
        let hint = "download models with `hf download`, or set HF_ENDPOINT to a mirror";
        findings.warn(NAME, found, Some(hint))?;
    }
    Ok(())
}
