//! The configuration that `init` writes.

use std::path::Path;

/// A dataset of the starter configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StarterDataset<'a> {
    /// Its name in the configuration.
    pub name: &'a str,
    /// Its file, as the configuration is to name it.
    pub path: &'a Path,
}

const TEMPLATE: &str = include_str!("starter.yaml");

/// A commented configuration that trains two adapters per dataset, of a small and a larger rank,
/// over the model at `model`, writing to `output_dir`.
pub fn starter(model: &Path, output_dir: &Path, datasets: &[StarterDataset<'_>]) -> String {
    let dataset_lines: String = datasets.iter().map(dataset_lines).collect();
    let adapter_lines: String = datasets
        .iter()
        .flat_map(|dataset| [4, 16].map(|rank| adapter_lines(dataset, rank)))
        .collect();
    TEMPLATE
        .replace("{{model}}", &quoted(&model.to_string_lossy()))
        .replace("{{output_dir}}", &quoted(&output_dir.to_string_lossy()))
        .replace("{{datasets}}\n", &dataset_lines)
        .replace("{{adapters}}\n", &adapter_lines)
}

fn dataset_lines(dataset: &StarterDataset<'_>) -> String {
    let name = quoted(dataset.name);
    let path = quoted(&dataset.path.to_string_lossy());
    format!("  {name}:\n    path: {path}\n    validation: 0.05\n")
}

fn adapter_lines(dataset: &StarterDataset<'_>, rank: usize) -> String {
    let adapter = quoted(&format!("{}-r{rank}", dataset.name));
    let name = quoted(dataset.name);
    let alpha = 2 * rank;
    format!(
        "  - name: {adapter}\n    dataset: {name}\n    lora: {{r: {rank}, lora_alpha: {alpha}}}\n"
    )
}

/// The text as a YAML string: plain where that is certain to be the same string, quoted otherwise.
fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    let starts_like_a_word = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/');
    let reserved = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"]
        .contains(&text.to_lowercase().as_str());
    if starts_like_a_word && !reserved && text.chars().all(plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', "''"))
    }
}
