use std::ops::Range;

use burn::tensor::Device;
use loraloom_config::MemoryLimit;
use loraloom_model::LlamaConfig;
use loraloom_pipeline::{HostMemory, Pipeline, StageLayers, device_memory, device_name};
use loraloom_scheduler::{
    Budget, DeviceMemory, Forecasts, LearntMemory, Load, Measurement, Refusal,
};

use super::DeviceRoom;
use crate::{TrainerError, plan::kept_per_token};

/// Pages in which a GPU's pools grow, at the most usual.
pub(crate) const POOL_PAGE_BYTES: u64 = 64 << 20;
/// What an allocator rounds up to is nothing beside a tensor.
pub(crate) const HOST_PAGE_BYTES: u64 = 1 << 20;

/// The memory of a device that stages are on.
#[derive(Debug)]
pub(crate) struct DeviceBudget {
    device: Device,
    room: DeviceRoom,
    memory: DeviceMemory,
    /// Whether more than `memory_limit` says is refused, or only known: where the device does not say
    /// how much it has, a fraction of that is no limit.
    limited: bool,
    /// What the running tasks ask for.
    runs: Load,
}

impl Budget for DeviceBudget {
    /// What runs already goes on: a prediction that wavers sends nobody away, only memory that runs
    /// out does. One task alone is tried unless it is known that it cannot fit.
    fn fits(&self, load: Load, tasks: usize) -> bool {
        !self.limited || self.runs.covers(load) || fits(&self.memory, load, tasks)
    }

    fn refusal(&self, load: Load, _tasks: usize) -> Refusal {
        refusal(&self.memory, load)
    }
}

/// Whether so many tasks with this load are let in.
pub(crate) fn fits(memory: &DeviceMemory, load: Load, tasks: usize) -> bool {
    match memory.fits(load) {
        Ok(_) => true,
        Err(shortage) => tasks <= 1 && !shortage.is_certain(),
    }
}

/// Why a load is not let in, or that it is.
pub(crate) fn refusal(memory: &DeviceMemory, load: Load) -> Refusal {
    let reason = match memory.fits(load) {
        Err(shortage) => shortage.to_string(),
        Ok(fit) => fit.to_string(),
    };
    Refusal { reason }
}

/// What stages have on one device before any task has its place.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Residents<'a> {
    pub(crate) model: &'a LlamaConfig,
    /// Layers of each stage.
    pub(crate) layers: &'a [StageLayers],
    pub(crate) gradient_checkpointing: bool,
    /// Bytes in use.
    pub(crate) in_use: u64,
    /// Pages in which memory is given out.
    pub(crate) page_bytes: u64,
}

impl Residents<'_> {
    /// What the device has room for, of which `limit` bytes may be used. Where groups have different
    /// layers there, every one is taken to have the most.
    pub(crate) fn room(&self, device: String, limit: u64) -> DeviceRoom {
        let most = |count: &dyn Fn(&Range<usize>) -> usize| -> usize {
            let partitions = self.layers.iter().map(|stage| stage.by_partition().len());
            let of = |group| {
                let layers = self.layers.iter().map(|stage| stage.of_group(group));
                layers.map(|layers| count(&layers)).sum::<usize>()
            };
            (0..partitions.max().unwrap_or(0))
                .map(of)
                .max()
                .unwrap_or(0)
        };
        let held = most(&Range::len);
        let per_token =
            most(&|layers| kept_per_token(self.model, layers, self.gradient_checkpointing));
        DeviceRoom {
            device,
            limit_bytes: limit,
            fixed_bytes: self.in_use,
            adapter_share: held as f64 / self.model.num_hidden_layers as f64,
            bytes_per_token: per_token as f64,
            page_bytes: self.page_bytes,
        }
    }
}

impl DeviceBudget {
    /// What the device had room for before anything was learnt, if it is limited.
    pub(crate) fn room(&self) -> Option<&DeviceRoom> {
        self.limited.then_some(&self.room)
    }

    /// Bytes that may be used, if that is known.
    pub(crate) fn limit(&self) -> Option<u64> {
        self.limited.then(|| self.memory.limit_bytes())
    }

    /// Whether it is this process's memory.
    pub(crate) fn is_host(&self) -> bool {
        self.device == Device::flex()
    }

    /// Bytes that a load is expected to take.
    pub(crate) fn expected(&self, load: Load) -> u64 {
        self.memory.estimate(load).expected_bytes
    }

    /// Its name.
    pub(crate) fn name(&self) -> &str {
        self.memory.name()
    }

    /// What was learnt of it.
    pub(crate) fn learnt(&self) -> LearntMemory {
        self.memory.learnt()
    }

    /// Takes up what was learnt of it before a restart; whether it is the same still.
    pub(crate) fn remember(&mut self, learnt: LearntMemory) -> bool {
        self.memory.remember(learnt)
    }

    /// How good predictions were.
    pub(crate) fn forecasts(&self) -> &Forecasts {
        self.memory.forecasts()
    }

    /// Learns from an iteration of this load.
    pub(crate) fn observe(&mut self, load: Load, host_peak_bytes: Option<u64>) {
        let measured = if self.is_host() {
            Measurement {
                peak_in_use_bytes: host_peak_bytes,
                reserved_bytes: None,
            }
        } else {
            let usage = self.device.memory_pool_usage();
            Measurement {
                peak_in_use_bytes: None,
                reserved_bytes: usage.map(|usage| usage.bytes_reserved),
            }
        };
        self.memory.observe(load, measured);
    }

    /// Says what runs from now on.
    pub(crate) fn runs(&mut self, load: Load) {
        self.runs = load;
    }

    pub(crate) fn out_of_memory(&mut self, load: Load) {
        self.runs = Load::default();
        self.memory.out_of_memory(load);
    }
}

/// The memory of every device of this process that stages are on, each once; of those on other
/// machines nothing is known here.
///
/// What is in use now, before any task has its place, is taken to be there throughout.
pub(crate) fn budgets(
    pipeline: &Pipeline,
    limit: MemoryLimit,
    gradient_checkpointing: bool,
) -> Result<Vec<DeviceBudget>, TrainerError> {
    let mut found: Vec<(Device, Vec<StageLayers>)> = Vec::new();
    for (device, layers) in pipeline.local_devices() {
        match found.iter_mut().find(|(other, _)| *other == device) {
            Some((_, all)) => all.push(layers),
            None => found.push((device, vec![layers])),
        }
    }
    let model = pipeline.config();
    let budget = |(device, layers): (Device, Vec<StageLayers>)| {
        let (has, in_use, page) = known(&device);
        let (limit, limited) = match (limit, has) {
            (limit, Some(has)) => (limit.bytes(has), true),
            (MemoryLimit::Bytes(bytes), None) => (bytes, true),
            (MemoryLimit::Fraction(_), None) => (u64::MAX, false),
        };
        let residents = Residents {
            model,
            layers: &layers,
            gradient_checkpointing,
            in_use,
            page_bytes: page,
        };
        let room = residents.room(device_name(&device), limit);
        let mut memory = room.memory()?;
        if let Some(usage) = device.memory_pool_usage() {
            // What the first iteration needs is what makes them grow.
            memory.pools_hold(usage.bytes_reserved);
        }
        Ok(DeviceBudget {
            // Nothing is measured where nobody counts.
            limited: limited && (device != Device::flex() || HostMemory::counted().is_some()),
            device,
            memory,
            room,
            runs: Load::default(),
        })
    };
    found.into_iter().map(budget).collect()
}

/// Says of devices that a limit does not bind: a fraction of what nobody knows.
pub(crate) fn without_limit(pipeline: &Pipeline, limit: MemoryLimit) -> Option<String> {
    let MemoryLimit::Fraction(fraction) = limit else {
        return None;
    };
    let mut devices = pipeline.local_devices();
    let unknown = devices.any(|(device, _)| device_memory(&device).is_none());
    unknown.then(|| {
        format!(
            "a device does not say how much memory it has, so `scheduler.memory_limit: {fraction}` is no \
             limit there and memory that runs out parks a task; a size such as 20GiB is kept to"
        )
    })
}

/// Bytes that the device has, if it says so, that are in use, and the pages it gives them out in.
fn known(device: &Device) -> (Option<u64>, u64, u64) {
    let (in_use, page_bytes) = if *device == Device::flex() {
        let in_use = HostMemory::counted().map_or(0, |memory| (memory.in_use)());
        (in_use, HOST_PAGE_BYTES)
    } else {
        let usage = device.memory_pool_usage();
        (usage.map_or(0, |usage| usage.bytes_in_use), POOL_PAGE_BYTES)
    };
    (device_memory(device), in_use, page_bytes)
}
