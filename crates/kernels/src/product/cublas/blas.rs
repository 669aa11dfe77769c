//! A cuBLAS handle: a stream of its own, in order with the context's.

use std::{
    cell::RefCell,
    ffi::{c_int, c_uint, c_void},
    ptr,
};

use super::{
    library::{Libraries, Pointer, call, libraries},
    matrices::Product,
};

/// Bytes of cuBLAS's workspace: its own default on Hopper. Fixed, so that a product has the same bits every
/// time.
const WORKSPACE: usize = 32 << 20;

/// A cuBLAS handle with its stream and events. Each device's thread has its own.
pub(super) struct Blas {
    libraries: &'static Libraries,
    handle: Pointer,
    context: Pointer,
    stream: Pointer,
    /// Event after the context's work before a product.
    before: Pointer,
    /// Event after the product.
    after: Pointer,
    /// Timed products: name, bytes, events before and after.
    times: RefCell<Vec<(String, u64, [Pointer; 2])>>,
}

thread_local! {
    static BLAS: RefCell<Option<Blas>> = const { RefCell::new(None) };
}

impl Blas {
    fn new(libraries: &'static Libraries) -> Result<Self, String> {
        const NON_BLOCKING: c_uint = 1;
        const WITHOUT_TIMES: c_uint = 2;
        // Parts of a split sum are added in `float32`.
        const NO_REDUCED_SUMS: c_int = 16;
        let Libraries { cublas, driver } = libraries;
        let mut made = Self {
            libraries,
            handle: ptr::null_mut(),
            context: ptr::null_mut(),
            stream: ptr::null_mut(),
            before: ptr::null_mut(),
            after: ptr::null_mut(),
            times: RefCell::default(),
        };
        let mut workspace = 0;
        call!(driver, cuCtxGetCurrent, &raw mut made.context)?;
        call!(driver, cuStreamCreate, &raw mut made.stream, NON_BLOCKING)?;
        call!(driver, cuEventCreate, &raw mut made.before, WITHOUT_TIMES)?;
        call!(driver, cuEventCreate, &raw mut made.after, WITHOUT_TIMES)?;
        call!(driver, cuMemAlloc_v2, &raw mut workspace, WORKSPACE)?;
        call!(cublas, cublasCreate_v2, &raw mut made.handle)?;
        call!(cublas, cublasSetStream_v2, made.handle, made.stream)?;
        let workspace = ptr::with_exposed_provenance_mut(workspace as usize);
        call!(
            cublas,
            cublasSetWorkspace_v2,
            made.handle,
            workspace,
            WORKSPACE
        )?;
        call!(cublas, cublasSetMathMode, made.handle, NO_REDUCED_SUMS)?;
        Ok(made)
    }

    pub(super) fn version(&self) -> Result<c_int, String> {
        let mut version = 0;
        call!(
            self.libraries.cublas,
            cublasGetVersion_v2,
            self.handle,
            &raw mut version
        )?;
        Ok(version)
    }

    /// Runs work on the stream, after all earlier and before all later work of the context.
    pub(super) fn in_order(&self, work: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
        let driver = &self.libraries.driver;
        call!(driver, cuCtxRecordEvent, self.context, self.before)?;
        call!(driver, cuStreamWaitEvent, self.stream, self.before, 0)?;
        let worked = work();
        call!(driver, cuEventRecord, self.after, self.stream)?;
        call!(driver, cuCtxWaitEvent, self.context, self.after)?;
        worked
    }

    pub(super) fn multiply(
        &self,
        product: &Product,
        [left, right, out]: [u64; 3],
    ) -> Result<(), String> {
        const FLOAT32: c_int = 68;
        const DEFAULT: c_int = -1;
        let [left, right, out] =
            [left, right, out].map(|at| ptr::with_exposed_provenance_mut::<c_void>(at as usize));
        let Product {
            m,
            n,
            k,
            batch,
            types: [factor, result],
            ..
        } = *product;
        let (alpha, beta) = (1f32, f32::from(u8::from(product.add)));
        let (alpha, beta) = ((&raw const alpha).cast(), (&raw const beta).cast());
        let [a, b, c] = [product.left, product.right, product.out];
        let (cublas, handle) = (&self.libraries.cublas, self.handle);
        // cuBLAS reads columns where these are rows: it computes Cᵀ = Bᵀ Aᵀ.
        let [op_b, op_a] = [b, a].map(|matrix| c_int::from(matrix.transposed));
        if batch == 1 {
            return call!(
                cublas,
                cublasGemmEx,
                handle,
                op_b,
                op_a,
                n,
                m,
                k,
                alpha,
                right,
                factor,
                b.leading,
                left,
                factor,
                a.leading,
                beta,
                out,
                result,
                c.leading,
                FLOAT32,
                DEFAULT
            );
        }
        call!(
            cublas,
            cublasGemmStridedBatchedEx,
            handle,
            op_b,
            op_a,
            n,
            m,
            k,
            alpha,
            right,
            factor,
            b.leading,
            b.apart,
            left,
            factor,
            a.leading,
            a.apart,
            beta,
            out,
            result,
            c.leading,
            c.apart,
            batch,
            FLOAT32,
            DEFAULT
        )
    }

    /// Runs work between two events, which [`times`](Self::times) reads.
    pub(super) fn time(
        &self,
        name: String,
        bytes: u64,
        work: impl FnOnce() -> Result<(), String>,
    ) -> Result<(), String> {
        const WITH_TIMES: c_uint = 0;
        let driver = &self.libraries.driver;
        let mut events = [ptr::null_mut(); 2];
        for event in &mut events {
            call!(driver, cuEventCreate, event, WITH_TIMES)?;
        }
        call!(driver, cuEventRecord, events[0], self.stream)?;
        work()?;
        call!(driver, cuEventRecord, events[1], self.stream)?;
        self.times.borrow_mut().push((name, bytes, events));
        Ok(())
    }

    /// Names, seconds and bytes of the timed products, which must have ended.
    pub(super) fn times(&self) -> Result<Vec<(String, f64, u64)>, String> {
        let driver = &self.libraries.driver;
        self.times
            .take()
            .into_iter()
            .map(|(name, bytes, [start, end])| {
                let mut milliseconds = 0.0;
                call!(
                    driver,
                    cuEventElapsedTime,
                    &raw mut milliseconds,
                    start,
                    end
                )?;
                for event in [start, end] {
                    call!(driver, cuEventDestroy_v2, event)?;
                }
                Ok((name, f64::from(milliseconds) / 1e3, bytes))
            })
            .collect()
    }

    /// Fills the result of a failed product with NaN.
    pub(super) fn spoil(&self, out: u64, bytes: u64) -> Result<(), String> {
        let driver = &self.libraries.driver;
        self.in_order(|| {
            call!(
                driver,
                cuMemsetD8Async,
                out,
                0xff,
                bytes as usize,
                self.stream
            )
        })
    }
}

/// Runs work with the handle of this thread, which is a device's.
pub(super) fn with_blas<T>(work: impl FnOnce(&Blas) -> Result<T, String>) -> Result<T, String> {
    BLAS.with_borrow_mut(|held| {
        let blas = match held.take() {
            Some(blas) => blas,
            None => Blas::new(libraries()?)?,
        };
        work(held.insert(blas))
    })
}
