//! Speed of 1, 2, 4 and 8 stages, and of the executor against its simulation.
//!
//!     cargo bench -p loraloom-benches --bench pipeline [-- SHAPE ROWS]
//!     cargo bench -p loraloom-benches --bench pipeline -- SHAPE given FORWARD BACKWARD HEAD
//!
//! Prints a JSON line per case. `measured_costs` are seconds of a decoder layer and of the head of
//! SHAPE (default `tinyllama-1.1b`) on this machine's CPU. `simulated` partitions the whole model by these
//! costs and simulates the schedules with as many groups as stages; `staggered` does so with a partition
//! of its own for each group, under LoRAPP. `executed` is the real executor over stages that sleep, beside
//! the simulation of the same lists. The second form simulates with the given costs and measures nothing.

#![expect(clippy::print_stdout, reason = "a benchmark prints its report")]

use std::{env, ops::Range, thread, time::Duration};

use batchlora::{Segments, SlotUpdate};
use burn::tensor::{Device, FloatDType, Tensor};
use loraloom_model::{LlamaConfig, Sequences, Targets};
use loraloom_pipeline::{
    Forwarded, Microbatch, MicrobatchId, PartCosts, Partitions, PipelineError, TrainStage,
    executor::{GroupPlan, IterationOutcome, IterationPlan, IterationPlanner, Passes, run},
    schedule::{PipelineShape, Schedule, operations},
    simulate::{Links, PassCosts, ScheduleCosts, simulate},
    stagger,
};
use serde_json::json;

const STEPS: usize = 24;
/// Tokens of a sequence.
const LENGTH: usize = 256;
const SCHEDULES: [Schedule; 3] = [Schedule::LoraPp, Schedule::OneFOneB, Schedule::GPipe];

fn main() -> anyhow::Result<()> {
    // Cargo adds arguments of its own.
    let mut arguments = env::args().skip(1).filter(|word| !word.starts_with("--"));
    let shape = arguments
        .next()
        .unwrap_or_else(|| "tinyllama-1.1b".to_owned());
    let rows = arguments.next();
    let model = LlamaConfig::named(&shape);
    let model = model.ok_or_else(|| anyhow::anyhow!("no shape `{shape}`"))?;
    if rows.as_deref() == Some("given") {
        let costs = arguments.map(|cost| cost.parse());
        let costs = costs.collect::<Result<Vec<_>, _>>()?;
        return spread(&given(&model, &costs)?);
    }
    let rows = rows.map_or(Ok(LENGTH), |rows| rows.parse())?;
    scaling(&shape, &model, rows)?;
    for (stages, groups, microbatches) in [(2, 2, 1), (4, 4, 1), (4, 1, 1), (4, 1, 4)] {
        executed(stages, groups, microbatches)?;
    }
    Ok(())
}

/// Costs of a model of equal layers; those of a layer and of the head are from the command line.
fn given(model: &LlamaConfig, costs: &[f64]) -> anyhow::Result<PartCosts> {
    let &[forward, backward, head] = costs else {
        anyhow::bail!("`given` takes three costs: FORWARD, BACKWARD and HEAD");
    };
    let passes = |forward, backward| PassCosts {
        forward,
        backward,
        step: 0.0,
    };
    Ok(PartCosts {
        layers: vec![passes(forward, backward); model.num_hidden_layers],
        embedding: PassCosts::default(),
        head: passes(head, 0.0),
    })
}

/// Measures the model's costs and simulates its stages.
fn scaling(shape: &str, model: &LlamaConfig, rows: usize) -> anyhow::Result<()> {
    let sizes = [rows, LENGTH];
    let device = Device::flex();
    for predicting in [1.0, 0.5] {
        let costs = PartCosts::measure(model, FloatDType::F32, &device, sizes, predicting)?;
        let Some(costs) = costs else { continue };
        let (layer, head) = (costs.layers[0], costs.head);
        println!(
            "{}",
            json!({"measured_costs": {
                "shape": shape, "rows": rows, "predicting": predicting,
                "layer_forward": layer.forward, "layer_backward": layer.backward,
                "head_forward": head.forward,
            }})
        );
        spread(&costs)?;
    }
    Ok(())
}

/// Simulates the whole model on 1 to 8 stages.
fn spread(costs: &PartCosts) -> anyhow::Result<()> {
    let one = Partitions::from(costs.partition(1)?);
    let one = costs.steps_per_second(&one)?;
    for stages in [1, 2, 4, 8] {
        let even = costs.partition(stages)?;
        let layers: Vec<usize> = even.iter().map(Range::len).collect();
        let by_stage = even.iter().map(|part| vec![costs.of_stage(part); stages]);
        let passes = ScheduleCosts::new(by_stage.collect())?;
        for schedule in SCHEDULES {
            let rate = steps_per_second(schedule, [stages, stages, 1], &passes)?;
            println!(
                "{}",
                json!({"simulated": {
                    "stages": stages, "groups": stages, "schedule": schedule,
                    "layers": layers, "group_steps_per_second": rate,
                    "of_stages_times_one": rate / one / stages as f64,
                }})
            );
        }
        let partitions = stagger(costs, stages)?;
        let held = partitions.stages();
        let held: Vec<usize> = held.iter().map(|stage| stage.held().len()).collect();
        let rate = costs.steps_per_second(&partitions)?;
        println!(
            "{}",
            json!({"staggered": {
                "stages": stages, "groups": stages, "partitions": partitions.counts(),
                "layers_held": held, "group_steps_per_second": rate,
                "of_stages_times_one": rate / one / stages as f64,
            }})
        );
    }
    Ok(())
}

/// Optimizer steps of all groups per second, without filling and draining the pipeline.
fn steps_per_second(
    schedule: Schedule,
    [stages, groups, microbatches]: [usize; 3],
    costs: &ScheduleCosts,
) -> anyhow::Result<f64> {
    let shape = PipelineShape::new(stages, groups, microbatches, STEPS);
    let lists = operations(schedule, &shape);
    let simulation = simulate(&lists, costs, &Links::instant(stages, groups))?;
    let rate = simulation.steady_steps_per_second();
    rate.ok_or_else(|| anyhow::anyhow!("{STEPS} steps have no middle"))
}

/// Runs the executor over stages that sleep.
fn executed(stages: usize, groups: usize, microbatches: usize) -> anyhow::Result<()> {
    let pass = Duration::from_millis(20);
    let costs = PassCosts {
        forward: pass.as_secs_f64(),
        backward: pass.as_secs_f64(),
        step: 0.0,
    };
    let costs = ScheduleCosts::uniform(stages, groups, costs)?;
    for schedule in SCHEDULES {
        let simulated = steps_per_second(schedule, [stages, groups, microbatches], &costs)?;
        let last = stages - 1;
        let sleeper = |index| {
            let device = Device::flex();
            Box::new(Sleeper {
                device,
                index,
                last,
                pass,
            })
        };
        let mut sleeping: Vec<_> = (0..stages).map(sleeper).collect();
        let mut idle = Idle {
            groups,
            microbatches,
            booked: Vec::new(),
        };
        let passes = Passes {
            schedule,
            shape: PipelineShape::new(stages, groups, microbatches, STEPS),
        };
        run(&mut sleeping, &passes, &mut idle)?;
        let (first, end) = (&idle.booked[STEPS / 4], &idle.booked[STEPS - 3]);
        let between = &idle.booked[STEPS / 4 + 1..=STEPS - 3];
        let seconds = end.at.duration_since(first.at).as_secs_f64();
        let executed = (between.len() * groups) as f64 / seconds;
        let busy = between.iter().flat_map(|outcome| &outcome.busy).flatten();
        let bubble = 1.0 - busy.sum::<f64>() / (seconds * stages as f64);
        println!(
            "{}",
            json!({"executed": {
                "stages": stages, "groups": groups, "microbatches": microbatches,
                "schedule": schedule, "bubble_ratio": bubble,
                "group_steps_per_second": executed, "simulated_group_steps_per_second": simulated,
                "ratio": executed / simulated,
            }})
        );
    }
    Ok(())
}

/// A stage that sleeps instead of computing.
struct Sleeper {
    device: Device,
    index: usize,
    last: usize,
    pass: Duration,
}

fn nothing() -> Tensor<2> {
    Tensor::zeros([1, 1], &Device::flex())
}

impl TrainStage for Sleeper {
    fn device(&self) -> &Device {
        &self.device
    }

    fn computes_in_call(&self) -> bool {
        true
    }

    fn forward(
        &mut self,
        _: MicrobatchId,
        _: &Microbatch,
        _: Option<Tensor<2>>,
    ) -> Result<Forwarded, PipelineError> {
        thread::sleep(self.pass);
        let last = self.index == self.last;
        Ok(Forwarded {
            hidden: (!last).then(nothing),
            losses: last.then(|| nothing().reshape([1])),
        })
    }

    fn backward(
        &mut self,
        _: MicrobatchId,
        _: Option<Tensor<2>>,
    ) -> Result<Option<Tensor<2>>, PipelineError> {
        thread::sleep(self.pass);
        Ok((self.index > 0).then(nothing))
    }

    fn add_squares(&mut self, _: usize, _: Option<Tensor<2>>) -> Result<Tensor<2>, PipelineError> {
        Ok(nothing())
    }

    fn update(
        &mut self,
        _: usize,
        _: &[Option<SlotUpdate>],
        squares: Option<Tensor<2>>,
    ) -> Result<Tensor<1>, PipelineError> {
        let squares = squares.unwrap_or_else(nothing);
        Ok(squares.reshape([1]))
    }
}

/// Iterations without work.
struct Idle {
    groups: usize,
    microbatches: usize,
    booked: Vec<IterationOutcome>,
}

impl IterationPlanner for Idle {
    type Error = PipelineError;

    fn plan(&mut self, _: usize) -> Result<Option<IterationPlan>, PipelineError> {
        let microbatch = Microbatch {
            ids: vec![0],
            sequences: Sequences::from_lengths([1]),
            cached: None,
            rope_lengths: vec![1],
            segments: Segments::new(1, Vec::new())?,
            draws: None,
            targets: Targets::default(),
        };
        let group = |_| GroupPlan {
            microbatches: vec![microbatch.clone(); self.microbatches],
            updates: Vec::new(),
        };
        let groups = (0..self.groups).map(group).collect();
        Ok(Some(IterationPlan { groups }))
    }

    fn book(&mut self, outcome: IterationOutcome) -> Result<bool, PipelineError> {
        self.booked.push(outcome);
        Ok(true)
    }
}
