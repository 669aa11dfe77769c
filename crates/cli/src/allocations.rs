//! The process's allocator. It counts the memory of CPU stages, whose backend does not report it.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    ptr,
    sync::atomic::{AtomicUsize, Ordering},
};

use loraloom_pipeline::HostMemory;
use mimalloc::MiMalloc;

/// Bytes from which an allocation is large.
const LARGE: usize = 1 << 10;

static IN_USE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// Small allocations use mimalloc and are not counted: a launch on a GPU makes dozens that another thread frees, and
/// with the system's allocator, or at a counter, the two threads would wait for each other. Large ones, such as
/// tensors, use the system's allocator, which grows them in place.
struct BySize;

#[global_allocator]
static ALLOCATOR: BySize = BySize;

fn allocated(bytes: usize) {
    let in_use = IN_USE.fetch_add(bytes, Ordering::Relaxed) + bytes;
    PEAK.fetch_max(in_use, Ordering::Relaxed);
}

fn freed(bytes: usize) {
    IN_USE.fetch_sub(bytes, Ordering::Relaxed);
}

// SAFETY: the size of a block determines its allocator, both when it is allocated and when it is freed; each call
// passes the caller's arguments to that allocator.
#[expect(unsafe_code, reason = "an allocator has no safe interface")]
unsafe impl GlobalAlloc for BySize {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.size() < LARGE {
            return unsafe { MiMalloc.alloc(layout) };
        }
        allocated(layout.size());
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if layout.size() < LARGE {
            return unsafe { MiMalloc.alloc_zeroed(layout) };
        }
        allocated(layout.size());
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        match (layout.size() < LARGE, size < LARGE) {
            (true, true) => unsafe { MiMalloc.realloc(block, layout, size) },
            (false, false) => {
                freed(layout.size());
                allocated(size);
                unsafe { System.realloc(block, layout, size) }
            }
            _ => unsafe {
                let moved = self.alloc(Layout::from_size_align_unchecked(size, layout.align()));
                if !moved.is_null() {
                    ptr::copy_nonoverlapping(block, moved, size.min(layout.size()));
                    self.dealloc(block, layout);
                }
                moved
            },
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if layout.size() < LARGE {
            return unsafe { MiMalloc.dealloc(block, layout) };
        }
        freed(layout.size());
        unsafe { System.dealloc(block, layout) }
    }
}

/// Registers the counters with the stages.
pub(crate) fn count() {
    let memory = HostMemory {
        in_use: || IN_USE.load(Ordering::Relaxed) as u64,
        peak: || PEAK.load(Ordering::Relaxed) as u64,
        take_peak: || PEAK.swap(IN_USE.load(Ordering::Relaxed), Ordering::Relaxed) as u64,
    };
    memory.count_with();
}
