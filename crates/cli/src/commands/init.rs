//! `init [DIR]`: writes a starter configuration, datasets and a tiny model.

use std::{
    fs,
    path::{Component, Path},
};

use loraloom_config::{StarterDataset, starter};
use loraloom_trainer::quoted;

use crate::{
    arguments::InitArguments,
    exit::Exit,
    failure::{self, Failure},
    printer::Printer,
};

const CONFIG: &str = "loraloom.yaml";
const MODEL: &str = "tiny-llama";

/// A file in the binary, with its path below the directory.
type Bundled<'a> = (&'a str, &'a [u8]);

macro_rules! bundled {
    ($root:literal: $($name:literal),+ $(,)?) => {
        [$(($name, include_bytes!(concat!("../../../../", $root, $name)) as &[u8])),+]
    };
}

/// Small enough to embed, so that the first run needs no download.
const MODEL_FILES: [Bundled<'_>; 6] = bundled!("assets/":
    "tiny-llama/chat_template.jinja",
    "tiny-llama/config.json",
    "tiny-llama/generation_config.json",
    "tiny-llama/model.safetensors",
    "tiny-llama/tokenizer.json",
    "tiny-llama/tokenizer_config.json",
);
const DATA_FILES: [Bundled<'_>; 3] = bundled!("examples/":
    "data/shout.jsonl",
    "data/pirate.jsonl",
    "data/number.jsonl",
);

pub(super) fn run(arguments: &InitArguments, printer: &Printer) -> anyhow::Result<Exit> {
    // Paths are shown without a leading `./`.
    let is_here = |part| part == Component::CurDir;
    let directory = if arguments.directory.components().all(is_here) {
        Path::new("")
    } else {
        &arguments.directory
    };
    let datasets: Vec<StarterDataset<'_>> = DATA_FILES
        .iter()
        .map(|(path, _)| Path::new(path))
        .filter_map(|path| {
            Some(StarterDataset {
                name: path.file_stem()?.to_str()?,
                path,
            })
        })
        .collect();
    let config = starter(Path::new(MODEL), Path::new("runs/first"), &datasets);
    let mut files: Vec<Bundled<'_>> = MODEL_FILES.into_iter().chain(DATA_FILES).collect();
    files.push((CONFIG, config.as_bytes()));

    if !arguments.force
        && let Some((name, _)) = files.iter().find(|(name, _)| directory.join(name).exists())
    {
        let message = format!("`{}` already exists", directory.join(name).display());
        let hint = "choose another directory, or overwrite it with `--force`";
        return Err(Failure::usage(message).hint(hint).into());
    }
    for (name, bytes) in &files {
        let path = directory.join(name);
        let parent = path.parent().unwrap_or(Path::new("."));
        let made = fs::create_dir_all(parent).and_then(|()| fs::write(&path, bytes));
        failure::written(&path, made)?;
    }

    let config = directory.join(CONFIG);
    let (config, word) = (config.display(), quoted(&config));
    let datasets = DATA_FILES.len();
    printer.note(&format!("wrote {config}, {MODEL}/ and {datasets} datasets"));
    printer.note("next:");
    printer.note(&format!("  loraloom check {word}"));
    printer.note(&format!("  loraloom train {word}"));
    Ok(Exit::Success)
}
