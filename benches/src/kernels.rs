use burn::tensor::{Device, FloatDType, Tensor};
use loraloom_model::to_host;
use loraloom_pipeline::PipelineError;
use serde::Serialize;

use crate::{
    launches::count,
    layer::{Kernel, Layer},
    timing::{device_failure, dtype_name, median_seconds},
};

/// Dropout of the adapters, as in the paper's workload.
const DROPOUT: f64 = 0.05;
/// Rank of the adapters where all have the same.
const RANK: usize = 16;
/// Ranks in a mix, in turn.
const MIXED_RANKS: [usize; 4] = [4, 8, 16, 64];

/// The operator at one layer with random operands, forward and backward, and its kernels, for several
/// adapters that share the rows: of rank 16 each, then of ranks 4, 8, 16 and 64. Dropout is 0.05.
#[derive(Debug, Clone, PartialEq)]
pub struct KernelBench {
    /// Rows of the batch, shared evenly by the adapters.
    pub rows: usize,
    /// Width of the layer's input.
    pub d_in: usize,
    /// Width of the layer's output.
    pub d_out: usize,
    /// Numbers of adapters; those above `rows` are left out.
    pub adapters: Vec<usize>,
    /// Type of x and the frozen weight.
    pub dtype: FloatDType,
    /// Frozen weights in NF4, with nested scales.
    pub nf4: bool,
    /// Also time the composition of Burn's operations.
    pub composed: bool,
}

/// One way to compute one adapted layer, or one of its kernels.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct KernelMeasurement {
    /// `frozen`, the products with the frozen weight alone; `composed`, one adapter after another, of
    /// Burn's operations; `fused`, batchlora's operator; or one of its kernels `shrink`, `expand_add`,
    /// `weight_grad` and `output_grads`.
    pub name: &'static str,
    /// Rows of the batch.
    pub rows: usize,
    /// Width of the layer's input.
    pub d_in: usize,
    /// Width of the layer's output.
    pub d_out: usize,
    /// Ranks of the adapters, which share the rows evenly; empty for the frozen products.
    pub ranks: Vec<usize>,
    /// Type of x and the frozen weight.
    pub dtype: &'static str,
    /// `nf4` if the frozen weight is in NF4.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quantization: Option<&'static str>,
    /// Median of forward and backward, or of one run of the kernel.
    pub milliseconds: f64,
    /// Median of the frozen products alone, which took turns with this.
    pub frozen_milliseconds: f64,
    /// Kernels launched; `None` on the CPU.
    pub launches: Option<u64>,
    /// Bytes of the operands and results of these launches; `None` on the CPU and for `composed`.
    pub bytes_moved: Option<u64>,
}

impl KernelBench {
    /// Measures every mix of ranks, and the frozen products once; `progress` gets a line before each.
    ///
    /// # Errors
    /// If the device fails.
    pub fn run(
        &self,
        device: &Device,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Vec<KernelMeasurement>, PipelineError> {
        let mut measurements = Vec::new();
        for ranks in self.mixes() {
            progress(&format!(
                "layer [{}, {}], rows {}, adapters {}, ranks {}",
                self.d_in,
                self.d_out,
                self.rows,
                ranks.len(),
                distinct(&ranks),
            ));
            let measured = self.measure(&ranks, device)?;
            let skipped = usize::from(!measurements.is_empty());
            measurements.extend(measured.into_iter().skip(skipped));
        }
        Ok(measurements)
    }

    /// Measures adapters of these ranks, the frozen products first.
    ///
    /// # Errors
    /// If there are no ranks or more than rows, or the device fails.
    pub fn measure(
        &self,
        ranks: &[usize],
        device: &Device,
    ) -> Result<Vec<KernelMeasurement>, PipelineError> {
        let shape = [self.rows, self.d_in, self.d_out];
        let mut layer = Layer::new(shape, ranks, DROPOUT, self.dtype, device)?;
        if self.nf4 {
            layer = layer.in_nf4();
        }
        let mut kernels = Kernel::ALL.to_vec();
        kernels.retain(|&kernel| self.composed || kernel != Kernel::Composed);
        let run = |kernel| layer.run(kernel).map(drop);
        let pieces = kernels.iter().map(|&kernel| move || run(kernel));
        let seconds = median_seconds(device, pieces.collect())?;
        kernels
            .iter()
            .zip(&seconds)
            .map(|(&kernel, taken)| {
                check(layer.run(kernel)?)?;
                let launches = count(device, || run(kernel))?;
                Ok(KernelMeasurement {
                    name: kernel.name(),
                    rows: self.rows,
                    d_in: self.d_in,
                    d_out: self.d_out,
                    ranks: match kernel {
                        Kernel::Frozen => Vec::new(),
                        _ => ranks.to_vec(),
                    },
                    dtype: dtype_name(self.dtype),
                    quantization: self.nf4.then_some("nf4"),
                    milliseconds: taken * 1e3,
                    frozen_milliseconds: seconds[0] * 1e3,
                    launches: launches.map(|launches| launches.count),
                    // Burn's own launches do not report their bytes.
                    bytes_moved: launches
                        .filter(|_| kernel != Kernel::Composed)
                        .map(|launches| launches.bytes_moved),
                })
            })
            .collect()
    }

    /// Ranks of the adapters, case by case.
    fn mixes(&self) -> Vec<Vec<usize>> {
        let mut counts = self.adapters.clone();
        counts.retain(|&count| count > 0 && count <= self.rows);
        let most = counts.iter().copied().max().unwrap_or(0);
        let mut mixes: Vec<_> = counts.iter().map(|&count| vec![RANK; count]).collect();
        if most > 1 {
            mixes.push(MIXED_RANKS.into_iter().cycle().take(most).collect());
        }
        mixes
    }
}

/// The distinct ranks, ascending.
fn distinct(ranks: &[usize]) -> String {
    let mut ranks = ranks.to_vec();
    ranks.sort_unstable();
    ranks.dedup();
    let ranks: Vec<String> = ranks.iter().map(usize::to_string).collect();
    ranks.join(", ")
}

/// Reads one value of every result: a device reports a failed kernel at the next read.
fn check(results: Vec<Tensor<2>>) -> Result<(), PipelineError> {
    for (index, result) in results.into_iter().enumerate() {
        let first = to_host(result.slice([0..1, 0..1]))?.first().copied();
        if !first.is_some_and(f32::is_finite) {
            return Err(device_failure(format!(
                "result {index} of a benchmark begins with {first:?}"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, FloatDType};

    use super::{Kernel, KernelBench};

    #[test]
    fn every_kernel_of_every_mix_is_measured_and_the_frozen_products_once() {
        let bench = KernelBench {
            rows: 8,
            d_in: 16,
            d_out: 24,
            adapters: vec![1, 5, 9],
            dtype: FloatDType::F32,
            nf4: false,
            composed: true,
        };
        let mut lines = Vec::new();
        let found = bench.run(&Device::flex(), &mut |line| lines.push(line.to_owned()));
        let found = found.unwrap();
        let found: Vec<_> = found.iter().map(|m| (m.name, &m.ranks[..])).collect();
        // 9 adapters do not have a row each.
        let (one, five, mixed) = (&[16][..], &[16; 5][..], &[4, 8, 16, 64, 4][..]);
        let mut expected = vec![("frozen", &[][..])];
        for ranks in [one, five, mixed] {
            expected.extend(Kernel::ALL[1..].iter().map(|kernel| (kernel.name(), ranks)));
        }
        assert_eq!(found, expected);
        assert_eq!(lines.len(), 3, "{lines:?}");

        let bench = KernelBench {
            composed: false,
            ..bench
        };
        let found = bench.run(&Device::flex(), &mut |_| ()).unwrap();
        assert!(found.iter().all(|m| m.name != "composed"));
        assert_eq!(found.len(), expected.len() - 3);
    }
}
