use loraloom_pipeline::PipelineError;

/// Errors of inference.
#[derive(Debug, thiserror::Error)]
pub enum InferenceError {
    /// A prompt without tokens.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// No room for an answer.
    #[error("a prompt of {prompt} tokens fills the context of {context}")]
    PromptTooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// Longest sequence of the model.
        context: usize,
    },
    /// More keys and values than there is memory for, with no other sequence beside them.
    #[error(
        "the prompt has {prompt} tokens; with {answer} of an answer they do not fit in the memory for keys and values, \
         which is for {tokens} tokens"
    )]
    TooLarge {
        /// Tokens of the prompt.
        prompt: usize,
        /// Most tokens of the answer.
        answer: usize,
        /// Tokens that there are blocks for.
        tokens: usize,
    },
    /// A request runs whose weights are nowhere.
    #[error("the adapter of a running request was removed")]
    Removed,
    /// A pass failed.
    #[error(transparent)]
    Pipeline(#[from] PipelineError),
    /// Segments of a batch do not fit it.
    #[error(transparent)]
    Segments(#[from] batchlora::BatchLoraError),
}
