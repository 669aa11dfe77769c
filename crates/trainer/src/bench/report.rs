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

/// The ways to compute one adapted layer, forward and backward.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Rung {
    /// The products with the frozen weight alone, `x W` and `dH Wᵀ`: what cannot be saved.
    Frozen,
    /// One adapter after another, of Burn's operations, differentiated by Burn.
    Composed,
    /// batchlora's operator.
    Fused,
}

impl Rung {
    /// The name in a table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Frozen => "frozen",
            Self::Composed => "composed",
            Self::Fused => "fused",
        }
    }
}

/// One way to compute one adapted layer, forward and backward.
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
    /// Forward and backward, median.
    pub milliseconds: f64,
    /// The frozen products alone, median of runs that took turns with these.
    pub frozen_milliseconds: f64,
    /// Kernels launched by one forward and backward.
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
    /// Sequences of each adapter in a step.
    pub batch: usize,
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
    /// Bytes that the device's allocator held after the adapters trained together.
    pub peak_bytes: Option<u64>,
}
