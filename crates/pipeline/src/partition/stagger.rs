//! Partitions that differ from group to group, so that stages are more even on average than whole
//! layers allow for a single partition.
//!
//! Thirty-two layers and a head worth half a layer are not even on eight stages: four layers on each,
//! and the last has an eighth more work than the others. If every stage had the time of 4.06 layers,
//! the pipeline would be 1.11 times as fast. Over a round of groups it can: a group has five layers on
//! one stage and three on another, and a stage that has more work for one group has less for the next.

use super::clock::Clock;
use crate::{PartCosts, PartitionError, Partitions};

/// Most passes that a search times; it then takes about a tenth of a second.
const MOST_PASSES: usize = 25_000_000;
const MOST_TRIALS: usize = 10_000;
/// Part of the rate that a change may cost at first; it falls to 0.
const TOLERANCE: f64 = 0.001;
const SEED: u64 = 1;
/// Least gain in the rate for which layers are held twice.
const WORTH: f64 = 1.001;

/// As many partitions as stages, for the most optimizer steps a second with as many groups as stages;
/// see [`PartCosts::steps_per_second`]. The single partition of [`PartCosts::partition`], with which a
/// stage holds fewer layers, where none are faster by a thousandth.
///
/// Every boundary between two stages is next to where equal stages would have it: below or above the
/// layer that it cuts. A deterministic search decides for each group.
///
/// # Errors
/// As [`partition`](crate::partition()).
pub fn stagger(costs: &PartCosts, stages: usize) -> Result<Partitions, PartitionError> {
    let even = Partitions::from(costs.partition(stages)?);
    let even_rate = costs.steps_per_second(&even)?;
    if stages < 2 || stages == costs.layers.len() {
        return Ok(even);
    }
    let found = Search::new(costs, stages)?.run();
    let faster = costs.steps_per_second(&found)? > even_rate * WORTH;
    Ok(if faster { found } else { even })
}

/// A local search by small changes. It accepts slightly worse rates, so that it can leave choices that
/// no single change improves.
#[derive(Debug)]
struct Search<'a> {
    costs: &'a PartCosts,
    clock: Clock,
    draws: Draws,
    /// The two places that a boundary may have, by boundary from 1 on.
    places: Vec<[usize; 2]>,
    /// The layers below every boundary from 0 to the number of stages, by partition.
    chosen: Vec<Vec<usize>>,
    /// Times of the passes; see [`Clock::index`].
    times: Vec<f64>,
}

impl<'a> Search<'a> {
    fn new(costs: &'a PartCosts, stages: usize) -> Result<Self, PartitionError> {
        let layers = costs.layers.len();
        let ideal = boundaries(costs, stages);
        let places = ideal.iter().enumerate().map(|(index, place)| {
            let (low, most) = (*place as usize, layers - (stages - 1 - index));
            [low, most.min(low + 1)]
        });
        let places: Vec<[usize; 2]> = places.collect();
        // The number of groups with the upper place puts the mean nearest to the ideal; they are spread
        // evenly.
        let first = |partition: usize| {
            let chosen = ideal.iter().zip(&places).map(|(place, [low, high])| {
                let up = (place.fract() * stages as f64).round() as usize;
                let is_up = (partition * up) % stages < up;
                if is_up { *high } else { *low }
            });
            let mut chosen: Vec<usize> = [0].into_iter().chain(chosen).chain([layers]).collect();
            part(&mut chosen);
            chosen
        };
        let mut search = Self {
            costs,
            clock: Clock::new(stages)?,
            draws: Draws(SEED),
            chosen: (0..stages).map(first).collect(),
            places,
            times: vec![0.0; 2 * stages * stages],
        };
        (0..stages).for_each(|partition| search.time(partition));
        Ok(search)
    }

    fn run(mut self) -> Partitions {
        let trials = (MOST_PASSES / self.clock.passes()).min(MOST_TRIALS);
        let mut rate = self.clock.steps_per_second(&self.times);
        let mut best = (rate, self.chosen.clone());
        for trial in 0..trials {
            let left = 1.0 - trial as f64 / trials as f64;
            let enough = rate * (1.0 - TOLERANCE * left * left);
            let stages = self.chosen.len();
            let pair = [self.draws.below(stages), self.draws.below(stages)];
            let before = pair.map(|partition| self.chosen[partition].clone());
            self.change(pair);
            if pair.map(|partition| &self.chosen[partition]) == [&before[0], &before[1]] {
                continue;
            }
            for partition in pair {
                self.time(partition);
            }
            let changed = self.clock.steps_per_second(&self.times);
            if changed < enough {
                for (partition, before) in pair.into_iter().zip(before) {
                    self.chosen[partition] = before;
                    self.time(partition);
                }
                continue;
            }
            rate = changed;
            if rate > best.0 {
                best = (rate, self.chosen.clone());
            }
        }
        let ranges = |chosen: Vec<usize>| chosen.windows(2).map(|ends| ends[0]..ends[1]).collect();
        Partitions::new(best.1.into_iter().map(ranges).collect())
    }

    /// Two groups exchange a boundary or all of them, or one moves a boundary to its other place.
    fn change(&mut self, [one, other]: [usize; 2]) {
        let boundary = 1 + self.draws.below(self.places.len());
        match self.draws.below(3) {
            0 => {
                let place = self.chosen[one][boundary];
                self.chosen[one][boundary] = self.chosen[other][boundary];
                self.chosen[other][boundary] = place;
            }
            1 => self.chosen.swap(one, other),
            _ => {
                let [low, high] = self.places[boundary - 1];
                let place = &mut self.chosen[one][boundary];
                *place = if *place > low { low } else { high };
            }
        }
        part(&mut self.chosen[one]);
        part(&mut self.chosen[other]);
    }

    /// Sets the times of a partition's passes.
    fn time(&mut self, partition: usize) {
        let stages = self.chosen.len();
        for stage in 0..stages {
            let ends = &self.chosen[partition];
            let costs = self.costs.of_stage(&(ends[stage]..ends[stage + 1]));
            for (backward, time) in [(false, costs.forward), (true, costs.backward)] {
                self.times[Clock::index(stages, stage, partition, backward)] = time;
            }
        }
    }
}

/// Moves inner boundaries apart until there is a layer between any two.
fn part(chosen: &mut [usize]) {
    let last = chosen.len() - 1;
    for boundary in 1..last {
        chosen[boundary] = chosen[boundary].max(chosen[boundary - 1] + 1);
    }
    for boundary in (1..last).rev() {
        chosen[boundary] = chosen[boundary].min(chosen[boundary + 1] - 1);
    }
}

/// The boundaries between stages of equal time, in layers, if layers could be cut. Every stage keeps
/// at least one layer.
fn boundaries(costs: &PartCosts, stages: usize) -> Vec<f64> {
    let layers = costs.layer_passes();
    let each = costs.whole() / stages as f64;
    let boundary = |k: usize| {
        let below = fractional_layers(&layers, k as f64 * each - costs.embedding_passes());
        below.clamp(k as f64, (layers.len() - (stages - k)) as f64)
    };
    (1..stages).map(boundary).collect()
}

/// Number of layers, from the first on, that take `time` together.
fn fractional_layers(layers: &[f64], mut time: f64) -> f64 {
    for (index, &cost) in layers.iter().enumerate() {
        if time < cost {
            return index as f64 + (time / cost).max(0.0);
        }
        time -= cost;
    }
    layers.len() as f64
}

/// SplitMix64, so that the search is the same on every machine.
#[derive(Debug)]
struct Draws(u64);

impl Draws {
    /// A number below `count`.
    fn below(&mut self, count: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^= mixed >> 31;
        // The high half of a product: nearly even, without a division.
        ((u128::from(mixed) * count as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::{Clock, Draws, Search, boundaries, fractional_layers, part};
    use crate::{PartCosts, Partitions, simulate::PassCosts};

    fn costs(layers: usize, head: f64) -> PartCosts {
        let costs = |forward, backward| PassCosts {
            forward,
            backward,
            step: 0.0,
        };
        PartCosts {
            layers: (0..layers)
                .map(|layer| costs(1.0, 1.0 + 0.01 * layer as f64))
                .collect(),
            embedding: costs(0.1, 0.0),
            head: costs(head, 0.0),
        }
    }

    #[test]
    fn boundaries_leave_a_layer_between_them() {
        for (mut given, expected) in [
            (vec![0, 2, 2, 5], vec![0, 2, 3, 5]),
            (vec![0, 0, 0, 5], vec![0, 1, 2, 5]),
            (vec![0, 5, 5, 5], vec![0, 3, 4, 5]),
            (vec![0, 4, 2, 5], vec![0, 3, 4, 5]),
        ] {
            part(&mut given);
            assert_eq!(given, expected);
        }
    }

    /// The clock equals the simulator on everything that the search visits.
    #[test]
    fn the_clock_is_the_simulator() {
        for (stages, layers) in [(2, 5), (3, 7), (5, 12), (8, 32)] {
            let costs = costs(layers, 1.3);
            let mut search = Search::new(&costs, stages).unwrap();
            for change in 0..60 {
                let pair = [search.draws.below(stages), search.draws.below(stages)];
                search.change(pair);
                for partition in pair {
                    search.time(partition);
                }
                let ranges = search.chosen.iter().map(|chosen| {
                    let ranges = chosen.windows(2).map(|ends| ends[0]..ends[1]);
                    ranges.collect::<Vec<_>>()
                });
                let partitions = Partitions::new(ranges.collect());
                let simulated = costs.steps_per_second(&partitions).unwrap();
                let timed = search.clock.steps_per_second(&search.times);
                assert_eq!(
                    timed.to_bits(),
                    simulated.to_bits(),
                    "{stages} stages, change {change}: {timed}, {simulated}"
                );
            }
        }
        assert_eq!(Clock::new(3).unwrap().passes(), 3 * 3 * 24 * 2);
    }

    #[test]
    fn all_numbers_come_about_as_often() {
        let mut draws = Draws(1);
        let mut counts = [0_u32; 7];
        for _ in 0..7000 {
            counts[draws.below(7)] += 1;
        }
        assert!(
            counts.iter().all(|count| (900..1100).contains(count)),
            "{counts:?}"
        );
    }

    fn forward(forward: f64) -> PassCosts {
        PassCosts {
            forward,
            backward: 0.0,
            step: 0.0,
        }
    }

    #[test]
    fn layers_are_counted_in_parts() {
        for (time, expected) in [
            (-1.0, 0.0),
            (0.5, 0.25),
            (2.0, 1.0),
            (5.0, 1.75),
            (9.0, 2.0),
        ] {
            let found = fractional_layers(&[2.0, 4.0], time);
            assert!((found - expected).abs() < 1e-12, "{time}: {found}");
        }
    }

    #[test]
    fn stages_would_all_take_the_same_time() {
        let costs = PartCosts {
            layers: vec![forward(2.0); 6],
            embedding: forward(1.0),
            head: forward(3.0),
        };
        // 16 over 4 stages.
        assert_eq!(boundaries(&costs, 4), [1.5, 3.5, 5.0]);
        // No stage is left without a layer, whatever it costs.
        let heavy = PartCosts {
            head: forward(100.0),
            ..costs
        };
        assert_eq!(boundaries(&heavy, 4), [3.0, 4.0, 5.0]);
    }
}
