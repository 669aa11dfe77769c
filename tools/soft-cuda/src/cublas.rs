//! The part of cuBLAS that multiplies, found where this library is also called `libcublas.so.12`.
//! Matrices are stored by columns.

use std::{
    ffi::{c_int, c_longlong, c_void},
    sync::atomic::{AtomicUsize, Ordering},
};

use half::{bf16, f16};

use crate::{
    device::{idle, number},
    driver::{SUCCESS, Status},
    order::in_order,
};

const NOT_INITIALIZED: Status = 1;
const INVALID_VALUE: Status = 7;
const EXECUTION_FAILED: Status = 13;
const NOT_SUPPORTED: Status = 15;

/// That of CUDA 12.9.
const VERSION: c_int = 120_910;

/// `cublasHandle_t`.
#[derive(Debug, Default)]
pub struct Handle {
    stream: usize,
    workspace: usize,
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasCreate_v2(handle: *mut *mut Handle) -> Status {
    unsafe { *handle = Box::into_raw(Box::default()) };
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasGetVersion_v2(_: *const Handle, version: *mut c_int) -> Status {
    unsafe { *version = VERSION };
    SUCCESS
}

/// Takes the workspace away, as cuBLAS does.
#[unsafe(no_mangle)]
unsafe extern "C" fn cublasSetStream_v2(handle: *mut Handle, stream: *mut c_void) -> Status {
    let stream = stream as usize;
    unsafe {
        *handle = Handle {
            stream,
            workspace: 0,
        }
    };
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasSetWorkspace_v2(
    handle: *mut Handle,
    workspace: *mut c_void,
    bytes: usize,
) -> Status {
    if !(workspace as usize).is_multiple_of(256) {
        return INVALID_VALUE;
    }
    unsafe { (*handle).workspace = bytes };
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cublasSetMathMode(_: *mut Handle, mode: c_int) -> Status {
    // The default, without sums in less than `float32`: here are no others.
    match mode {
        16 => SUCCESS,
        _ => NOT_SUPPORTED,
    }
}

/// `cudaDataType`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Type {
    F32,
    F16,
    Bf16,
}

impl Type {
    fn of(code: c_int) -> Option<Self> {
        match code {
            0 => Some(Self::F32),
            2 => Some(Self::F16),
            14 => Some(Self::Bf16),
            _ => None,
        }
    }

    unsafe fn read(self, at: *const c_void, index: usize) -> f32 {
        unsafe {
            match self {
                Self::F32 => at.cast::<f32>().add(index).read(),
                Self::F16 => at.cast::<f16>().add(index).read().to_f32(),
                Self::Bf16 => at.cast::<bf16>().add(index).read().to_f32(),
            }
        }
    }

    unsafe fn write(self, at: *mut c_void, index: usize, value: f32) {
        unsafe {
            match self {
                Self::F32 => at.cast::<f32>().add(index).write(value),
                Self::F16 => at.cast::<f16>().add(index).write(f16::from_f32(value)),
                Self::Bf16 => at.cast::<bf16>().add(index).write(bf16::from_f32(value)),
            }
        }
    }
}

/// The matrices `[rows, columns]` of a batch.
#[derive(Clone, Copy)]
struct Matrices {
    at: *const c_void,
    kind: Type,
    /// Operation 1: they are stored as `[columns, rows]`.
    transposed: bool,
    leading: usize,
    apart: usize,
}

impl Matrices {
    fn new(
        at: *const c_void,
        kind: c_int,
        operation: c_int,
        [rows, columns]: [usize; 2],
        leading: c_int,
        apart: c_longlong,
    ) -> Result<Self, Status> {
        let kind = Type::of(kind).ok_or(NOT_SUPPORTED)?;
        let transposed = match operation {
            0 => false,
            1 => true,
            _ => return Err(INVALID_VALUE),
        };
        let stored = if transposed { columns } else { rows };
        if at.is_null() || (leading as usize) < stored {
            return Err(INVALID_VALUE);
        }
        Ok(Self {
            at,
            kind,
            transposed,
            leading: leading as usize,
            apart: apart as usize,
        })
    }

    fn place(&self, batch: usize, row: usize, column: usize) -> usize {
        let (row, column) = if self.transposed {
            (column, row)
        } else {
            (row, column)
        };
        batch * self.apart + column * self.leading + row
    }

    unsafe fn read(&self, batch: usize, row: usize, column: usize) -> f32 {
        unsafe { self.kind.read(self.at, self.place(batch, row, column)) }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasGemmEx(
    handle: *const Handle,
    op_a: c_int,
    op_b: c_int,
    m: c_int,
    n: c_int,
    k: c_int,
    alpha: *const f32,
    a: *const c_void,
    a_type: c_int,
    a_leading: c_int,
    b: *const c_void,
    b_type: c_int,
    b_leading: c_int,
    beta: *const f32,
    c: *mut c_void,
    c_type: c_int,
    c_leading: c_int,
    compute: c_int,
    algorithm: c_int,
) -> Status {
    unsafe {
        cublasGemmStridedBatchedEx(
            handle, op_a, op_b, m, n, k, alpha, a, a_type, a_leading, 0, b, b_type, b_leading, 0,
            beta, c, c_type, c_leading, 0, 1, compute, algorithm,
        )
    }
}

/// Whether this is the product that `SOFT_CUDA_FAIL_PRODUCT` counts to.
fn fails() -> bool {
    static PRODUCTS: AtomicUsize = AtomicUsize::new(0);
    let product = PRODUCTS.fetch_add(1, Ordering::Relaxed) + 1;
    number("SOFT_CUDA_FAIL_PRODUCT").is_some_and(|failing| failing as usize == product)
}

/// `C = alpha op(A) op(B) + beta C`, summed in `float32`.
#[unsafe(no_mangle)]
unsafe extern "C" fn cublasGemmStridedBatchedEx(
    handle: *const Handle,
    op_a: c_int,
    op_b: c_int,
    m: c_int,
    n: c_int,
    k: c_int,
    alpha: *const f32,
    a: *const c_void,
    a_type: c_int,
    a_leading: c_int,
    a_apart: c_longlong,
    b: *const c_void,
    b_type: c_int,
    b_leading: c_int,
    b_apart: c_longlong,
    beta: *const f32,
    c: *mut c_void,
    c_type: c_int,
    c_leading: c_int,
    c_apart: c_longlong,
    batch: c_int,
    compute: c_int,
    _algorithm: c_int,
) -> Status {
    const FLOAT32: c_int = 68;
    let handle = unsafe { &*handle };
    if handle.stream == 0 || handle.workspace == 0 {
        eprintln!("soft-cuda: a product without a stream or a workspace of its own");
        return NOT_INITIALIZED;
    }
    if let Err(error) = in_order(|order| order.product(handle.stream)) {
        eprintln!("soft-cuda: a product {error}");
        return EXECUTION_FAILED;
    }
    if fails() {
        return EXECUTION_FAILED;
    }
    let (alpha, beta) = unsafe { (*alpha, *beta) };
    if a_type != b_type || compute != FLOAT32 {
        return NOT_SUPPORTED;
    }
    let [m, n, k, batch] = [m, n, k, batch].map(|length| length as usize);
    let left = Matrices::new(a, a_type, op_a, [m, k], a_leading, a_apart);
    let right = Matrices::new(b, b_type, op_b, [k, n], b_leading, b_apart);
    let out = Matrices::new(c, c_type, 0, [m, n], c_leading, c_apart);
    let (left, right, out) = match (left, right, out) {
        (Ok(left), Ok(right), Ok(out)) => (left, right, out),
        (Err(status), _, _) | (_, Err(status), _) | (_, _, Err(status)) => return status,
    };
    if idle() {
        return SUCCESS;
    }
    let mut column_of_b = vec![0.0; k];
    let mut sums = vec![0.0; m];
    for batch in 0..batch {
        for column in 0..n {
            for (step, value) in column_of_b.iter_mut().enumerate() {
                *value = unsafe { right.read(batch, step, column) };
            }
            sums.fill(0.0);
            for (step, value) in column_of_b.iter().enumerate() {
                for (row, sum) in sums.iter_mut().enumerate() {
                    *sum += unsafe { left.read(batch, row, step) } * value;
                }
            }
            for (row, sum) in sums.iter().enumerate() {
                let place = out.place(batch, row, column);
                // What is not added is not read: it may be no number.
                let before = match beta {
                    0.0 => 0.0,
                    beta => beta * unsafe { out.kind.read(c, place) },
                };
                unsafe { out.kind.write(c, place, alpha * sum + before) };
            }
        }
    }
    SUCCESS
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use half::bf16;

    use super::*;
    use crate::order::{CURRENT, Order};

    /// Two products `[2, 3] × [3, 2]` by columns, the left factors transposed, 8 and 16 apart.
    #[test]
    fn products_by_columns() {
        const BF16: i32 = 14;
        const F32: i32 = 0;
        let mut handle = ptr::null_mut();
        assert_eq!(unsafe { cublasCreate_v2(&raw mut handle) }, SUCCESS);
        // A of one batch, by rows: 1 2 3; 4 5 6. The other's is ten times as large.
        let a: Vec<bf16> = [1, 2, 3, 0, 4, 5, 6, 0, 10, 20, 30, 0, 40, 50, 60, 0]
            .map(|value| bf16::from_f32(value as f32))
            .to_vec();
        // B of both, by columns: 1 0 -1, 0 1 0.
        let b: Vec<bf16> = [1, 0, -1, 0, 1, 0]
            .map(|value| bf16::from_f32(value as f32))
            .to_vec();
        let mut c = [f32::NAN; 8];
        let mut multiply = |compute| unsafe {
            cublasGemmStridedBatchedEx(
                handle,
                1,
                0,
                2,
                2,
                3,
                &1.0,
                a.as_ptr().cast(),
                BF16,
                4,
                8,
                b.as_ptr().cast(),
                BF16,
                3,
                0,
                &0.0,
                c.as_mut_ptr().cast(),
                F32,
                2,
                4,
                2,
                compute,
                -1,
            )
        };
        assert_eq!(multiply(68), NOT_INITIALIZED);
        let stream = ptr::without_provenance_mut(4096);
        assert_eq!(unsafe { cublasSetStream_v2(handle, stream) }, SUCCESS);
        assert_eq!(
            unsafe { cublasSetWorkspace_v2(handle, stream, 1024) },
            SUCCESS
        );
        // TF32 drops bits of float32.
        assert_eq!(multiply(77), NOT_SUPPORTED);
        assert_eq!(multiply(68), SUCCESS);
        assert_eq!(c, [-2.0, -2.0, 2.0, 5.0, -20.0, -20.0, 20.0, 50.0]);
    }

    /// A product after a launch that it does not wait for, or without what it is to have of its own.
    #[test]
    fn products_that_could_go_wrong_are_refused() {
        CURRENT.set(78);
        in_order(Order::launch).expect("the first");
        let product = |stream, workspace| {
            let (one, none) = ([1f32], ptr::null());
            let handle = Handle { stream, workspace };
            let matrix = one.as_ptr().cast::<c_void>();
            unsafe {
                cublasGemmEx(
                    &handle,
                    0,
                    0,
                    1,
                    1,
                    1,
                    one.as_ptr(),
                    matrix,
                    0,
                    1,
                    matrix,
                    0,
                    1,
                    none,
                    ptr::null_mut(),
                    0,
                    1,
                    68,
                    -1,
                )
            }
        };
        assert_eq!(product(9, 256), EXECUTION_FAILED);
        assert_eq!(product(9, 0), NOT_INITIALIZED);
        assert_eq!(product(0, 256), NOT_INITIALIZED);
        assert_eq!(cublasSetMathMode(ptr::null_mut(), 0), NOT_SUPPORTED);
    }
}
