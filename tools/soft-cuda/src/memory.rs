//! Memory of devices and pinned memory of the host: both are the host's, up to a device's limit.

use std::{
    collections::BTreeMap,
    ffi::c_void,
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::{
    device::{idle, total_memory},
    driver::{SUCCESS, Status},
    order::CURRENT,
};

const OUT_OF_MEMORY: Status = 2;

/// Alignment of allocations, as the driver's.
const ALIGNMENT: usize = 512;

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> Status {
    let used = allocated().get(&CURRENT.get()).copied().unwrap_or_default();
    unsafe {
        *free = total_memory() - used;
        *total = total_memory();
    }
    SUCCESS
}

/// Bytes that are allocated on each context's device.
static ALLOCATED: Mutex<BTreeMap<usize, usize>> = Mutex::new(BTreeMap::new());

fn allocated() -> MutexGuard<'static, BTreeMap<usize, usize>> {
    ALLOCATED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What stands before an allocation, to be known again when it is freed.
#[derive(Clone, Copy)]
struct Header {
    bytes: usize,
    /// 0 is the host.
    context: usize,
}

fn layout(bytes: usize) -> std::alloc::Layout {
    std::alloc::Layout::from_size_align(bytes + ALIGNMENT, ALIGNMENT).expect("a size that fits")
}

unsafe fn allocate(pointer: *mut u64, bytes: usize, context: usize) -> Status {
    if context != 0 {
        let mut allocated = allocated();
        let used = allocated.entry(context).or_default();
        if *used + bytes > total_memory() {
            return OUT_OF_MEMORY;
        }
        *used += bytes;
    }
    let memory = match idle() {
        false => unsafe { std::alloc::alloc(layout(bytes)) },
        true => unsafe { std::alloc::alloc_zeroed(layout(bytes)) },
    };
    if memory.is_null() {
        return OUT_OF_MEMORY;
    }
    unsafe {
        memory.cast::<Header>().write(Header { bytes, context });
        // What nobody wrote is no number: a kernel that reads it shows.
        if !idle() {
            memory.add(ALIGNMENT).write_bytes(0xff, bytes);
        }
        *pointer = memory.add(ALIGNMENT) as u64;
    }
    SUCCESS
}

unsafe fn free(pointer: u64) -> Status {
    let memory = (pointer as usize - ALIGNMENT) as *mut u8;
    unsafe {
        let Header { bytes, context } = memory.cast::<Header>().read();
        if context != 0 {
            *allocated().entry(context).or_default() -= bytes;
        }
        std::alloc::dealloc(memory, layout(bytes));
    }
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemAlloc_v2(pointer: *mut u64, bytes: usize) -> Status {
    unsafe { allocate(pointer, bytes, CURRENT.get()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemAllocAsync(pointer: *mut u64, bytes: usize, _: *mut c_void) -> Status {
    unsafe { allocate(pointer, bytes, CURRENT.get()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemFree_v2(pointer: u64) -> Status {
    unsafe { free(pointer) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemFreeAsync(pointer: u64, _stream: *mut c_void) -> Status {
    unsafe { free(pointer) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemAllocHost_v2(pointer: *mut u64, bytes: usize) -> Status {
    unsafe { allocate(pointer, bytes, 0) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemFreeHost(pointer: u64) -> Status {
    unsafe { free(pointer) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_starts_as_nans() {
        let mut pointer = 0;
        assert_eq!(unsafe { cuMemAlloc_v2(&raw mut pointer, 64) }, SUCCESS);
        let read = unsafe { std::slice::from_raw_parts(pointer as *const f32, 16) };
        assert!(read.iter().all(|value| value.is_nan()), "{read:?}");
        assert_eq!(unsafe { cuMemFree_v2(pointer) }, SUCCESS);
    }
}
