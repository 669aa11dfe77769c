//! Tokenizers, files and configurations for the tests.

use std::{
    fs,
    ops::Deref,
    path::{Path, PathBuf},
};

use loraloom_config::{ColumnMap, DatasetConfig, Validation};
use loraloom_data::{DataError, Dataset, Encoded, EncodedDataset, Sample, Tokenizer};
use tempfile::TempDir;
use tokenizers::{AddedToken, decoders::byte_level::ByteLevel, models::bpe::BPE};

/// Special tokens of the test tokenizer, in the order of their ids, which follow the 256 bytes.
pub(crate) const SPECIAL: [&str; 6] = [
    "<s>",
    "</s>",
    "<|im_start|>",
    "<|im_end|>",
    "<|eot|>",
    "<unk>",
];
pub(crate) const BOS: u32 = 256;
pub(crate) const EOS: u32 = 257;

/// A template whose turns stand between `<|im_start|>` and `<|im_end|>`.
pub(crate) const CHATML: &str = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/// A directory with a tokenizer whose tokens are single bytes, and nothing else.
pub(crate) fn bare_model() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    let mut alphabet: Vec<char> = ByteLevel::alphabet().into_iter().collect();
    alphabet.sort_unstable();
    let vocab = alphabet
        .iter()
        .enumerate()
        .map(|(id, char)| (char.to_string(), id as u32));
    let model = BPE::builder()
        .vocab_and_merges(vocab.collect::<tokenizers::models::bpe::Vocab>(), vec![])
        .build()
        .unwrap();
    let mut tokenizer = tokenizers::Tokenizer::new(model);
    tokenizer.with_pre_tokenizer(Some(ByteLevel::new(false, true, false)));
    tokenizer.with_decoder(Some(ByteLevel::default()));
    tokenizer
        .add_special_tokens(SPECIAL.map(|token| AddedToken::from(token, true)))
        .unwrap();
    tokenizer
        .save(directory.path().join("tokenizer.json"), false)
        .unwrap();
    directory
}

/// The same with BOS and EOS, and a chat template if there is one.
pub(crate) fn model(chat_template: Option<&str>) -> (TempDir, Tokenizer) {
    let directory = bare_model();
    let mut config = serde_json::json!({"bos_token": "<s>", "eos_token": {"content": "</s>"}});
    if let Some(template) = chat_template {
        config["chat_template"] = template.into();
    }
    write(
        directory.path(),
        "tokenizer_config.json",
        config.to_string(),
    );
    let tokenizer = Tokenizer::load(directory.path()).unwrap();
    (directory, tokenizer)
}

pub(crate) fn write(directory: &Path, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
    let path = directory.join(name);
    fs::write(&path, text).unwrap();
    path
}

pub(crate) fn config(path: impl Into<PathBuf>) -> DatasetConfig {
    DatasetConfig {
        path: vec![path.into()],
        columns: None,
        template: None,
        validation: Validation::Fraction(0.0),
    }
}

pub(crate) fn pair(prompt: &str, completion: &str) -> ColumnMap {
    ColumnMap::PromptCompletion {
        prompt: prompt.into(),
        completion: completion.into(),
    }
}

/// A dataset with the directory of its file.
#[derive(Debug)]
pub(crate) struct Loaded {
    dataset: Dataset,
    _directory: TempDir,
}

impl Deref for Loaded {
    type Target = Dataset;

    fn deref(&self) -> &Dataset {
        &self.dataset
    }
}

/// Loads a file with this name and content, format detected.
pub(crate) fn load(name: &str, text: impl AsRef<[u8]>) -> Result<Loaded, DataError> {
    load_with(name, text, |_| {})
}

/// Loads a file with this name and content under a changed configuration.
pub(crate) fn load_with(
    name: &str,
    text: impl AsRef<[u8]>,
    change: impl FnOnce(&mut DatasetConfig),
) -> Result<Loaded, DataError> {
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(write(directory.path(), name, text));
    change(&mut config);
    Ok(Loaded {
        dataset: Dataset::load("test", &config, 0)?,
        _directory: directory,
    })
}

/// All samples of a part of a dataset.
pub(crate) fn samples(part: &EncodedDataset) -> Vec<Sample> {
    part.samples.iter().map(Result::unwrap).collect()
}

/// The text of every training sample, targets in brackets.
pub(crate) fn masked(
    dataset: &Dataset,
    tokenizer: &Tokenizer,
    train_on_prompt: bool,
) -> Vec<String> {
    let Encoded { train, .. } = dataset.encode(tokenizer, 10_000, train_on_prompt).unwrap();
    samples(&train)
        .iter()
        .map(|sample| loraloom_data::render_masked(sample, tokenizer).unwrap())
        .collect()
}

/// The error's message with the temporary directory taken out.
pub(crate) fn message(error: &DataError) -> String {
    let text = error.to_string();
    let words = text.split(' ').map(|word| match word.rfind('/') {
        Some(slash) if word.starts_with(std::env::temp_dir().to_str().unwrap()) => {
            &word[slash + 1..]
        }
        _ => word,
    });
    words.collect::<Vec<_>>().join(" ")
}

/// The error's message and hint, as the program shows them.
pub(crate) fn complaint(error: &DataError) -> String {
    let hint = error.hint().map(|hint| format!("\n  hint: {hint}"));
    message(error) + &hint.unwrap_or_default() + "\n"
}

/// What is odd about a file with this name and content, or wrong with it.
pub(crate) fn remarks(
    name: &str,
    text: impl AsRef<[u8]>,
    tokenizer: &Tokenizer,
    max_seq_len: usize,
    change: impl FnOnce(&mut DatasetConfig),
) -> String {
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(write(directory.path(), name, text));
    change(&mut config);
    let said = Dataset::load("test", &config, 0).and_then(|dataset| {
        let encoded = dataset.encode(tokenizer, max_seq_len, false)?;
        let warnings = dataset.warnings().iter().chain(&encoded.warnings);
        let warnings: Vec<_> = warnings.map(|warning| warning.to_string() + "\n").collect();
        Ok(warnings.concat())
    });
    let said = said.unwrap_or_else(|error| complaint(&error));
    said.replace(&format!("{}/", directory.path().display()), "")
}
