//! Opens devices by name, or explains why there is none.

use std::{
    ffi::OsStr,
    fmt,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

#[cfg(feature = "wgpu")]
use burn::tensor::DeviceKind;
#[cfg(any(feature = "cuda", feature = "wgpu"))]
use burn::tensor::DeviceType;
use burn::tensor::{Device, Tensor};
use loraloom_config::{DeviceChoice, RunConfig, StageLocation};

use crate::{exit::Exit, failure::Failure, panics};

/// Library that every CUDA kernel is linked with.
const LIBDEVICE: &str = "libdevice.10.bc";

/// The backends compiled in, in the order `auto` tries them.
pub(crate) const BACKENDS: &[&str] = &[
    #[cfg(feature = "cuda")]
    "cuda",
    #[cfg(feature = "wgpu")]
    "wgpu",
    "cpu",
];

/// The backends this build lacks.
pub(crate) fn left_out() -> Vec<&'static str> {
    let mut backends = vec!["cuda", "wgpu"];
    backends.retain(|backend| !BACKENDS.contains(backend));
    backends
}

/// The command that builds with a backend.
pub(crate) fn build_with(backend: &str) -> String {
    format!("cargo build --release --features {backend}")
}

/// A GPU of this machine that this build has no backend for, and the backend.
pub(crate) fn unused_gpu() -> Option<(&'static str, &'static str)> {
    unused_gpu_in(Path::new("/"), BACKENDS)
}

/// [`unused_gpu`] for a build with `backends` and the files below `root`. It checks files, because the build has no
/// backend to query the driver.
fn unused_gpu_in(root: &Path, backends: &[&str]) -> Option<(&'static str, &'static str)> {
    let lacks = |backend| !backends.contains(&backend);
    let has = |file| root.join(file).exists();
    if lacks("cuda") && has("proc/driver/nvidia/version") {
        Some(("an NVIDIA GPU", "cuda"))
    } else if lacks("wgpu")
        && lacks("cuda")
        && (cfg!(target_os = "macos") || has("dev/dri/renderD128"))
    {
        Some(("a GPU", "wgpu"))
    } else {
        None
    }
}

const RUNTIME_DIRECTORY: &str = "XDG_RUNTIME_DIR";

/// Keeps libraries below wgpu from writing errors to stderr on machines without a desktop. Mesa's layer that orders
/// Vulkan devices looks for a Wayland display whenever devices are listed, and libwayland prints an error unless it
/// is given a directory with sockets. It gets one without a display and stays quiet.
///
/// Call this at the start of the process: no other thread may run.
pub(crate) fn silence_wayland() {
    let needed = cfg!(all(feature = "wgpu", target_os = "linux"));
    if needed && is_complained_of(std::env::var_os(RUNTIME_DIRECTORY).as_deref()) {
        #[expect(unsafe_code, reason = "a variable is set while there is one thread")]
        // SAFETY: the caller guarantees that no other thread reads or writes the environment.
        unsafe {
            std::env::set_var(RUNTIME_DIRECTORY, "/dev/null");
        }
    }
}

/// True if libwayland prints an error for this runtime directory.
fn is_complained_of(directory: Option<&OsStr>) -> bool {
    directory.is_none_or(|directory| !Path::new(directory).is_absolute())
}

/// A device of this machine, not opened yet.
#[derive(Debug, Clone)]
pub(crate) struct Listed {
    /// Name in a configuration, such as `wgpu:0`.
    pub(crate) name: String,
    /// Burn's device.
    pub(crate) device: Device,
    /// A GPU API emulated by the CPU; it works, but the CPU backend is faster.
    pub(crate) software: bool,
}

/// A device that was opened.
#[derive(Debug, Clone)]
pub(crate) struct Opened {
    /// Burn's device.
    pub(crate) device: Device,
    /// Name in a configuration.
    pub(crate) name: String,
    /// Name that the hardware reports, if any.
    pub(crate) hardware: Option<String>,
    /// A GPU API emulated by the CPU.
    pub(crate) software: bool,
    /// Problems of the devices that `auto` would have preferred.
    pub(crate) warnings: Vec<String>,
}

/// The CPU.
pub(crate) fn cpu() -> Listed {
    Listed {
        name: "cpu".to_owned(),
        device: Device::flex(),
        software: false,
    }
}

/// CUDA devices. Empty in a build without the backend, or if the driver does not answer.
pub(crate) fn cuda() -> Vec<Listed> {
    #[cfg(feature = "cuda")]
    let devices = enumerate("cuda", DeviceType::Cuda);
    #[cfg(not(feature = "cuda"))]
    let devices = Vec::new();
    devices
}

/// wgpu adapters; empty in a build without the backend or without a driver.
pub(crate) fn wgpu() -> Vec<Listed> {
    #[cfg(feature = "wgpu")]
    let devices = {
        let software = Device::wgpu(DeviceKind::Cpu);
        let mut devices = enumerate("wgpu", DeviceType::Wgpu);
        for listed in &mut devices {
            listed.software = listed.device == software;
        }
        devices
    };
    #[cfg(not(feature = "wgpu"))]
    let devices = Vec::new();
    devices
}

#[cfg(any(feature = "cuda", feature = "wgpu"))]
fn enumerate(backend: &str, kind: DeviceType) -> Vec<Listed> {
    // Incompletely installed drivers panic; there is no device then.
    let devices =
        panics::catch_of_device(|| Device::enumerate(kind).into_iter().collect::<Vec<_>>());
    let listed = |(index, device): (usize, Device)| Listed {
        name: format!("{backend}:{index}"),
        device,
        software: false,
    };
    devices
        .unwrap_or_default()
        .into_iter()
        .enumerate()
        .map(listed)
        .collect()
}

/// Opens the device a configuration or the command line names. `auto` is the first that works of
/// CUDA devices, wgpu adapters that are hardware, and the CPU.
///
/// # Errors
/// If a device that was named is not in this build or on this machine, or cannot be opened.
pub(crate) fn open(choice: DeviceChoice) -> Result<Opened, Failure> {
    match choice {
        DeviceChoice::Cpu => open_listed(&cpu()),
        DeviceChoice::Cuda(index) => open_listed(&pick("cuda", cuda(), index)?),
        DeviceChoice::Wgpu(index) => open_listed(&pick("wgpu", wgpu(), index)?),
        DeviceChoice::Auto => {
            let unused = unused_gpu().map(|(gpu, backend)| {
                let build = build_with(backend);
                format!("{gpu} is not used: this build has no {backend} backend (`{build}`)")
            });
            let mut warnings = Vec::from_iter(unused);
            let hardware = |listed: &Listed| !listed.software;
            for listed in cuda().into_iter().chain(wgpu()).filter(hardware) {
                match open_listed(&listed) {
                    Ok(opened) => {
                        warnings.extend(opened.warnings);
                        return Ok(Opened { warnings, ..opened });
                    }
                    Err(failure) => warnings.push(failure.to_string()),
                }
            }
            let opened = open_listed(&cpu())?;
            Ok(Opened { warnings, ..opened })
        }
    }
}

/// Opens the devices of all stages on this machine, in order. A device that is named twice is opened
/// twice. Workers are not connected yet.
///
/// # Errors
/// As [`open`], for the first that fails.
pub(crate) fn open_stages(config: &RunConfig) -> Result<Vec<StageLocation<Opened>>, Failure> {
    let open_stage = |stage: &StageLocation| match stage {
        StageLocation::Device(choice) => open(*choice).map(StageLocation::Device),
        StageLocation::Remote(address) => Ok(StageLocation::Remote(address.clone())),
    };
    config.pipeline.stages.iter().map(open_stage).collect()
}

/// Replaces `auto` by the CPU if this build has no other backend, for commands that open no device.
pub(crate) fn take_auto_for_the_cpu(config: &mut RunConfig) {
    if BACKENDS == ["cpu"] {
        for stage in &mut config.pipeline.stages {
            if *stage == StageLocation::Device(DeviceChoice::Auto) {
                *stage = StageLocation::Device(DeviceChoice::Cpu);
            }
        }
    }
}

/// Replaces the configuration's device by that of the command line.
///
/// # Errors
/// If the configuration has several stages, which a single device cannot replace.
pub(crate) fn replace(config: &mut RunConfig, choice: DeviceChoice) -> Result<(), Failure> {
    let stages = config.pipeline.stages.len();
    if stages > 1 {
        let message =
            format!("`--device {choice}` is one device, but the pipeline has {stages} stages");
        let hint = "leave it out, or name the stages: `--set 'pipeline.stages=[cuda:0, cuda:1]'`";
        return Err(Failure::usage(message).hint(hint));
    }
    config.device = choice;
    config.pipeline.stages = vec![StageLocation::Device(choice)];
    Ok(())
}

/// The device of `listed` with that index; without an index the first hardware device, or else the first.
fn pick(backend: &str, listed: Vec<Listed>, index: Option<usize>) -> Result<Listed, Failure> {
    let missing =
        |message: String, hint: String| Err(Failure::new(Exit::Device, message).hint(hint));
    if !BACKENDS.contains(&backend) {
        let (build, others) = (build_with(backend), BACKENDS.join(", "));
        return missing(
            format!("this build has no {backend} backend"),
            format!("build with `{build}`, or use one of: {others}"),
        );
    }
    let names: Vec<String> = listed.iter().map(|listed| listed.name.clone()).collect();
    let hardware = || listed.iter().position(|listed| !listed.software);
    let position = index.or_else(hardware).unwrap_or(0);
    match listed.into_iter().nth(position) {
        Some(listed) => Ok(listed),
        None if names.is_empty() => missing(
            format!("no {backend} device on this machine"),
            "`loraloom doctor` lists the devices; `--device cpu` always works".to_owned(),
        ),
        None => missing(
            format!("no device {backend}:{position} on this machine"),
            format!("available: {}", names.join(", ")),
        ),
    }
}

/// Why kernels are not kept for later processes, until the warning is printed.
static UNKEPT: Mutex<Option<String>> = Mutex::new(None);

/// Keeps tuned kernels for later processes, and with `compiled` compiled ones as well. Call this at the start of the
/// process: no device may be open.
#[cfg(feature = "cuda")]
pub(crate) fn keep_kernels(compiled: bool) {
    if let Err(error) = batchlora::persist_kernels("loraloom", compiled) {
        let mut unkept = UNKEPT.lock().unwrap_or_else(PoisonError::into_inner);
        *unkept = Some(format!("{error}: every process compiles its kernels again"));
    }
}

/// The warning that kernels are not kept, for the first device that has any.
fn unkept(listed: &Listed) -> Option<String> {
    let mut unkept = UNKEPT.lock().unwrap_or_else(PoisonError::into_inner);
    unkept.take_if(|_| listed.name != "cpu")
}

/// Looks for `libdevice.10.bc` where CubeCL does, which links new kernels with it. Kernels from an earlier process do
/// not need it.
fn has_libdevice() -> bool {
    let usual = ["/usr/local/cuda", "/opt/cuda", "/usr/lib/cuda", "/usr"];
    let named = std::env::var_os("CUDA_PATH").map(|root| vec![root.into()]);
    let roots: Vec<PathBuf> = named.unwrap_or_else(|| usual.map(PathBuf::from).to_vec());
    let library = |root: &PathBuf| root.join("nvvm/libdevice").join(LIBDEVICE);
    roots.iter().any(|root| library(root).is_file())
}

/// Runs a kernel: some drivers load but cannot compile one.
fn computes(device: &Device) -> Result<(), String> {
    let values = Tensor::<1>::zeros([4], device).exp().try_into_data();
    let read = values.map(drop);
    read.map_err(|error| loraloom_model::causes(&format!("{error:?}")))
}

/// Opens a device, which loads its driver, and runs a kernel on it.
///
/// # Errors
/// If that fails or panics, as failing drivers do.
pub(crate) fn open_listed(listed: &Listed) -> Result<Opened, Failure> {
    let device = listed.device.clone();
    let is_cuda = listed.name.starts_with("cuda");
    let opened = panics::catch_of_device(|| {
        if is_cuda && !has_libdevice() {
            return Err(LIBDEVICE.to_owned());
        }
        let sync = device.sync();
        sync.map_err(|error| loraloom_model::causes(&error.to_string()))?;
        computes(&device).map(|()| hardware_name(&device))
    });
    let problem = match opened.flatten() {
        Ok(hardware) => {
            return Ok(Opened {
                device: listed.device.clone(),
                name: listed.name.clone(),
                hardware,
                software: listed.software,
                warnings: Vec::from_iter(unkept(listed)),
            });
        }
        Err(problem) => problem,
    };
    if problem.contains(LIBDEVICE) {
        let message = format!(
            "{} needs nvvm/libdevice/{LIBDEVICE} of the CUDA toolkit, which was not found",
            listed.name
        );
        let hint = "install the CUDA toolkit, or set `CUDA_PATH` to its folder";
        return Err(Failure::new(Exit::Device, message).hint(hint));
    }
    let message = format!("device {} cannot be opened: {problem}", listed.name);
    Err(Failure::new(Exit::Device, message)
        .hint("check the driver; `loraloom doctor` shows what works"))
}

impl fmt::Display for Opened {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.name)?;
        match &self.hardware {
            Some(hardware) => write!(formatter, " ({hardware})"),
            None => Ok(()),
        }
    }
}

fn hardware_name(device: &Device) -> Option<String> {
    #[cfg(any(feature = "cuda", feature = "wgpu"))]
    let name = device.identity().map(|identity| identity.name);
    #[cfg(not(any(feature = "cuda", feature = "wgpu")))]
    let name = {
        let _ = device;
        None
    };
    name
}

#[cfg(test)]
mod tests {
    use std::fs;

    use loraloom_config::{DeviceChoice, RunConfig, StageLocation};

    use super::{
        Listed, UNKEPT, cpu, is_complained_of, open, open_stages, pick, replace, unkept,
        unused_gpu_in,
    };

    /// A configuration with these stages.
    fn config(stages: &str) -> RunConfig {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("run.yaml");
        let text = format!(
            "model: m\ndatasets: {{d: {{path: p}}}}\nadapters: [{{name: a}}]\n\
             pipeline: {{stages: {stages}, token_file: t}}\n"
        );
        fs::write(&path, text).unwrap();
        RunConfig::load(&path, &[]).unwrap().config
    }

    fn listed(software: &[bool]) -> Vec<Listed> {
        let device = |(index, software): (usize, &bool)| Listed {
            name: format!("cpu:{index}"),
            software: *software,
            ..cpu()
        };
        software.iter().enumerate().map(device).collect()
    }

    #[test]
    fn hardware_is_picked_before_software_unless_it_is_named() {
        let name = |software: &[bool], index| {
            pick("cpu", listed(software), index)
                .map(|listed| listed.name)
                .map_err(|failure| failure.to_string())
        };
        assert_eq!(name(&[true, false, false], None).unwrap(), "cpu:1");
        assert_eq!(name(&[true], None).unwrap(), "cpu:0");
        assert_eq!(name(&[true, false], Some(0)).unwrap(), "cpu:0");
        assert!(name(&[false], Some(1)).unwrap_err().contains("cpu:1"));
        assert!(name(&[], None).is_err());
        assert!(pick("abacus", listed(&[false]), None).is_err());
    }

    #[test]
    fn kernels_that_are_not_kept_are_warned_of_once_and_not_for_the_cpu() {
        let gpu = &listed(&[false])[0];
        *UNKEPT.lock().unwrap() = Some("read-only".to_owned());
        assert_eq!(unkept(&cpu()), None);
        assert_eq!(unkept(gpu).as_deref(), Some("read-only"));
        assert_eq!(unkept(gpu), None);
    }

    #[test]
    fn a_gpu_without_its_backend_is_noticed() {
        let root = tempfile::tempdir().unwrap();
        let found = |backends: &[&str]| unused_gpu_in(root.path(), backends);
        let touch = |file: &str| {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        };
        if !cfg!(target_os = "macos") {
            assert_eq!(found(&["cpu"]), None);
        }
        touch("dev/dri/renderD128");
        assert_eq!(found(&["cpu"]), Some(("a GPU", "wgpu")));
        assert_eq!(found(&["wgpu", "cpu"]), None);
        assert_eq!(found(&["cuda", "cpu"]), None);
        touch("proc/driver/nvidia/version");
        assert_eq!(found(&["cpu"]), Some(("an NVIDIA GPU", "cuda")));
        assert_eq!(found(&["wgpu", "cpu"]), Some(("an NVIDIA GPU", "cuda")));
        assert_eq!(found(&["cuda", "wgpu", "cpu"]), None);
    }

    #[test]
    fn a_runtime_directory_is_kept_where_there_is_one() {
        let complained = |directory: Option<&str>| is_complained_of(directory.map(AsRef::as_ref));
        assert!(complained(None) && complained(Some("")) && complained(Some("run")));
        assert!(!complained(Some("/run/user/1000")) && !complained(Some("/dev/null")));
    }

    #[test]
    fn the_cpu_always_opens() {
        assert_eq!(open(DeviceChoice::Cpu).unwrap().name, "cpu");
    }
    #[test]
    fn stages_are_opened_in_order_and_workers_passed_on() {
        let remote = format!("'remote:{}@gpu-1:7'", "0a".repeat(32));
        let stages = open_stages(&config(&format!("[cpu, {remote}, cpu]"))).unwrap();
        assert!(matches!(&stages[1], StageLocation::Remote(worker) if worker.host == "gpu-1"));
        for stage in [&stages[0], &stages[2]] {
            assert!(matches!(stage, StageLocation::Device(opened) if opened.name == "cpu"));
        }
        assert!(open_stages(&config("[cpu, 'wgpu:99']")).is_err());
    }

    #[test]
    fn the_command_line_replaces_one_stage_and_not_several() {
        let mut one = config("['wgpu:0']");
        replace(&mut one, DeviceChoice::Cpu).unwrap();
        assert_eq!(one.device, DeviceChoice::Cpu);
        assert_eq!(one.pipeline.stages[0].to_string(), "cpu");
        let mut several = config("[cpu, cpu]");
        let failure = replace(&mut several, DeviceChoice::Cuda(None)).unwrap_err();
        assert!(failure.to_string().contains("2 stages"), "{failure}");
        assert_eq!(
            several.pipeline.stages,
            config("[cpu, cpu]").pipeline.stages
        );
    }
}
