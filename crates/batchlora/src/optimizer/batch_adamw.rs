use burn::{config::Config, tensor::Gradients};

use super::{AdamWStep, GradientNorms, SlotUpdate};
use crate::{BatchLoraError, BatchLoraLinear};

/// `AdamW` for all adapters of several [`BatchLoraLinear`]s at once, with Burn's words and defaults.
///
/// It has no state: moments and step counts are the layers'. For hyper-parameters that differ from adapter to
/// adapter, or banks on several devices, use [`AdamWStep`].
#[derive(Config, Debug)]
pub struct BatchAdamW {
    /// Decay rate of the first moment.
    #[config(default = 0.9)]
    pub beta_1: f64,
    /// Decay rate of the second moment.
    #[config(default = 0.999)]
    pub beta_2: f64,
    /// Added outside the square root.
    #[config(default = 1e-5)]
    pub epsilon: f64,
    /// Decoupled weight decay.
    #[config(default = 1e-4)]
    pub weight_decay: f64,
    /// Scales each adapter's gradient down to this norm, taken over all layers; `None` never does.
    pub max_grad_norm: Option<f64>,
}

impl BatchAdamW {
    /// Takes one step of every slot that has a learning rate. A slot without one keeps weights, moments and
    /// step count. A slot whose gradient is not finite, and a layer that backward did not reach, keep weights
    /// and moments.
    ///
    /// # Errors
    /// [`BatchLoraError::Shape`] if a layer has another number of slots than there are learning rates,
    /// [`BatchLoraError::InvalidConfig`] if the layers are on several devices, or differ in a slot's step.
    pub fn step(
        &self,
        layers: &mut [&mut BatchLoraLinear],
        mut gradients: Gradients,
        learning_rates: &[Option<f64>],
    ) -> Result<(), BatchLoraError> {
        let Some(first) = layers.first() else {
            return Ok(());
        };
        let (draws, device) = (first.draws().to_vec(), first.bank().device().clone());
        for (index, layer) in layers.iter().enumerate() {
            if layer.draws().len() != learning_rates.len() {
                return Err(BatchLoraError::Shape(format!(
                    "{} learning rates, and {} slots in layer {index}",
                    learning_rates.len(),
                    layer.draws().len()
                )));
            }
            if *layer.bank().device() != device {
                return Err(BatchLoraError::InvalidConfig(format!(
                    "layer 0 is on {device:?}, layer {index} on {:?}",
                    layer.bank().device()
                )));
            }
            let mut pairs = layer.draws().iter().zip(&draws).enumerate();
            if let Some((slot, (draw, of_first))) = pairs.find(|(_, (a, b))| a.step != b.step) {
                return Err(BatchLoraError::InvalidConfig(format!(
                    "slot {slot} is at step {} in layer 0 and at step {} in layer {index}",
                    of_first.step, draw.step
                )));
            }
        }
        let updates = learning_rates.iter().zip(&draws).map(|(rate, draw)| {
            rate.map(|learning_rate| SlotUpdate {
                learning_rates: learning_rate.into(),
                beta1: self.beta_1,
                beta2: self.beta_2,
                epsilon: self.epsilon,
                weight_decay: self.weight_decay,
                max_grad_norm: self.max_grad_norm.unwrap_or(0.0),
                step: u64::from(draw.step),
            })
        });
        let updates: Vec<_> = updates.collect();

        let mut norms = GradientNorms::new(updates.len(), &device);
        let mut reached = Vec::new();
        for layer in layers.iter_mut() {
            if let Some(gradient) = layer.bank().take_gradient(&mut gradients) {
                norms = norms.add(layer.bank(), &gradient);
                reached.push((layer, gradient));
            }
        }
        let step = AdamWStep::new(&updates, norms.finish());
        for (layer, gradient) in reached {
            step.apply(layer.bank_mut(), gradient);
        }
        for layer in layers {
            for slot in 0..updates.len() {
                if updates[slot].is_some() {
                    layer.count_step(slot);
                }
            }
        }
        Ok(())
    }
}
