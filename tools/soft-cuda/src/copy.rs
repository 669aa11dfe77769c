//! Copies between memories, all of which are the host's.

use std::{
    ffi::{c_uint, c_void},
    ptr,
};

use crate::{
    driver::{SUCCESS, Status, trace},
    order::{Order, in_order},
};

const INVALID_VALUE: Status = 1;

/// Copies, unless something before it would not be done on a GPU.
unsafe fn copy(target: u64, source: u64, bytes: usize) -> Status {
    if let Err(error) = in_order(Order::launch) {
        eprintln!("soft-cuda: a copy {error}");
        return INVALID_VALUE;
    }
    unsafe { ptr::copy(source as *const u8, target as *mut u8, bytes) };
    SUCCESS
}

/// Only products that failed are written over.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemsetD8Async(to: u64, value: u8, bytes: usize, stream: u64) -> Status {
    if let Err(error) = in_order(|order| order.product(stream as usize)) {
        eprintln!("soft-cuda: a memset {error}");
        return INVALID_VALUE;
    }
    unsafe { ptr::write_bytes(to as *mut u8, value, bytes) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoDAsync_v2(to: u64, from: u64, bytes: usize, _: u64) -> Status {
    trace(|| format!("{bytes} bytes to the device"));
    unsafe { copy(to, from, bytes) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyDtoHAsync_v2(to: u64, from: u64, bytes: usize, _: u64) -> Status {
    unsafe { copy(to, from, bytes) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, _: u64) -> Status {
    unsafe { copy(to, from, bytes) }
}

/// One side of a copy of rows.
#[repr(C)]
struct Side2d {
    x_bytes: usize,
    y: usize,
    memory_type: c_uint,
    host: u64,
    device: u64,
    array: u64,
    pitch: usize,
}

impl Side2d {
    fn is_host(&self) -> bool {
        const HOST: c_uint = 1;
        self.memory_type == HOST
    }

    fn start(&self) -> u64 {
        let base = if self.is_host() {
            self.host
        } else {
            self.device
        };
        base + (self.y * self.pitch + self.x_bytes) as u64
    }
}

/// `CUDA_MEMCPY2D`.
#[repr(C)]
struct Copy2d {
    source: Side2d,
    target: Side2d,
    width_bytes: usize,
    height: usize,
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpy2DAsync_v2(what: *const Copy2d, _stream: *mut c_void) -> Status {
    let what = unsafe { &*what };
    if what.source.is_host() {
        trace(|| format!("{} bytes to the device", what.width_bytes * what.height));
    }
    for row in 0..what.height {
        let of = |side: &Side2d| side.start() + (row * side.pitch) as u64;
        let status = unsafe { copy(of(&what.target), of(&what.source), what.width_bytes) };
        if status != SUCCESS {
            return status;
        }
    }
    SUCCESS
}
