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

/// True while launches are counted or timed.
pub(crate) fn active() -> bool {
    COUNTS.load(Ordering::Relaxed) > 0
}

pub(crate) fn begin() {
    COUNTS.fetch_add(1, Ordering::Relaxed);
}

pub(crate) fn end() {
    COUNTS.fetch_sub(1, Ordering::Relaxed);
}

thread_local! {
    /// Bytes that the next launch of this thread moves.
    static NEXT: Cell<u64> = const { Cell::new(0) };
}

/// Adds to the bytes that the next launch of this thread moves.
pub(crate) fn moved(bytes: u64) {
    MOVED.fetch_add(bytes, Ordering::Relaxed);
    NEXT.set(NEXT.get() + bytes);
}

/// Takes the bytes noted for this launch.
pub(crate) fn take_moved() -> u64 {
    NEXT.take()
}

/// Counts a product that CubeCL does not launch.
#[cfg(feature = "cuda")]
pub(crate) fn launched() {
    PRODUCTS.fetch_add(1, Ordering::Relaxed);
}

/// Counts a launch that draws a dropout mask.
pub(crate) fn drew() {
    DRAWS.fetch_add(1, Ordering::Relaxed);
}

/// Counts the process's kernel launches, and the bytes that batchlora's and the decoder's move, from
/// [`start`](Self::start) on.
///
/// Use one at a time, after a first pass that compiles and tunes, and synchronise the device before reading.
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
    /// Starts counting.
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

    /// Kernels launched so far, including products by cuBLAS.
    pub fn launches(&self) -> u64 {
        let products = PRODUCTS.load(Ordering::Relaxed) - self.products;
        self.launches.0.load(Ordering::Relaxed) + products
    }

    /// Launches that drew dropout masks.
    pub fn masks_drawn(&self) -> u64 {
        DRAWS.load(Ordering::Relaxed) - self.draws
    }

    /// Bytes of the operands and results of these launches and of their matrix products: the least that has
    /// to move, each operand read and each result written once. Operands updated in place count twice.
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
