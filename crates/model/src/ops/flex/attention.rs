use std::ops::Range;

use batchlora_kernels::matrix::{Matrix, MatrixMut, Output, multiply};
use multiversion::multiversion;
use rayon::prelude::*;

use super::{
    super::AttentionShape,
    numerics::{exp, largest, sum, tanh},
};

/// Queries computed at a time: their scores stay in cache, and scores of keys after the last of them are
/// never computed.
const QUERIES: usize = 64;

/// One key-value head of one sequence, with the query heads that share it.
struct Head<'a> {
    shape: &'a AttentionShape,
    rows: Range<usize>,
    index: usize,
}

impl<'a> Head<'a> {
    fn all(shape: &'a AttentionShape) -> Vec<Self> {
        let heads = |rows: Range<usize>| {
            (0..shape.num_kv_heads).map(move |index| Head {
                shape,
                rows: rows.clone(),
                index,
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

    /// Positions `positions` of head `head` in rows of `heads` heads.
    fn slice<'x>(
        &self,
        x: &'x [f32],
        heads: usize,
        head: usize,
        positions: Range<usize>,
    ) -> Matrix<'x> {
        let width = heads * self.shape.head_dim;
        let start = (self.rows.start + positions.start) * width + head * self.shape.head_dim;
        Matrix::new(&x[start..], positions.len(), self.shape.head_dim, width)
    }

    /// Blocks of queries with the keys that any of them sees.
    fn blocks(&self) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
        let length = self.rows.len();
        (0..length).step_by(QUERIES).map(move |start| {
            let end = (start + QUERIES).min(length);
            (start..end, self.shape.first_key(start)..end)
        })
    }

    /// Scores of `queries` over `keys`, `[queries, keys]`, not yet bounded.
    fn scores(
        &self,
        q: &[f32],
        k: &[f32],
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
            self.slice(q, self.shape.num_heads, head, queries.clone()),
            self.slice(k, self.shape.num_kv_heads, self.index, keys.clone())
                .transposed(),
        );
    }

    /// Softmax of the scores of `queries` over `keys`, `[queries, keys]`, zero where hidden.
    fn probabilities(
        &self,
        q: &[f32],
        k: &[f32],
        head: usize,
        (queries, keys): (&Range<usize>, &Range<usize>),
        out: &mut Vec<f32>,
    ) {
        self.scores(q, k, head, (queries, keys), out);
        if let Some(cap) = self.shape.softcap {
            softcap(out, cap);
        }
        for (query, row) in queries.clone().zip(out.chunks_exact_mut(keys.len())) {
            let first = self.shape.first_key(query);
            softmax(row, first - keys.start..query + 1 - keys.start);
        }
    }
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
    let (heads, kv_heads, head_dim) = (shape.num_heads, shape.num_kv_heads, shape.head_dim);
    let parts: Vec<_> = Head::all(shape)
        .into_par_iter()
        .flat_map_iter(|head| {
            let mut p = Vec::new();
            let parts: Vec<_> = head
                .query_heads()
                .map(|query_head| {
                    let mut out = vec![0f32; head.rows.len() * head_dim];
                    for (queries, keys) in head.blocks() {
                        head.probabilities(q, k, query_head, (&queries, &keys), &mut p);
                        multiply(
                            rows_of(&mut out, &queries, head_dim),
                            Output::Replace,
                            1.0,
                            Matrix::new(&p, queries.len(), keys.len(), keys.len()),
                            head.slice(v, kv_heads, head.index, keys),
                        );
                    }
                    (head.rows.clone(), query_head, out)
                })
                .collect();
            parts
        })
        .collect();
    let mut out = vec![0f32; q.len()];
    scatter(&parts, &mut out, heads * head_dim, head_dim);
    out
}

/// Gradients of q, k and v.
pub(super) fn backward(
    [q, k, v]: [&[f32]; 3],
    gradient: &[f32],
    shape: &AttentionShape,
) -> [Vec<f32>; 3] {
    let (heads, kv_heads, head_dim) = (shape.num_heads, shape.num_kv_heads, shape.head_dim);
    let parts: Vec<_> = Head::all(shape)
        .into_par_iter()
        .map(|head| {
            let length = head.rows.len();
            let zeros = || vec![0f32; length * head_dim];
            let (mut dqs, mut dk, mut dv) = (Vec::new(), zeros(), zeros());
            let (mut p, mut ds) = (Vec::new(), Vec::new());
            for query_head in head.query_heads() {
                let mut dq = zeros();
                for (queries, keys) in head.blocks() {
                    head.probabilities(q, k, query_head, (&queries, &keys), &mut p);
                    let [rows, columns] = [queries.len(), keys.len()];
                    let d_out = head.slice(gradient, heads, query_head, queries.clone());
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
                        head.slice(v, kv_heads, head.index, keys.clone())
                            .transposed(),
                    );
                    let scale = shape.scale() as f32;
                    for (p, ds) in p.chunks_exact(columns).zip(ds.chunks_exact_mut(columns)) {
                        softmax_backward(p, ds, scale);
                    }
                    if let Some(cap) = shape.softcap {
                        head.scores(q, k, query_head, (&queries, &keys), &mut p);
                        softcap_backward(&mut ds, &p, cap);
                    }
                    let ds = Matrix::new(&ds, rows, columns, columns);
                    multiply(
                        rows_of(&mut dq, &queries, head_dim),
                        Output::Replace,
                        1.0,
                        ds,
                        head.slice(k, kv_heads, head.index, keys.clone()),
                    );
                    multiply(
                        rows_of(&mut dk, &keys, head_dim),
                        Output::Add,
                        1.0,
                        ds.transposed(),
                        head.slice(q, heads, query_head, queries),
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
