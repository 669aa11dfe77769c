//! Loads parameters onto a device, one at a time: from a checkpoint, or random ones.

use batchlora::{FrozenWeight, Nf4};
use burn::{
    module::{Param, ParamId},
    nn::RmsNorm,
    tensor::{Bytes, DType, Device, Distribution, FloatDType, Tensor, TensorData},
};

use crate::{Checkpoint, HostTensor, LlamaConfig, ModelError, Projection, layer::FrozenLinear};

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
        let bytes = Bytes::from_bytes_vec(host.bytes.to_vec());
        let stored = host.dtype.to_burn().into();
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

    /// The embedding, in floating point.
    pub(crate) fn table(
        &self,
        config: &LlamaConfig,
        name: &str,
        shape: [usize; 2],
    ) -> Result<Param<Tensor<2>>, ModelError> {
        if let Some(checkpoint) = self.checkpoint
            && let Some(weight) = checkpoint.nf4(name, shape)?
        {
            let dense = FrozenWeight::from_nf4(&weight, self.dtype, self.device).dense();
            return Ok(frozen(dense.transpose()));
        }
        Ok(frozen(self.dense(config, name, shape)?))
    }

    /// A weight in floating point, `[d_out, d_in]`.
    fn dense(
        &self,
        config: &LlamaConfig,
        name: &str,
        shape: [usize; 2],
    ) -> Result<Tensor<2>, ModelError> {
        let Some(checkpoint) = self.checkpoint else {
            return self.tensor(name, shape);
        };
        let weight = checkpoint.dense(name, shape, config)?;
        Ok(to_device(&weight.host(), self.dtype, self.device))
    }

    /// A weight `[d_out, d_in]`, transposed.
    pub(crate) fn weight(
        &self,
        config: &LlamaConfig,
        module: &str,
        shape: [usize; 2],
    ) -> Result<FrozenWeight, ModelError> {
        let name = format!("{module}.weight");
        let quantization = config.quantization.as_ref();
        let quantization = quantization.filter(|quantization| quantization.covers(module));
        // A checkpoint in NF4 has in floating point what its tool left so.
        let is_nf4 = config.stored.as_ref().is_some_and(|stored| stored.is_nf4);
        let quantization = quantization.filter(|_| !is_nf4);
        let stored = match self.checkpoint {
            Some(checkpoint) => checkpoint.nf4(&name, shape)?,
            None => quantization.map(|quantization| {
                let dtype = self.dtype;
                Nf4::random(shape, dtype, quantization.double_quant)
            }),
        };
        let quantized = match (stored, self.checkpoint, quantization) {
            (None, Some(checkpoint), Some(quantization)) => {
                let weight = checkpoint.dense(&name, shape, config)?;
                let host = weight.host();
                let rounding = host.dtype.to_burn();
                let double_quant = quantization.double_quant;
                Some(Nf4::quantize(&host.to_f32(), shape, rounding, double_quant))
            }
            (stored, ..) => stored,
        };
        if let Some(weight) = quantized {
            return Ok(FrozenWeight::from_nf4(&weight, self.dtype, self.device));
        }
        // A transposed view: the file's [d_out, d_in] stays as it is.
        let weight = self.dense(config, &name, shape)?.transpose();
        Ok(FrozenWeight::Dense(frozen(weight)))
    }

    pub(crate) fn linear(
        &self,
        config: &LlamaConfig,
        projection: Projection,
        layer: usize,
    ) -> Result<FrozenLinear, ModelError> {
        let module = projection.module(layer);
        let shape = config
            .linear(projection)
            .ok_or_else(|| ModelError::NoSuchModule(module.clone()))?;
        let bias = shape
            .bias
            .then(|| self.tensor(&format!("{module}.bias"), [shape.d_out]));
        Ok(FrozenLinear {
            weight: self.weight(config, &module, [shape.d_out, shape.d_in])?,
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
