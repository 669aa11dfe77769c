//! Settings that are legal beside others and do nothing there.

use crate::{
    AdapterConfig, InitLoraWeights, LossType, LrSchedulerType, TargetModule, TrainSettings,
};

/// Warnings of an adapter's settings that have no effect beside its others.
pub(crate) fn without_effect(adapter: &AdapterConfig) -> Vec<String> {
    let mut warnings = Vec::new();
    let train = &adapter.train;
    let (is_constant, steps, ratio) = (
        train.lr_scheduler_type == LrSchedulerType::Constant,
        train.warmup_steps,
        train.warmup_ratio,
    );
    let mut warn = |text: String| warnings.push(format!("adapter `{}`: {text}", adapter.name));
    if is_constant && (steps > 0 || ratio > 0.0) {
        warn(
            "the `constant` schedule has no warm-up, as in transformers; use `constant_with_warmup`"
                .to_owned(),
        );
    }
    if steps > 0 && ratio > 0.0 {
        warn(format!(
            "warmup_steps {steps} is used and warmup_ratio {ratio} is not"
        ));
    }
    if let Some(name) = adapter.lora.init_lora_weights.name()
        && adapter.init_from.is_some()
    {
        warn(format!(
            "init_lora_weights {name} is not used: the adapter begins from `init_from`"
        ));
    }
    if adapter.lora.eva_config.is_some() && adapter.lora.init_lora_weights != InitLoraWeights::Eva {
        warn("eva_config is not used: init_lora_weights is not eva".to_owned());
    }
    if !adapter.lora.slora_config.is_default()
        && adapter.lora.init_lora_weights != InitLoraWeights::Slora
    {
        warn("slora_config is not used: init_lora_weights is not slora".to_owned());
    }
    let lora = &adapter.lora;
    if adapter.init_from.is_none() {
        let default = TrainSettings::default().loraplus_lr_embedding();
        if !lora.target_modules.contains(&TargetModule::EmbedTokens)
            && let Some(embedding) = train.loraplus_lr_embedding
            && train.loraplus_lr_embedding != Some(default)
        {
            warn(format!(
                "loraplus_lr_embedding {embedding} is not used: target_modules has no embed_tokens"
            ));
        }
        if lora.lora_fa && lora.target_modules == [TargetModule::EmbedTokens] {
            warn("lora_fa has no effect: A and B of embed_tokens are both trained".to_owned());
        }
        if lora.init_lora_weights == InitLoraWeights::Eva && lora.eva_config().tau >= 1.0 {
            warn(
                "eva_config.tau 1 asks for components that a batch does not move at all, which rounding prevents: \
                 lower it, by default 0.99"
                    .to_owned(),
            );
        }
    }
    let objective = &adapter.objective;
    if objective
        .loss_type
        .iter()
        .flatten()
        .any(|one| *one == LossType::Robust)
        && objective.label_smoothing.unwrap_or(0.0) == 0.0
    {
        warn("loss_type robust with label_smoothing 0 is sigmoid".to_owned());
    }
    if train.learning_rate == 0.0 {
        warn("the learning rate is 0: the adapter learns nothing".to_owned());
    }
    warnings
}
