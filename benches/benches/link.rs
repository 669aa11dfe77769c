//! Hops between two workers, alone and in a pipeline.
//!
//! `benches/two_machines.sh` runs it over two network namespaces with a shaped link:
//!
//! ```text
//! link model DIRECTORY                         writes a wide and shallow model
//! link worker LISTEN IDENTITY DIRECTORY MS     a worker whose passes take MS milliseconds each
//! link run DIRECTORY STEPS LENGTH L:E,.. WORKER PID WORKER PID
//! ```
//!
//! `run` sends L groups of a micro-batch with 8 × LENGTH tokens through both stages, with E micro-batches
//! of `extra_warmup`, and prints a JSON line for every L:E. With a LENGTH of 512 a hop is 4096 × 2048
//! numbers of float32, 33.6 MB: as much as these tokens are in a 7B model in bfloat16. Workers sleep
//! instead of computing, as if they had GPUs: both ends of the link are on this machine, and the network
//! needs all of it.

#![expect(clippy::print_stdout, reason = "a benchmark prints its report")]

use std::{
    collections::BTreeMap,
    env, fs,
    io::Read,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use batchlora::{AdapterState, LoraSpec, Segment, Segments, SlotUpdate};
use burn::tensor::{Device, FloatDType};
use loraloom_model::{
    Checkpoint, LayerAdapter, LlamaConfig, Projection, Sequences, Targets, parameter_shapes,
};
use loraloom_pipeline::{
    Microbatch, Pipeline,
    executor::{
        GroupPlan, IterationOutcome, IterationPlan, IterationPlanner, Passes, TransferTimes,
    },
    remote::{Controller, StageSpec, Worker, WorkerOptions},
    schedule::{PipelineShape, Schedule},
};
use safetensors::{Dtype, serialize_to_file, tensor::TensorView};
use serde_json::json;
use sleeping::Sleeping;

#[path = "../../crates/pipeline/tests/it/remote/sleeping.rs"]
mod sleeping;

const SEQUENCES: usize = 8;
const TOKEN: &str = "a token";

fn main() -> anyhow::Result<()> {
    // Cargo adds arguments of its own, and runs this without any in its tests.
    let arguments: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = arguments
        .iter()
        .map(String::as_str)
        .filter(|word| !word.starts_with("--"))
        .collect();
    match words[..] {
        ["model", directory] => write_model(Path::new(directory)),
        ["worker", listen, identity, model, milliseconds] => {
            worker(listen, identity, model, milliseconds.parse()?)
        }
        ["run", model, steps, length, cases, ref workers @ ..] => {
            let [first, first_pid, second, second_pid] = workers else {
                bail!("`run` needs two workers and their process ids");
            };
            let workers = [(*first, *first_pid), (*second, *second_pid)];
            for case in cases.split(',') {
                let (groups, extra) = case.split_once(':').context("a case is L:E")?;
                let shape = PipelineShape::new(2, groups.parse()?, 1, steps.parse()?)
                    .with_extra_warmup(extra.parse()?);
                measure(model, length.parse()?, shape, workers)?;
            }
            Ok(())
        }
        _ => {
            println!("see benches/two_machines.sh");
            Ok(())
        }
    }
}

/// A model whose hidden states are wide and whose weights are few. The weights are zeros, which no
/// worker multiplies by.
fn write_model(directory: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(directory)?;
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "hidden_size": 2048, "intermediate_size": 64,
        "num_hidden_layers": 2, "num_attention_heads": 16, "num_key_value_heads": 1, "vocab_size": 64,
    });
    let config = config.to_string();
    fs::write(directory.join("config.json"), &config)?;
    let shapes = parameter_shapes(&LlamaConfig::from_json(&config)?);
    let elements = |shape: &[usize]| shape.iter().product::<usize>();
    let largest = shapes.iter().map(|(_, shape)| elements(shape)).max();
    let zeros = vec![0; 4 * largest.unwrap_or(0)];
    let tensors = shapes.into_iter().map(|(name, shape)| {
        let bytes = &zeros[..4 * elements(&shape)];
        TensorView::new(Dtype::F32, shape, bytes).map(|view| (name, view))
    });
    let tensors = tensors.collect::<Result<Vec<_>, _>>()?;
    serialize_to_file(tensors, None, &directory.join("model.safetensors"))?;
    Ok(())
}

/// Serves until stdin ends.
fn worker(listen: &str, identity: &str, model: &str, milliseconds: f64) -> anyhow::Result<()> {
    let pass = Duration::from_secs_f64(milliseconds / 1e3);
    let worker = Worker::start(WorkerOptions {
        listen: listen.parse()?,
        identity: identity.into(),
        token: TOKEN.to_owned(),
        model: model.into(),
        device: Device::flex(),
        stand_in: Some(Box::new(move || Sleeping::boxed(pass))),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        log: Box::new(|_| {}),
    })?;
    println!("{}", worker.address());
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

fn measure(
    model: &str,
    length: usize,
    shape: PipelineShape,
    workers: [(&str, &str); 2],
) -> anyhow::Result<()> {
    let directory = Path::new(model);
    let config = LlamaConfig::from_directory(directory)?;
    let checkpoint = Checkpoint::open(directory)?;
    let controller = Controller::new(TOKEN, Duration::from_mins(10))?;
    let mut stages = Vec::new();
    for (stage, (address, _)) in workers.iter().enumerate() {
        let spec = StageSpec {
            layers: (stage..stage + 1).into(),
            checkpoint: &checkpoint,
            dtype: FloatDType::F32,
            gradient_checkpointing: false,
        };
        let reached = controller.reach(stage, &address.parse()?, &config)?;
        stages.push(reached.load(&spec)?);
    }
    let mut pipeline = Pipeline::new(stages)?;
    pipeline.reserve_groups(shape.groups)?;
    for group in 0..shape.groups {
        pipeline.push(group, adapter(&config)?)?;
    }
    let mut hops = Hops {
        length,
        groups: shape.groups,
        first: shape.iterations / 3,
        // Before the pipeline drains.
        last: shape.iterations.saturating_sub(3),
        pids: workers.map(|(_, pid)| pid.to_owned()),
        spent: Vec::new(),
        booked: Vec::new(),
    };
    let passes = Passes {
        schedule: Schedule::LoraPp,
        shape,
    };
    pipeline.run(&passes, &mut hops)?;
    if hops.spent.len() != 2 {
        bail!("{} iterations are too few", shape.iterations);
    }
    let (from, to) = (&hops.booked[hops.first], &hops.booked[hops.last]);
    let iterations = (hops.last - hops.first) as f64;
    let seconds = to.at.duration_since(from.at).as_secs_f64() / iterations;
    let bytes = (SEQUENCES * length * config.d_model * 4) as f64;
    let between = &hops.booked[hops.first + 1..=hops.last];
    let mut transfers = TransferTimes::default();
    for outcome in between {
        transfers += outcome
            .transfers
            .context("the stages measured no transfers")?;
    }
    let passed = iterations * shape.groups as f64;
    let busy = |stage: usize| -> f64 {
        let of_steps = between.iter().filter_map(|outcome| outcome.busy[stage]);
        of_steps.sum::<f64>() / passed
    };
    let (before, after) = (&hops.spent[0], &hops.spent[1]);
    let elapsed = after.0.duration_since(before.0).as_secs_f64();
    let cores: BTreeMap<&String, f64> = after
        .1
        .iter()
        .map(|(thread, ticks)| {
            let earlier = before.1.get(thread).copied().unwrap_or_default();
            // Rounded to hundredths of a core, and threads without any left out.
            (
                thread,
                ((ticks - earlier) / elapsed * 100.0).round() / 100.0,
            )
        })
        .filter(|(_, cores)| *cores > 0.0)
        .collect();
    println!(
        "{}",
        json!({
            "groups": shape.groups, "extra_warmup": shape.extra_warmup,
            "seconds_per_iteration": seconds,
            "seconds_per_group": seconds / shape.groups as f64,
            "megabits_per_second_each_way": shape.groups as f64 * bytes * 8e-6 / seconds,
            "busy_seconds_per_group": [busy(0), busy(1)],
            "seconds_per_hop": transfers.seconds / passed / 2.0,
            "transfer_overlap": transfers.overlap(),
            "cores": cores,
        })
    );
    Ok(())
}

fn adapter(config: &LlamaConfig) -> anyhow::Result<Vec<LayerAdapter>> {
    let device = Device::flex();
    let linear = config.linear(Projection::V).context("a linear layer")?;
    let size = [linear.d_in, linear.d_out];
    let layers = (0..config.num_hidden_layers).map(|layer| {
        let mut adapter = LayerAdapter::default();
        let spec = LoraSpec::new(1, 1.0);
        let module = Projection::V.number(layer);
        let part = AdapterState::init(spec, size, 0, module, &device)?;
        adapter[Projection::V as usize] = Some(part);
        Ok(adapter)
    });
    layers.collect()
}

/// Iterations without work, and the processor time that they took.
struct Hops {
    length: usize,
    groups: usize,
    /// The first and last iteration of the measurement.
    first: usize,
    last: usize,
    pids: [String; 2],
    /// Time, and processor seconds of every kind of thread in both workers and here.
    spent: Vec<(Instant, BTreeMap<String, f64>)>,
    booked: Vec<IterationOutcome>,
}

impl IterationPlanner for Hops {
    type Error = anyhow::Error;

    fn plan(&mut self, step: usize) -> anyhow::Result<Option<IterationPlan>> {
        let rows = SEQUENCES * self.length;
        let segment = Segment {
            rows: 0..rows,
            slot: 0,
        };
        let microbatch = Microbatch {
            ids: vec![0; rows],
            sequences: Sequences::from_lengths([self.length; SEQUENCES]),
            cached: None,
            rope_lengths: vec![self.length; SEQUENCES],
            segments: Segments::new(rows, vec![segment])?,
            draws: None,
            targets: Targets {
                rows: vec![0],
                ids: vec![0],
                weights: vec![1.0],
                ..Targets::default()
            },
        };
        let update = SlotUpdate {
            learning_rates: 0.0.into(),
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            weight_decay: 0.0,
            max_grad_norm: 0.0,
            step: step as u64 + 1,
        };
        let group = |_| GroupPlan {
            microbatches: vec![microbatch.clone()],
            updates: vec![Some(update)],
        };
        let groups = (0..self.groups).map(group).collect();
        Ok(Some(IterationPlan { groups }))
    }

    fn book(&mut self, outcome: IterationOutcome) -> anyhow::Result<bool> {
        let measured = [self.first, self.last].contains(&outcome.iteration);
        self.booked.push(outcome);
        if measured {
            self.spent.push((Instant::now(), self.processor_seconds()?));
        }
        Ok(true)
    }
}

impl Hops {
    fn processor_seconds(&self) -> anyhow::Result<BTreeMap<String, f64>> {
        let mut seconds = BTreeMap::new();
        let here = std::process::id().to_string();
        let whose = ["first", "second", "controller"];
        for (whose, pid) in whose.iter().zip([&self.pids[0], &self.pids[1], &here]) {
            for task in fs::read_dir(format!("/proc/{pid}/task"))? {
                // The thread may have ended.
                let Ok(stat) = fs::read_to_string(task?.path().join("stat")) else {
                    continue;
                };
                let (name, rest) = stat.rsplit_once(')').context("a thread without a name")?;
                let name = name.split_once('(').map_or("", |(_, name)| name);
                let fields: Vec<&str> = rest.split_whitespace().collect();
                let ticks = |field: usize| fields[field].parse::<f64>();
                *seconds.entry(format!("{whose} {name}")).or_default() +=
                    (ticks(11)? + ticks(12)?) / 100.0;
            }
        }
        Ok(seconds)
    }
}
