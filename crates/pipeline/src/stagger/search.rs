use super::{clock::Clock, draws::Draws, ideal::boundaries};
use crate::{Balance, PartCosts, PartitionError, Partitions};

/// Passes that a search times at most, so that it takes about a tenth of a second.
const MOST_PASSES: usize = 25_000_000;
const MOST_TRIALS: usize = 10_000;
/// What part of the rate a change may cost at first; less and less of it is let through.
const TOLERANCE: f64 = 0.001;
const SEED: u64 = 1;
/// Layers that are held twice must be worth so many times the rate.
const WORTH: f64 = 1.001;

/// Partitions, as many as stages, for the most optimizer steps a second with as many groups as
/// stages; see [`PartCosts::steps_per_second`]. One, that of [`Balance::Auto`], where none are faster
/// by a thousandth: a stage then holds fewer layers.
///
/// Every boundary between two stages is where equal stages would have it, with the layer that it goes
/// through on one side or the other. Which groups have it where is searched for, from the same
/// beginning in the same order each time.
///
/// # Errors
/// As [`partition`](crate::partition()).
pub fn stagger(costs: &PartCosts, stages: usize) -> Result<Partitions, PartitionError> {
    let even = Partitions::from(costs.partition(stages, &Balance::Auto)?);
    let even_rate = costs.steps_per_second(&even)?;
    if stages < 2 || stages == costs.layers.len() {
        return Ok(even);
    }
    let found = Search::new(costs, stages)?.run();
    let faster = costs.steps_per_second(&found)? > even_rate * WORTH;
    Ok(if faster { found } else { even })
}

/// A search that goes from one choice to the next by small changes, and puts up with a little less
/// than it had, so that it does not stay where no single change helps.
#[derive(Debug)]
struct Search<'a> {
    costs: &'a PartCosts,
    clock: Clock,
    draws: Draws,
    /// The two places that a boundary may have, by boundary from 1 on.
    places: Vec<[usize; 2]>,
    /// The layers below every boundary from 0 to the number of stages, by partition.
    chosen: Vec<Vec<usize>>,
    /// What the clock takes.
    times: Vec<f64>,
}

impl<'a> Search<'a> {
    fn new(costs: &'a PartCosts, stages: usize) -> Result<Self, PartitionError> {
        let layers = costs.layers.len();
        let ideal = boundaries(costs, stages);
        let places: Vec<[usize; 2]> = ideal
            .iter()
            .enumerate()
            .map(|(index, place)| {
                let (low, most) = (*place as usize, layers - (stages - 1 - index));
                [low, most.min(low + 1)]
            })
            .collect();
        // As many groups have a boundary up as come nearest to where it should be, spread over them.
        let first = |partition: usize| {
            let chosen = ideal.iter().zip(&places).map(|(place, [low, high])| {
                let up = (place.fract() * stages as f64).round() as usize;
                let is_up = (partition * up) % stages < up;
                if is_up { *high } else { *low }
            });
            let mut chosen: Vec<usize> = std::iter::once(0)
                .chain(chosen)
                .chain(std::iter::once(layers))
                .collect();
            part(&mut chosen);
            chosen
        };
        let mut search = Self {
            costs,
            clock: Clock::new(stages)?,
            draws: Draws::new(SEED),
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

    /// Sets a group's times to those of its partition.
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

/// Moves boundaries so far apart that there is a layer between them. The outer ones stay.
fn part(chosen: &mut [usize]) {
    let last = chosen.len() - 1;
    for boundary in 1..last {
        chosen[boundary] = chosen[boundary].max(chosen[boundary - 1] + 1);
    }
    for boundary in (1..last).rev() {
        chosen[boundary] = chosen[boundary].min(chosen[boundary + 1] - 1);
    }
}

#[cfg(test)]
mod tests {
    use super::{Clock, Search, part};
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

    /// The search's clock and the simulator say the same of what the search goes through.
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
}
