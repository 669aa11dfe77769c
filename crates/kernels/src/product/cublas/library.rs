//! The functions of cuBLAS and of the driver that products call, found by name.

use std::{
    env,
    ffi::{c_int, c_longlong, c_uint, c_void},
    sync::OnceLock,
};

use libloading::Library;

/// Environment variable: `on` (the default) or `off`, for comparisons.
const SWITCH: &str = "BATCHLORA_CUBLAS";
/// File names, newest version first.
const CUBLAS: [&str; 3] = ["libcublas.so.13", "libcublas.so.12", "libcublas.so"];
const DRIVER: [&str; 2] = ["libcuda.so.1", "libcuda.so"];

pub(super) type Pointer = *mut c_void;

macro_rules! functions {
    ($name:ident, $($function:ident($($argument:ty),*);)*) => {
        #[allow(non_snake_case, reason = "the library's names")]
        pub(super) struct $name {
            $(pub(super) $function: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl $name {
            fn load(names: &[&str]) -> Result<Self, String> {
                let library = open(names)?;
                // SAFETY: these are the types of the functions in the library's headers, from 12.5 on.
                unsafe {
                    Ok(Self {
                        $($function: *library
                            .get(concat!(stringify!($function), "\0").as_bytes())
                            .map_err(|_| format!("{} has no {}", names[0], stringify!($function)))?,)*
                    })
                }
            }
        }
    };
}

functions! {
    Cublas,
    cublasCreate_v2(*mut Pointer);
    cublasGetVersion_v2(Pointer, *mut c_int);
    cublasSetStream_v2(Pointer, Pointer);
    cublasSetWorkspace_v2(Pointer, Pointer, usize);
    cublasSetMathMode(Pointer, c_int);
    cublasGemmEx(
        Pointer, c_int, c_int, c_int, c_int, c_int, *const c_void,
        *const c_void, c_int, c_int, *const c_void, c_int, c_int, *const c_void,
        *mut c_void, c_int, c_int, c_int, c_int
    );
    cublasGemmStridedBatchedEx(
        Pointer, c_int, c_int, c_int, c_int, c_int, *const c_void,
        *const c_void, c_int, c_int, c_longlong,
        *const c_void, c_int, c_int, c_longlong, *const c_void,
        *mut c_void, c_int, c_int, c_longlong, c_int, c_int, c_int
    );
}

functions! {
    Driver,
    cuDriverGetVersion(*mut c_int);
    cuCtxGetCurrent(*mut Pointer);
    cuCtxRecordEvent(Pointer, Pointer);
    cuCtxWaitEvent(Pointer, Pointer);
    cuStreamCreate(*mut Pointer, c_uint);
    cuStreamWaitEvent(Pointer, Pointer, c_uint);
    cuEventCreate(*mut Pointer, c_uint);
    cuEventRecord(Pointer, Pointer);
    cuEventElapsedTime(*mut f32, Pointer, Pointer);
    cuEventDestroy_v2(Pointer);
    cuMemAlloc_v2(*mut u64, usize);
    cuMemsetD8Async(u64, u8, usize, Pointer);
}

/// Loads the first of these libraries that exists; it stays loaded.
fn open(names: &[&str]) -> Result<&'static Library, String> {
    let mut first = None;
    for name in names {
        // SAFETY: NVIDIA's libraries do nothing when they are loaded.
        match unsafe { Library::new(*name) } {
            Ok(library) => return Ok(Box::leak(Box::new(library))),
            Err(error) => first = first.or(Some(error)),
        }
    }
    let error = first.map_or_else(String::new, |error| error.to_string());
    Err(format!("no {} was found: {error}", names[0]))
}

pub(super) struct Libraries {
    pub(super) cublas: Cublas,
    pub(super) driver: Driver,
}

/// Both libraries, loaded on the first call, or why they could not be.
pub(super) fn libraries() -> Result<&'static Libraries, String> {
    static LIBRARIES: OnceLock<Result<Libraries, String>> = OnceLock::new();
    let libraries = LIBRARIES.get_or_init(|| {
        match env::var(SWITCH).as_deref() {
            Ok("on") | Err(env::VarError::NotPresent) => {}
            Ok("off") => return Err(format!("{SWITCH} is off")),
            _ => return Err(format!("{SWITCH} is neither on nor off")),
        }
        let driver = Driver::load(&DRIVER)?;
        let mut version = 0;
        // SAFETY: the function writes one integer.
        let status = unsafe { (driver.cuDriverGetVersion)(&raw mut version) };
        succeeds(status, "cuDriverGetVersion")?;
        let cublas = Cublas::load(&names(version))?;
        Ok(Libraries { cublas, driver })
    });
    libraries.as_ref().map_err(Clone::clone)
}

/// File names for a driver of this version: a newer cuBLAS would load and fail later.
fn names(version: c_int) -> Vec<&'static str> {
    let newer = |name: &&str| name.ends_with(".13") && version < 13_000;
    CUBLAS.into_iter().filter(|name| !newer(name)).collect()
}

pub(super) fn succeeds(status: c_int, call: &str) -> Result<(), String> {
    match status {
        0 => Ok(()),
        status => {
            // `CUBLAS_STATUS_ALLOC_FAILED` and `CUDA_ERROR_OUT_OF_MEMORY`.
            let memory = if call.starts_with("cublas") { 3 } else { 2 };
            let what = if status == memory {
                ", out of memory"
            } else {
                ""
            };
            Err(format!("{call} failed with status {status}{what}"))
        }
    }
}

/// Calls a function of a library; an error names it and its status.
macro_rules! call {
    ($library:expr, $function:ident, $($argument:expr),*) => {
        // SAFETY: pointers point to live memory of the type that the function takes, or were made by it.
        $crate::product::cublas::library::succeeds(unsafe { ($library.$function)($($argument),*) }, stringify!($function))
    };
}
pub(super) use call;

#[cfg(test)]
mod tests {
    use super::{names, succeeds};

    #[test]
    fn a_driver_gets_no_library_that_is_newer() {
        assert_eq!(names(12_090), ["libcublas.so.12", "libcublas.so"]);
        assert_eq!(names(13_000)[0], "libcublas.so.13");
    }

    /// The trainer recognises these words and parks a task.
    #[test]
    fn memory_that_runs_out_is_named() {
        for (status, call) in [(3, "cublasGemmEx"), (2, "cuMemAlloc_v2")] {
            let failure = succeeds(status, call).expect_err("it failed");
            assert!(failure.contains("out of memory"), "{failure}");
        }
        let failure = succeeds(13, "cublasGemmEx").expect_err("it failed");
        assert_eq!(failure, "cublasGemmEx failed with status 13");
    }
}
