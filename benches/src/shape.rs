/// Shape of a Llama model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Width of the hidden states.
    pub hidden_size: usize,
    /// Width of the MLP.
    pub intermediate_size: usize,
    /// Decoder layers.
    pub num_hidden_layers: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key and value heads.
    pub num_key_value_heads: usize,
    /// Tokens of the vocabulary.
    pub vocab_size: usize,
}

impl Shape {
    /// 24 M parameters: the `micro` of PEFT's yardstick.
    pub const MICRO: Self = Self {
        hidden_size: 512,
        intermediate_size: 1376,
        num_hidden_layers: 8,
        num_attention_heads: 8,
        num_key_value_heads: 4,
        vocab_size: 2048,
    };

    /// Parameters of the frozen matrix products a token goes through.
    pub fn matmul_parameters(&self) -> usize {
        let kv = self.hidden_size / self.num_attention_heads * self.num_key_value_heads;
        let attention = 2 * self.hidden_size * (self.hidden_size + kv);
        let mlp = 3 * self.hidden_size * self.intermediate_size;
        self.num_hidden_layers * (attention + mlp) + self.hidden_size * self.vocab_size
    }
}
