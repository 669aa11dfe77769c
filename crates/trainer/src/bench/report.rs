use serde::Serialize;

/// Everything one benchmark measured. What could not be measured is `null` in JSON.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BenchReport {
    /// Where it was measured.
    pub device: String,
    /// The operator alone.
    pub kernels: Vec<KernelMeasurement>,
    /// Whole training steps.
    pub end_to_end: Vec<EndToEndMeasurement>,
}

/// The ways to compute one adapted layer, forward and backward, and the kernels of the last of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Rung {
    /// The products with the frozen weight alone, `x W` and `dH Wᵀ`: what cannot be saved.
    Frozen,
    /// One adapter after another, of Burn's operations, differentiated by Burn.
    Composed,
    /// The kernel of `S = D(X) Aᵀ`.
    Shrink,
    /// The kernel of `H += s · S B`; a forward and backward runs it twice, once for dX.
    ExpandAdd,
    /// The kernels of `dA = dSᵀ D(X)`.
    WeightGrad,
    /// The kernels of dS and dB.
    OutputGrads,
    /// batchlora's operator: the frozen products and all of these kernels.
    Fused,
}

impl Rung {
    /// All of them, in the order of a report.
    pub const ALL: [Self; 7] = [
        Self::Frozen,
        Self::Composed,
        Self::Shrink,
        Self::ExpandAdd,
        Self::WeightGrad,
        Self::OutputGrads,
        Self::Fused,
    ];

    /// The name in a table and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Frozen => "frozen",
            Self::Composed => "composed",
            Self::Shrink => "shrink",
            Self::ExpandAdd => "expand_add",
            Self::WeightGrad => "weight_grad",
            Self::OutputGrads => "output_grads",
            Self::Fused => "fused",
        }
    }
}

/// One way to compute one adapted layer, or one of its kernels.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct KernelMeasurement {
    /// The way.
    pub name: Rung,
    /// Rows of the batch.
    pub rows: usize,
    /// Width of the layer's input.
    pub d_in: usize,
    /// Width of the layer's output.
    pub d_out: usize,
    /// Ranks of the adapters, which share the rows evenly; none for the frozen products.
    pub ranks: Vec<usize>,
    /// Type of x and the frozen weight.
    pub dtype: &'static str,
    /// Forward and backward, or one run of the kernel, median.
    pub milliseconds: f64,
    /// The frozen products alone, median of runs that took turns with these.
    pub frozen_milliseconds: f64,
    /// Kernels launched by that.
    pub launches: Option<u64>,
    /// Bytes that the operands and results of these launches hold.
    pub bytes_moved: Option<u64>,
}

/// Training steps of several adapters at once.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EndToEndMeasurement {
    /// Name of the model's shape.
    pub shape: String,
    /// Adapters trained at once.
    pub adapters: usize,
    /// Rank of each.
    pub rank: usize,
    /// Names of the adapted projections.
    pub target_modules: Vec<&'static str>,
    /// Sequences of each adapter in a step.
    pub batch: usize,
    /// Micro-batches that they were cut into.
    pub microbatches: usize,
    /// Tokens of a sequence.
    pub length: usize,
    /// Type of frozen weights and activations.
    pub dtype: &'static str,
    /// Tokens per second of all adapters together, median.
    pub tokens_per_second: f64,
    /// The same adapters trained one after another, median.
    pub sequential_tokens_per_second: Option<f64>,
    /// 10¹² operations per second on frozen weights and attention; see
    /// [`EndToEndBench`](crate::EndToEndBench).
    pub model_tflops: f64,
    /// Bytes that the device's allocator held after the adapters trained together; on a CPU, the most
    /// that this process had allocated meanwhile, if that is [counted](loraloom_pipeline::HostMemory).
    pub peak_bytes: Option<u64>,
    /// Where the time of one step goes, if that was asked for and the device launches kernels.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub profile: Vec<KernelShare>,
}

/// All launches of one kernel in a step.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct KernelShare {
    /// Its name, or the sizes of a product by cuBLAS.
    pub kernel: String,
    /// Number of launches.
    pub launches: usize,
    /// Time on the device, of all of them.
    pub milliseconds: f64,
    /// Bytes of their operands and results; 0 of Burn's own kernels.
    pub bytes_moved: u64,
}
