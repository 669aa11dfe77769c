use std::fmt;

use crate::error::ModelError;

/// The supported decoders; all are one module with options.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Architecture {
    /// Llama 1, 2, 3, 3.x, `TinyLlama` and everything that reuses the class.
    Llama,
    /// Mistral 7B and everything that reuses the class.
    Mistral,
    /// Qwen 2 and 2.5.
    Qwen2,
    /// Qwen 3, dense.
    Qwen3,
    /// IBM Granite 3, dense: Llama with constant factors.
    Granite,
    /// OLMo 2: norms behind attention and feed-forward.
    Olmo2,
    /// `SmolLM3`: every fourth layer without rotation.
    SmolLm3,
    /// Phi-3, 3.5 and 4, text: fused projections, `LongRoPE`.
    Phi3,
    /// Gemma 2: bounded scores and logits, norms before and after, GELU.
    Gemma2,
    /// Gemma 3, text: norms of heads, and a rotation of its own for layers with a window.
    Gemma3,
}

impl Architecture {
    /// Every supported architecture.
    pub const ALL: [Self; 10] = [
        Self::Llama,
        Self::Mistral,
        Self::Qwen2,
        Self::Qwen3,
        Self::Granite,
        Self::Olmo2,
        Self::SmolLm3,
        Self::Phi3,
        Self::Gemma2,
        Self::Gemma3,
    ];

    /// The class in `architectures`, such as `LlamaForCausalLM`.
    pub fn class_name(self) -> &'static str {
        match self {
            Self::Llama => "LlamaForCausalLM",
            Self::Mistral => "MistralForCausalLM",
            Self::Qwen2 => "Qwen2ForCausalLM",
            Self::Qwen3 => "Qwen3ForCausalLM",
            Self::Granite => "GraniteForCausalLM",
            Self::Olmo2 => "Olmo2ForCausalLM",
            Self::SmolLm3 => "SmolLM3ForCausalLM",
            Self::Phi3 => "Phi3ForCausalLM",
            Self::Gemma2 => "Gemma2ForCausalLM",
            Self::Gemma3 => "Gemma3ForCausalLM",
        }
    }

    /// The `model_type`, such as `llama`.
    pub fn model_type(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Mistral => "mistral",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
            Self::Granite => "granite",
            Self::Olmo2 => "olmo2",
            Self::SmolLm3 => "smollm3",
            Self::Phi3 => "phi3",
            Self::Gemma2 => "gemma2",
            Self::Gemma3 => "gemma3_text",
        }
    }

    /// The architecture that `architectures` and `model_type` agree on; either may be absent.
    pub(super) fn resolve(
        architectures: &[String],
        model_type: Option<&str>,
    ) -> Result<Self, ModelError> {
        let unsupported = |found: &str| ModelError::UnsupportedArchitecture(found.to_owned());
        let find = |name: &str, key: fn(Self) -> &'static str| {
            let found = Self::ALL.into_iter().find(|known| key(*known) == name);
            found.ok_or_else(|| unsupported(name))
        };
        let Some(class) = architectures.first() else {
            let name = model_type.ok_or(ModelError::MissingKey("architectures"))?;
            return find(name, Self::model_type);
        };
        let architecture = find(class, Self::class_name)?;
        if let Some(other) = architectures.iter().find(|other| *other != class) {
            return Err(unsupported(other));
        }
        if let Some(name) = model_type.filter(|name| *name != architecture.model_type()) {
            return Err(ModelError::ArchitectureMismatch {
                architecture: class.clone(),
                model_type: name.to_owned(),
            });
        }
        Ok(architecture)
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.class_name())
    }
}
