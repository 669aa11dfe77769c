use burn::tensor::{Device, FloatDType, Tensor};
use loraloom_config::DtypeChoice;
use loraloom_model::{ModelError, TensorDtype, to_host};

use super::{
    count::{Counts, count},
    layer::Layer,
    measure::{Work, dtype_name, medians},
    report::{KernelMeasurement, Rung},
};
use crate::{TrainerError, dtype::resolve_stored};

/// Dropout of the adapters, as in the paper's workload.
const DROPOUT: f64 = 0.05;
/// Rank of the adapters where all have the same.
const RANK: usize = 16;
/// Ranks that are taken in turn where they differ.
const MIXED_RANKS: [usize; 4] = [4, 8, 16, 64];

/// The operator at one layer with random operands, forward and backward, and its kernels, for several
/// adapters that share the rows: rank 16 each, and once of ranks 4, 8, 16 and 64. Dropout is 0.05.
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
    /// Type of x and the frozen weight; `auto` is `bfloat16` where a device other than the CPU has
    /// it, else `float32`.
    pub dtype: DtypeChoice,
    /// Also time the composition of Burn's operations.
    pub composed: bool,
}

impl KernelBench {
    /// Measures every mix of ranks; `progress` is told what is about to be measured.
    ///
    /// # Errors
    /// If the device lacks the type or fails.
    pub fn run(
        &self,
        device: &Device,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Vec<KernelMeasurement>, TrainerError> {
        let dtype = resolve_stored(self.dtype, device, Some(TensorDtype::Bfloat16))?;
        let mut measurements = Vec::new();
        for ranks in self.mixes() {
            progress(&format!(
                "layer [{}, {}], rows {}, adapters {}, ranks {}",
                self.d_in,
                self.d_out,
                self.rows,
                ranks.len(),
                described(&ranks),
            ));
            let measured = self.measure(&ranks, dtype, device)?;
            let skipped = usize::from(!measurements.is_empty());
            measurements.extend(measured.into_iter().skip(skipped));
        }
        Ok(measurements)
    }

    /// Ranks of the adapters, case by case.
    fn mixes(&self) -> Vec<Vec<usize>> {
        let counts = self.adapters.iter().copied();
        let counts: Vec<usize> = counts.filter(|&k| k > 0 && k <= self.rows).collect();
        let most = counts.iter().copied().max().unwrap_or(0);
        let mut mixes: Vec<_> = counts.into_iter().map(|k| vec![RANK; k]).collect();
        if most > 1 {
            mixes.push(MIXED_RANKS.into_iter().cycle().take(most).collect());
        }
        mixes
    }

    /// One mix, rung by rung: the frozen products first.
    fn measure(
        &self,
        ranks: &[usize],
        dtype: FloatDType,
        device: &Device,
    ) -> Result<Vec<KernelMeasurement>, TrainerError> {
        let shape = [self.rows, self.d_in, self.d_out];
        let layer = Layer::new(shape, ranks, DROPOUT, dtype, device)?;
        let rungs = Rung::ALL.into_iter();
        let rungs: Vec<Rung> = rungs
            .filter(|&rung| self.composed || rung != Rung::Composed)
            .collect();
        let run = |rung| layer.run(rung).map(drop);
        let mut pieces: Vec<_> = rungs.iter().map(|&rung| move || run(rung)).collect();
        let pieces: Vec<Work<'_>> = pieces.iter_mut().map(|piece| piece as Work<'_>).collect();
        let seconds = medians(device, pieces)?;
        rungs
            .iter()
            .zip(&seconds)
            .map(|(&rung, &taken)| {
                check(layer.run(rung)?)?;
                let counts = count(device, || run(rung))?;
                // The frozen products are the first rung.
                Ok(self.measurement(rung, ranks, dtype, [taken, seconds[0]], counts))
            })
            .collect()
    }

    fn measurement(
        &self,
        rung: Rung,
        ranks: &[usize],
        dtype: FloatDType,
        [seconds, frozen]: [f64; 2],
        counts: Option<Counts>,
    ) -> KernelMeasurement {
        KernelMeasurement {
            name: rung,
            rows: self.rows,
            d_in: self.d_in,
            d_out: self.d_out,
            ranks: match rung {
                Rung::Frozen => Vec::new(),
                _ => ranks.to_vec(),
            },
            dtype: dtype_name(dtype),
            milliseconds: seconds * 1e3,
            frozen_milliseconds: frozen * 1e3,
            launches: counts.map(|counts| counts.launches),
            // Burn's own launches do not say what they move.
            bytes_moved: counts
                .filter(|_| rung != Rung::Composed)
                .map(|counts| counts.bytes_moved),
        }
    }
}

/// The ranks in a few characters.
fn described(ranks: &[usize]) -> String {
    let mut different = ranks.to_vec();
    different.sort_unstable();
    different.dedup();
    let different: Vec<String> = different.iter().map(usize::to_string).collect();
    different.join(", ")
}

/// Reads a bit of every result: only who reads learns that a device failed.
fn check(results: Vec<Option<Tensor<2>>>) -> Result<(), TrainerError> {
    for (index, result) in results.into_iter().enumerate() {
        let first = match result {
            Some(tensor) => to_host(tensor.slice([0..1, 0..1]))?.first().copied(),
            None => None,
        };
        if !first.is_some_and(f32::is_finite) {
            let reason = format!("result {index} of a benchmark begins with {first:?}");
            return Err(ModelError::Device { reason }.into());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;
    use loraloom_config::DtypeChoice;

    use super::{KernelBench, Rung};

    #[test]
    fn every_rung_of_every_mix_is_measured_and_the_frozen_one_once() {
        let bench = KernelBench {
            rows: 8,
            d_in: 16,
            d_out: 24,
            adapters: vec![1, 5, 9],
            dtype: DtypeChoice::Auto,
            composed: true,
        };
        let mut said = Vec::new();
        let found = bench.run(&Device::flex(), &mut |line| said.push(line.to_owned()));
        let found = found.unwrap();
        let found: Vec<_> = found.iter().map(|m| (m.name, &m.ranks[..])).collect();
        // 9 adapters have not a row each.
        let (one, five, mixed) = (&[16][..], &[16; 5][..], &[4, 8, 16, 64, 4][..]);
        let mut expected = vec![(Rung::Frozen, &[][..])];
        for ranks in [one, five, mixed] {
            expected.extend(Rung::ALL[1..].iter().map(|&rung| (rung, ranks)));
        }
        assert_eq!(found, expected);
        assert_eq!(said.len(), 3, "{said:?}");

        let bench = KernelBench {
            composed: false,
            ..bench
        };
        let found = bench.run(&Device::flex(), &mut |_| ()).unwrap();
        assert!(found.iter().all(|m| m.name != Rung::Composed));
        assert_eq!(found.len(), expected.len() - 3);
    }
}
