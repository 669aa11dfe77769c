use std::path::PathBuf;

use clap::{
    Args, ValueHint,
    builder::{PossibleValuesParser, TypedValueParser},
};
use loraloom_benches::ServingPolicy;
use loraloom_model::LlamaConfig;

use super::{
    ComputeArguments,
    values::{parse_count, parse_index, parse_positive, parse_share, parse_whole},
};

/// Arguments of `bench`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Kernels: forward and backward of one layer, in three variants. `frozen` computes only the products \
with the frozen weight; `composed` uses Burn's operations, one adapter after another; `fused` is the \
operator that training uses. `shrink`, `expand_add`, `weight_grad` and `output_grads` are single runs \
of its kernels. Adapters share the rows evenly: first rank 16 for all, then ranks 4, 8, 16 and 64 mixed.

End to end: forward, loss, backward, clipping and AdamW for adapters of one rank, over random tokens. \
Dropout is 0.05 in both. TFLOP/s counts 4 operations per token and frozen weight, plus attention, but \
not the adapters.

Serving: answers by the engine of `serve`, without HTTP. A request names one of the adapters in turn. `tok/s` counts \
tokens of answers; `first` is from a request's arrival to its first token, `next` the mean time between its tokens; \
`attained` is the part of the requests within both targets. `gap` is VTC's fairness gap: the largest difference of \
service of two tenants while both have requests without a token, where a token of a prompt counts 1 and one of an answer \
2; virtual token counters bound it by `bound`.

FILE.csv has the columns of Azure's traces of LLM inference (TIMESTAMP, ContextTokens, GeneratedTokens) or of BurstGPT \
(Timestamp, Request tokens, Response tokens), and may have the columns Tenant and Adapter.")]
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
    /// Numbers of adapters, separated by commas [default: 1 to 64 for kernels, two of them end to end, 0 and 8 with
    /// --serving, where 0 is the base model].
    #[arg(long, value_name = "K", value_delimiter = ',', value_parser = parse_index)]
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
    /// Rank of the adapters end to end [default: 16].
    #[arg(long, value_name = "R", value_parser = parse_count, conflicts_with = "kernels_only")]
    pub(crate) rank: Option<usize>,
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
    /// Sequences per adapter and training step [default: 8 on a GPU, else 2].
    #[arg(long, value_name = "N", value_parser = parse_count, conflicts_with = "kernels_only")]
    pub(crate) batch: Option<usize>,
    /// Micro-batches that the sequences of an adapter's step are cut into, to save memory.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = parse_count, conflicts_with = "kernels_only")]
    pub(crate) microbatches: usize,
    /// Tokens per sequence [default: 512 on a GPU, else 128].
    #[arg(long, value_name = "N", value_parser = parse_count, conflicts_with = "kernels_only")]
    pub(crate) length: Option<usize>,
    /// Timed steps in each of three runs [default: 5].
    #[arg(long, value_name = "N", value_parser = parse_count, conflicts_with = "kernels_only")]
    pub(crate) steps: Option<usize>,
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
    #[command(flatten)]
    pub(crate) serving: ServingBenchArguments,
}

/// Arguments of `bench --serving`.
#[derive(Debug, Args)]
#[command(next_help_heading = "Serving")]
pub(crate) struct ServingBenchArguments {
    /// Measure answers to requests instead of the operator and training steps.
    #[arg(long)]
    pub(crate) serving: bool,
    /// Number of requests [default: 256 on a GPU, else 64, or all of the trace].
    #[arg(long, value_name = "N", requires = "serving", value_parser = parse_count)]
    pub(crate) requests: Option<usize>,
    /// Send the requests of this trace, with random tokens.
    #[arg(
        long,
        value_name = "FILE.csv",
        requires = "serving",
        conflicts_with_all = ["prompt_tokens", "answer_tokens", "tenants"],
        value_hint = ValueHint::FilePath
    )]
    pub(crate) trace: Option<PathBuf>,
    /// Requests in a second: at random times, or the trace's times scaled [default: all at once, or as the trace says].
    #[arg(long, value_name = "R", requires = "serving", value_parser = parse_positive)]
    pub(crate) request_rate: Option<f64>,
    /// Mean tokens of a prompt, drawn from half to one and a half of it [default: 512 on a GPU, else 64].
    #[arg(long, value_name = "N", requires = "serving", value_parser = parse_count)]
    pub(crate) prompt_tokens: Option<usize>,
    /// The same of an answer [default: 128 on a GPU, else 64].
    #[arg(long, value_name = "N", requires = "serving", value_parser = parse_count)]
    pub(crate) answer_tokens: Option<usize>,
    /// Ranks of the adapters in turn, separated by commas.
    #[arg(
        long,
        value_name = "R",
        requires = "serving",
        default_value = "4,8,16,64",
        value_delimiter = ',',
        value_parser = parse_count
    )]
    pub(crate) ranks: Vec<usize>,
    /// Number of tenants. The second sends twice as many requests as the first, the third three times as many.
    #[arg(long, value_name = "N", requires = "serving", default_value_t = 1, value_parser = parse_count)]
    pub(crate) tenants: usize,
    /// Which request starts next, separated by commas: vtc (virtual token counters, as serve), fcfs (first come, first
    /// served), rpm (fcfs with --rate-limit) or lcf (vtc without the lift of a tenant that returns).
    #[arg(
        long = "policy",
        value_name = "POLICY",
        requires = "serving",
        default_value = "vtc",
        value_delimiter = ',',
        value_parser = serving_policies()
    )]
    pub(crate) policies: Vec<ServingPolicy>,
    /// Requests of a tenant that rpm accepts in a minute; others are refused [default: 60].
    #[arg(long, value_name = "N", requires = "serving", value_parser = parse_count)]
    pub(crate) rate_limit: Option<usize>,
    /// Also answer beside the training of so many adapters of --rank, with --batch and --length.
    #[arg(long, value_name = "K", requires = "serving", value_parser = parse_count)]
    pub(crate) beside_training: Option<usize>,
    /// Most of the time that answers may take from training, as a fraction.
    #[arg(long, value_name = "FRACTION", requires = "beside_training", default_value_t = 0.5, value_parser = parse_share)]
    pub(crate) inference_share: f64,
    /// Most requests that run at a time; others wait.
    #[arg(long, value_name = "N", requires = "serving", default_value_t = 64, value_parser = parse_count)]
    pub(crate) max_num_seqs: usize,
    /// Most tokens in a step.
    #[arg(long, value_name = "N", requires = "serving", default_value_t = 1024, value_parser = parse_count)]
    pub(crate) max_num_batched_tokens: usize,
    /// Longest time to a request's first token that attains the target.
    #[arg(long, value_name = "SECONDS", requires = "serving", default_value_t = 1.0, value_parser = parse_positive)]
    pub(crate) first_token_target: f64,
    /// Longest mean time between its tokens that attains it.
    #[arg(long, value_name = "SECONDS", requires = "serving", default_value_t = 0.1, value_parser = parse_positive)]
    pub(crate) token_target: f64,
    /// Seed of requests and prompts.
    #[arg(long, requires = "serving", default_value_t = 0, value_parser = parse_whole)]
    pub(crate) seed: u64,
}

fn serving_policies() -> impl TypedValueParser<Value = ServingPolicy> {
    let names = ServingPolicy::ALL.map(ServingPolicy::name);
    PossibleValuesParser::new(names)
        .try_map(|name| ServingPolicy::named(&name).ok_or("no such policy"))
}
