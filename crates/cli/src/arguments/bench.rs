use clap::{Args, builder::PossibleValuesParser};
use loraloom_model::LlamaConfig;

use super::{ComputeArguments, values::parse_count};

/// Arguments of `bench`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Kernels: forward and backward of one layer, in three variants. `frozen` computes only the products \
with the frozen weight; `composed` uses Burn's operations, one adapter after another; `fused` is the \
operator that training uses. `shrink`, `expand_add`, `weight_grad` and `output_grads` are single runs \
of its kernels. Adapters share the rows evenly: first rank 16 for all, then ranks 4, 8, 16 and 64 mixed.

End to end: forward, loss, backward, clipping and AdamW for adapters of one rank, over random tokens. \
Dropout is 0.05 in both. TFLOP/s counts 4 operations per token and frozen weight, plus attention, but \
not the adapters.")]
pub(crate) struct BenchArguments {
    /// Measure only the operator.
    #[arg(long, conflicts_with = "end_to_end_only")]
    pub(crate) kernels_only: bool,
    /// Measure only whole training steps.
    #[arg(long)]
    pub(crate) end_to_end_only: bool,
    /// Skip `composed`, whose products Burn tunes for minutes on a GPU.
    #[arg(long, conflicts_with = "end_to_end_only")]
    pub(crate) no_composed: bool,
    /// Numbers of adapters, separated by commas [default: 1 to 64 for kernels, two of them end to end].
    #[arg(long, value_name = "K", value_delimiter = ',', value_parser = parse_count)]
    pub(crate) adapters: Vec<usize>,
    /// Rows of the batch for kernels [default: 8192 on a GPU, else 256].
    #[arg(long, value_name = "N", value_parser = parse_count, conflicts_with = "end_to_end_only")]
    pub(crate) rows: Option<usize>,
    /// Width of the layer's input [default: 4096 on a GPU, else 512].
    #[arg(long, value_name = "N", value_parser = parse_count, conflicts_with = "end_to_end_only")]
    pub(crate) d_in: Option<usize>,
    /// Width of the layer's output [default: 4096 on a GPU, else 512].
    #[arg(long, value_name = "N", value_parser = parse_count, conflicts_with = "end_to_end_only")]
    pub(crate) d_out: Option<usize>,
    /// Shape of the model [default: tinyllama-1.1b on a GPU, else micro].
    #[arg(long, value_parser = PossibleValuesParser::new(LlamaConfig::names()), conflicts_with = "kernels_only")]
    pub(crate) shape: Option<String>,
    /// Rank of the adapters end to end.
    #[arg(long, value_name = "R", default_value_t = 16, value_parser = parse_count, conflicts_with = "kernels_only")]
    pub(crate) rank: usize,
    /// Train `DoRA` adapters end to end.
    #[arg(long, conflicts_with = "kernels_only")]
    pub(crate) use_dora: bool,
    /// Adapted projections end to end, separated by commas, or all-linear.
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "q_proj,k_proj,v_proj,o_proj",
        conflicts_with = "kernels_only"
    )]
    pub(crate) target_modules: Vec<String>,
    /// Sequences per adapter and step [default: 8 on a GPU, else 2].
    #[arg(long, value_name = "N", value_parser = parse_count, conflicts_with = "kernels_only")]
    pub(crate) batch: Option<usize>,
    /// Micro-batches that the sequences of an adapter's step are cut into, to save memory.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = parse_count, conflicts_with = "kernels_only")]
    pub(crate) microbatches: usize,
    /// Tokens per sequence [default: 512 on a GPU, else 128].
    #[arg(long, value_name = "N", value_parser = parse_count, conflicts_with = "kernels_only")]
    pub(crate) length: Option<usize>,
    /// Timed steps in each of three runs.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = parse_count, conflicts_with = "kernels_only")]
    pub(crate) steps: usize,
    /// Keep only the inputs of layers and recompute the rest in the backward pass.
    #[arg(long, conflicts_with = "kernels_only")]
    pub(crate) gradient_checkpointing: bool,
    /// Also train the same adapters one after another.
    #[arg(long, conflicts_with = "kernels_only")]
    pub(crate) vs_sequential: bool,
    /// Also time every kernel of one more step, by name. GPU only.
    #[arg(long, conflicts_with = "kernels_only")]
    pub(crate) profile: bool,
    #[command(flatten)]
    pub(crate) compute: ComputeArguments,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}
