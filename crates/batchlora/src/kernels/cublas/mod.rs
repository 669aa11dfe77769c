//! Products by cuBLAS on CubeCL's buffers, in the order of CubeCL's queue.
//!
//! CubeCL's streams are private. A product is a task on the device's thread, between two launches: a
//! stream of its own waits for all work that was given to the context, runs cuBLAS, and all later work
//! of the context waits for it. The host waits for nothing.
//!
//! Sums are `float32`, also where factors are `bfloat16` or `float16`; `float32` factors keep all their
//! bits. The library is loaded while the program runs: where it, a function of it or of the driver is
//! missing, Burn's kernels compute, and [`version`] says why.

mod library;

use std::{
    cell::RefCell,
    collections::BTreeMap,
    ffi::{c_int, c_longlong, c_uint, c_void},
    ptr,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use burn::{
    backend::{StreamId, TensorMetadata},
    tensor::DType,
};
use burn_cubecl::{
    CubeDevice,
    cubecl::{
        __private::Runtime,
        client::Client,
        cuda::CudaRuntime,
        device::DeviceId,
        device_handle::DeviceHandle,
        dry_run::launch_mode,
        server::{BufferBinding, ServerStorage},
    },
    tensor::CubeTensor,
};

use library::{Libraries, Pointer, call, libraries};

use super::{
    count,
    launch::{empty, record, record_elements},
};

type Server = <CudaRuntime as Runtime>::Server;

/// Bytes that cuBLAS may use beside operands: what it takes by itself on Hopper. Fixed, so that a
/// product has the same bits every time.
const WORKSPACE: usize = 32 << 20;

/// A cuBLAS handle with its stream and events. Each device's thread has its own.
struct Blas {
    libraries: &'static Libraries,
    handle: Pointer,
    context: Pointer,
    stream: Pointer,
    /// All work that the context had before a product.
    before: Pointer,
    /// The product.
    after: Pointer,
    /// Products that are timed: name, bytes, events before and after.
    times: RefCell<Vec<(String, u64, [Pointer; 2])>>,
}

thread_local! {
    static BLAS: RefCell<Option<Blas>> = const { RefCell::new(None) };
}

impl Blas {
    fn new(libraries: &'static Libraries) -> Result<Self, String> {
        const NON_BLOCKING: c_uint = 1;
        const WITHOUT_TIMES: c_uint = 2;
        // Splits of a long sum are added in `float32`, too.
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

    fn version(&self) -> Result<c_int, String> {
        let mut version = 0;
        call!(
            self.libraries.cublas,
            cublasGetVersion_v2,
            self.handle,
            &raw mut version
        )?;
        Ok(version)
    }

    /// Work on the stream, after all work that the context has and before all that it will get.
    fn in_order(&self, work: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
        let driver = &self.libraries.driver;
        call!(driver, cuCtxRecordEvent, self.context, self.before)?;
        call!(driver, cuStreamWaitEvent, self.stream, self.before, 0)?;
        let worked = work();
        call!(driver, cuEventRecord, self.after, self.stream)?;
        call!(driver, cuCtxWaitEvent, self.context, self.after)?;
        worked
    }

    fn multiply(&self, product: &Product, [left, right, out]: [u64; 3]) -> Result<(), String> {
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
        // By rows, C = A B; by columns, which is how cuBLAS reads the same memory, Cᵀ = Bᵀ Aᵀ.
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

    /// Work between two events, which [`take_times`] reads.
    fn time(
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

    /// The products that were timed, with their seconds and bytes. They have to be done.
    fn times(&self) -> Result<Vec<(String, f64, u64)>, String> {
        let driver = &self.libraries.driver;
        let timed = self.times.take().into_iter();
        timed
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
    fn spoil(&self, out: u64, bytes: u64) -> Result<(), String> {
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

/// Does something on this thread, which is a device's.
fn with_blas<T>(work: impl FnOnce(&Blas) -> Result<T, String>) -> Result<T, String> {
    BLAS.with_borrow_mut(|held| {
        let blas = match held.take() {
            Some(blas) => blas,
            None => Blas::new(libraries()?)?,
        };
        work(held.insert(blas))
    })
}

/// Matrices of a batch.
#[derive(Clone, Copy)]
struct Matrices {
    /// Neighbours in memory are in one column.
    transposed: bool,
    /// Elements from one row, or column, to the next.
    leading: c_int,
    /// Elements from one matrix to the next.
    apart: c_longlong,
}

impl Matrices {
    /// `[rows, columns]` or `[batch, rows, columns]`, if cuBLAS can read it as it is.
    fn of(tensor: &CubeTensor) -> Option<Self> {
        let dims = tensor.meta.num_dims();
        if !(2..=3).contains(&dims) || tensor.meta.is_tiled() {
            return None;
        }
        let (shape, strides) = (tensor.meta.shape(), tensor.meta.strides());
        let [rows, columns] = [shape[dims - 2], shape[dims - 1]];
        let [down, along] = [strides[dims - 2], strides[dims - 1]];
        let (transposed, lines, length, leading) = if along == 1 || columns == 1 {
            (false, rows, columns, down)
        } else if down == 1 || rows == 1 {
            (true, columns, rows, along)
        } else {
            return None;
        };
        if length == 0 || lines == 0 || lines > 1 && leading < length {
            return None;
        }
        Some(Self {
            transposed,
            leading: leading.max(length).try_into().ok()?,
            apart: match shape[0] {
                batch if dims == 3 && batch > 1 => strides[0] as c_longlong,
                _ => 0,
            },
        })
    }
}

struct Product {
    m: c_int,
    n: c_int,
    k: c_int,
    batch: c_int,
    left: Matrices,
    right: Matrices,
    out: Matrices,
    /// Bytes before the first line of the result.
    offset: u64,
    /// Whether the result is added to what is there.
    add: bool,
    /// `cudaDataType` of the factors, and of the result.
    types: [c_int; 2],
}

/// `cudaDataType` of factors and result, where cuBLAS multiplies these with sums in `float32`.
fn types(factors: DType, result: DType) -> Option<[c_int; 2]> {
    let of = |dtype| match dtype {
        DType::F32 => Some(0),
        DType::F16 => Some(2),
        DType::BF16 => Some(14),
        _ => None,
    };
    (result == factors || result == DType::F32).then_some([of(factors)?, of(result)?])
}

/// cuBLAS's version on the device, or why it is not in use. The first call on a device opens it.
pub(super) fn version(client: &Client) -> Result<c_int, String> {
    static VERSIONS: Mutex<BTreeMap<DeviceId, Result<c_int, String>>> = Mutex::new(BTreeMap::new());
    let device = client.service_id().device;
    let mut versions = VERSIONS.lock().unwrap_or_else(PoisonError::into_inner);
    let version = versions.entry(device).or_insert_with(|| {
        libraries()?;
        let opened = handle(client).submit_blocking(|_| with_blas(Blas::version));
        opened.unwrap_or_else(|error| Err(format!("{error:?}")))
    });
    version.clone()
}

static TIMED: AtomicBool = AtomicBool::new(false);

/// Begins or ends to time products.
pub(super) fn time_products(timed: bool) {
    TIMED.store(timed, Ordering::Relaxed);
}

/// Names, seconds and bytes of the products that were timed on a device, which has to be at rest.
pub(super) fn take_times(client: &Client) -> Vec<(String, f64, u64)> {
    if version(client).is_err() {
        return Vec::new();
    }
    let times = handle(client).submit_blocking(|_| with_blas(Blas::times));
    times.ok().and_then(Result::ok).unwrap_or_default()
}

/// The error of the first product that failed. Its result is NaN where its memory can be reached.
static FAILURE: Mutex<Option<String>> = Mutex::new(None);

/// Takes the error.
pub(crate) fn take_failure() -> Option<String> {
    let mut failure = FAILURE.lock().unwrap_or_else(PoisonError::into_inner);
    failure.take()
}

/// `lhs · rhs` over the last two dimensions, or nothing where cuBLAS is not in use or does not read
/// these operands.
pub(super) fn product(lhs: &CubeTensor, rhs: &CubeTensor, dtype: DType) -> Option<CubeTensor> {
    let operands = operands(lhs, rhs, dtype)?;
    let dims = lhs.meta.num_dims();
    let mut shape = lhs.shape();
    shape[dims - 1] = rhs.meta.shape()[dims - 1];
    if dims == 3 {
        shape[0] = shape[0].max(rhs.meta.shape()[0]);
    }
    let out = empty(lhs, shape, dtype);
    multiply(operands, [lhs, rhs, &out], 0, false).then_some(out)
}

/// `lhs · rhs` as lines `first..` of the matrices of `out`, or added to them, if cuBLAS can.
pub(super) fn product_onto(
    lhs: &CubeTensor,
    rhs: &CubeTensor,
    out: &CubeTensor,
    first: usize,
    add: bool,
) -> bool {
    operands(lhs, rhs, out.dtype)
        .is_some_and(|operands| multiply(operands, [lhs, rhs, out], first, add))
}

/// Types and factors, where cuBLAS is in use and reads these.
fn operands(
    lhs: &CubeTensor,
    rhs: &CubeTensor,
    dtype: DType,
) -> Option<([c_int; 2], [Matrices; 2])> {
    let CubeDevice::Cuda(_) = lhs.device else {
        return None;
    };
    let types = types(lhs.dtype, dtype).filter(|_| lhs.dtype == rhs.dtype)?;
    let factors = [Matrices::of(lhs)?, Matrices::of(rhs)?];
    let same = lhs.meta.num_dims() == rhs.meta.num_dims();
    (same && version(&lhs.client).is_ok()).then_some((types, factors))
}

/// Submits a product, if its sizes are cuBLAS's.
fn multiply(
    (types, [left, right]): ([c_int; 2], [Matrices; 2]),
    [lhs, rhs, out]: [&CubeTensor; 3],
    first: usize,
    add: bool,
) -> bool {
    let dims = lhs.meta.num_dims();
    let (left_shape, right_shape) = (lhs.meta.shape(), rhs.meta.shape());
    let sizes = [
        left_shape[dims - 2],
        right_shape[dims - 1],
        left_shape[dims - 1],
        if dims == 3 { out.meta.shape()[0] } else { 1 },
    ];
    let [Ok(m), Ok(n), Ok(k), Ok(batch)] = sizes.map(c_int::try_from) else {
        return false;
    };
    let Some(result) = Matrices::of(out).filter(|out| !out.transposed) else {
        return false;
    };
    let product = Product {
        m,
        n,
        k,
        batch,
        left,
        right,
        out: result,
        offset: (first * out.meta.strides()[dims - 2] * out.dtype.size()) as u64,
        add,
        types,
    };
    record(&[lhs, rhs], &[]);
    let written = sizes[0] * sizes[1] * sizes[3];
    record_elements(out.dtype, if add { 2 * written } else { written });
    count::launched();
    let timed = TIMED.load(Ordering::Relaxed).then(|| {
        let [m, n, k, batch] = sizes;
        let name = format!("cuBLAS {batch} x [{m}, {k}] x [{k}, {n}] {:?}", lhs.dtype);
        (name, count::take_moved())
    });
    if launch_mode().is_skipped() {
        return true;
    }
    let bindings = [lhs, rhs, out].map(|tensor| tensor.handle.clone().binding());
    handle(&lhs.client).submit(move |server| {
        if let Err(failure) = run(server, bindings, &product, timed) {
            let mut first = FAILURE.lock().unwrap_or_else(PoisonError::into_inner);
            first.get_or_insert(failure);
        }
    });
    true
}

/// On the device's thread.
fn run(
    server: &mut Server,
    bindings: [BufferBinding; 3],
    product: &Product,
    timed: Option<(String, u64)>,
) -> Result<(), String> {
    let stream = StreamId::current();
    // They hold their memory until the product is in order.
    let [left, right, out] = bindings.map(|binding| {
        let resource = server.get_resource(binding, stream);
        resource.map_err(|error| error.to_string())
    });
    let out = out?;
    with_blas(|blas| {
        let at = out.resource();
        let multiplied = match (&left, &right) {
            (Ok(left), Ok(right)) => {
                let places = [
                    left.resource().ptr,
                    right.resource().ptr,
                    at.ptr + product.offset,
                ];
                blas.in_order(|| match timed {
                    Some((name, bytes)) => {
                        blas.time(name, bytes, || blas.multiply(product, places))
                    }
                    None => blas.multiply(product, places),
                })
            }
            (Err(error), _) | (_, Err(error)) => Err(error.clone()),
        };
        multiplied.or_else(|failure| blas.spoil(at.ptr, at.size).and(Err(failure)))
    })
}

fn handle(client: &Client) -> DeviceHandle<Server> {
    DeviceHandle::new(client.service_id().device)
}
