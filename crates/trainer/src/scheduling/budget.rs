use std::ops::Range;

use burn::tensor::Device;
use loraloom_config::MemoryLimit;
use loraloom_model::{
    LlamaConfig,
    cost::{STORED_BYTES, TRAINED_BYTES, dense_copy_bytes, most_bytes_per_token},
};
use loraloom_pipeline::{HostMemory, Pipeline, StageLayers, device_memory, device_name};
use loraloom_scheduler::{DeviceMemory, Measurement, SchedulerError, sizes};

use super::DeviceRoom;

/// Largest common page of a GPU's pools.
pub(crate) const POOL_PAGE_BYTES: u64 = 64 << 20;
/// Small beside a tensor, like an allocator's rounding.
pub(crate) const HOST_PAGE_BYTES: u64 = 1 << 20;

/// The share of every adapter on a device whose stages have these layers, and its estimated activation bytes per
/// token. If groups have different layers, the largest counts for all. The host also has the snapshot for running out
/// of memory.
pub(crate) fn shares(
    model: &LlamaConfig,
    stages: &[StageLayers],
    gradient_checkpointing: bool,
    is_host: bool,
) -> (f64, f64) {
    let most = |count: &dyn Fn(&Range<usize>) -> usize| -> usize {
        let partitions = stages.iter().map(|stage| stage.by_partition().len());
        let of = |group| {
            stages
                .iter()
                .map(|stage| count(&stage.of_group(group)))
                .sum()
        };
        let counts = (0..partitions.max().unwrap_or(0)).map(of);
        counts.max().unwrap_or(0)
    };
    let held = most(&Range::len);
    let bytes = most(&|layers| most_bytes_per_token(model, layers, gradient_checkpointing));
    let copies = if is_host {
        STORED_BYTES as f64 / TRAINED_BYTES as f64
    } else {
        0.0
    };
    let share = held as f64 / model.num_hidden_layers as f64;
    (share + copies, bytes as f64)
}

/// The devices of this process that have stages, each once, with the layers of its stages. Those on other machines
/// are unknown here.
pub(crate) fn devices(pipeline: &Pipeline) -> Vec<(Device, Vec<StageLayers>)> {
    let mut found: Vec<(Device, Vec<StageLayers>)> = Vec::new();
    for (device, layers) in pipeline.local_devices() {
        match found.iter_mut().find(|(other, _)| *other == device) {
            Some((_, all)) => all.push(layers),
            None => found.push((device, vec![layers])),
        }
    }
    found
}

/// Bytes that a limit allows on a device with this much memory; `None` if it is a fraction and the size is unknown.
pub(crate) fn allowed(limit: MemoryLimit, has: Option<u64>) -> Option<u64> {
    match (limit, has) {
        (limit, Some(has)) => Some(limit.bytes(has)),
        (MemoryLimit::Bytes(bytes), None) => Some(bytes),
        (MemoryLimit::Fraction(_), None) => None,
    }
}

/// Memory of each of the [`devices`], in their order. Bytes in use before any task is admitted count as fixed, except
/// those of waiting tasks on the host, and so does the dense copy of a quantised weight.
pub(crate) fn rooms(
    pipeline: &Pipeline,
    limit: MemoryLimit,
    gradient_checkpointing: bool,
    element_bytes: usize,
    waiting_bytes: u64,
) -> Vec<DeviceRoom> {
    devices(pipeline)
        .into_iter()
        .map(|(device, layers)| {
            let is_host = device == Device::flex();
            let (has, in_use, page_bytes) = known(&device);
            let waiting = if is_host { waiting_bytes } else { 0 };
            // Without the counting allocator nothing is measured on the CPU.
            let measured = !is_host || HostMemory::counted().is_some();
            let limit = allowed(limit, has).filter(|_| measured).unwrap_or(u64::MAX);
            let model = pipeline.config();
            let (adapter_share, bytes_per_token) =
                shares(model, &layers, gradient_checkpointing, is_host);
            let copies = layers.iter().map(StageLayers::held);
            let copies = copies.map(|layers| dense_copy_bytes(model, &layers, element_bytes));
            DeviceRoom {
                device: device_name(&device),
                limit_bytes: limit,
                fixed_bytes: in_use.saturating_sub(waiting) + copies.sum::<usize>() as u64,
                adapter_share,
                bytes_per_token,
                page_bytes,
                element_bytes,
            }
        })
        .collect()
}

/// The memory of each of the [`devices`], before anything is learnt.
pub(crate) fn memories(
    pipeline: &Pipeline,
    rooms: &[DeviceRoom],
) -> Result<Vec<DeviceMemory>, SchedulerError> {
    let devices = devices(pipeline);
    let memory = |((device, _), room): (&(Device, Vec<StageLayers>), &DeviceRoom)| {
        let mut memory = room.memory()?;
        if let Some(usage) = device.memory_pool_usage() {
            memory.pools_hold(usage.bytes_reserved);
        }
        Ok(memory)
    };
    devices.iter().zip(rooms).map(memory).collect()
}

/// A device's measurement after an iteration; `host_peak_bytes` is the peak of this process's allocations during it.
pub(crate) fn measured(device: &Device, host_peak_bytes: Option<u64>) -> Measurement {
    if *device == Device::flex() {
        return Measurement {
            peak_in_use_bytes: host_peak_bytes,
            reserved_bytes: None,
        };
    }
    let pool = device.memory_pool_usage();
    Measurement {
        peak_in_use_bytes: None,
        reserved_bytes: pool.map(|usage| usage.bytes_reserved),
    }
}

/// Warns about this machine's devices if a limit does not bind, or only up to the device's memory.
pub(crate) fn limit_warnings(pipeline: &Pipeline, limit: MemoryLimit) -> Vec<String> {
    let warning = |(device, _): (Device, _)| {
        limit_warning(&device_name(&device), device_memory(&device), limit)
    };
    let mut warnings: Vec<_> = pipeline.local_devices().filter_map(warning).collect();
    warnings.dedup();
    warnings
}

fn limit_warning(device: &str, has: Option<u64>, limit: MemoryLimit) -> Option<String> {
    match (limit, has) {
        (MemoryLimit::Fraction(fraction), None) => Some(format!(
            "{device} does not report its memory, so `scheduler.memory_limit: {fraction}` has no \
             effect there and a task that runs out of memory is parked; set a size such as 20GiB"
        )),
        (MemoryLimit::Bytes(asked), Some(has)) if asked > has => {
            let [_, has] = sizes(asked, has);
            Some(format!(
                "`scheduler.memory_limit: {limit}` exceeds the memory of {device} ({has}), which is \
                 the limit instead"
            ))
        }
        _ => None,
    }
}

/// Total bytes of a device if it reports them, bytes in use, and the page size of its allocator.
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

#[cfg(test)]
mod tests {
    use loraloom_config::MemoryLimit;

    use super::limit_warning;

    #[test]
    fn a_limit_that_does_not_bind_is_told() {
        let of = |has, limit| limit_warning("cuda:0", has, limit).unwrap_or_default();
        let (half, bytes) = (MemoryLimit::Fraction(0.5), MemoryLimit::Bytes(1 << 30));
        assert!(of(None, half).starts_with("cuda:0 does not report its memory"));
        let said = of(Some(1 << 20), bytes);
        assert_eq!(
            said,
            "`scheduler.memory_limit: 1GiB` exceeds the memory of cuda:0 (1.00 MiB), which is the \
             limit instead"
        );
        for (has, limit) in [(Some(1 << 30), half), (None, bytes), (Some(1 << 30), bytes)] {
            assert_eq!(of(has, limit), "");
        }
    }
}
