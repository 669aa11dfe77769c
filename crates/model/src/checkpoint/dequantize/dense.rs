use std::borrow::Cow;

use safetensors::Dtype;

use super::{parts::Parts, values::Quantized};
use crate::{
    checkpoint::{Checkpoint, HostTensor, TensorDtype},
    config::LlamaConfig,
    error::ModelError,
};

/// A weight `[d_out, d_in]` in floating point.
#[derive(Debug)]
pub(crate) struct DenseWeight<'a> {
    shape: [usize; 2],
    dtype: TensorDtype,
    bytes: Cow<'a, [u8]>,
}

impl DenseWeight<'_> {
    pub(crate) fn host(&self) -> HostTensor<'_> {
        HostTensor {
            shape: &self.shape,
            dtype: self.dtype,
            bytes: &self.bytes,
        }
    }
}

impl Checkpoint {
    /// A weight `[d_out, d_in]` in floating point: as it is stored, or made so, in the type of scales of 16 bits and else in
    /// that of the model.
    ///
    /// # Errors
    /// If it does not exist, is of another shape or type, or its parts contradict each other.
    pub(crate) fn dense(
        &self,
        name: &str,
        shape: [usize; 2],
        config: &LlamaConfig,
    ) -> Result<DenseWeight<'_>, ModelError> {
        let quantized = self.quantized_weight(name, shape, config);
        let quantized = quantized.map_err(|reason| self.refused(name, reason))?;
        let Some(quantized) = quantized else {
            let host = self.expect(name, &shape)?;
            return Ok(DenseWeight {
                shape,
                dtype: host.dtype,
                bytes: host.bytes.into(),
            });
        };
        Ok(DenseWeight {
            shape,
            dtype: quantized.dtype,
            bytes: quantized.dense().into(),
        })
    }

    /// True if a weight is stored in FP8 or integers, with parts that fit.
    ///
    /// # Errors
    /// As [`dense`](Self::dense).
    pub(crate) fn is_dequantized(
        &self,
        name: &str,
        shape: &[usize],
        config: &LlamaConfig,
    ) -> Result<bool, ModelError> {
        let Ok(shape) = shape.try_into() else {
            return Ok(false);
        };
        let quantized = self.quantized_weight(name, shape, config);
        let quantized = quantized.map_err(|reason| self.refused(name, reason))?;
        Ok(quantized.is_some())
    }

    fn quantized_weight<'a>(
        &'a self,
        name: &str,
        shape: [usize; 2],
        config: &'a LlamaConfig,
    ) -> Result<Option<Quantized<'a>>, String> {
        let Some(module) = name.strip_suffix(".weight") else {
            return Ok(None);
        };
        let part = |ending: &str| self.part(&format!("{module}.{ending}"));
        let has = |ending| part(ending).is_some();
        let stored = match part("weight") {
            Some((info, _)) if ![Dtype::F8_E4M3, Dtype::I8].contains(&info.dtype) => {
                return Ok(None);
            }
            None if !has("weight_packed") && !has("qweight") => return Ok(None),
            stored => stored,
        };
        let format = config.stored.as_ref();
        let format = format.ok_or("`config.json` has no `quantization_config`")?;
        if format.is_nf4 {
            return Err("it is not in NF4, as `quantization_config` says".to_owned());
        }
        let parts = Parts {
            checkpoint: self,
            module: module.to_owned(),
            stored: format,
        };
        let mut found = match stored {
            Some((info, _)) if info.shape != shape => {
                return Err(format!("its shape is {:?}, not {shape:?}", info.shape));
            }
            Some((info, bytes)) if info.dtype == Dtype::I8 => parts.int8(shape, bytes)?,
            Some((_, bytes)) => parts.fp8(shape, bytes)?,
            None if has("weight_packed") => parts.packed(shape)?,
            None => parts.gptq_or_awq(shape)?,
        };
        if found.dtype == TensorDtype::Float32 {
            found.dtype = config.dtype.unwrap_or(TensorDtype::Bfloat16);
        }
        Ok(Some(found))
    }
}
