//! Products by cuBLAS on CubeCL's buffers, in the order of CubeCL's queue.
//!
//! CubeCL's streams are private. A product is therefore a task on the device's thread, between two launches:
//! a stream of its own waits for all earlier work of the context and runs cuBLAS, and all later work of the
//! context waits for it. The host does not wait.
//!
//! Sums are `float32`, also of `bfloat16` or `float16` factors; `float32` factors keep all their bits. The
//! library is loaded at run time: where it, one of its functions or one of the driver's is missing, Burn's
//! kernels multiply, and [`version`] says why.

mod blas;
mod library;
mod matrices;

use std::{
    collections::BTreeMap,
    ffi::c_int,
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

use blas::{Blas, with_blas};
use library::libraries;
use matrices::{Matrices, Product, types};

use crate::{
    count,
    launch::{empty, record, record_elements},
};

type Server = <CudaRuntime as Runtime>::Server;

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

/// Turns the timing of products on or off.
pub(crate) fn time_products(timed: bool) {
    TIMED.store(timed, Ordering::Relaxed);
}

/// Names, seconds and bytes of the products that were timed on a device, which must be idle.
pub(crate) fn take_times(client: &Client) -> Vec<(String, f64, u64)> {
    if version(client).is_err() {
        return Vec::new();
    }
    let times = handle(client).submit_blocking(|_| with_blas(Blas::times));
    times.ok().and_then(Result::ok).unwrap_or_default()
}

/// The error of the first product that failed. Its result is NaN where its memory can be reached.
static FAILURE: Mutex<Option<String>> = Mutex::new(None);

pub(in crate::product) fn take_failure() -> Option<String> {
    let mut failure = FAILURE.lock().unwrap_or_else(PoisonError::into_inner);
    failure.take()
}

/// `lhs · rhs` over the last two dimensions; `None` where cuBLAS is not in use or cannot read these
/// operands.
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

/// Writes `lhs · rhs` to lines `first..` of the matrices of `out`, or adds it to them; false where cuBLAS
/// cannot.
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

/// Types and factors; `None` where cuBLAS is not in use or cannot read them.
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

/// Submits a product; false if its sizes do not fit cuBLAS's integers.
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

/// Runs a product on the device's thread.
fn run(
    server: &mut Server,
    bindings: [BufferBinding; 3],
    product: &Product,
    timed: Option<(String, u64)>,
) -> Result<(), String> {
    let stream = StreamId::current();
    // The resources keep their memory until the product is in the queue.
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
