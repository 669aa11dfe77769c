//! Suggests the intended word.

use schemars::{Schema, schema_for};

use crate::{EvalSettings, LoraSettings, ObjectiveSettings, SaveSettings, TrainSettings};

/// The words that are valid at a place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidates {
    /// The word that was probably intended, if one is close.
    pub nearest: Option<String>,
    /// All of them.
    pub all: Vec<String>,
}

impl Candidates {
    /// The words valid where `word` was written.
    pub(crate) fn of<'a>(word: &str, valid: impl IntoIterator<Item = &'a str>) -> Self {
        let all: Vec<String> = valid.into_iter().map(str::to_owned).collect();
        let nearest = nearest(word, &all);
        Self { nearest, all }
    }
}

/// The path of the key of an adapter's section that was probably intended beside its name.
pub(crate) fn in_section(word: &str) -> Option<String> {
    let sections: [(&str, Schema); 5] = [
        ("lora", schema_for!(LoraSettings)),
        ("train", schema_for!(TrainSettings)),
        ("objective", schema_for!(ObjectiveSettings)),
        ("eval", schema_for!(EvalSettings)),
        ("save", schema_for!(SaveSettings)),
    ];
    let candidates = sections.iter().filter_map(|(section, schema)| {
        let keys = schema.get("properties")?.as_object()?.keys();
        let key = nearest(word, &keys.cloned().collect::<Vec<_>>())?;
        let is_synonym = SYNONYMS.contains(&(word, &key));
        Some(((key != word, !is_synonym), format!("{section}.{key}")))
    });
    let (_, path) = candidates.min_by_key(|(order, _)| *order)?;
    Some(path)
}

/// Words of other trainers for keys of this one.
const SYNONYMS: [(&str, &str); 37] = [
    ("rank", "r"),
    ("lora_r", "r"),
    ("alpha", "lora_alpha"),
    ("dropout", "lora_dropout"),
    ("lora_target_modules", "target_modules"),
    ("rslora", "use_rslora"),
    ("dora", "use_dora"),
    ("peft_use_dora", "use_dora"),
    ("freeze_a", "lora_fa"),
    ("lr", "learning_rate"),
    ("lr_scheduler", "lr_scheduler_type"),
    ("scheduler_specific_kwargs", "lr_scheduler_kwargs"),
    ("micro_batch_size", "batch_size"),
    ("per_device_train_batch_size", "batch_size"),
    ("grad_accum", "gradient_accumulation_steps"),
    ("num_train_epochs", "num_epochs"),
    ("epochs", "num_epochs"),
    ("cutoff_len", "max_seq_len"),
    ("sequence_len", "max_seq_len"),
    ("max_length", "max_seq_len"),
    ("beta1", "adam_beta1"),
    ("beta2", "adam_beta2"),
    ("base_model", "model"),
    ("val_set_size", "validation"),
    ("bf16", "bfloat16"),
    ("fp16", "float16"),
    ("fp32", "float32"),
    ("eta", "reduction_factor"),
    ("grace", "grace_period"),
    ("grace_steps", "grace_period"),
    ("1f1b", "one_f_one_b"),
    ("concurrency_num", "max_adapters"),
    ("lr_ratio", "loraplus_lr_ratio"),
    ("mini_batch_size", "batch_size"),
    ("save_step", "steps"),
    ("data", "path"),
    ("prompt", "template"),
];

/// The word of `valid` that another trainer calls `word`, or the closest one if `word` may be a misspelling of it.
fn nearest(word: &str, valid: &[String]) -> Option<String> {
    let comparable = |word: &str| word.to_lowercase().replace('-', "_");
    let lowered = comparable(word);
    if let Some((_, ours)) = SYNONYMS.iter().find(|(other, _)| *other == lowered)
        && valid.iter().any(|word| word == ours)
    {
        return Some((*ours).to_owned());
    }
    // A single letter has no suggestion; longer words allow at least one slip.
    let letters = word.chars().count();
    let most_edits = if letters < 2 {
        0
    } else {
        (letters / 3).clamp(1, 4)
    };
    let edits = |word: &str| strsim::damerau_levenshtein(&lowered, &comparable(word));
    let counted = valid.iter().map(|word| (edits(word), word));
    let (_, nearest) = counted
        .filter(|(edits, _)| *edits <= most_edits)
        .min_by_key(|(edits, _)| *edits)?;
    Some(nearest.clone())
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn finds_misspellings_and_synonyms_only() {
        let keys = ["learning_rate", "batch_size", "r", "lora_alpha"].map(str::to_owned);
        let nearest = |word| nearest(word, &keys);
        assert_eq!(nearest("lerning_rate").as_deref(), Some("learning_rate"));
        assert_eq!(nearest("learning-rate").as_deref(), Some("learning_rate"));
        assert_eq!(nearest("lr").as_deref(), Some("learning_rate"));
        assert_eq!(nearest("rank").as_deref(), Some("r"));
        assert_eq!(super::nearest("rank", &keys[1..2]), None);
        assert_eq!(nearest("wibble"), None);
    }
}
