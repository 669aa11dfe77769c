//! SLoRA: tasks of one group train a sparse change of the weights in turn, and each begins with its components.
//!
//! `W + ΔW` is the base with an adapter whose A is the identity, not trained, and whose B is ΔW, of rank d_in and scale 1.
//! So a client trains as any adapter does, alone in a group of its own.

use batchlora::{AdapterState, LearningRates, LoraPair, LoraSpec, SlotUpdate};
use burn::tensor::{DType, Device, Tensor, TensorData};
use loraloom_config::{AdapterConfig, InitLoraWeights, SloraConfig};
use loraloom_data::Sample;
use loraloom_model::{LinearShape, LlamaConfig, Projection, cost::TRAINED_BYTES, to_host};
use loraloom_pipeline::{
    Microbatch, Pipeline,
    executor::{GroupPlan, IterationOutcome, IterationPlan, IterationPlanner, Passes},
    schedule::{PipelineShape, Schedule},
};
use loraloom_scheduler::{TaskId, size};

use super::{StartCost, State, Task, Tasks, start_values::with_values};
use crate::{
    TrainerError,
    adapter::{ModelAdapter, by_projection, fresh, targets},
    batch::{TaskRows, assemble},
    error::Result,
    start::{Change, mask, mean},
};

/// A module's trained elements.
struct Module {
    layer: usize,
    projection: Projection,
    shape: [usize; 2],
    places: Vec<usize>,
}

/// Values of a module's trained elements, and their moments.
#[derive(Clone)]
struct Elements([Vec<f32>; 3]);

/// The change of the weights that the clients of a group train together.
struct Training<'a> {
    pipeline: &'a mut Pipeline,
    device: &'a Device,
    settings: &'a SloraConfig,
    /// Number of micro-batches of a batch.
    split: usize,
    modules: Vec<Module>,
    cost: StartCost,
}

/// Bytes above which the training of a start is worth a warning.
const LARGE: u64 = 1 << 30;

/// A warning of start values that take much memory for a while.
pub fn start_warning(config: &AdapterConfig, model: &LlamaConfig) -> Option<String> {
    let is_together = config.lora.init_lora_weights == InitLoraWeights::Slora;
    let bytes = Some(change_bytes(config, model)).filter(|&bytes| is_together && bytes > LARGE)?;
    let bytes = size(bytes);
    Some(format!(
        "adapter `{}`: the training of its slora start takes {bytes} beside the model, which the scheduler does not \
         count; fewer `target_modules` take less",
        config.name
    ))
}

/// Bytes of the adapter that trains a change of the weights.
fn change_bytes(config: &AdapterConfig, model: &LlamaConfig) -> u64 {
    let modules = modules(config, model);
    let parameters = modules.map(|(_, shape)| shape.d_in * (shape.d_in + shape.d_out));
    (parameters.sum::<usize>() * TRAINED_BYTES) as u64
}

fn modules(
    config: &AdapterConfig,
    model: &LlamaConfig,
) -> impl Iterator<Item = (usize, LinearShape)> {
    let targets = targets(&config.lora, model.fused);
    let layers = 0..model.num_hidden_layers;
    let all = layers.flat_map(|layer| {
        model
            .modules(layer)
            .into_iter()
            .map(move |one| (layer, one))
    });
    all.filter(move |(_, module)| targets.contains(&module.projection))
}

/// Trains the start of a task and of the others of its group, and makes the adapters of those that have none.
///
/// # Errors
/// [`TrainerError::Start`] if that cannot be computed.
pub(super) fn common_start(
    tasks: &Tasks,
    task: &Task,
    pipeline: &mut Pipeline,
    device: &Device,
    split: usize,
) -> Result<(Vec<(TaskId, ModelAdapter)>, StartCost)> {
    let clients = clients(tasks, task)?;
    let settings = &task.config.lora.slora_config;
    let model = pipeline.config().clone();
    // One that depends on neither their order nor the one that begins first.
    let seed = clients.iter().map(|client| client.config.seed).min();
    let seed = |projection: Projection, layer| seed.unwrap_or(0) as u32 ^ projection.number(layer);
    let modules = modules(&task.config, &model).map(|(layer, module)| {
        let shape = [module.d_in, module.d_out];
        let seed = seed(module.projection, layer);
        Module {
            layer,
            projection: module.projection,
            shape,
            places: mask(shape[0] * shape[1], settings.density, seed),
        }
    });
    let mut training = Training {
        modules: modules.collect(),
        pipeline,
        device,
        settings,
        split,
        cost: StartCost {
            bytes: Some(change_bytes(&task.config, &model)),
            ..StartCost::default()
        },
    };
    let change = training.change(tasks.groups().len(), &clients);
    let change = change.map_err(|error| {
        if !error.is_out_of_memory() {
            return error;
        }
        let bytes = size(change_bytes(&task.config, &model));
        let problem = format!("the training of its start takes {bytes} beside the model: {error}");
        TrainerError::start(&task.config, problem)
    })?;
    let Training {
        modules, mut cost, ..
    } = training;
    let most = clients.iter().map(|client| client.config.lora.r).max();
    let changes = modules.iter().zip(&change).map(|(module, values)| {
        let seed = seed(module.projection, module.layer);
        Change::new(
            module.shape,
            (&module.places, values),
            most.unwrap_or(1),
            seed,
        )
    });
    let changes: Vec<Change> = changes.collect();
    cost.decompositions = changes.len();
    let is_new =
        |client: &&&Task| matches!(client.state, State::Waiting) && client.initial.is_none();
    let begun = clients.iter().filter(is_new).map(|client| {
        let mut adapter = fresh(&client.config, &model, device)?;
        for (module, change) in modules.iter().zip(&changes) {
            let state = &mut adapter[module.layer][module.projection as usize];
            *state = state
                .take()
                .map(|made| with_change(made, change))
                .transpose()?;
        }
        Ok((client.id, adapter))
    });
    Ok((begun.collect::<Result<_>>()?, cost))
}

/// The tasks of a group, by their names.
fn clients<'a>(tasks: &'a Tasks, task: &Task) -> Result<Vec<&'a Task>> {
    let client = |name: &String| {
        let found = tasks.live().find(|one| one.config.name == *name);
        found.ok_or_else(|| {
            let problem = format!("`{name}` of its group has ended before it could begin");
            TrainerError::start(&task.config, problem)
        })
    };
    if task.clients.is_empty() {
        let problem = "the adapters of its group are not in one configuration of a run".to_owned();
        return Err(TrainerError::start(&task.config, problem));
    }
    task.clients.iter().map(client).collect()
}

/// A fresh adapter whose first ranks are a change's; those that the change does not have stay.
fn with_change(made: AdapterState, change: &Change) -> Result<AdapterState> {
    let LoraPair { a, b, .. } = made.weights.clone();
    let ([_, d_in], [_, d_out]) = (a.dims(), b.dims());
    let (mut a, mut b) = (to_host(a)?, to_host(b)?);
    let [first_a, first_b] = change.factors(made.spec.r, made.spec.scale());
    a[..first_a.len()].copy_from_slice(&first_a);
    b[..first_b.len()].copy_from_slice(&first_b);
    with_values(made.spec, [(a, d_in), (b, d_out)], &made)
}

impl Training<'_> {
    /// The values of the trained elements of each module, after all rounds. `free` is the number of a group without
    /// adapters.
    fn change(&mut self, free: usize, clients: &[&Task]) -> Result<Vec<Vec<f32>>> {
        self.pipeline.reserve_groups(free + 1)?;
        // The other groups keep their adapters and the gradients of steps under way.
        self.pipeline.swap_groups(0, free)?;
        let change = self.rounds(clients);
        self.pipeline.swap_groups(0, free)?;
        change
    }

    /// Averages over the clients by their rows, as FedAvg. Each keeps its own moments.
    fn rounds(&mut self, clients: &[&Task]) -> Result<Vec<Vec<f32>>> {
        let zeros = |module: &Module| vec![0.0; module.places.len()];
        let mut change: Vec<Vec<f32>> = self.modules.iter().map(zeros).collect();
        let new = change
            .iter()
            .map(|zeros| Elements([(); 3].map(|()| zeros.clone())));
        let mut local = vec![new.collect::<Vec<_>>(); clients.len()];
        let rows = |client: &&Task| client.train_rows().rows();
        let all: usize = clients.iter().map(rows).sum();
        for round in 0..self.settings.rounds {
            for (client, elements) in clients.iter().zip(&mut local) {
                for (Elements([values, ..]), change) in elements.iter_mut().zip(&change) {
                    values.clone_from(change);
                }
                for step in 0..self.settings.local_steps {
                    let step = round * self.settings.local_steps + step;
                    self.step(client, step, elements)?;
                }
            }
            for (at, change) in change.iter_mut().enumerate() {
                let values = clients.iter().zip(&local).map(|(client, elements)| {
                    let Elements([values, ..]) = &elements[at];
                    (&values[..], rows(client) as f64 / all as f64)
                });
                *change = mean(values);
            }
        }
        Ok(change)
    }

    /// Takes a client's optimizer step, counted from 0.
    fn step(&mut self, client: &Task, step: usize, elements: &mut [Elements]) -> Result<()> {
        let microbatches = self.microbatches(client, step)?;
        let passes = Passes {
            schedule: Schedule::default(),
            shape: PipelineShape::new(self.pipeline.layers().len(), 1, microbatches.len(), 1),
        };
        let mut planner = OneStep {
            plan: Some(IterationPlan {
                groups: vec![GroupPlan {
                    microbatches,
                    updates: vec![Some(self.update(step))],
                }],
            }),
            is_finite: true,
        };
        let adapter = self.adapter(elements)?;
        let slot = self.pipeline.push(0, adapter)?;
        let run = self.pipeline.run(&passes, &mut planner);
        if run.is_err() {
            self.pipeline.abandon();
        }
        let adapter = self.pipeline.remove(0, slot)?;
        run?;
        if !planner.is_finite {
            let problem = format!(
                "its loss is not finite at step {} of {} that train its start",
                step + 1,
                self.settings.rounds * self.settings.local_steps
            );
            return Err(TrainerError::start(&client.config, problem));
        }
        for (module, Elements(kept)) in self.modules.iter().zip(elements) {
            let Some(state) = &adapter[module.layer][module.projection as usize] else {
                continue;
            };
            let all = [&state.weights, &state.first_moment, &state.second_moment];
            for (kept, all) in kept.iter_mut().zip(all) {
                // Other elements begin the next step as zero.
                let all = to_host(all.b.clone())?;
                kept.clear();
                kept.extend(module.places.iter().map(|&at| all[at]));
            }
        }
        Ok(())
    }

    /// The adapter of a change.
    fn adapter(&self, elements: &[Elements]) -> Result<ModelAdapter> {
        let tensor = |values: Vec<f32>, shape: [usize; 2]| {
            Tensor::<2>::from_data(TensorData::new(values, shape), (self.device, DType::F32))
        };
        by_projection(
            self.pipeline.config().num_hidden_layers,
            |layer, projection| {
                let is_wanted = |one: &&Module| (one.layer, one.projection) == (layer, projection);
                let at = self.modules.iter().position(|one| is_wanted(&one));
                let Some(at) = at else { return Ok(None) };
                let module = &self.modules[at];
                let [d_in, d_out] = module.shape;
                let mut identity = vec![0.0; d_in * d_in];
                identity
                    .iter_mut()
                    .step_by(d_in + 1)
                    .for_each(|one| *one = 1.0);
                let [values, first, second] = &elements[at].0;
                let dense = |values: &[f32]| {
                    let mut dense = vec![0.0; d_in * d_out];
                    for (&at, &value) in module.places.iter().zip(values) {
                        dense[at] = value;
                    }
                    tensor(dense, module.shape)
                };
                let spec = LoraSpec::new(d_in, d_in as f64).with_freeze_a(true);
                let pair = LoraPair::new(tensor(identity, [d_in, d_in]), dense(values));
                let mut state = AdapterState::new(spec, pair)?;
                state.first_moment.b = dense(first);
                state.second_moment.b = dense(second);
                Ok(Some(state))
            },
        )
    }

    /// AdamW without clipping: the norm would count elements that are not trained.
    fn update(&self, step: usize) -> SlotUpdate {
        SlotUpdate {
            learning_rates: LearningRates::from(self.settings.learning_rate),
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            weight_decay: 0.0,
            max_grad_norm: 0.0,
            step: step as u64 + 1,
        }
    }

    /// The rows of a client's step, as it takes them in training.
    fn microbatches(&mut self, client: &Task, step: usize) -> Result<Vec<Microbatch>> {
        let mut parts = Vec::new();
        for batch in client.batches(step) {
            parts.extend(batch?.cut(client.microbatch_rows(self.split), None));
        }
        let samples = || parts.iter().flat_map(|part| &part.samples);
        let step_targets = samples().map(Sample::num_targets).sum();
        self.cost.batches += parts.len();
        self.cost.tokens += samples().map(Sample::len).sum::<usize>();
        let mut first_sample = 0;
        let microbatches = parts.iter().map(|part| {
            let rows = TaskRows {
                slot: Some(0),
                samples: part.samples.iter().collect(),
                first_sample,
                max_seq_len: client.config.train.max_seq_len,
                longest: part.longest,
                step_targets,
                label_smoothing: client.config.train.label_smoothing_factor,
                preference: None,
                contrast: None,
            };
            first_sample += part.samples.len();
            Ok(assemble(&[rows], None)?.microbatch)
        });
        microbatches.collect()
    }
}

/// Plans one iteration, and notes whether its losses and gradients are finite.
struct OneStep {
    plan: Option<IterationPlan>,
    is_finite: bool,
}

impl IterationPlanner for OneStep {
    type Error = TrainerError;

    fn plan(&mut self, _: usize) -> Result<Option<IterationPlan>> {
        Ok(self.plan.take())
    }

    fn book(&mut self, outcome: IterationOutcome) -> Result<bool> {
        for group in outcome.groups {
            let losses = group.losses.iter().flatten();
            let mut all = losses.chain(&group.squared_norms);
            self.is_finite &= all.all(|value| value.is_finite());
        }
        Ok(true)
    }
}
