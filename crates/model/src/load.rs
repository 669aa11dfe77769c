//! Loads parameters onto a device, one at a time: from a checkpoint, or random ones.

use burn::{
    module::{Param, ParamId},
    nn::{Linear, RmsNorm},
    tensor::{Bytes, DType, Device, Distribution, FloatDType, Tensor, TensorData},
};

use crate::{Checkpoint, HostTensor, LlamaConfig, ModelError, Projection, TensorDtype};

/// Bound of a uniform distribution with deviation 0.02, the Llama family's initialisation.
const RANDOM: Distribution = Distribution::Uniform(-0.035, 0.035);

/// Puts a tensor on a device, in this type.
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

/// Source of a model's parameters, and the device they go to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Loader<'a> {
    /// `None` makes random parameters.
    pub(crate) checkpoint: Option<&'a Checkpoint>,
    pub(crate) dtype: FloatDType,
    pub(crate) device: &'a Device,
}

impl Loader<'_> {
    fn tensor<const D: usize>(
        &self,
        name: &str,
        shape: [usize; D],
    ) -> Result<Tensor<D>, ModelError> {
        match self.checkpoint {
            Some(checkpoint) => {
                let host = checkpoint.expect(name, &shape)?;
                Ok(to_device(&host, self.dtype, self.device))
            }
            None => Ok(Tensor::random(shape, RANDOM, self.options())),
        }
    }

    fn options(&self) -> (&Device, DType) {
        (self.device, DType::from(self.dtype))
    }

    pub(crate) fn table(
        &self,
        name: &str,
        shape: [usize; 2],
    ) -> Result<Param<Tensor<2>>, ModelError> {
        Ok(frozen(self.tensor(name, shape)?))
    }

    pub(crate) fn linear(
        &self,
        config: &LlamaConfig,
        projection: Projection,
        layer: usize,
    ) -> Result<Linear, ModelError> {
        let module = projection.module(layer);
        let shape = config
            .linear(projection)
            .ok_or_else(|| ModelError::NoSuchModule(module.clone()))?;
        let weight = self.tensor(&format!("{module}.weight"), [shape.d_out, shape.d_in])?;
        let bias = shape
            .bias
            .then(|| self.tensor(&format!("{module}.bias"), [shape.d_out]));
        // A transposed view: the file's [d_out, d_in] stays as it is.
        Ok(Linear {
            weight: frozen(Tensor::<2>::transpose(weight)),
            bias: bias.transpose()?.map(frozen),
        })
    }

    pub(crate) fn norm(
        &self,
        name: &str,
        width: usize,
        config: &LlamaConfig,
    ) -> Result<RmsNorm, ModelError> {
        let gamma = match self.checkpoint {
            // 1 + weight would lose its last bits in half precision.
            Some(checkpoint) if config.norm_plus_one => {
                let host = checkpoint.expect(name, &[width])?;
                to_device::<1>(&host, FloatDType::F32, self.device).add_scalar(1.0)
            }
            Some(_) => self.tensor(name, [width])?,
            None => Tensor::ones([width], self.options()),
        };
        Ok(RmsNorm {
            gamma: frozen(gamma),
            epsilon: config.rms_norm_eps,
        })
    }
}
