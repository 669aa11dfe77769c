use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use burn::tensor::{Device, Int, Tensor, TensorData};

use crate::{
    BlockTables, LayerRotation, LlamaConfig, RopeConfig, RopeTable, Sequences, config::RopeScaling,
};

/// Tables kept for different lengths where scaling depends on the length.
const MOST_TABLES: usize = 8;

/// The rotary tables of a model on a device, from which batches gather the rows of their tokens: a batch
/// uploads positions, four bytes a token.
#[derive(Debug)]
pub struct RotaryTables {
    global: Tables,
    /// For layers with a rotation of their own.
    local: Option<Tables>,
}

/// The tables of one rotary embedding.
#[derive(Debug)]
struct Tables {
    rope: RopeConfig,
    device: Device,
    made: Mutex<Vec<Table>>,
}

/// Cosines and sines of the first positions, `[positions, rotary_dim / 2]`.
#[derive(Debug, Clone)]
struct Table {
    /// See [`Tables::scaled_for`].
    scaled_for: usize,
    cos: Tensor<2>,
    sin: Tensor<2>,
}

impl Table {
    fn positions(&self) -> usize {
        self.cos.dims()[0]
    }
}

impl RotaryTables {
    /// Tables of this configuration; the first batch computes them.
    pub fn new(config: &LlamaConfig, device: &Device) -> Self {
        let tables = |rope: &RopeConfig| Tables {
            rope: rope.clone(),
            device: device.clone().without_autodiff(),
            made: Mutex::default(),
        };
        Self {
            global: tables(&config.rope),
            local: config.local_rope.as_ref().map(tables),
        }
    }
}

impl Tables {
    /// The length that frequencies are scaled for if the longest sequence has this length; 0 if scaling does
    /// not depend on it.
    fn scaled_for(&self, length: usize) -> usize {
        match self.rope.scaling {
            RopeScaling::Dynamic {
                original_max_position_embeddings: original,
                ..
            } if length > original => length,
            RopeScaling::LongRope {
                original_max_position_embeddings: original,
                ..
            } if length > original => usize::MAX,
            _ => 0,
        }
    }

    /// A table of at least the positions of a sequence of this length.
    fn table(&self, length: usize) -> Table {
        let scaled_for = self.scaled_for(length);
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(index) = made.iter().position(|table| table.scaled_for == scaled_for) {
            if made[index].positions() >= length {
                return made[index].clone();
            }
            made.remove(index);
        }
        // Lengths grow a little at a time: rounding up keeps the number of tables small.
        let rounded = length.next_power_of_two();
        let positions = if self.scaled_for(rounded) == scaled_for {
            rounded
        } else {
            length
        };
        let table = RopeTable::new(&self.rope, positions);
        let shape = [table.length, table.half_dim];
        let tensor = |values| Tensor::from_data(TensorData::new(values, shape), &self.device);
        let table = Table {
            scaled_for,
            cos: tensor(table.cos),
            sin: tensor(table.sin),
        };
        if made.len() == MOST_TABLES {
            made.remove(0);
        }
        made.push(table.clone());
        table
    }

    /// The rows of the tokens of sequences that begin at these positions.
    fn gather(
        &self,
        sequences: &Sequences,
        starts: &[usize],
        rope_lengths: &[usize],
    ) -> RotaryRows {
        let needed = sequences.iter().zip(starts).zip(rope_lengths);
        let needed = needed.map(|((rows, &start), &length)| length.max(start + rows.len()));
        let needed: Vec<usize> = needed.collect();
        // The longest length of each scaling, and the first row of its table when tables are concatenated.
        let mut longest = BTreeMap::new();
        for &length in &needed {
            let most = longest.entry(self.scaled_for(length)).or_insert(0);
            *most = length.max(*most);
        }
        let used = longest.into_values().map(|length| self.table(length));
        let used: Vec<Table> = used.collect();
        let (mut begin, mut begins) = (0, BTreeMap::new());
        for table in &used {
            begins.insert(table.scaled_for, begin);
            begin += table.positions();
        }
        let positions: Vec<i32> = sequences
            .iter()
            .zip(starts)
            .zip(&needed)
            .flat_map(|((rows, &start), &length)| {
                let first = begins[&self.scaled_for(length)] + start;
                (first..first + rows.len()).map(|position| position as i32)
            })
            .collect();
        let rows = positions.len();
        let positions = TensorData::new(positions, [rows]);
        let positions = Tensor::<1, Int>::from_data(positions, &self.device);
        let gather = |part: fn(&Table) -> &Tensor<2>| {
            let parts: Vec<_> = used.iter().map(|table| part(table).clone()).collect();
            match &parts[..] {
                [] => Tensor::zeros([0, self.rope.rotary_dim / 2], &self.device),
                [table] => table.clone().select(0, positions.clone()),
                _ => Tensor::cat(parts, 0).select(0, positions.clone()),
            }
        };
        RotaryRows {
            cos: gather(|table| &table.cos),
            sin: gather(|table| &table.sin),
        }
    }
}

/// Cosines and sines of every token's position, `[rows, rotary_dim / 2]`.
#[derive(Debug, Clone)]
pub struct RotaryRows {
    /// Cosines.
    pub cos: Tensor<2>,
    /// Sines.
    pub sin: Tensor<2>,
}

/// The sequences of a batch and the rotary tables of their tokens, made once and shared by all
/// layers.
#[derive(Debug, Clone)]
pub struct SequenceBatch {
    /// First row and length of each sequence.
    pub sequences: Sequences,
    /// Rotation of most layers.
    pub global: RotaryRows,
    /// Rotation of layers with one of their own.
    pub local: Option<RotaryRows>,
}

impl SequenceBatch {
    /// Whole sequences, positions counted from their beginnings. `rope_lengths` has one entry per sequence,
    /// the length that dynamic rope scaling is computed for: that of the longest sequence of its own task's
    /// batch, so that other tasks cannot change it.
    pub fn new(tables: &RotaryTables, sequences: Sequences, rope_lengths: &[usize]) -> Self {
        let starts = vec![0; sequences.len()];
        Self::at(tables, sequences, &starts, rope_lengths)
    }

    /// The next tokens of sequences whose past is in a cache. `rope_lengths` as [`new`](Self::new)'s, of the whole
    /// sequences.
    pub fn following(
        tables: &RotaryTables,
        sequences: Sequences,
        cached: &BlockTables,
        rope_lengths: &[usize],
    ) -> Self {
        let starts: Vec<_> = cached.sequences().iter().map(|table| table.past).collect();
        Self::at(tables, sequences, &starts, rope_lengths)
    }

    fn at(
        tables: &RotaryTables,
        sequences: Sequences,
        starts: &[usize],
        rope_lengths: &[usize],
    ) -> Self {
        let gather = |tables: &Tables| tables.gather(&sequences, starts, rope_lengths);
        let global = gather(&tables.global);
        let local = tables.local.as_ref().map(gather);
        Self {
            sequences,
            global,
            local,
        }
    }

    /// The rotation of a layer; `None` for one that does not rotate.
    pub(crate) fn rotation(&self, rotation: LayerRotation) -> Option<&RotaryRows> {
        match rotation {
            LayerRotation::None => None,
            LayerRotation::Global => Some(&self.global),
            LayerRotation::Local => Some(self.local.as_ref().unwrap_or(&self.global)),
        }
    }
}
