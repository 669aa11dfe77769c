use loraloom_inference::Sampling;

/// Options of [`Generator`](super::Generator).
#[derive(Debug, Clone, PartialEq)]
pub struct GenerateOptions {
    /// At most this many tokens.
    pub max_new_tokens: usize,
    /// How tokens are picked.
    pub sampling: Sampling,
    /// True if the prompt is a user's message for the chat template rather than raw text.
    pub chat: bool,
}

impl Default for GenerateOptions {
    fn default() -> Self {
        Self {
            max_new_tokens: 64,
            sampling: Sampling::default(),
            chat: false,
        }
    }
}
