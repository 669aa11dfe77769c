use std::borrow::Cow;

use safetensors::{Dtype, View};

/// A matrix of 32-bit floats, for `safetensors::serialize`.
#[derive(Debug, Clone, PartialEq)]
pub struct MatrixView<'a> {
    /// Rows and columns.
    pub shape: [usize; 2],
    /// Row-major.
    pub values: Cow<'a, [f32]>,
}

impl View for MatrixView<'_> {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        // The format is little-endian.
        if cfg!(target_endian = "little") {
            return Cow::Borrowed(bytemuck::cast_slice(&self.values));
        }
        let values = self.values.iter();
        Cow::Owned(values.flat_map(|value| value.to_le_bytes()).collect())
    }

    fn data_len(&self) -> usize {
        size_of_val(&*self.values)
    }
}
