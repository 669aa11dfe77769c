use loraloom_data::{DataError, Samples};
use loraloom_trainer::Score;
use serde::Serialize;

use crate::table::or_dash;

/// Headings of the [cells](Preferences::cells).
pub(super) const HEADINGS: [&str; 5] = [
    "<adapter",
    "logps/chosen",
    "logps/rejected",
    "rewards/margins",
    "rewards/accuracies",
];

/// Means over completions with preferences, by the names that TRL gives them. Rewards are log-probabilities less those
/// of the base model: times `beta` they are those of DPO and KTO.
#[derive(Debug, Serialize)]
pub(super) struct Preferences {
    #[serde(rename = "logps/chosen")]
    chosen: Option<f64>,
    #[serde(rename = "logps/rejected")]
    rejected: Option<f64>,
    /// Reward of chosen less that of rejected completions; `null` for the base model.
    #[serde(rename = "rewards/margins")]
    margin: Option<f64>,
    /// Share of the pairs whose chosen completion has the larger reward; `null` without pairs and for the base model.
    #[serde(rename = "rewards/accuracies")]
    accuracy: Option<f64>,
}

/// True if the samples have preferences.
pub(super) fn are_in(samples: &Samples) -> Result<bool, DataError> {
    Ok(!samples.is_empty() && samples.get(0)?.preferred.is_some())
}

impl Preferences {
    /// Those of an adapter, beside the base model's unless the score is its own. `None` of rows without preferences.
    pub(super) fn of(base: Option<&[(bool, f64)]>, score: &Score, per_row: usize) -> Option<Self> {
        let own = &score.preferences;
        let [chosen, rejected] = [true, false].map(|side| mean(own, side));
        let rewards = base.map(|base| {
            let rewards = own.iter().zip(base);
            let rewards = rewards.map(|(&(side, own), (_, base))| (side, own - base));
            rewards.collect::<Vec<_>>()
        });
        let sides = |rewards: &Vec<_>| Some([mean(rewards, true)?, mean(rewards, false)?]);
        let pairs = rewards.as_ref().filter(|_| per_row == 2);
        (!own.is_empty()).then_some(Self {
            chosen,
            rejected,
            margin: (rewards.as_ref().and_then(sides)).map(|[chosen, rejected]| chosen - rejected),
            accuracy: pairs.map(|rewards| {
                let pairs = rewards.chunks_exact(2);
                let right = pairs.filter(|pair| pair[0].1 > pair[1].1).count();
                right as f64 / (rewards.len() / 2) as f64
            }),
        })
    }

    /// As a row of a table.
    pub(super) fn cells(&self, adapter: &str) -> [String; 5] {
        let number = |value: Option<f64>| or_dash(value.map(|value| format!("{value:.4}")));
        let accuracy = self.accuracy.map(|share| format!("{:.1} %", 100.0 * share));
        [
            adapter.to_owned(),
            number(self.chosen),
            number(self.rejected),
            number(self.margin),
            or_dash(accuracy),
        ]
    }
}

/// Mean of one side's values.
fn mean(values: &[(bool, f64)], side: bool) -> Option<f64> {
    let of_side = values.iter().filter(|(preferred, _)| *preferred == side);
    let (count, sum) = of_side.fold((0, 0.0), |(count, sum), (_, value)| {
        (count + 1, sum + value)
    });
    (count > 0).then(|| sum / f64::from(count))
}
