use half::{bf16, f16, slice::HalfFloatSliceExt};

use super::dtype::TensorDtype;

/// Elements converted at a time.
const CHUNK: usize = 4096;

/// A tensor in a memory-mapped file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostTensor<'a> {
    /// Shape; row-major.
    pub shape: &'a [usize],
    /// Type of the elements.
    pub dtype: TensorDtype,
    /// Elements, little-endian, not necessarily aligned.
    pub bytes: &'a [u8],
}

impl HostTensor<'_> {
    /// The elements as `f32`; exact, since every supported type is a subset of it.
    pub fn to_f32(&self) -> Vec<f32> {
        match self.dtype {
            TensorDtype::Float32 => {
                let (words, _) = self.bytes.as_chunks();
                words.iter().map(|word| f32::from_le_bytes(*word)).collect()
            }
            TensorDtype::Float16 => widen(self.bytes, f16::from_le_bytes),
            TensorDtype::Bfloat16 => widen(self.bytes, bf16::from_le_bytes),
        }
    }
}

/// Converts through a small aligned buffer, so that the vectorised conversion can be used on bytes
/// of any alignment without a copy of the tensor.
fn widen<T: Copy + Default>(bytes: &[u8], from_le_bytes: fn([u8; 2]) -> T) -> Vec<f32>
where
    [T]: HalfFloatSliceExt,
{
    let (words, _) = bytes.as_chunks();
    let mut out = vec![0.0; words.len()];
    let mut buffer = [T::default(); CHUNK];
    for (words, out) in words.chunks(CHUNK).zip(out.chunks_mut(CHUNK)) {
        let buffer = &mut buffer[..words.len()];
        for (half, word) in buffer.iter_mut().zip(words) {
            *half = from_le_bytes(*word);
        }
        buffer.convert_to_f32_slice(out);
    }
    out
}
