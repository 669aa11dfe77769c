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
        let mut bytes = vec![0; self.data_len()];
        let (words, _) = bytes.as_chunks_mut();
        for (word, value) in words.iter_mut().zip(&*self.values) {
            *word = value.to_le_bytes();
        }
        Cow::Owned(bytes)
    }

    fn data_len(&self) -> usize {
        size_of_val(&*self.values)
    }
}
