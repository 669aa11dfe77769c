use std::{
    cell::Cell,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use burn_cubecl::cubecl::logging::{LaunchObservation, LaunchObserver};

static COUNTS: AtomicUsize = AtomicUsize::new(0);
static MOVED: AtomicU64 = AtomicU64::new(0);
static PRODUCTS: AtomicU64 = AtomicU64::new(0);
static DRAWS: AtomicU64 = AtomicU64::new(0);

/// Whether anybody counts.
pub(super) fn active() -> bool {
    COUNTS.load(Ordering::Relaxed) > 0
}

pub(super) fn begin() {
    COUNTS.fetch_add(1, Ordering::Relaxed);
}

pub(super) fn end() {
    COUNTS.fetch_sub(1, Ordering::Relaxed);
}

thread_local! {
    /// Bytes that the next launch of this thread moves.
    static NEXT: Cell<u64> = const { Cell::new(0) };
}

/// Notes that the next launch of this thread moves these bytes, too.
pub(super) fn moved(bytes: u64) {
    MOVED.fetch_add(bytes, Ordering::Relaxed);
    NEXT.set(NEXT.get() + bytes);
}

/// Takes the bytes that were noted for this launch.
pub(super) fn take_moved() -> u64 {
    NEXT.take()
}

/// Notes a product that CubeCL does not launch.
#[cfg(feature = "cuda")]
pub(super) fn launched() {
    PRODUCTS.fetch_add(1, Ordering::Relaxed);
}

/// Notes that the next launch draws a dropout mask.
pub(super) fn drew() {
    DRAWS.fetch_add(1, Ordering::Relaxed);
}

/// Counts kernel launches, and the bytes this crate's own launches move, from its making on.
///
/// The counts are the process's: one at a time, with the device synchronised before reading, and
/// after a first pass, which compiles and tunes.
pub struct LaunchCount {
    launches: Arc<Launches>,
    moved: u64,
    products: u64,
    draws: u64,
    _observation: LaunchObservation,
}

#[derive(Default)]
struct Launches(AtomicU64);

impl LaunchObserver for Launches {
    fn launched(&self, _kernel: &'static str) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl LaunchCount {
    /// Begins to count.
    pub fn start() -> Self {
        begin();
        let launches = Arc::new(Launches::default());
        Self {
            launches: launches.clone(),
            moved: MOVED.load(Ordering::Relaxed),
            products: PRODUCTS.load(Ordering::Relaxed),
            draws: DRAWS.load(Ordering::Relaxed),
            _observation: LaunchObservation::new(launches),
        }
    }

    /// Kernels launched so far, products by cuBLAS among them.
    pub fn launches(&self) -> u64 {
        let products = PRODUCTS.load(Ordering::Relaxed) - self.products;
        self.launches.0.load(Ordering::Relaxed) + products
    }

    /// Launches that drew dropout masks.
    pub fn masks_drawn(&self) -> u64 {
        DRAWS.load(Ordering::Relaxed) - self.draws
    }

    /// Bytes of device memory that the operands and results of this crate's launches, its matrix
    /// products included, hold: what has to move at least, each operand read and each result
    /// written once. Operands that are updated in place count twice.
    pub fn bytes_moved(&self) -> u64 {
        MOVED.load(Ordering::Relaxed) - self.moved
    }
}

impl Drop for LaunchCount {
    fn drop(&mut self) {
        end();
    }
}

impl fmt::Debug for LaunchCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LaunchCount")
            .field("launches", &self.launches())
            .field("bytes_moved", &self.bytes_moved())
            .finish_non_exhaustive()
    }
}
