use burn::tensor::{Device, Tensor, TensorData};

use crate::{LlamaConfig, RopeTable, Sequences};

/// The sequences of a batch and the rotary tables of their tokens, made once and shared by all
/// layers.
#[derive(Debug, Clone)]
pub struct SequenceBatch {
    /// Where sequences begin and end.
    pub sequences: Sequences,
    /// Cosine of every token's position, `[rows, head_dim / 2]`.
    pub cos: Tensor<2>,
    /// Sine of every token's position, `[rows, head_dim / 2]`.
    pub sin: Tensor<2>,
}

impl SequenceBatch {
    /// Whole sequences, positions counted from their beginnings. `rope_lengths` has one entry per
    /// sequence: the length that dynamic rope scaling is computed for, which is that of the longest
    /// sequence it was batched with by its own task, so that other tasks cannot change it.
    pub fn new(
        config: &LlamaConfig,
        sequences: Sequences,
        rope_lengths: &[usize],
        device: &Device,
    ) -> Self {
        let starts = vec![0; sequences.len()];
        Self::at(config, sequences, &starts, rope_lengths, device)
    }

    /// The next tokens of sequences that already have `past` tokens each.
    pub fn following(
        config: &LlamaConfig,
        sequences: Sequences,
        past: usize,
        device: &Device,
    ) -> Self {
        let starts = vec![past; sequences.len()];
        let lengths = vec![past + sequences.longest(); sequences.len()];
        Self::at(config, sequences, &starts, &lengths, device)
    }

    fn at(
        config: &LlamaConfig,
        sequences: Sequences,
        starts: &[usize],
        rope_lengths: &[usize],
        device: &Device,
    ) -> Self {
        let device = device.clone().without_autodiff();
        let half = config.head_dim / 2;
        let mut tables: Vec<RopeTable> = Vec::new();
        let (mut cos, mut sin) = (Vec::new(), Vec::new());
        for ((rows, &start), &length) in sequences.iter().zip(starts).zip(rope_lengths) {
            let length = length.max(start + rows.len());
            let found = tables.iter().position(|table| table.length == length);
            let index = found.unwrap_or_else(|| {
                tables.push(RopeTable::new(&config.rope, config.head_dim, length));
                tables.len() - 1
            });
            let part = start * half..(start + rows.len()) * half;
            cos.extend_from_slice(&tables[index].cos[part.clone()]);
            sin.extend_from_slice(&tables[index].sin[part]);
        }
        let rows = sequences.rows();
        let tensor =
            |values: Vec<f32>| Tensor::from_data(TensorData::new(values, [rows, half]), &device);
        Self {
            sequences,
            cos: tensor(cos),
            sin: tensor(sin),
        }
    }
}
