//! The operator in double precision on the host, row by row, and the same expression composed from
//! Burn's operations.

use batchlora::Routing;
use burn::tensor::{Device, Tensor};

use crate::support::{tensor, wide};

/// One call of the operator and the gradient of its output.
#[derive(Debug, Clone)]
pub(crate) struct Problem {
    pub(crate) routing: Routing,
    pub(crate) d_in: usize,
    pub(crate) d_out: usize,
    pub(crate) x: Vec<f32>,
    pub(crate) weight: Vec<f32>,
    pub(crate) a: Vec<f32>,
    pub(crate) b: Vec<f32>,
    pub(crate) gradient: Vec<f32>,
}

/// `[rows, d_in], [d_in, d_out], [Σr, d_in], [Σr, d_out]`.
#[derive(Debug, Clone)]
pub(crate) struct Operands {
    pub(crate) x: Vec<f64>,
    pub(crate) weight: Vec<f64>,
    pub(crate) a: Vec<f64>,
    pub(crate) b: Vec<f64>,
}

/// `Σ_k left[k · step.0] · right[k · step.1]`.
fn dot(left: &[f64], right: &[f64], [l, r]: [usize; 2], count: usize) -> f64 {
    (0..count).map(|k| left[k * l] * right[k * r]).sum()
}

impl Problem {
    pub(crate) fn rows(&self) -> usize {
        self.routing.rows()
    }

    pub(crate) fn operands(&self) -> Operands {
        Operands {
            x: wide(&self.x),
            weight: wide(&self.weight),
            a: wide(&self.a),
            b: wide(&self.b),
        }
    }

    /// Rows of rank, scale, and mask `[d_in]` of every routed row.
    fn routed_rows(&self) -> impl Iterator<Item = (usize, std::ops::Range<usize>, f64, Vec<f64>)> {
        self.routing.segments().iter().flat_map(|segment| {
            segment.rows.clone().map(|row| {
                let place = self.routing.dropout_rows(row..row + 1);
                let mask = match segment.dropout {
                    Some(key) => wide(&key.mask(place, self.d_in)),
                    None => vec![1.0; self.d_in],
                };
                let scale = f64::from(segment.scale);
                (row, segment.ranks.clone(), scale, mask)
            })
        })
    }

    pub(crate) fn forward(&self, operands: &Operands) -> Vec<f64> {
        let Operands { x, weight, a, b } = operands;
        let (d_in, d_out) = (self.d_in, self.d_out);
        let mut h: Vec<f64> = (0..self.rows() * d_out)
            .map(|at| {
                let (row, column) = (at / d_out, at % d_out);
                dot(&x[row * d_in..], &weight[column..], [1, d_out], d_in)
            })
            .collect();
        for (row, ranks, scale, mask) in self.routed_rows() {
            let x = &x[row * d_in..][..d_in];
            let dropped: Vec<f64> = x.iter().zip(mask).map(|(x, mask)| x * mask).collect();
            for rank in ranks {
                let s = scale * dot(&dropped, &a[rank * d_in..], [1, 1], d_in);
                for column in 0..d_out {
                    h[row * d_out + column] += s * b[rank * d_out + column];
                }
            }
        }
        h
    }

    /// Gradients of x, a and b.
    pub(crate) fn gradients(&self, operands: &Operands) -> [Vec<f64>; 3] {
        let Operands { x, weight, a, b } = operands;
        let (d_in, d_out) = (self.d_in, self.d_out);
        let gradient = wide(&self.gradient);
        let mut dx: Vec<f64> = (0..self.rows() * d_in)
            .map(|at| {
                let (row, column) = (at / d_in, at % d_in);
                let (dh, w) = (&gradient[row * d_out..], &weight[column * d_out..]);
                dot(dh, w, [1, 1], d_out)
            })
            .collect();
        let (mut da, mut db) = (vec![0.0; a.len()], vec![0.0; b.len()]);
        for (row, ranks, scale, mask) in self.routed_rows() {
            let dh = &gradient[row * d_out..][..d_out];
            let x = &x[row * d_in..][..d_in];
            let dropped: Vec<f64> = x.iter().zip(&mask).map(|(x, mask)| x * mask).collect();
            for rank in ranks {
                let s = dot(&dropped, &a[rank * d_in..], [1, 1], d_in);
                let ds = scale * dot(dh, &b[rank * d_out..], [1, 1], d_out);
                for column in 0..d_out {
                    db[rank * d_out + column] += scale * s * dh[column];
                }
                for column in 0..d_in {
                    da[rank * d_in + column] += ds * dropped[column];
                    dx[row * d_in + column] += ds * mask[column] * a[rank * d_in + column];
                }
            }
        }
        [dx, da, db]
    }

    /// The leaves x, a and b, and the weight, on a device with autodiff.
    pub(crate) fn leaves(&self, device: &Device) -> [Tensor<2>; 4] {
        let (rank_sum, d_in, d_out) = (self.routing.rank_sum(), self.d_in, self.d_out);
        let leaf = |values: &Vec<f32>, shape| tensor(values.clone(), shape, device).require_grad();
        [
            leaf(&self.x, [self.rows(), d_in]),
            leaf(&self.a, [rank_sum, d_in]),
            leaf(&self.b, [rank_sum, d_out]),
            tensor(self.weight.clone(), [d_in, d_out], device),
        ]
    }
}

/// The operator's expression, segment by segment, as a Burn user would write it.
pub(crate) fn composed(
    [x, a, b, weight]: [Tensor<2>; 4],
    routing: &Routing,
    device: &Device,
) -> Tensor<2> {
    let d_in = x.dims()[1];
    let (mut parts, mut end) = (Vec::new(), 0);
    let base = |rows: std::ops::Range<usize>| x.clone().slice([rows, 0..d_in]);
    for segment in routing.segments() {
        let rows = segment.rows.clone();
        if rows.start > end {
            parts.push(base(end..rows.start).matmul(weight.clone()));
        }
        end = rows.end;
        let ranks = |packed: &Tensor<2>| {
            let width = packed.dims()[1];
            packed.clone().slice([segment.ranks.clone(), 0..width])
        };
        let x = base(rows.clone());
        let dropped = match segment.dropout {
            Some(key) => {
                let mask = key.mask(routing.dropout_rows(rows), d_in);
                x.clone() * tensor(mask, x.dims(), device)
            }
            None => x.clone(),
        };
        let low = dropped.matmul(ranks(&a).transpose());
        parts.push(x.matmul(weight.clone()) + low.matmul(ranks(&b)).mul_scalar(segment.scale));
    }
    if routing.rows() > end {
        parts.push(base(end..routing.rows()).matmul(weight));
    }
    Tensor::cat(parts, 0)
}
