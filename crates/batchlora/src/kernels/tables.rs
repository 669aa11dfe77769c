//! A [`Routing`] as small device buffers.

use batchlora_kernels::launch::table;
use burn::tensor::DType;
use burn_cubecl::{
    CubeDevice, cubecl::client::Client, ops::numeric::empty_device_dtype, tensor::CubeTensor,
};

use crate::{RoutedSegment, Routing, ops::Side};

/// Rows of a batch that one cube works on.
pub(super) const ROW_TILE: usize = 32;
/// Rows of a segment that one cube sums up for the gradient of a packed weight.
pub(super) const ROW_BLOCK: usize = 512;

/// Words per row tile: segment, first row, rows.
pub(super) const TILE_WORDS: usize = 3;
/// Words per row block: segment, first row, rows, first row among the partial sums, first element
/// among all blocks' rows times their ranks.
pub(super) const BLOCK_WORDS: usize = 5;
/// Words per packed row: its first partial sum, their number, the rows between them, and the factor of
/// their sum, for A and for B.
pub(super) const SUM_WORDS: usize = 5;

/// Words per magnitude: the first block of its adapter's rows, their number, and the factor of their sum.
pub(super) const MAGNITUDE_WORDS: usize = 3;
/// A row of no adapter of the kind that a table of rows is for.
pub(super) const NO_ADAPTER: u32 = u32::MAX;

/// Words per segment.
pub(super) const SEGMENT_WORDS: usize = 8;
/// Columns of a segment's words. Scale and `KEEP` are the bits of a `float32`.
pub(super) const RANK_START: usize = 0;
pub(super) const RANK: usize = 1;
pub(super) const SCALE: usize = 2;
pub(super) const SEED_LOW: usize = 3;
pub(super) const SEED_HIGH: usize = 4;
pub(super) const STEP: usize = 5;
pub(super) const THRESHOLD: usize = 6;
pub(super) const KEEP: usize = 7;

/// A routing on a device, without the number of the module, so that all banks of a model share the tables
/// of a batch.
#[derive(Debug, Clone)]
pub(crate) struct Tables {
    pub(super) tiles: CubeTensor,
    pub(super) tile_count: usize,
    pub(super) blocks: CubeTensor,
    pub(super) block_count: usize,
    /// Rows times ranks of all blocks.
    pub(super) block_elements: usize,
    pub(super) sums: CubeTensor,
    /// Rows of all partial sums.
    pub(super) partial_rows: usize,
    pub(super) segments: CubeTensor,
    pub(super) dropout_rows: CubeTensor,
    /// Of a batch with DoRA.
    pub(super) dora: Option<DoraTables>,
    /// One word, for kernels with a buffer that they do not touch.
    pub(super) unused: CubeTensor,
}

/// What DoRA's kernels look up.
#[derive(Debug, Clone)]
pub(super) struct DoraTables {
    /// The magnitude of every row, or [`NO_ADAPTER`].
    pub(super) magnitude_rows: CubeTensor,
    /// The segment of every row whose adapter has dropout, too, or [`NO_ADAPTER`].
    pub(super) dropped_rows: CubeTensor,
    pub(super) magnitudes: CubeTensor,
}

/// The values that tables are made from, to find them again.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TablesKey {
    device: CubeDevice,
    routed: Vec<RoutedSegment>,
    rank_sum: usize,
    magnitudes: usize,
}

impl TablesKey {
    fn new(routing: &Routing, device: &CubeDevice) -> Self {
        let mut routed = routing.segments().to_vec();
        for segment in &mut routed {
            if let Some(dropout) = &mut segment.dropout {
                dropout.module = 0;
            }
        }
        Self {
            device: device.clone(),
            routed,
            rank_sum: routing.rank_sum(),
            magnitudes: routing.magnitudes(),
        }
    }
}

impl Tables {
    pub(super) fn upload(routing: &Routing, client: &Client, device: &CubeDevice) -> Self {
        let Host {
            tiles,
            blocks,
            block_elements,
            sums,
            partial_rows,
        } = Host::new(routing.segments(), routing.rank_sum());
        let upload = |words: &[u32]| table(client, device, words);
        let segments: Vec<u32> = routing.segments().iter().flat_map(segment_words).collect();
        Self {
            tile_count: tiles.len() / TILE_WORDS,
            tiles: upload(&tiles),
            block_count: blocks.len() / BLOCK_WORDS,
            blocks: upload(&blocks),
            block_elements,
            sums: upload(&sums),
            partial_rows,
            segments: upload(&segments),
            dropout_rows: upload(routing.dropout_rows(0..routing.rows())),
            dora: routing.uses_dora().then(|| DoraTables {
                magnitude_rows: upload(&by_row(routing, |_, segment| segment.magnitude)),
                dropped_rows: upload(&by_row(routing, |at, segment| {
                    segment.drops_all().then_some(at)
                })),
                magnitudes: upload(&magnitudes(routing, &blocks)),
            }),
            unused: empty_device_dtype(client.clone(), device.clone(), [1].into(), DType::U32),
        }
    }
}

fn segment_words(segment: &RoutedSegment) -> [u32; SEGMENT_WORDS] {
    let mut words = [0; SEGMENT_WORDS];
    words[RANK_START] = segment.ranks.start as u32;
    words[RANK] = segment.ranks.len() as u32;
    words[SCALE] = segment.scale.to_bits();
    words[KEEP] = 1f32.to_bits();
    if let Some(dropout) = segment.dropout {
        words[SEED_LOW] = dropout.seed as u32;
        words[SEED_HIGH] = (dropout.seed >> 32) as u32;
        words[STEP] = dropout.step;
        words[THRESHOLD] = dropout.threshold();
        words[KEEP] = dropout.keep_scale().to_bits();
    }
    words
}

/// A number of its segment for every row.
fn by_row(routing: &Routing, of: impl Fn(usize, &RoutedSegment) -> Option<usize>) -> Vec<u32> {
    let mut words = vec![NO_ADAPTER; routing.rows()];
    for (at, segment) in routing.segments().iter().enumerate() {
        if let Some(number) = of(at, segment) {
            words[segment.rows.clone()].fill(number as u32);
        }
    }
    words
}

fn magnitudes(routing: &Routing, blocks: &[u32]) -> Vec<u32> {
    let mut words = vec![0; routing.magnitudes() * MAGNITUDE_WORDS];
    for (at, block) in blocks.chunks(BLOCK_WORDS).enumerate() {
        let segment = &routing.segments()[block[0] as usize];
        let Some(magnitude) = segment.magnitude else {
            continue;
        };
        let words = &mut words[magnitude * MAGNITUDE_WORDS..][..MAGNITUDE_WORDS];
        if words[1] == 0 {
            words[0] = at as u32;
        }
        words[1] += 1;
        words[2] = (1.0 / segment.loss_scale).to_bits();
    }
    words
}

/// The tables before they are uploaded.
struct Host {
    tiles: Vec<u32>,
    blocks: Vec<u32>,
    block_elements: usize,
    sums: Vec<u32>,
    partial_rows: usize,
}

impl Host {
    fn new(segments: &[RoutedSegment], rank_sum: usize) -> Self {
        let mut tiles = Vec::new();
        for (index, segment) in segments.iter().enumerate() {
            for row in segment.rows.clone().step_by(ROW_TILE) {
                let rows = ROW_TILE.min(segment.rows.end - row);
                tiles.extend([index, row, rows].map(|word| word as u32));
            }
        }

        // Blocks of one adapter follow each other in row order: its gradient is their sum.
        let mut order: Vec<usize> = (0..segments.len()).collect();
        order.sort_by_key(|&index| segments[index].ranks.start);
        let (mut blocks, mut partial_rows, mut block_elements) = (Vec::new(), 0, 0);
        let mut sums = vec![0; rank_sum * SUM_WORDS];
        for adapter in order.chunk_by(|&a, &b| segments[a].ranks == segments[b].ranks) {
            let ranks = segments[adapter[0]].ranks.clone();
            let (first, mut count) = (partial_rows, 0);
            for &index in adapter {
                let rows = &segments[index].rows;
                for row in rows.clone().step_by(ROW_BLOCK) {
                    let length = ROW_BLOCK.min(rows.end - row);
                    let words = [index, row, length, partial_rows, block_elements];
                    blocks.extend(words.map(|word| word as u32));
                    partial_rows += ranks.len();
                    block_elements += length * ranks.len();
                    count += 1;
                }
            }
            let factor = |side| segments[adapter[0]].gradient_factor(side).to_bits();
            for (within, rank) in ranks.clone().enumerate() {
                let words = [
                    (first + within) as u32,
                    count,
                    ranks.len() as u32,
                    factor(Side::Input),
                    factor(Side::Output),
                ];
                sums[rank * SUM_WORDS..][..SUM_WORDS].copy_from_slice(&words);
            }
        }
        Self {
            tiles,
            blocks,
            block_elements,
            sums,
            partial_rows,
        }
    }
}

impl Routing {
    /// This routing on a device; uploaded once per batch and shape of adapters.
    pub(super) fn tables(&self, client: &Client, device: &CubeDevice) -> Tables {
        self.batch().tables(TablesKey::new(self, device), || {
            Tables::upload(self, client, device)
        })
    }

    /// True if any adapter of the batch has dropout.
    pub(super) fn has_dropout(&self) -> bool {
        self.segments()
            .iter()
            .any(|segment| segment.dropout.is_some())
    }

    /// Number of the module in the dropout counter.
    pub(super) fn module(&self) -> u32 {
        let mut keys = self.segments().iter().filter_map(|segment| segment.dropout);
        keys.next().map_or(0, |key| key.module)
    }
}
