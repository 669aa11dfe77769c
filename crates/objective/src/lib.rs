//! Losses of preference learning, from the log-probabilities of completions.
//!
//! A task's loss `L` is a function of the log-probabilities of its target tokens. The output projection computes
//! them and the gradient of each, and needs one number a token from the loss: `-∂L/∂log p`, its
//! [factor](TaskCompletions::factors). Automatic differentiation of the few numbers of a micro-batch gives it, so a
//! loss is its formula and nothing else: see [`Loss`]. The loss over [`Paraphrases`] is of hidden states instead.

mod completions;
mod contrast;
mod cpo;
mod dpo;
mod kto;
mod log_probs;
mod orpo;
mod sums;

pub use completions::{Completion, CompletionRole, TaskCompletions};
pub use contrast::Paraphrases;
pub use log_probs::{LogProbs, Loss};
pub use sums::Sums;
