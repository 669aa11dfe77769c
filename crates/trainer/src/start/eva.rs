use std::{cmp::Ordering, iter};

use loraloom_config::{EvaConfig, LoraSettings};
use loraloom_model::{LlamaConfig, Projection};

use super::{
    incremental_pca::IncrementalPca,
    svd::{Matrix, dot},
};

/// Explained variance adaptation, as PEFT's `get_eva_state_dict`: principal components of the inputs of projections,
/// and the ranks that these get.
#[derive(Debug)]
pub(crate) struct Eva {
    config: EvaConfig,
    modules: Vec<Module>,
    inputs: Vec<Input>,
    /// Ranks of all modules together.
    budget: usize,
}

/// A projection of a layer.
#[derive(Debug)]
struct Module {
    layer: usize,
    projection: Projection,
    /// Index of its input.
    input: usize,
    rank: usize,
}

/// The input of one or several modules.
#[derive(Debug)]
struct Input {
    /// Index of the first module that takes it.
    first: usize,
    pca: IncrementalPca,
    /// Components that a batch has not moved.
    converged: Vec<bool>,
    /// True while its components are not looked at.
    is_done: bool,
}

/// Most components of a module's input: the rank that it may get.
pub(crate) fn components(lora: &LoraSettings) -> usize {
    // Python's `round`.
    (lora.r as f64 * lora.eva_config().rho).round_ties_even() as usize
}

/// The first projection with the same input.
fn source(projection: Projection) -> Projection {
    match projection {
        Projection::K | Projection::V => Projection::Q,
        Projection::Up => Projection::Gate,
        other => other,
    }
}

impl Eva {
    /// For an adapter of `targets`. An embedding has no input to decompose.
    pub(crate) fn new(lora: &LoraSettings, targets: &[Projection], model: &LlamaConfig) -> Self {
        let layers = model.num_hidden_layers;
        let places = (0..layers).flat_map(|layer| Projection::ALL.map(|one| (layer, one)));
        let adapted = places.filter(|(layer, projection)| {
            targets.contains(projection)
                && *projection != Projection::EmbedTokens
                && projection.is_at(*layer, layers)
        });
        let most = components(lora);
        let (mut modules, mut inputs) = (Vec::<Module>::new(), Vec::<Input>::new());
        for (layer, projection) in adapted {
            let same = |input: &Input| {
                let first: &Module = &modules[input.first];
                first.layer == layer && source(first.projection) == source(projection)
            };
            let found = inputs.iter().position(same);
            let input = found.unwrap_or(inputs.len());
            if found.is_none() {
                inputs.push(Input {
                    first: modules.len(),
                    pca: IncrementalPca::new(most),
                    converged: vec![false; most],
                    is_done: false,
                });
            }
            modules.push(Module {
                layer,
                projection,
                input,
                rank: most,
            });
        }
        Self {
            config: lora.eva_config(),
            budget: lora.r * modules.len(),
            modules,
            inputs,
        }
    }

    /// Before a batch: looks at the inputs that have not converged. Returns `true` if all have.
    pub(crate) fn has_converged(&mut self) -> bool {
        for input in &mut self.inputs {
            let rank = self.modules[input.first].rank;
            input.is_done = input.converged[..rank].iter().all(|&one| one);
        }
        self.inputs.iter().all(|input| input.is_done)
    }

    /// True if it needs the input of this projection.
    pub(crate) fn needs(&self, layer: usize, projection: Projection) -> bool {
        self.input(layer, projection).is_some()
    }

    fn input(&self, layer: usize, projection: Projection) -> Option<usize> {
        self.inputs.iter().position(|input| {
            let first = &self.modules[input.first];
            !input.is_done && (first.layer, first.projection) == (layer, projection)
        })
    }

    /// Takes a batch of the input of a projection, `[tokens, width]` row after row; too few tokens are left out.
    pub(crate) fn take(&mut self, layer: usize, projection: Projection, width: usize, x: &[f32]) {
        let Some(input) = self.input(layer, projection) else {
            return;
        };
        let Input { pca, converged, .. } = &mut self.inputs[input];
        if x.len() < converged.len() * width {
            return;
        }
        let before = (!pca.is_new()).then(|| pca.components.clone());
        pca.partial_fit(Matrix {
            columns: width,
            values: x.iter().copied().map(f64::from).collect(),
        });
        let Some(before) = before else { return };
        let pairs = pca.components.rows().zip(before.rows());
        for (converged, (now, before)) in converged.iter_mut().zip(pairs) {
            *converged = dot(now, before) >= self.config.tau;
        }
    }

    /// After a batch: gives the modules their ranks, once all inputs have components.
    pub(crate) fn rank(&mut self) {
        if self.inputs.iter().any(|input| input.pca.is_new()) {
            return;
        }
        // PEFT's order: the modules with a decomposition of their own, then those that share one. Of equal shares the
        // first comes first, so that the first module of an input has the most ranks: it decides when the input has
        // converged.
        let is_first = |at: &usize| self.inputs[self.modules[*at].input].first == *at;
        let (firsts, others): (Vec<usize>, Vec<usize>) =
            (0..self.modules.len()).partition(is_first);
        let ranked = firsts.iter().chain(&others);
        let shares = ranked.flat_map(|&at| {
            let explained = &self.inputs[self.modules[at].input].pca.explained;
            iter::repeat(at).zip(explained.iter().copied())
        });
        let mut shares: Vec<(usize, f64)> = shares.collect();
        shares.sort_by(|(_, a), (_, b)| b.partial_cmp(a).unwrap_or(Ordering::Equal));
        for module in &mut self.modules {
            module.rank = 0;
        }
        for &(at, _) in shares.iter().take(self.budget) {
            self.modules[at].rank += 1;
        }
    }

    /// True if an input has no components yet.
    pub(crate) fn lacks_tokens(&self) -> bool {
        self.inputs.iter().any(|input| input.pca.is_new())
    }

    /// Rank and A of a module, `[rank, width]` row after row.
    pub(crate) fn start(&self, layer: usize, projection: Projection) -> Option<(usize, Vec<f32>)> {
        let mut modules = self.modules.iter();
        let module = modules.find(|one| (one.layer, one.projection) == (layer, projection))?;
        let pca = &self.inputs[module.input].pca;
        let rows = pca.components.rows().zip(&pca.singular_values);
        let rows = rows.take(module.rank).flat_map(|(row, value)| {
            let by = if self.config.whiten {
                value.sqrt()
            } else {
                1.0
            };
            row.iter().map(move |one| (one / by) as f32)
        });
        Some((module.rank, rows.collect()))
    }

    /// Number of inputs, each of which has a decomposition.
    pub(crate) fn inputs(&self) -> usize {
        self.inputs.len()
    }
}

#[cfg(test)]
mod tests {
    use loraloom_config::{EvaConfig, LoraSettings};

    use super::components;

    /// Python's `round(r * rho)`.
    #[test]
    fn components_are_rounded_as_in_peft() {
        for (r, rho, expected) in [
            (3, 1.2, 4),
            (1, 2.5, 2),
            (3, 1.5, 4),
            (100, 1.15, 115),
            (8, 2.0, 16),
        ] {
            let eva = EvaConfig {
                rho,
                ..EvaConfig::default()
            };
            let lora = LoraSettings {
                r,
                eva_config: Some(eva),
                ..LoraSettings::default()
            };
            assert_eq!(components(&lora), expected, "{r} {rho}");
        }
    }
}
