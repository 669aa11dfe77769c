use burn::tensor::{Device, Tensor, TensorData, activation::log_sigmoid};

use crate::{CompletionRole, TaskCompletions};

/// A loss over completions: the formula of one objective.
pub trait Loss {
    /// The loss of every row, `[rows]`.
    fn losses(&self, completions: &LogProbs) -> Tensor<1>;

    /// True if its rewards are of mean log-probabilities of a completion's tokens, instead of their sums.
    fn rewards_means(&self) -> bool {
        false
    }
}

/// Log-probabilities of the completions of a task in a micro-batch.
#[derive(Debug, Clone)]
pub struct LogProbs {
    /// Of every target, `[targets]`.
    tokens: Tensor<1>,
    /// Of every completion.
    sums: Tensor<1>,
    lengths: Tensor<1>,
    reference: Tensor<1>,
    roles: Vec<CompletionRole>,
    /// Per row, the weight of each target in the cross-entropy of chosen sequences.
    cross_entropy: Tensor<2>,
}

impl LogProbs {
    pub(crate) fn new(task: &TaskCompletions, tokens: Tensor<1>) -> Self {
        let device = tokens.device().without_autodiff();
        let (count, targets) = (task.completions.len(), task.num_targets());
        let mut within = vec![0.0_f32; count * targets];
        let mut chosen = vec![0.0_f32; task.rows() * targets];
        // A mean over rows of these is one over the step's targets.
        let weight = task.step_rows as f32 / task.step_chosen_targets.max(1) as f32;
        let (mut begin, mut row) = (0, 0);
        for (index, one) in task.completions.iter().enumerate() {
            let (first, end) = (
                begin + one.prompt_targets,
                begin + one.prompt_targets + one.targets,
            );
            within[index * targets..][first..end].fill(1.0);
            if one.role == CompletionRole::Chosen && task.rows() > 0 {
                chosen[row * targets..][begin..end].fill(weight);
                row += 1;
            }
            begin = end;
        }
        let matrix = |values, rows| {
            Tensor::<2>::from_data(TensorData::new(values, [rows, targets]), &device)
        };
        let of = |value: fn(&crate::Completion) -> f32| {
            let values: Vec<f32> = task.completions.iter().map(value).collect();
            Tensor::<1>::from_data(TensorData::new(values, [count]), &device)
        };
        Self {
            sums: weighted(&tokens, matrix(within, count)),
            lengths: of(|one| one.targets as f32),
            reference: of(|one| one.reference),
            roles: task.completions.iter().map(|one| one.role).collect(),
            cross_entropy: matrix(chosen, task.rows()),
            tokens,
        }
    }

    /// Log-probabilities of completions, sums over their tokens.
    pub fn sums(&self) -> Tensor<1> {
        self.sums.clone()
    }

    /// Log-probabilities of completions, means over their tokens.
    pub fn means(&self) -> Tensor<1> {
        self.mean_of(self.sums())
    }

    /// Log-probabilities of completions over those of the reference.
    pub fn ratios(&self) -> Tensor<1> {
        self.sums() - self.reference.clone()
    }

    /// Values of completions divided by their number of tokens.
    pub fn mean_of(&self, values: Tensor<1>) -> Tensor<1> {
        values / self.lengths.clone()
    }

    /// The role of each completion.
    pub fn roles(&self) -> &[CompletionRole] {
        &self.roles
    }

    /// Values of completions as those of chosen and rejected ones, each `[pairs]`.
    pub fn pairs(&self, values: &Tensor<1>) -> [Tensor<1>; 2] {
        let pairs = self.roles.len() / 2;
        let table = values.clone().reshape([pairs, 2]);
        [0, 1].map(|side| {
            table
                .clone()
                .slice([0..pairs, side..side + 1])
                .reshape([pairs])
        })
    }

    /// For every row, its share of the cross-entropy of chosen sequences, whose mean over rows is that over the
    /// tokens of a step.
    pub fn cross_entropy(&self) -> Tensor<1> {
        weighted(&self.tokens, self.cross_entropy.clone()).neg()
    }

    pub(crate) fn device(&self) -> Device {
        self.tokens.device()
    }
}

/// Sums of tokens with the weights of each row. A product of matrices would round its operands on some devices.
fn weighted(tokens: &Tensor<1>, weights: Tensor<2>) -> Tensor<1> {
    let rows = weights.dims()[0];
    let products = weights * tokens.clone().unsqueeze_dim(0);
    products.sum_dim(1).reshape([rows])
}

/// `-log σ(x)` with labels that are wrong with a probability: `-(1 - ε) log σ(x) - ε log σ(-x)`.
pub(crate) fn logistic(x: Tensor<1>, label_smoothing: f64) -> Tensor<1> {
    let right = log_sigmoid(x.clone()).mul_scalar(label_smoothing - 1.0);
    if label_smoothing == 0.0 {
        return right;
    }
    right - log_sigmoid(x.neg()).mul_scalar(label_smoothing)
}

/// The squared distance from the margin `1 / 2β` (arXiv 2310.12036, equation 17).
pub(crate) fn squared_margin(difference: Tensor<1>, beta: f64) -> Tensor<1> {
    difference.sub_scalar(0.5 / beta).powi_scalar(2)
}
