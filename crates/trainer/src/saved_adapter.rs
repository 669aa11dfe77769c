//! Adapters on disk: whether they can be used, and how they differ from what was saved.

use std::{collections::BTreeMap, fmt, path::Path};

use loraloom_model::{LlamaConfig, ModelError, PeftAdapter, PeftNotes};

use crate::error::{Result, TrainerError};

/// Most names in a message.
const LISTED: usize = 4;

/// Reads an adapter that fits `model`, if that is known, and that no other program has changed since it was saved.
///
/// # Errors
/// If a file is missing or damaged, the adapter does not fit, or it differs from the digests beside its weights.
pub fn load_adapter(directory: &Path, model: Option<&LlamaConfig>) -> Result<PeftAdapter> {
    let adapter = PeftAdapter::load(directory)?;
    if let Some(notes) = PeftNotes::read(directory)? {
        let changes = Changes::of(&adapter, &notes);
        if !changes.is_empty() {
            let (path, changes) = (directory.to_owned(), changes.to_string());
            return Err(TrainerError::ChangedAdapter { path, changes });
        }
    }
    check_fit(&adapter, directory, model)?;
    Ok(adapter)
}

fn check_fit(adapter: &PeftAdapter, directory: &Path, model: Option<&LlamaConfig>) -> Result<()> {
    let fits = model.map_or(Ok(()), |model| adapter.verify(model));
    Ok(fits.map_err(|error| ModelError::InFile {
        path: directory.to_owned(),
        error: Box::new(error),
    })?)
}

/// As [`load_adapter`], for an adapter to train.
///
/// # Errors
/// As [`load_adapter`], or if a module's scale is not above 0: no gradient would reach it.
pub fn load_beginning(directory: &Path, model: Option<&LlamaConfig>) -> Result<PeftAdapter> {
    let adapter = load_adapter(directory, None)?;
    let mut modules = adapter.modules.iter();
    if let Some((module, weights)) = modules.find(|(_, weights)| weights.lora_alpha <= 0.0) {
        let alpha = weights.lora_alpha;
        let error = ModelError::InvalidValue {
            key: "lora_alpha".to_owned(),
            problem: format!("is {alpha} for `{module}`, expected a number above 0"),
        };
        return Err(TrainerError::Model(ModelError::InFile {
            path: directory.join("adapter_config.json"),
            error: Box::new(error),
        }));
    }
    check_fit(&adapter, directory, model)?;
    Ok(adapter)
}

/// How an adapter differs from what was saved.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// Changed scales: `adapter_config.json`.
    pub(crate) scales: Vec<String>,
    /// Changes of factors by module: `adapter_model.safetensors`.
    pub(crate) factors: BTreeMap<String, String>,
}

impl Changes {
    /// Compares an adapter with the notes that were saved with it.
    pub(crate) fn of(adapter: &PeftAdapter, saved: &PeftNotes) -> Self {
        let (saved, found) = (&saved.modules, PeftNotes::of(adapter).modules);
        let mut factors = BTreeMap::new();
        // Modules by actual and expected scale.
        let mut scales: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (module, expected) in saved {
            let Some(note) = found.get(module) else {
                factors.insert(module.clone(), format!("`{module}` is missing"));
                continue;
            };
            if !expected.has_scale(note.scale) {
                let change = format!("scale {}, saved with {}", note.scale, expected.scale);
                scales.entry(change).or_default().push(module.clone());
            }
            if note.factors == expected.factors {
                continue;
            }
            let mut others = saved.iter();
            let other = others.find(|(_, other)| other.factors == note.factors);
            let change = match other {
                Some((other, _)) => format!("`{module}` has the factors of `{other}`"),
                None => format!("`{module}` has different factors"),
            };
            factors.insert(module.clone(), change);
        }
        let surplus = found.keys().filter(|module| !saved.contains_key(*module));
        factors.extend(surplus.map(|module| (module.clone(), format!("`{module}` was added"))));
        let scales = scales.iter().map(|(change, modules)| {
            let modules = in_modules(modules, found.len());
            format!("lora_alpha, r or use_rslora was changed: {change}, {modules}")
        });
        Self {
            scales: scales.collect(),
            factors,
        }
    }

    fn is_empty(&self) -> bool {
        self.scales.is_empty() && self.factors.is_empty()
    }
}

impl fmt::Display for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let factors: Vec<String> = self.factors.values().cloned().collect();
        let files = [
            ("adapter_config.json", &self.scales),
            ("adapter_model.safetensors", &factors),
        ];
        let changed = files.iter().filter(|(_, changes)| !changes.is_empty());
        let changed = changed.map(|(file, changes)| format!("{file}: {}", listed(changes)));
        f.write_str(&changed.collect::<Vec<_>>().join("; "))
    }
}

/// Lists modules with a common property, and how many of `all` these are.
pub(crate) fn in_modules(modules: &[String], all: usize) -> String {
    match modules.len() {
        some if some == all => format!("in all {all} modules"),
        some => format!("in {some} of {all} modules: {}", listed(modules)),
    }
}

/// Lists the first few items, and the number of the others.
pub(crate) fn listed(items: &[String]) -> String {
    let shown = items[..items.len().min(LISTED)].join(", ");
    match items.len().saturating_sub(LISTED) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}
