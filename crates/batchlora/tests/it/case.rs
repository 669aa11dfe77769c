//! Random batches over random banks.

use batchlora::{AdapterBank, DropoutDraw, LoraSpec, Routing, Segment, Segments};
use burn::tensor::Device;
use proptest::{collection::vec, option, prelude::*};

use crate::{
    oracle::Problem,
    support::{Random, device, host},
};

/// A batch and a bank; everything else follows from `seed`.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub(crate) d_in: usize,
    pub(crate) d_out: usize,
    pub(crate) slots: Vec<Option<LoraSpec>>,
    /// Rows without an adapter, then a slot and its rows.
    pub(crate) parts: Vec<(usize, usize, usize)>,
    /// Rows without an adapter at the end.
    pub(crate) tail: usize,
    pub(crate) training: bool,
    /// Rows have coordinates of their own in the dropout counter.
    pub(crate) placed: bool,
    pub(crate) checkpointing: bool,
    /// What a slot's gradient is too large by: this to the power of its number plus one.
    pub(crate) loss_scale: f32,
    pub(crate) seed: u64,
}

fn spec() -> impl Strategy<Value = LoraSpec> {
    let ranks = prop_oneof![2 => Just(1), 6 => 1..=64usize, 1 => 65..=256usize];
    let dropout = prop_oneof![Just(0.0), 0.01..0.95f64];
    (ranks, 0.1..64.0f64, any::<bool>(), dropout).prop_map(|(r, alpha, rslora, dropout)| {
        LoraSpec::new(r, alpha)
            .with_use_rslora(rslora)
            .with_lora_dropout(dropout)
    })
}

pub(crate) fn case() -> impl Strategy<Value = Case> {
    let slots = vec(option::weighted(0.8, spec()), 1..5);
    let rows = prop_oneof![1 => Just(0usize), 1 => Just(1), 6 => 1..70usize, 1 => 120..300usize];
    let gap = prop_oneof![2 => Just(0usize), 1 => 1..9usize];
    let parts = vec((gap.clone(), any::<prop::sample::Index>(), rows), 0..6);
    let shape = (1..90usize, 1..90usize, slots, parts, gap);
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<u64>());
    (shape, flags).prop_map(
        |((d_in, d_out, slots, parts, tail), (training, placed, checkpointing, seed))| Case {
            parts: parts
                .into_iter()
                .map(|(gap, slot, rows)| (gap, slot.index(slots.len()), rows))
                .collect(),
            d_in,
            d_out,
            slots,
            tail,
            training,
            placed,
            checkpointing,
            loss_scale: 1.0,
            seed,
        },
    )
}

impl Case {
    fn segments(&self) -> Segments {
        let (mut segments, mut end) = (Vec::new(), 0);
        for &(gap, slot, rows) in &self.parts {
            let start = end + gap;
            end = start + rows;
            segments.push(Segment {
                rows: start..end,
                slot,
            });
        }
        let rows = end + self.tail;
        let scale = |segment: &Segment| self.loss_scale.powi(segment.slot as i32 + 1);
        let scales = segments.iter().map(scale).collect();
        let segments = Segments::new(rows, segments)
            .and_then(|segments| segments.with_loss_scales(scales))
            .expect("in order");
        if self.placed {
            let places = (0..rows as u32).map(|row| row.wrapping_mul(2_654_435_761));
            return segments
                .with_dropout_rows(places.collect())
                .expect("one each");
        }
        segments
    }

    fn routing(&self, bank: &AdapterBank) -> Routing {
        let draw = |slot| DropoutDraw {
            seed: self.seed ^ slot as u64,
            step: slot as u32 + 3,
        };
        let draws: Vec<_> = (0..self.slots.len()).map(draw).collect();
        let draws = self.training.then_some(draws.as_slice());
        bank.route(&self.segments(), draws).expect("slots exist")
    }

    pub(crate) fn problem(&self) -> Problem {
        let mut random = Random::new(self.seed);
        let bank = random.bank(&self.slots, [self.d_in, self.d_out], 5, &device());
        let routing = self.routing(&bank);
        let rows = routing.rows();
        let (a, b) = bank.weights().map_or_else(Default::default, |weights| {
            (host(weights.a.clone()), host(weights.b.clone()))
        });
        Problem {
            d_in: self.d_in,
            d_out: self.d_out,
            x: random.values(rows * self.d_in),
            weight: random.values(self.d_in * self.d_out),
            a,
            b,
            gradient: random.values(rows * self.d_out),
            routing,
        }
    }

    pub(crate) fn device(&self) -> Device {
        let device = device().autodiff();
        if self.checkpointing {
            device.gradient_checkpointing()
        } else {
            device
        }
    }
}

/// Two adapters, an empty slot, a slot in two segments, base rows, dropout, ranks above and below
/// the number of rows.
pub(crate) fn mixed() -> Case {
    Case {
        d_in: 13,
        d_out: 9,
        slots: vec![
            Some(LoraSpec::new(4, 8.0).with_lora_dropout(0.4)),
            None,
            Some(LoraSpec::new(7, 3.0).with_use_rslora(true)),
            Some(LoraSpec::new(2, 1.0)),
        ],
        parts: vec![(0, 0, 5), (2, 1, 3), (0, 2, 3), (0, 3, 0), (1, 0, 4)],
        tail: 2,
        training: true,
        placed: true,
        checkpointing: false,
        loss_scale: 1.0,
        seed: 1,
    }
}

pub(crate) fn config(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}
