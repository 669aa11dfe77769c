//! The part of the CUDA driver's C interface that CubeCL calls, on the host's memory. Every call has
//! happened when it returns; whether streams wait for each other is only looked at.

use std::{
    env,
    ffi::{CStr, c_char, c_int, c_uint, c_void},
    fs,
    path::PathBuf,
    ptr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

use crate::{
    device::{attribute, devices, idle, total_memory},
    launch::{Grid, launch},
    module::{Entry, Module},
    order::{CURRENT, Order, in_order},
};

pub type Status = c_int;
pub const SUCCESS: Status = 0;
const INVALID_VALUE: Status = 1;
const INVALID_PTX: Status = 218;
const NOT_FOUND: Status = 500;
const LAUNCH_FAILED: Status = 719;

/// That of CUDA 12.9, whose PTX is 8.8.
const VERSION: c_int = 12_090;

#[unsafe(no_mangle)]
extern "C" fn cuInit(_flags: c_uint) -> Status {
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> Status {
    unsafe { *version = VERSION };
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> Status {
    unsafe { *count = devices() };
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGet(device: *mut c_int, index: c_int) -> Status {
    if !(0..devices()).contains(&index) {
        return INVALID_VALUE;
    }
    unsafe { *device = index };
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetAttribute(value: *mut c_int, which: c_int, _: c_int) -> Status {
    match attribute(which) {
        Some(known) => unsafe { *value = known },
        None => return INVALID_VALUE,
    }
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, length: c_int, _: c_int) -> Status {
    let text = c"soft-cuda";
    if (length as usize) < text.count_bytes() + 1 {
        return INVALID_VALUE;
    }
    unsafe { ptr::copy_nonoverlapping(text.as_ptr(), name, text.count_bytes() + 1) };
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetPCIBusId(_: *mut c_char, _: c_int, _: c_int) -> Status {
    INVALID_VALUE
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, _: c_int) -> Status {
    unsafe { *bytes = total_memory() };
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut *mut c_void, device: c_int) -> Status {
    unsafe { *context = ptr::without_provenance_mut(device as usize + 1) };
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRelease_v2(_device: c_int) -> Status {
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetCurrent(context: *mut c_void) -> Status {
    CURRENT.set(context as usize);
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxGetCurrent(context: *mut *mut c_void) -> Status {
    unsafe { *context = ptr::without_provenance_mut(CURRENT.get()) };
    SUCCESS
}

/// All work of the thread's context, which is the only one that is asked for.
#[unsafe(no_mangle)]
extern "C" fn cuCtxRecordEvent(context: *mut c_void, event: *mut c_void) -> Status {
    if context as usize != CURRENT.get() {
        return INVALID_VALUE;
    }
    in_order(|order| order.record_context(event as usize));
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxWaitEvent(context: *mut c_void, event: *mut c_void) -> Status {
    if context as usize != CURRENT.get() {
        return INVALID_VALUE;
    }
    in_order(|order| order.context_waits(event as usize));
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxGetStreamPriorityRange(least: *mut c_int, most: *mut c_int) -> Status {
    unsafe {
        *least = 0;
        *most = 0;
    }
    SUCCESS
}

/// Says what was done if `SOFT_CUDA_TRACE` is set.
pub fn trace(what: impl FnOnce() -> String) {
    if env::var_os("SOFT_CUDA_TRACE").is_some() {
        eprintln!("soft-cuda: {}", what());
    }
}

/// Writes a module's text where `SOFT_CUDA_PTX` says, to be given to `ptxas`.
fn keep(text: &str) {
    let Some(directory) = env::var_os("SOFT_CUDA_PTX").map(PathBuf::from) else {
        return;
    };
    let entry = text
        .split_once(".entry")
        .and_then(|(_, rest)| rest.split('(').next());
    let path = directory.join(format!("{}.ptx", entry.unwrap_or_default().trim()));
    if let Err(error) = fs::create_dir_all(&directory).and_then(|()| fs::write(&path, text)) {
        eprintln!("soft-cuda: {}: {error}", path.display());
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuModuleLoadData(module: *mut *const Module, ptx: *const c_char) -> Status {
    let text = unsafe { CStr::from_ptr(ptx) }.to_string_lossy();
    keep(&text);
    match Module::parse(&text) {
        // Modules are never unloaded, as by CubeCL.
        Ok(parsed) => unsafe { *module = Box::into_raw(Box::new(parsed)) },
        Err(error) => {
            eprintln!("soft-cuda: {error}\n{text}");
            return INVALID_PTX;
        }
    }
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuModuleGetFunction(
    function: *mut *const Entry,
    module: *const Module,
    name: *const c_char,
) -> Status {
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    match unsafe { &*module }.entry(&name) {
        Some(entry) => unsafe { *function = Arc::as_ptr(entry) },
        None => return NOT_FOUND,
    }
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuFuncSetAttribute(_: *const Entry, _: c_int, _: c_int) -> Status {
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuLaunchKernel(
    function: *const Entry,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared_bytes: c_uint,
    _stream: *mut c_void,
    parameters: *const *const u8,
    _extra: *mut c_void,
) -> Status {
    let entry = unsafe { &*function };
    if let Err(error) = in_order(Order::launch) {
        eprintln!("soft-cuda: {} {error}", entry.name);
        return LAUNCH_FAILED;
    }
    let grid = Grid {
        blocks: [grid_x, grid_y, grid_z],
        threads: [block_x, block_y, block_z],
        shared_bytes: shared_bytes as usize,
    };
    let values = unsafe { entry.values(parameters) };
    let begun = Instant::now();
    let launched = match idle() {
        false => launch(entry, &grid, &values),
        true => Ok(()),
    };
    trace(|| {
        let milliseconds = begun.elapsed().as_secs_f64() * 1e3;
        format!(
            "{milliseconds:.3} ms {} {:?} {:?}",
            entry.name, grid.blocks, grid.threads
        )
    });
    match launched {
        Ok(()) => SUCCESS,
        Err(error) => {
            eprintln!("soft-cuda: {}: {error}", entry.name);
            LAUNCH_FAILED
        }
    }
}

/// A stream's name: streams hold nothing.
fn stream_name() -> *mut c_void {
    static NAMES: AtomicUsize = AtomicUsize::new(1);
    ptr::without_provenance_mut(NAMES.fetch_add(1, Ordering::Relaxed))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamCreate(stream: *mut *mut c_void, _flags: c_uint) -> Status {
    unsafe { *stream = stream_name() };
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamCreateWithPriority(
    stream: *mut *mut c_void,
    _flags: c_uint,
    _priority: c_int,
) -> Status {
    unsafe { *stream = stream_name() };
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamDestroy_v2(_stream: *mut c_void) -> Status {
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamSynchronize(_stream: *mut c_void) -> Status {
    trace(|| "the host waits for a stream".to_owned());
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamWaitEvent(stream: *mut c_void, event: *mut c_void, _: c_uint) -> Status {
    in_order(|order| order.stream_waits(stream as usize, event as usize));
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventCreate(event: *mut *mut Instant, _flags: c_uint) -> Status {
    unsafe { *event = Box::into_raw(Box::new(Instant::now())) };
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventDestroy_v2(event: *mut Instant) -> Status {
    drop(unsafe { Box::from_raw(event) });
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventRecord(event: *mut Instant, stream: *mut c_void) -> Status {
    unsafe { *event = Instant::now() };
    in_order(|order| order.record_stream(event as usize, stream as usize));
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuEventSynchronize(_event: *mut Instant) -> Status {
    trace(|| "the host waits for an event".to_owned());
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuEventQuery(_event: *mut Instant) -> Status {
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventElapsedTime(
    milliseconds: *mut f32,
    start: *const Instant,
    end: *const Instant,
) -> Status {
    unsafe { cuEventElapsedTime_v2(milliseconds, start, end) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventElapsedTime_v2(
    milliseconds: *mut f32,
    start: *const Instant,
    end: *const Instant,
) -> Status {
    unsafe { *milliseconds = (*end).duration_since(*start).as_secs_f32() * 1e3 };
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetErrorName(_status: Status, text: *mut *const c_char) -> Status {
    unsafe { *text = c"an error of soft-cuda".as_ptr() };
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetErrorString(_status: Status, text: *mut *const c_char) -> Status {
    unsafe { *text = c"soft-cuda said what on the standard error stream".as_ptr() };
    SUCCESS
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use super::*;
    use crate::copy::{cuMemcpyHtoDAsync_v2, cuMemsetD8Async};

    /// A copy and a launch after a product that nobody waits for.
    #[test]
    fn calls_that_do_not_wait_are_refused() {
        CURRENT.set(77);
        let module = Module::parse(".visible .entry kernel() { ret; }").unwrap();
        let entry = module.entry("kernel").expect("it is called so");
        let launch = || unsafe {
            let none = ptr::null_mut();
            cuLaunchKernel(
                Arc::as_ptr(entry),
                1,
                1,
                1,
                1,
                1,
                1,
                0,
                none,
                ptr::null(),
                none,
            )
        };
        let (mut to, from) = (0u32, 1u32);
        let (to, from) = (&raw mut to as u64, &raw const from as u64);
        let copy = || unsafe { cuMemcpyHtoDAsync_v2(to, from, 4, 0) };
        assert_eq!((launch(), copy()), (SUCCESS, SUCCESS));
        let (stream, event) = (
            ptr::without_provenance_mut(5),
            ptr::without_provenance_mut(6),
        );
        assert_eq!(
            cuCtxRecordEvent(ptr::without_provenance_mut(77), event),
            SUCCESS
        );
        assert_eq!(cuStreamWaitEvent(stream, event, 0), SUCCESS);
        in_order(|order| order.product(5)).expect("it waits");
        assert_ne!(launch(), SUCCESS);
        assert_ne!(copy(), SUCCESS);
        // A memset on a stream that waits for nothing.
        assert_ne!(unsafe { cuMemsetD8Async(to, 0, 4, 9) }, SUCCESS);
    }
}
