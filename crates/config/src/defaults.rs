//! Default settings of an adapter.

use crate::{
    EvalSettings, InitLoraWeights, LoraSettings, LrSchedulerKwargs, LrSchedulerType, SaveSettings,
    SloraConfig, TargetModule, TrainSettings,
};

impl Default for LoraSettings {
    fn default() -> Self {
        Self {
            r: 16,
            lora_alpha: 32.0,
            lora_dropout: 0.05,
            target_modules: vec![
                TargetModule::QProj,
                TargetModule::KProj,
                TargetModule::VProj,
                TargetModule::OProj,
            ],
            use_rslora: false,
            use_dora: false,
            init_lora_weights: InitLoraWeights::Uniform,
            eva_config: None,
            slora_config: SloraConfig::default(),
            lora_fa: false,
        }
    }
}

impl Default for TrainSettings {
    fn default() -> Self {
        Self {
            batch_size: 8,
            gradient_accumulation_steps: 1,
            max_seq_len: 512,
            num_epochs: 10.0,
            max_steps: None,
            learning_rate: 3e-4,
            lr_scheduler_type: LrSchedulerType::Cosine,
            lr_scheduler_kwargs: LrSchedulerKwargs::default(),
            warmup_steps: 0,
            warmup_ratio: 0.0,
            loraplus_lr_ratio: None,
            loraplus_lr_embedding: None,
            weight_decay: 0.0,
            adam_beta1: 0.9,
            adam_beta2: 0.999,
            adam_epsilon: 1e-8,
            max_grad_norm: 1.0,
            label_smoothing_factor: 0.0,
            shuffle: true,
            train_on_prompt: false,
        }
    }
}

impl Default for EvalSettings {
    fn default() -> Self {
        Self {
            steps: 200,
            patience: None,
        }
    }
}

impl Default for SaveSettings {
    fn default() -> Self {
        Self {
            steps: 500,
            keep: 2,
        }
    }
}
