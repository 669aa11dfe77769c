use burn::tensor::{DType, Device, Int, Tensor, TensorData};

use crate::LoraSpec;

/// The slots of a bank's packed rows, on its device, in 32-bit integers.
#[derive(Debug, Clone)]
pub(crate) struct RankTables {
    /// The slot of every packed row, `[Σr]`; the number of slots for a row that is not trained.
    pub(crate) slots: Tensor<1, Int>,
    /// 1 for packed rows that are trained, 0 for others, `[Σr, 1]`; `None` if all are trained.
    pub(crate) trained_rows: Option<Tensor<2>>,
    /// The first packed row of every slot and the end of the last one, `[slots + 1]`.
    pub(crate) starts: Tensor<1, Int>,
    /// 1 for slots whose A is trained, 0 for those whose A is frozen, `[slots, 1]`; `None` if all are trained.
    pub(crate) trains_a: Option<Tensor<2>>,
    /// The slot of every magnitude, and the first magnitude of every slot, as of the packed rows; `None` without DoRA.
    pub(crate) magnitudes: Option<[Tensor<1, Int>; 2]>,
}

impl RankTables {
    pub(crate) fn new(specs: &[Option<LoraSpec>], device: &Device) -> Self {
        let idle = specs.len() as i32;
        // The rows of each slot, and how many of them are not trained.
        let rows = |of_spec: fn(LoraSpec) -> [usize; 2]| {
            let (mut slots, mut starts) = (Vec::new(), vec![0]);
            for (slot, spec) in specs.iter().enumerate() {
                let [rows, frozen] = spec.map_or([0, 0], of_spec);
                slots.extend(std::iter::repeat_n(slot as i32, rows - frozen));
                slots.extend(std::iter::repeat_n(idle, frozen));
                starts.push(slots.len() as i32);
            }
            [slots, starts]
        };
        let upload = |words: Vec<i32>| {
            let length = words.len();
            Tensor::from_data(TensorData::new(words, [length]), (device, DType::I32))
        };
        let frozen: Vec<bool> = specs
            .iter()
            .map(|spec| spec.is_some_and(|spec| spec.freeze_a))
            .collect();
        let trains_a = frozen.contains(&true).then(|| {
            let trained: Vec<f32> = frozen.iter().map(|&frozen| f32::from(!frozen)).collect();
            let data = TensorData::new(trained, [frozen.len(), 1]);
            Tensor::from_data(data, (device, DType::F32))
        });
        let of_ranks = rows(|spec| [spec.r, spec.frozen_ranks]);
        let trained_rows = of_ranks[0].contains(&idle).then(|| {
            let trained = of_ranks[0].iter().map(|&slot| f32::from(slot != idle));
            let trained: Vec<f32> = trained.collect();
            let data = TensorData::new(trained, [of_ranks[0].len(), 1]);
            Tensor::from_data(data, (device, DType::F32))
        });
        let [slots, starts] = of_ranks.map(upload);
        let magnitudes = rows(|spec| [usize::from(spec.use_dora), 0]);
        Self {
            slots,
            trained_rows,
            starts,
            trains_a,
            magnitudes: (!magnitudes[0].is_empty()).then(|| magnitudes.map(upload)),
        }
    }
}
