use std::ops::Range;

use batchlora_kernels::matrix::{DEPTH, Matrix, MatrixMut, Output, multiply};
use multiversion::multiversion;
use rayon::prelude::*;

use super::{
    super::{AttentionShape, BlockTables},
    numerics::{exp, largest, sum, tanh},
};

/// Queries computed at a time: their scores stay in cache, and scores of keys after the last of them are
/// never computed.
const QUERIES: usize = 64;

/// `gemm` (0.19) sums fewer products in another order.
const FEWEST_KEYS: usize = 3;

/// One key-value head of one sequence, with the query heads that share it.
struct Head<'a> {
    shape: &'a AttentionShape,
    /// Rows of the queries.
    rows: Range<usize>,
    index: usize,
    /// Position of the first query.
    past: usize,
    /// Position of the first key and value.
    first: usize,
    /// `[positions, head_dim]`.
    keys: Matrix<'a>,
    /// `[positions, head_dim]`.
    values: Matrix<'a>,
}

impl<'a> Head<'a> {
    /// The heads of sequences whose keys and values are those of their rows.
    fn all(shape: &'a AttentionShape, k: &'a [f32], v: &'a [f32]) -> Vec<Self> {
        let heads = |rows: Range<usize>| {
            let all = rows.clone();
            (0..shape.num_kv_heads).map(move |index| Head {
                shape,
                rows: rows.clone(),
                index,
                past: 0,
                first: 0,
                keys: of_head(k, shape, shape.num_kv_heads, index, all.clone()),
                values: of_head(v, shape, shape.num_kv_heads, index, all.clone()),
            })
        };
        shape.sequences.iter().flat_map(heads).collect()
    }

    fn group(&self) -> usize {
        self.shape.num_heads / self.shape.num_kv_heads
    }

    /// The query heads of this key-value head.
    fn query_heads(&self) -> Range<usize> {
        self.index * self.group()..(self.index + 1) * self.group()
    }

    /// A query head of `x`, which has rows as q, for some of the queries.
    fn of_queries<'x>(&self, x: &'x [f32], head: usize, queries: &Range<usize>) -> Matrix<'x> {
        let rows = self.rows.start + queries.start..self.rows.start + queries.end;
        of_head(x, self.shape, self.shape.num_heads, head, rows)
    }

    fn of_positions(&self, matrix: Matrix<'a>, positions: &Range<usize>) -> Matrix<'a> {
        matrix.rows(positions.start - self.first..positions.end - self.first)
    }

    /// Blocks of queries with the positions of the keys that any of them sees.
    fn blocks(&self) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
        let length = self.rows.len();
        (0..length).step_by(QUERIES).map(move |start| {
            let end = (start + QUERIES).min(length);
            let first = self.shape.first_key(self.past + start);
            (start..end, first..self.past + end)
        })
    }

    /// Scores of `queries` over `keys`, `[queries, keys]`, not yet bounded.
    fn scores(
        &self,
        q: &[f32],
        head: usize,
        (queries, keys): (&Range<usize>, &Range<usize>),
        out: &mut Vec<f32>,
    ) {
        out.clear();
        out.resize(queries.len() * keys.len(), 0.0);
        multiply(
            MatrixMut::new(out, queries.len(), keys.len(), keys.len()),
            Output::Replace,
            self.shape.scale() as f32,
            self.of_queries(q, head, queries),
            self.of_positions(self.keys, keys).transposed(),
        );
    }

    /// Softmax of the scores of `queries` over `keys`, `[queries, keys]`, zero where hidden.
    fn probabilities(
        &self,
        q: &[f32],
        head: usize,
        (queries, keys): (&Range<usize>, &Range<usize>),
        out: &mut Vec<f32>,
    ) {
        self.scores(q, head, (queries, keys), out);
        if let Some(cap) = self.shape.softcap {
            softcap(out, cap);
        }
        for (query, row) in queries.clone().zip(out.chunks_exact_mut(keys.len())) {
            let position = self.past + query;
            let first = self.shape.first_key(position);
            softmax(row, first - keys.start..position + 1 - keys.start);
        }
    }

    /// The outputs of the query heads.
    fn forward(&self, q: &[f32]) -> Vec<(Range<usize>, usize, Vec<f32>)> {
        let mut p = Vec::new();
        let outputs = self.query_heads().map(|head| {
            let mut out = vec![0f32; self.rows.len() * self.shape.head_dim];
            for (queries, keys) in self.blocks() {
                self.probabilities(q, head, (&queries, &keys), &mut p);
                self.weigh(&p, (&queries, &keys), &mut out);
            }
            (self.rows.clone(), head, out)
        });
        outputs.collect()
    }

    /// Sums of values by their probabilities `[queries, keys]`. They are cut at the same positions for every query, so
    /// that a query's bits do not depend on the others of its block.
    fn weigh(&self, p: &[f32], (queries, keys): (&Range<usize>, &Range<usize>), out: &mut [f32]) {
        let dim = self.shape.head_dim;
        if keys.len() < FEWEST_KEYS {
            return self.weigh_few(p, (queries, keys), out);
        }
        let mut start = keys.start;
        while start < keys.end {
            let end = keys.end.min((start / DEPTH + 1) * DEPTH);
            let output = if start == keys.start {
                Output::Replace
            } else {
                Output::Add
            };
            let p = Matrix::new(
                &p[start - keys.start..],
                queries.len(),
                end - start,
                keys.len(),
            );
            let values = self.of_positions(self.values, &(start..end));
            multiply(rows_of(out, queries, dim), output, 1.0, p, values);
            start = end;
        }
    }

    /// As [`weigh`](Self::weigh), with values of zero for keys that are missing.
    fn weigh_few(
        &self,
        p: &[f32],
        (queries, keys): (&Range<usize>, &Range<usize>),
        out: &mut [f32],
    ) {
        let dim = self.shape.head_dim;
        let mut values = vec![0f32; FEWEST_KEYS * dim];
        for (key, values) in keys.clone().zip(values.chunks_exact_mut(dim)) {
            values.copy_from_slice(self.values.row(key - self.first));
        }
        let mut padded = vec![0f32; queries.len() * FEWEST_KEYS];
        for (padded, p) in padded
            .chunks_exact_mut(FEWEST_KEYS)
            .zip(p.chunks_exact(keys.len()))
        {
            padded[..keys.len()].copy_from_slice(p);
        }
        multiply(
            rows_of(out, queries, dim),
            Output::Replace,
            1.0,
            Matrix::new(&padded, queries.len(), FEWEST_KEYS, FEWEST_KEYS),
            Matrix::new(&values, FEWEST_KEYS, dim, dim),
        );
    }
}

/// Rows of head `head` in rows of `heads` heads, `[rows, head_dim]`.
fn of_head<'x>(
    x: &'x [f32],
    shape: &AttentionShape,
    heads: usize,
    head: usize,
    rows: Range<usize>,
) -> Matrix<'x> {
    let width = heads * shape.head_dim;
    let start = rows.start * width + head * shape.head_dim;
    Matrix::new(&x[start.min(x.len())..], rows.len(), shape.head_dim, width)
}

#[multiversion(targets("x86_64+avx512f+avx512dq", "x86_64+avx2"))]
fn softmax(row: &mut [f32], seen: Range<usize>) {
    row[..seen.start].fill(0.0);
    row[seen.end..].fill(0.0);
    let row = &mut row[seen];
    let largest = largest(row);
    for score in row.iter_mut() {
        *score = exp(*score - largest);
    }
    let inverse = 1.0 / sum(row.len(), |i| row[i]);
    for score in row.iter_mut() {
        *score *= inverse;
    }
}

#[multiversion(targets("x86_64+avx512f+avx512dq", "x86_64+avx2"))]
fn softcap(scores: &mut [f32], cap: f32) {
    for score in scores {
        *score = cap * tanh(*score / cap);
    }
}

/// Multiplies by the slope of the bound at scores that are not bounded.
#[multiversion(targets("x86_64+avx512f+avx512dq", "x86_64+avx2"))]
fn softcap_backward(ds: &mut [f32], scores: &[f32], cap: f32) {
    for (ds, &score) in ds.iter_mut().zip(scores) {
        let tangent = tanh(score / cap);
        *ds *= 1.0 - tangent * tangent;
    }
}

/// `ds = p ∘ (dp - Σ p ∘ dp) · scale`, row by row, in place of dp.
#[multiversion(targets("x86_64+avx512f+avx512dq", "x86_64+avx2"))]
fn softmax_backward(p: &[f32], dp: &mut [f32], scale: f32) {
    let along = sum(p.len(), |i| p[i] * dp[i]);
    for (dp, p) in dp.iter_mut().zip(p) {
        *dp = p * (*dp - along) * scale;
    }
}

/// Writes heads, each `[length, head_dim]`, into rows of all heads.
fn scatter(parts: &[(Range<usize>, usize, Vec<f32>)], out: &mut [f32], width: usize, dim: usize) {
    for (rows, head, values) in parts {
        for (row, values) in rows.clone().zip(values.chunks_exact(dim)) {
            out[row * width + head * dim..][..dim].copy_from_slice(values);
        }
    }
}

/// Output of attention, as q.
pub(super) fn forward(q: &[f32], k: &[f32], v: &[f32], shape: &AttentionShape) -> Vec<f32> {
    attended(q, &Head::all(shape, k, v), shape)
}

/// Output of attention over keys and values in blocks, as q.
pub(super) fn paged(
    q: &[f32],
    [keys, values]: [&[f32]; 2],
    shape: &AttentionShape,
    tables: &BlockTables,
) -> Vec<f32> {
    let (dim, kv_heads) = (shape.head_dim, shape.num_kv_heads);
    let width = kv_heads * dim;
    // Keys and values of each sequence, head by head.
    let sequences = shape.sequences.iter().zip(tables.sequences());
    let gathered: Vec<_> = sequences
        .filter(|(rows, _)| !rows.is_empty())
        .collect::<Vec<_>>()
        .into_par_iter()
        .map(|(rows, table)| {
            let first = shape.first_key(table.past);
            let positions = first..table.past + rows.len();
            let gather = |cache: &[f32]| {
                let mut all = Vec::with_capacity(positions.len() * width);
                for head in 0..kv_heads {
                    for position in positions.clone() {
                        let start = table.slot(position) * width + head * dim;
                        all.extend_from_slice(&cache[start..start + dim]);
                    }
                }
                all
            };
            (
                rows,
                table.past,
                positions.clone(),
                [gather(keys), gather(values)],
            )
        })
        .collect();
    let heads = gathered.iter().flat_map(|(rows, past, positions, both)| {
        (0..kv_heads).map(move |index| {
            let [keys, values] = both.each_ref().map(|all| {
                let start = index * positions.len() * dim;
                Matrix::new(&all[start..], positions.len(), dim, dim)
            });
            Head {
                shape,
                rows: rows.clone(),
                index,
                past: *past,
                first: positions.start,
                keys,
                values,
            }
        })
    });
    attended(q, &heads.collect::<Vec<_>>(), shape)
}

fn attended(q: &[f32], heads: &[Head<'_>], shape: &AttentionShape) -> Vec<f32> {
    let parts = heads.par_iter().flat_map_iter(|head| head.forward(q));
    let parts: Vec<_> = parts.collect();
    let mut out = vec![0f32; q.len()];
    let width = shape.num_heads * shape.head_dim;
    scatter(&parts, &mut out, width, shape.head_dim);
    out
}

/// Gradients of q, k and v.
pub(super) fn backward(
    [q, k, v]: [&[f32]; 3],
    gradient: &[f32],
    shape: &AttentionShape,
) -> [Vec<f32>; 3] {
    let (heads, kv_heads, head_dim) = (shape.num_heads, shape.num_kv_heads, shape.head_dim);
    let parts: Vec<_> = Head::all(shape, k, v)
        .into_par_iter()
        .map(|head| {
            let length = head.rows.len();
            let zeros = || vec![0f32; length * head_dim];
            let (mut dqs, mut dk, mut dv) = (Vec::new(), zeros(), zeros());
            let (mut p, mut ds) = (Vec::new(), Vec::new());
            for query_head in head.query_heads() {
                let mut dq = zeros();
                for (queries, keys) in head.blocks() {
                    head.probabilities(q, query_head, (&queries, &keys), &mut p);
                    let [rows, columns] = [queries.len(), keys.len()];
                    let d_out = head.of_queries(gradient, query_head, &queries);
                    let p_matrix = Matrix::new(&p, rows, columns, columns);
                    multiply(
                        rows_of(&mut dv, &keys, head_dim),
                        Output::Add,
                        1.0,
                        p_matrix.transposed(),
                        d_out,
                    );
                    ds.clear();
                    ds.resize(rows * columns, 0.0);
                    multiply(
                        MatrixMut::new(&mut ds, rows, columns, columns),
                        Output::Replace,
                        1.0,
                        d_out,
                        head.of_positions(head.values, &keys).transposed(),
                    );
                    let scale = shape.scale() as f32;
                    for (p, ds) in p.chunks_exact(columns).zip(ds.chunks_exact_mut(columns)) {
                        softmax_backward(p, ds, scale);
                    }
                    if let Some(cap) = shape.softcap {
                        head.scores(q, query_head, (&queries, &keys), &mut p);
                        softcap_backward(&mut ds, &p, cap);
                    }
                    let ds = Matrix::new(&ds, rows, columns, columns);
                    multiply(
                        rows_of(&mut dq, &queries, head_dim),
                        Output::Replace,
                        1.0,
                        ds,
                        head.of_positions(head.keys, &keys),
                    );
                    multiply(
                        rows_of(&mut dk, &keys, head_dim),
                        Output::Add,
                        1.0,
                        ds.transposed(),
                        head.of_queries(q, query_head, &queries),
                    );
                }
                dqs.push((head.rows.clone(), query_head, dq));
            }
            let place = |values| (head.rows.clone(), head.index, values);
            (dqs, place(dk), place(dv))
        })
        .collect();
    let mut gradients = [q, k, v].map(|x| vec![0f32; x.len()]);
    let [dq, dk, dv] = &mut gradients;
    for (dqs, head_dk, head_dv) in parts {
        scatter(&dqs, dq, heads * head_dim, head_dim);
        scatter(&[head_dk], dk, kv_heads * head_dim, head_dim);
        scatter(&[head_dv], dv, kv_heads * head_dim, head_dim);
    }
    gradients
}

/// Rows `rows` of `[length, columns]`.
fn rows_of<'a>(x: &'a mut [f32], rows: &Range<usize>, columns: usize) -> MatrixMut<'a> {
    MatrixMut::new(&mut x[rows.start * columns..], rows.len(), columns, columns)
}
