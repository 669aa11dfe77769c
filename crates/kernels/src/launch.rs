//! Operands of a kernel launch on a CubeCL device: layouts, results, tables, and the record of what a
//! launch reads and writes.

use burn::{
    backend::TensorMetadata,
    tensor::{DType, Shape},
};
use burn_cubecl::{
    CubeDevice,
    cubecl::{
        client::Client,
        prelude::{CubeCount, CubeDim, VectorSize},
        tensor_vector_size_parallel,
    },
    kernel::{into_contiguous, into_contiguous_aligned},
    ops::numeric::{empty_device_dtype, zeros_client},
    tensor::CubeTensor,
};

use crate::count;

/// Elements that a kernel loads at once where it can: those of one counter of the dropout generator. Elsewhere
/// it loads one by one; sizes between would only add kernels to compile.
const VECTOR: usize = 4;
/// Elements of two bytes that a kernel loads at once on CUDA devices.
const HALF_VECTOR: usize = 8;
/// Cubes that every API allows along one dimension.
const MOST_CUBES: usize = 65_535;

/// The tensor with its last dimension contiguous; rows may lie apart. Copies any other layout.
pub fn by_rows(tensor: CubeTensor) -> CubeTensor {
    let dims = tensor.meta.num_dims();
    let (shape, strides) = (tensor.meta.shape(), tensor.meta.strides());
    let contiguous_rows = strides[dims - 1] == 1 || shape[dims - 1] == 1;
    if dims == 2 && contiguous_rows && !tensor.meta.is_tiled() {
        return tensor;
    }
    into_contiguous_aligned(tensor)
}

/// The tensor contiguous, copied if it is not.
pub fn packed(tensor: CubeTensor) -> CubeTensor {
    if tensor.is_contiguous() && !tensor.meta.is_tiled() {
        return tensor;
    }
    into_contiguous(tensor)
}

/// The tensor by rows and safe to write in place: itself if it has no other owner, else a copy.
pub fn writable(tensor: CubeTensor) -> CubeTensor {
    let tensor = by_rows(tensor);
    if tensor.can_mut() && tensor.is_nonoverlapping() {
        return tensor;
    }
    record(&[&tensor], &[]);
    record_elements(tensor.dtype, tensor.shape().num_elements());
    tensor.copy()
}

/// An uninitialised tensor on the device of `like`.
pub fn empty(like: &CubeTensor, shape: impl Into<Shape>, dtype: DType) -> CubeTensor {
    empty_device_dtype(
        like.client.clone(),
        like.device.clone(),
        shape.into(),
        dtype,
    )
}

/// Zeros on the device of `like`.
pub fn zeros(like: &CubeTensor, shape: impl Into<Shape>, dtype: DType) -> CubeTensor {
    zeros_client(
        like.client.clone(),
        like.device.clone(),
        shape.into(),
        dtype,
    )
}

/// Uploads words as a one-dimensional tensor of at least one: a kernel cannot bind an empty buffer.
pub fn table(client: &Client, device: &CubeDevice, words: &[u32]) -> CubeTensor {
    let words = if words.is_empty() { &[0] } else { words };
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    CubeTensor::new_contiguous(
        client.clone(),
        device.clone(),
        Shape::new([words.len()]),
        client.create_from_slice(&bytes),
        DType::U32,
    )
}

/// The number of elements of the last dimension that a kernel can load at once from each of these tensors.
pub fn vector_size(tensors: &[&CubeTensor]) -> VectorSize {
    let longest = |tensor: &&CubeTensor| {
        let sizes = tensor
            .client
            .io_optimized_vector_sizes(tensor.dtype.size())
            .filter(|&size| size == VECTOR);
        let axis = tensor.meta.num_dims() - 1;
        tensor_vector_size_parallel(sizes, tensor.meta.shape(), tensor.meta.strides(), axis)
    };
    tensors.iter().map(longest).min().unwrap_or(1)
}

/// As [`vector_size`], for a kernel without dropout: 16 bytes of each tensor where all have elements of two.
pub fn wide_vector_size(tensors: &[&CubeTensor]) -> VectorSize {
    let takes = |tensor: &&CubeTensor| {
        let fits = |size: usize| size.is_multiple_of(HALF_VECTOR);
        let (last, rows) = tensor.meta.strides().split_last().unwrap_or((&1, &[]));
        matches!(tensor.device, CubeDevice::Cuda(_))
            && tensor.dtype.size() == 2
            && *last == 1
            && tensor.meta.shape().last().is_some_and(|&width| fits(width))
            && rows.iter().all(|&stride| fits(stride))
            && fits(tensor.handle.offset_start.unwrap_or(0) as usize / 2)
    };
    if tensors.iter().all(takes) {
        HALF_VECTOR
    } else {
        vector_size(tensors)
    }
}

/// A cube of `x` by `y` units; units next to each other along `x` take neighbours in memory.
pub fn cube_dim(x: usize, y: usize) -> CubeDim {
    CubeDim::new_2d(x as u32, y as u32)
}

/// At least `count` cubes, in a rectangle: kernels number them by `CUBE_POS`.
pub fn cubes(count: usize) -> CubeCount {
    let down = count.div_ceil(MOST_CUBES).max(1);
    CubeCount::Static(count.div_ceil(down) as u32, down as u32, 1)
}

/// Records that the next launch reads and writes these tensors once each; a tensor updated in place is in
/// both lists.
///
/// # Panics
/// If a tensor has more than 2^32 elements, which kernels cannot count, or a written tensor overlaps another operand:
/// kernels are compiled on the assumption that none does.
pub fn record(read: &[&CubeTensor], written: &[&CubeTensor]) {
    for tensor in read.iter().chain(written) {
        let elements = tensor.shape().num_elements();
        assert!(
            u32::try_from(elements).is_ok(),
            "a tensor of {elements} elements, {:?}: kernels count up to 2^32",
            tensor.shape()
        );
    }
    for (index, tensor) in written.iter().enumerate() {
        let mut others = read.iter().chain(&written[..index]);
        assert!(
            others.all(|other| std::ptr::eq(*other, *tensor) || !overlap(other, tensor)),
            "a kernel would write what it has as another operand, too: {:?}",
            tensor.shape()
        );
    }
    if count::active() {
        let tensors = read.iter().chain(written);
        count::moved(tensors.map(|tensor| bytes(tensor)).sum());
    }
}

/// True if two tensors share memory.
fn overlap(one: &CubeTensor, other: &CubeTensor) -> bool {
    let [one, other] = [one, other].map(|tensor| &tensor.handle);
    let [of_one, of_other] = [one, other].map(|handle| {
        let start = handle.offset_start.unwrap_or(0);
        start..start + handle.size_in_used()
    });
    one.memory.descriptor() == other.memory.descriptor()
        && of_one.start < of_other.end
        && of_other.start < of_one.end
}

/// Records that the next launch reads or writes this number of elements.
pub fn record_elements(dtype: DType, elements: usize) {
    if count::active() {
        count::moved((elements * dtype.size()) as u64);
    }
}

/// Records that the next launch draws a dropout mask.
pub fn record_mask() {
    count::drew();
}

fn bytes(tensor: &CubeTensor) -> u64 {
    (tensor.shape().num_elements() * tensor.dtype.size()) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cubes_are_enough_and_few_more() {
        for count in [1, 65_535, 65_536, 131_071, 10_000_001] {
            let CubeCount::Static(along, down, 1) = cubes(count) else {
                panic!("cubes of a count are known");
            };
            let (along, down) = (along as usize, down as usize);
            assert!(along <= MOST_CUBES && down <= MOST_CUBES);
            assert!((count..count + down).contains(&(along * down)), "{count}");
        }
    }
}
