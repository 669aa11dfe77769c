//! Three LoRA adapters trained at once over one frozen classifier that has nothing to do with a
//! language model: every adapter learns another way to label the same points of the plane.
//!
//! ```sh
//! cargo run --release --example mlp_classifier
//! ```
#![expect(clippy::print_stdout, reason = "an example shows what it found")]

use batchlora::{
    AdamWStep, AdapterBank, AdapterState, BatchLora, BatchLoraError, DropoutDraw, GradientNorms,
    LoraSpec, Segment, Segments, SlotUpdate,
};
use burn::{
    nn::{Linear, LinearConfig},
    tensor::{Device, Int, Tensor, TensorData, activation},
};

const HIDDEN: usize = 96;
const CLASSES: usize = 3;
const ROWS_PER_TASK: usize = 128;
const STEPS: u32 = 400;

/// One task: its adapters' shape, its learning rate, and the class of every point.
struct Task {
    name: &'static str,
    spec: LoraSpec,
    learning_rate: f64,
    class_of: fn(f32, f32) -> usize,
}

fn tasks() -> [Task; 3] {
    [
        Task {
            name: "sectors",
            spec: LoraSpec::new(4, 8.0),
            learning_rate: 1e-2,
            class_of: |x, y| ((y.atan2(x) / std::f32::consts::TAU + 0.5) * 2.999) as usize,
        },
        Task {
            name: "rings",
            spec: LoraSpec::new(8, 16.0).with_lora_dropout(0.02),
            learning_rate: 1e-2,
            class_of: |x, y| (x.hypot(y) * 2.5).min(2.0) as usize,
        },
        Task {
            name: "stripes",
            spec: LoraSpec::new(16, 16.0).with_use_rslora(true),
            learning_rate: 5e-3,
            class_of: |x, y| ((x + y + 2.0) * 0.75).min(2.0) as usize,
        },
    ]
}

/// The frozen model: Burn's own layers, with a bank of adapters beside each.
struct Classifier {
    layers: [Linear; 3],
    banks: [AdapterBank; 3],
}

impl Classifier {
    fn new(tasks: &[Task], device: &Device) -> Result<Self, BatchLoraError> {
        let shapes = [[2, HIDDEN], [HIDDEN, HIDDEN], [HIDDEN, CLASSES]];
        let layers = shapes.map(|[d_in, d_out]| LinearConfig::new(d_in, d_out).init(device));
        let mut banks = [0, 1, 2].map(|module: u32| {
            let [d_in, d_out] = shapes[module as usize];
            AdapterBank::new(d_in, d_out, module, device)
        });
        for (module, (bank, shape)) in banks.iter_mut().zip(shapes).enumerate() {
            for (seed, task) in tasks.iter().enumerate() {
                let adapter =
                    AdapterState::init(task.spec, shape, seed as u64, module as u32, device)?;
                bank.push(Some(adapter))?;
            }
        }
        Ok(Self { layers, banks })
    }

    /// Points `[rows, 2]` to logits `[rows, 3]`; the adapters of the batch as they took part.
    fn forward(
        &self,
        points: Tensor<2>,
        segments: &Segments,
        draws: Option<&[DropoutDraw]>,
    ) -> Result<(Tensor<2>, Vec<BatchLora>), BatchLoraError> {
        let (mut x, mut attached) = (points, Vec::new());
        for (index, (layer, bank)) in self.layers.iter().zip(&self.banks).enumerate() {
            let Some(lora) = bank.attach(segments, draws)? else {
                continue;
            };
            let lora = lora.require_grad();
            let weight = layer.weight.val().without_autodiff();
            x = lora.forward(x, weight)?;
            if let Some(bias) = &layer.bias {
                x = x + bias.val().without_autodiff().unsqueeze();
            }
            if index < self.layers.len() - 1 {
                x = activation::gelu(x);
            }
            attached.push(lora);
        }
        Ok((x, attached))
    }
}

/// The points of one step, the same for all tasks: two coordinates in ±1 from a low-discrepancy
/// sequence (R. Roberts, "The Unreasonable Effectiveness of Quasirandom Sequences", 2018).
fn points(first: usize) -> Vec<[f32; 2]> {
    let at = |index: usize, step: f64| ((0.5 + index as f64 * step).fract() * 2.0 - 1.0) as f32;
    (first..first + ROWS_PER_TASK)
        .map(|index| [at(index, 0.754_877_666), at(index, 0.569_840_291)])
        .collect()
}

/// A batch of every task's points, task by task, and their classes.
fn batch(tasks: &[Task], first: usize, device: &Device) -> (Tensor<2>, Tensor<1, Int>) {
    let points = points(first);
    let rows = tasks.len() * ROWS_PER_TASK;
    let coordinates: Vec<f32> = tasks.iter().flat_map(|_| points.concat()).collect();
    let classes: Vec<i32> = tasks
        .iter()
        .flat_map(|task| points.iter().map(|&[x, y]| (task.class_of)(x, y) as i32))
        .collect();
    (
        Tensor::from_data(TensorData::new(coordinates, [rows, 2]), device),
        Tensor::from_data(TensorData::new(classes, [rows]), device),
    )
}

/// The share of each task's points that get their class.
fn accuracies(
    model: &Classifier,
    tasks: &[Task],
    segments: &Segments,
    device: &Device,
) -> Result<Vec<f32>, BatchLoraError> {
    let (points, classes) = batch(tasks, 1_000_000, device);
    let (logits, _) = model.forward(points, segments, None)?;
    let hits = logits.argmax(1).flatten::<1>(0, 1).equal(classes).float();
    let hits = hits.reshape([tasks.len(), ROWS_PER_TASK]).mean_dim(1);
    Ok(hits.into_data().iter::<f32>().collect())
}

fn main() -> Result<(), BatchLoraError> {
    let device = Device::flex();
    device.seed(0);
    let tasks = tasks();
    let mut model = Classifier::new(&tasks, &device)?;
    // Every task's rows follow each other: one segment each, and slot i is task i.
    let segments = (0..tasks.len()).map(|slot| Segment {
        rows: slot * ROWS_PER_TASK..(slot + 1) * ROWS_PER_TASK,
        slot,
    });
    let segments = Segments::new(tasks.len() * ROWS_PER_TASK, segments.collect())?;
    let before = accuracies(&model, &tasks, &segments, &device)?;

    for step in 1..=STEPS {
        let (points, classes) = batch(&tasks, step as usize * ROWS_PER_TASK, &device);
        let draws: Vec<_> = (0..tasks.len() as u64)
            .map(|seed| DropoutDraw { seed, step })
            .collect();
        let (logits, attached) = model.forward(points.autodiff(), &segments, Some(&draws))?;
        // Each task's loss is the mean over its own rows; their sum has each task's own gradient.
        let chosen = activation::log_softmax(logits, 1).gather(1, classes.unsqueeze_dim(1));
        let loss = chosen.sum() * (-1.0 / ROWS_PER_TASK as f32);
        let mut gradients = loss.backward();

        let gradients: Vec<_> = attached
            .iter()
            .filter_map(|lora| lora.take_gradient(&mut gradients))
            .collect();
        let norms = model.banks.iter().zip(&gradients).fold(
            GradientNorms::new(tasks.len(), &device),
            |norms, (bank, gradient)| norms.add(bank, gradient),
        );
        let updates = tasks.each_ref().map(|task| {
            Some(SlotUpdate {
                learning_rate: task.learning_rate,
                beta1: 0.9,
                beta2: 0.999,
                epsilon: 1e-8,
                weight_decay: 0.0,
                max_grad_norm: 1.0,
                step: u64::from(step),
            })
        });
        let update = AdamWStep::new(&updates, norms.finish());
        for (bank, gradient) in model.banks.iter_mut().zip(gradients) {
            update.apply(bank, gradient);
        }
    }

    let after = accuracies(&model, &tasks, &segments, &device)?;
    for ((task, before), after) in tasks.iter().zip(before).zip(after) {
        println!(
            "{:8} r {:2}: {:3.0} % of the points before, {:3.0} % after",
            task.name,
            task.spec.r,
            before * 100.0,
            after * 100.0
        );
        assert!(after > 0.9, "{} was not learnt", task.name);
    }
    Ok(())
}
