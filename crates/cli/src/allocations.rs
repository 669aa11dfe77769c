//! The allocator of this process, which counts what CPU stages hold: their backend does not report its memory.

use std::{
    alloc::{GlobalAlloc, Layout},
    sync::atomic::{AtomicUsize, Ordering},
};

use loraloom_pipeline::HostMemory;
use mimalloc::MiMalloc;

/// Bytes from which on an allocation is counted. A GPU's two host threads make thousands of small ones a
/// step, and would wait for each other at the counters; tensors are larger.
const COUNTED: usize = 1 << 10;

static IN_USE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// mimalloc: memory that one thread allocates and another frees, as every launch on a GPU has it, makes
/// glibc's threads wait for each other.
#[global_allocator]
static ALLOCATOR: Counting = Counting(MiMalloc);

struct Counting(MiMalloc);

fn allocated(bytes: usize) {
    if bytes >= COUNTED {
        let in_use = IN_USE.fetch_add(bytes, Ordering::Relaxed) + bytes;
        PEAK.fetch_max(in_use, Ordering::Relaxed);
    }
}

fn freed(bytes: usize) {
    if bytes >= COUNTED {
        IN_USE.fetch_sub(bytes, Ordering::Relaxed);
    }
}

// SAFETY: every call is mimalloc's with the same arguments.
#[expect(unsafe_code, reason = "an allocator has no safe interface")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        allocated(layout.size());
        // SAFETY: as the caller promises.
        unsafe { self.0.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        allocated(layout.size());
        // SAFETY: as the caller promises.
        unsafe { self.0.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        freed(layout.size());
        allocated(size);
        // SAFETY: as the caller promises.
        unsafe { self.0.realloc(block, layout, size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        freed(layout.size());
        // SAFETY: as the caller promises.
        unsafe { self.0.dealloc(block, layout) }
    }
}

/// Tells stages how allocations are counted.
pub(crate) fn count() {
    let memory = HostMemory {
        in_use: || IN_USE.load(Ordering::Relaxed) as u64,
        peak: || PEAK.load(Ordering::Relaxed) as u64,
        take_peak: || PEAK.swap(IN_USE.load(Ordering::Relaxed), Ordering::Relaxed) as u64,
    };
    memory.count_with();
}
