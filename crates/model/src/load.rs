//! Tensors of a checkpoint onto a device, one at a time.

use burn::{
    module::{Param, ParamId},
    nn::{Linear, RmsNorm},
    tensor::{Bytes, DType, Device, FloatDType, Tensor, TensorData},
};

use crate::{Checkpoint, HostTensor, LinearShape, ModelError, TensorDtype};

/// Puts a tensor on a device in the type wanted there.
pub(crate) fn to_device<const D: usize>(
    host: &HostTensor<'_>,
    dtype: FloatDType,
    device: &Device,
) -> Tensor<D> {
    let data = if dtype == FloatDType::F32 {
        TensorData::new(host.to_f32(), host.shape.to_vec())
    } else {
        let stored = match host.dtype {
            TensorDtype::Float32 => DType::F32,
            TensorDtype::Float16 => DType::F16,
            TensorDtype::Bfloat16 => DType::BF16,
        };
        let bytes = Bytes::from_bytes_vec(host.bytes.to_vec());
        TensorData::from_bytes(bytes, host.shape.to_vec(), stored).convert_dtype(dtype.into())
    };
    Tensor::from_data(data, (device, DType::from(dtype)))
}

fn frozen<const D: usize>(tensor: Tensor<D>) -> Param<Tensor<D>> {
    Param::initialized(ParamId::new(), tensor).set_require_grad(false)
}

pub(crate) fn load_frozen<const D: usize>(
    checkpoint: &Checkpoint,
    name: &str,
    shape: [usize; D],
    dtype: FloatDType,
    device: &Device,
) -> Result<Param<Tensor<D>>, ModelError> {
    let host = checkpoint.expect(name, &shape)?;
    Ok(frozen(to_device(&host, dtype, device)))
}

pub(crate) fn load_linear(
    checkpoint: &Checkpoint,
    module: &str,
    shape: &LinearShape,
    dtype: FloatDType,
    device: &Device,
) -> Result<Linear, ModelError> {
    let (name, stored) = (format!("{module}.weight"), [shape.d_out, shape.d_in]);
    let weight = to_device::<2>(&checkpoint.expect(&name, &stored)?, dtype, device);
    let name = format!("{module}.bias");
    let bias = shape
        .bias
        .then(|| load_frozen(checkpoint, &name, [shape.d_out], dtype, device));
    // A transposed view: the file's [d_out, d_in] stays as it is.
    Ok(Linear {
        weight: frozen(weight.transpose()),
        bias: bias.transpose()?,
    })
}

pub(crate) fn load_norm(
    checkpoint: &Checkpoint,
    name: &str,
    width: usize,
    epsilon: f64,
    dtype: FloatDType,
    device: &Device,
) -> Result<RmsNorm, ModelError> {
    Ok(RmsNorm {
        gamma: load_frozen(checkpoint, name, [width], dtype, device)?,
        epsilon,
    })
}
