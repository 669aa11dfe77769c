//! The run of an adapter, and the ranks and scales of its configuration.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use loraloom_config::{InitLoraWeights, QuantizationConfig, RunConfig};
use loraloom_model::{PeftAdapter, Projection};

use super::{CheckResults, Configurations};
use crate::{
    adapter::{peft_config, targets},
    run_directory::{ADAPTERS, CONFIG_FILE},
    saved_adapter::{in_modules, listed},
};

const NAME: &str = "run";

/// Rank and scale by module.
type Shapes = BTreeMap<String, (usize, f64)>;

/// The run whose directory an adapter is in.
#[derive(Debug)]
pub(super) struct OwnRun {
    pub(super) directory: PathBuf,
    /// The adapter's name in it.
    adapter: String,
    configs: Result<Vec<RunConfig>, String>,
}

impl OwnRun {
    /// The run of `path`, if that is `RUN/adapters/NAME/last` or `…/best`.
    pub(super) fn of(path: &Path, configurations: &Configurations<'_>) -> Option<Self> {
        let path = fs::canonicalize(path).ok()?;
        let named = path.parent()?;
        let adapters = named.parent()?;
        let directory = adapters.parent()?;
        let config = directory.join(CONFIG_FILE);
        if adapters.file_name()? != ADAPTERS || !config.exists() {
            return None;
        }
        Some(Self {
            adapter: named.file_name()?.to_str()?.to_owned(),
            configs: configurations(directory),
            directory: directory.to_owned(),
        })
    }

    /// The model of the run.
    pub(super) fn model(&self) -> Option<&Path> {
        let configs = self.configs.as_ref().ok()?;
        configs.first().map(|config| &*config.model)
    }

    /// Storage of the model's layers in the run.
    pub(super) fn quantization(&self) -> Option<&QuantizationConfig> {
        self.configs.as_ref().ok()?.first()?.quantization.as_ref()
    }

    /// Compares every module's rank and scale with the run's configuration.
    pub(super) fn check(
        &self,
        adapter: &PeftAdapter,
        layers: Option<usize>,
        results: &mut CheckResults,
    ) {
        let (origin, expected) = match self.expected(adapter, layers) {
            Ok(expected) => expected,
            Err(problem) => return results.unchecked(NAME, problem),
        };
        let mut problems = Vec::new();
        // Modules by actual and expected shape.
        let mut changes: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (module, &(r, scale)) in &expected {
            match adapter.modules.get(module) {
                None => problems.push(format!("`{module}` is missing")),
                Some(found) if found.r != r || !close(found.scale, scale) => {
                    let change = format!(
                        "r {} and scale {}, not {r} and {scale}",
                        found.r, found.scale
                    );
                    changes.entry(change).or_default().push(module.clone());
                }
                Some(_) => {}
            }
        }
        let surplus = adapter.modules.keys();
        let surplus = surplus.filter(|module| !expected.contains_key(*module));
        problems.extend(surplus.map(|module| format!("`{module}` is not targeted")));
        let all = expected.len();
        let changes = changes.iter();
        problems.extend(
            changes.map(|(change, modules)| format!("{change}, {}", in_modules(modules, all))),
        );
        if problems.is_empty() {
            results.holds(NAME, format!("modules, ranks and scales are {origin}"));
        } else {
            let problems = listed(&problems);
            results.fails(NAME, format!("not {origin}: {problems}"));
        }
    }

    /// Rank and scale by module, and their source; an error is the reason why they are unknown.
    fn expected(
        &self,
        adapter: &PeftAdapter,
        layers: Option<usize>,
    ) -> Result<(String, Shapes), String> {
        let configs = self.configs.as_ref()?.iter();
        let mut all = configs.flat_map(|run| run.adapters.iter().map(move |named| (run, named)));
        let named = all.find(|(_, named)| named.name == self.adapter);
        let Some((run, named)) = named else {
            return Err(format!(
                "the run in `{}` does not name the adapter `{}`",
                self.directory.display(),
                self.adapter
            ));
        };
        if let Some(beginning) = &named.init_from {
            // Its shape is that of its `init_from` adapter.
            let like = PeftAdapter::load(beginning).map_err(|error| error.to_string())?;
            let modules = like.modules.into_iter();
            let modules = modules.map(|(module, like)| (module, (like.r, like.scale)));
            let origin = format!("those of `{}`, which it began from", beginning.display());
            return Ok((origin, modules.collect()));
        }
        if named.lora.init_lora_weights == InitLoraWeights::Eva {
            return Err("its ranks follow from its rows, by `init_lora_weights`".to_owned());
        }
        let config = peft_config(run, named, None, false);
        let shape = (config.r, config.scale(config.r, config.lora_alpha));
        // Without the base, the layers are those of the adapter.
        let layer = |module: &String| {
            let (layer, _) = module.strip_prefix("model.layers.")?.split_once('.')?;
            layer.parse::<usize>().ok()
        };
        let last = adapter.modules.keys().filter_map(layer).max();
        let layers = layers.unwrap_or(last.map_or(1, |last| last + 1));
        let fused = [Projection::Qkv, Projection::GateUp];
        let is_fused = |module: &String| fused.iter().any(|one| module.ends_with(one.path()));
        let targets = targets(&named.lora, adapter.modules.keys().any(is_fused));
        let modules = (0..layers).flat_map(|layer| {
            let module = move |target: &Projection| (target.module(layer), shape);
            targets.iter().map(module)
        });
        let origin = format!("as configured in `{}`", self.directory.display());
        Ok((origin, modules.collect()))
    }
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * b.abs()
}
