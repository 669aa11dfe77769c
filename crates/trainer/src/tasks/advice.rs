//! Advice for `check`: settings with which LoRA is known to learn less than it could.
//!
//! From Schulman and Thinking Machines, "LoRA Without Regret" (2025): adapters of attention alone learn less than those of
//! the MLP or of all layers at equal parameters, and the best rate is about ten times that of full fine-tuning, nearly
//! independent of the rank. "Learning Rate Matters: Vanilla LoRA May Suffice" (arXiv 2602.04998): with the rate tuned,
//! variants end within 1 to 2 % of plain LoRA.

use loraloom_config::{AdapterConfig, TargetModule};
use loraloom_model::LlamaConfig;

/// Rates of supervised fine-tuning with LoRA are between these.
const RATES: [f64; 2] = [5e-5, 5e-3];
/// Preferences are learned with rates of a tenth, and less.
const OF_PREFERENCES: f64 = 0.1;
/// Hidden size below which a model is a toy, which learns otherwise.
const REAL: usize = 512;

/// Advice on an adapter that starts afresh.
pub fn advice(adapter: &AdapterConfig, model: &LlamaConfig) -> Vec<String> {
    if model.d_model < REAL {
        return Vec::new();
    }
    let attention = attention_alone(adapter);
    attention.into_iter().chain(rate(adapter)).collect()
}

fn attention_alone(adapter: &AdapterConfig) -> Option<String> {
    use TargetModule::{KProj, OProj, QProj, QkvProj, VProj};
    let attention = [QProj, KProj, VProj, OProj, QkvProj];
    let mut targets = adapter.lora.target_modules.iter();
    targets.all(|target| attention.contains(target)).then(|| {
        format!(
            "adapter `{}`: it adapts attention alone; `target_modules: all-linear` at a lower r learns more",
            adapter.name
        )
    })
}

fn rate(adapter: &AdapterConfig) -> Option<String> {
    let train = &adapter.train;
    // With LoRA+ that of B, which learns faster.
    let rate = train.learning_rate * train.loraplus_lr_ratio.unwrap_or(1.0).max(1.0);
    let [mut least, mut most] = RATES;
    if matches!(adapter.objective.loss(), Ok(Some(_))) {
        least = 0.0;
        most *= OF_PREFERENCES;
    }
    let (far, usual) = if rate < least {
        (
            "low",
            "1e-4 to 1e-3 is usual, about ten times the rate of full fine-tuning",
        )
    } else if rate > most {
        (
            "high",
            if least > 0.0 {
                "1e-4 to 1e-3 is usual"
            } else {
                "5e-6 to 5e-5 is usual for preferences"
            },
        )
    } else {
        return None;
    };
    Some(format!(
        "adapter `{}`: learning_rate {rate:e} is {far} for LoRA: {usual}",
        adapter.name
    ))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use loraloom_config::{LoadOptions, RunConfig};
    use loraloom_model::LlamaConfig;

    use super::advice;

    fn advised(d_model: usize, settings: &str) -> Vec<String> {
        let lora = if settings.contains("lora: ") {
            ""
        } else {
            "lora: {target_modules: all-linear}, "
        };
        let text = format!(
            "model: m\ndatasets: {{d: {{path: p}}}}\nadapters: [{{name: a, {lora}{settings}}}]\n"
        );
        let loaded = RunConfig::load_yaml(&text, Path::new("x.yaml"), &LoadOptions::default());
        let mut model = LlamaConfig::named("micro").expect("a shape");
        model.d_model = d_model;
        advice(&loaded.expect("a configuration").config.adapters[0], &model)
    }

    #[test]
    fn defaults_and_usual_rates_need_none() {
        for settings in [
            "seed: 1",
            "train: {learning_rate: 1e-3}",
            "train: {learning_rate: 2e-5, loraplus_lr_ratio: 16}",
            "objective: {type: dpo}, train: {learning_rate: 1e-6}",
            "lora: {target_modules: [q_proj, up_proj]}",
            "lora: {target_modules: lm_head}",
        ] {
            assert_eq!(advised(2048, settings), Vec::<String>::new(), "{settings}");
        }
    }

    #[test]
    fn attention_alone_and_rates_far_off_are_named() {
        for (settings, words) in [
            (
                "lora: {target_modules: [q_proj, v_proj]}",
                "attention alone",
            ),
            ("lora: {target_modules: qkv_proj}", "attention alone"),
            ("train: {learning_rate: 1e-5}", "learning_rate 1e-5 is low"),
            ("train: {learning_rate: 2e-2}", "learning_rate 2e-2 is high"),
            (
                "train: {learning_rate: 1e-3, loraplus_lr_ratio: 16}",
                "learning_rate 1.6e-2 is high",
            ),
            (
                "objective: {type: dpo}, train: {learning_rate: 1e-3}",
                "5e-6 to 5e-5",
            ),
        ] {
            let found = advised(2048, settings);
            assert!(
                found.len() == 1 && found[0].contains(words),
                "{settings}: {found:?}"
            );
        }
        assert_eq!(
            advised(160, "train: {learning_rate: 2e-2}"),
            Vec::<String>::new()
        );
    }
}
