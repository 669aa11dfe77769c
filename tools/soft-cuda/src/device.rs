//! What the devices say of themselves.

use std::{env, ffi::c_int, sync::LazyLock};

/// Devices, `SOFT_CUDA_DEVICES`, one unless it says otherwise.
pub fn devices() -> c_int {
    number("SOFT_CUDA_DEVICES").unwrap_or(1)
}

/// Bytes each of them has, `SOFT_CUDA_MEMORY_MIB`, 16 GiB unless it says otherwise.
pub fn total_memory() -> usize {
    (number("SOFT_CUDA_MEMORY_MIB").unwrap_or(16 << 10) as usize) << 20
}

/// True if `SOFT_CUDA_IDLE` is set: launches and products do nothing and memory starts as zeros, to time the
/// host alone.
pub fn idle() -> bool {
    static IDLE: LazyLock<bool> = LazyLock::new(|| env::var_os("SOFT_CUDA_IDLE").is_some());
    *IDLE
}

/// A `CUdevice_attribute` of every device: those of an A100, with fewer multiprocessors. The compute
/// capability is `SOFT_CUDA_ARCH`, 80 unless it says otherwise.
pub fn attribute(which: c_int) -> Option<c_int> {
    let arch = number("SOFT_CUDA_ARCH").unwrap_or(80);
    Some(match which {
        // Threads of a block.
        1..=3 => 1024,
        4 => 64,
        // Blocks of a grid.
        5 => i32::MAX,
        6 | 7 => 65_535,
        // Bytes of shared memory of a block.
        8 => 48 << 10,
        97 => 163 << 10,
        // Threads of a warp.
        10 => 32,
        // Multiprocessors.
        16 => 8,
        75 => arch / 10,
        76 => arch % 10,
        _ => return None,
    })
}

/// A variable's number.
pub fn number(name: &str) -> Option<c_int> {
    env::var(name).ok()?.parse().ok()
}
