use std::{
    sync::{Arc, mpsc},
    thread,
};

use burn::tensor::Device;
use loraloom_inference::{
    AdapterStore, Ask, EngineConfig, FoundWeights, InferenceError, Neighbour, ReadFiles, Replace,
    Sampling, Service, ServiceConfig, ServiceCore, ServiceError, StoreLimits, apart, train_behind,
};
use loraloom_model::BLOCK_TOKENS;
use loraloom_pipeline::{Pipeline, PipelineError};
use loraloom_simulator::TracedRequest;

use super::{
    figures::{Percentiles, ServingMeasurement, Times},
    load::{ANSWER_TOKEN, Load, Seen},
    policy::ServingPolicy,
};
use crate::{
    EndToEndBench,
    tasks::{adapter, random_tokens},
    timing::{device_failure, dtype_name, seconds},
};

/// Name of the base model.
const BASE: &str = "base";
/// Tokens of the answers that warm the device up.
const WARM_UP: usize = 4;

/// Answers to the requests of a trace, over a model with random weights, by the engine of `loraloom serve` without its
/// HTTP interface. Requests go to the adapters in turn, or as the trace says.
#[derive(Debug, Clone, PartialEq)]
pub struct ServingBench {
    /// The model, and the adapters that train beside answers.
    pub steps: EndToEndBench,
    /// Numbers of adapters that requests name, each a case. With 0 all requests are for the base model.
    pub adapters: Vec<usize>,
    /// Ranks of the adapters in turn.
    pub ranks: Vec<usize>,
    /// Policies, each a case.
    pub policies: Vec<ServingPolicy>,
    /// The requests in the order of their arrival.
    pub requests: Vec<TracedRequest>,
    /// Seed of the prompts' tokens.
    pub seed: u64,
    /// Requests of a tenant that [`ServingPolicy::Rpm`] accepts in a minute.
    pub rate_limit: usize,
    /// Requests that run at a time.
    pub max_sequences: usize,
    /// Most tokens of a step.
    pub batch_tokens: usize,
    /// Longest time to the first token that attains the target, in seconds.
    pub first_token_target: f64,
    /// Longest mean time between tokens that attains it.
    pub token_target: f64,
    /// Also answer beside the training of so many adapters.
    pub trained_adapters: Option<usize>,
    /// Most of the time that answers then take.
    pub inference_share: f64,
}

impl ServingBench {
    /// Measures every case; `progress` gets a line before each.
    ///
    /// # Errors
    /// If the device fails.
    pub fn run(
        &self,
        device: &Device,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Vec<ServingMeasurement>, InferenceError> {
        let mut steps = self.steps.clone();
        // Weights are random: any context will do.
        steps.model.max_position_embeddings =
            steps.model.max_position_embeddings.max(self.longest());
        let mut pipeline = steps.pipeline(device)?;
        let mut found = Vec::new();
        for trained in [None, self.trained_adapters] {
            if trained.is_none() && !found.is_empty() {
                break;
            }
            for &adapters in &self.adapters {
                for &policy in &self.policies {
                    progress(&format!(
                        "{}: {} requests, adapters {adapters}, {}{}",
                        steps.shape,
                        self.requests.len(),
                        policy.name(),
                        trained.map_or_else(String::new, |k| format!(", {k} adapters training"))
                    ));
                    let case = Case {
                        bench: self,
                        steps: &steps,
                        adapters,
                        policy,
                    };
                    found.push(match trained {
                        None => case.alone(&pipeline)?,
                        // `train_behind` lasts as long as its thread, and threads that it starts inherit the priority.
                        Some(trained) => thread::scope(|scope| {
                            joined(scope.spawn(|| case.beside(trained, &mut pipeline, device)))
                        })?,
                    });
                }
            }
        }
        Ok(found)
    }

    /// Tokens of the longest request.
    fn longest(&self) -> usize {
        let tokens = self
            .requests
            .iter()
            .map(|request| request.prompt_tokens + request.answer_tokens);
        tokens.max().unwrap_or(0)
    }

    /// Memory for all requests that run at a time.
    fn engine(&self) -> EngineConfig {
        EngineConfig {
            blocks: self.max_sequences.min(self.requests.len())
                * self.longest().div_ceil(BLOCK_TOKENS),
            batch_tokens: self.batch_tokens,
            max_sequences: self.max_sequences,
        }
    }
}

/// A number of adapters and a policy.
#[derive(Debug, Clone, Copy)]
struct Case<'a> {
    bench: &'a ServingBench,
    steps: &'a EndToEndBench,
    adapters: usize,
    policy: ServingPolicy,
}

impl Case<'_> {
    fn alone(&self, pipeline: &Pipeline) -> Result<ServingMeasurement, InferenceError> {
        let (seen, _) = self.serve(pipeline, None, || Ok(()))?;
        Ok(self.measurement(&seen))
    }

    fn beside(
        &self,
        trained: usize,
        pipeline: &mut Pipeline,
        device: &Device,
    ) -> Result<ServingMeasurement, InferenceError> {
        let twin = twin(pipeline)?;
        let tasks = self.steps.tasks(trained);
        let tokens = (trained * self.steps.batch * self.steps.length) as f64;
        let (measured, _) = self.steps.train(&tasks, pipeline, device, |run| {
            let alone = seconds(device, 1, || run(self.steps.steps))?;
            let neighbour = Arc::new(Neighbour::new(self.bench.inference_share));
            neighbour.trains(true);
            Ok(self
                .serve(&twin, Some(neighbour), || seconds(device, 1, || run(1)))
                .map(|(seen, times)| (alone, seen, times)))
        })?;
        let (alone, seen, times) = measured?;
        let rate = |steps: usize, seconds: f64| tokens * steps as f64 / seconds;
        Ok(ServingMeasurement {
            trained_adapters: trained,
            trained_tokens_per_second: Some(rate(times.len(), times.iter().sum())),
            trained_alone_tokens_per_second: Some(rate(self.steps.steps, alone)),
            ..self.measurement(&seen)
        })
    }

    /// Sends the requests, and calls `meanwhile` again and again until all are answered. Returns the results of the calls.
    fn serve<T>(
        &self,
        pipeline: &Pipeline,
        neighbour: Option<Arc<Neighbour>>,
        mut meanwhile: impl FnMut() -> Result<T, PipelineError>,
    ) -> Result<(Seen, Vec<T>), InferenceError> {
        let is_beside = neighbour.is_some();
        let twin = twin(pipeline)?;
        let (sender, service) = mpsc::channel();
        thread::scope(|scope| {
            // Devices order work by threads: all of the engine's is on this one.
            let answering =
                scope.spawn(move || apart(move || self.answer(twin, neighbour, &sender)));
            let loading = scope.spawn(move || {
                let service = service.recv().map_err(|_| ServiceError::Stopped)?;
                self.load(service)
            });
            if is_beside {
                train_behind();
            }
            let mut results = Vec::new();
            while is_beside && !loading.is_finished() {
                results.push(meanwhile()?);
            }
            let seen = joined(loading);
            joined(answering)?;
            let seen = seen.map_err(|error| match error {
                ServiceError::Refused(error) => error,
                error => device_failure(error.to_string()).into(),
            })?;
            Ok((seen, results))
        })
    }

    /// Answers until the load drops its handles.
    fn answer(
        &self,
        mut pipeline: Pipeline,
        neighbour: Option<Arc<Neighbour>>,
        service: &mpsc::Sender<Service>,
    ) -> Result<(), InferenceError> {
        let limits = StoreLimits {
            device: u64::MAX,
            host: u64::MAX,
        };
        let read = Arc::new(|_: &_| Err("there are no files".to_owned()));
        let mut store = AdapterStore::new(BASE.to_owned(), 0, limits, read);
        let host = Device::flex().without_autodiff();
        for (index, rank) in self.ranks().into_iter().enumerate() {
            let found = FoundWeights {
                digest: index.to_string(),
                parts: adapter(self.steps, rank, index as u64, &host)?,
            };
            let files = ReadFiles::from(found);
            let registered = store.register(&name(index), files, &Replace::Nothing);
            registered.map_err(|error| device_failure(error.to_string()))?;
        }
        let config = ServiceConfig {
            engine: self.bench.engine(),
            max_waiting: usize::MAX,
        };
        let (mut core, asked) = ServiceCore::new(&pipeline, config, store, neighbour);
        // The load ends early only if it fails.
        let _ = service.send(asked);
        while core.turn(&mut pipeline)? {}
        Ok(())
    }

    fn load(&self, service: Service) -> Result<Seen, ServiceError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .map_err(|error| ServiceError::Failed(error.to_string()))?;
        let warm_up = self.warm_up();
        runtime.block_on(self.warm_up_load(&warm_up).run(service.clone()))?;
        runtime.block_on(self.measured_load().run(service))
    }

    fn warm_up(&self) -> Vec<TracedRequest> {
        let count = self.bench.max_sequences.min(self.bench.requests.len());
        let requests = self.bench.requests[..count].iter();
        let short = requests.map(|request| TracedRequest {
            arrival: 0.0,
            answer_tokens: request.answer_tokens.min(WARM_UP),
            ..request.clone()
        });
        short.collect()
    }

    /// Of other prompts than those that are measured: the server would know these.
    fn warm_up_load<'t>(&self, warm_up: &'t [TracedRequest]) -> Load<'t> {
        let others = self
            .bench
            .seed
            .wrapping_add(self.bench.requests.len() as u64);
        self.requests(warm_up, ServingPolicy::Fcfs, others)
    }

    fn measured_load(&self) -> Load<'_> {
        self.requests(&self.bench.requests, self.policy, self.bench.seed)
    }

    fn requests<'t>(
        &self,
        trace: &'t [TracedRequest],
        policy: ServingPolicy,
        seed: u64,
    ) -> Load<'t> {
        let ask = |(index, request): (usize, &TracedRequest)| {
            let seed = seed.wrapping_add(index as u64);
            let tokens = random_tokens(seed, self.steps.model.vocab_size);
            Ask {
                model: match self.adapters {
                    0 => BASE.to_owned(),
                    adapters => name(request.adapter.unwrap_or(index) % adapters),
                },
                prompt: tokens.take(request.prompt_tokens).collect(),
                sampling: Sampling::default(),
                max_tokens: request.answer_tokens,
                stop: Vec::new(),
                top_log_probs: 0,
                tenant: "all".to_owned(),
                weight: 1.0,
            }
        };
        Load {
            trace,
            asks: trace.iter().enumerate().map(ask).collect(),
            policy,
            max_sequences: self.bench.max_sequences,
            rate_limit: self.bench.rate_limit,
        }
    }

    fn ranks(&self) -> Vec<usize> {
        self.bench
            .ranks
            .iter()
            .copied()
            .cycle()
            .take(self.adapters)
            .collect()
    }

    fn measurement(&self, seen: &Seen) -> ServingMeasurement {
        let Self { bench, steps, .. } = self;
        let answered: Vec<(&Times, &TracedRequest)> = (seen.times.iter().zip(&bench.requests))
            .filter(|(times, _)| times.tokens > 0)
            .collect();
        let times = || answered.iter().map(|(times, _)| times);
        let attain =
            times().filter(|times| times.attains(bench.first_token_target, bench.token_target));
        let seconds = times().map(|times| times.last).fold(0.0, f64::max);
        let answer_tokens: usize = times().map(|times| times.tokens).sum();
        let prompts = || {
            answered
                .iter()
                .map(|(_, request)| request.prompt_tokens as u64)
        };
        let tokens = (bench.engine().blocks * BLOCK_TOKENS) as u64;
        ServingMeasurement {
            shape: steps.shape.clone(),
            dtype: dtype_name(steps.dtype),
            quantization: steps.model.quantization.as_ref().map(|_| "nf4"),
            policy: self.policy.name(),
            adapters: self.adapters,
            ranks: self.ranks(),
            trained_adapters: 0,
            requests: bench.requests.len(),
            refused: bench.requests.len() - answered.len(),
            tenants: Load::tenants(&bench.requests),
            seconds,
            prompt_tokens: prompts().sum(),
            answer_tokens: answer_tokens as u64,
            tokens_per_second: answer_tokens as f64 / seconds,
            first_token_seconds: Percentiles::of(times().filter_map(|times| times.first_token())),
            token_seconds: Percentiles::of(times().filter_map(|times| times.between_tokens())),
            attainment: attain.count() as f64 / bench.requests.len().max(1) as f64,
            fairness_gap: seen.fairness_gap,
            fairness_bound: 2 * prompts().max().unwrap_or(0).max(ANSWER_TOKEN * tokens),
            preemptions: seen.preemptions,
            trained_tokens_per_second: None,
            trained_alone_tokens_per_second: None,
        }
    }
}

/// The same weights for another thread.
fn twin(pipeline: &Pipeline) -> Result<Pipeline, PipelineError> {
    let missing = || device_failure("a stage is on another machine");
    pipeline.twin()?.ok_or_else(missing)
}

fn name(adapter: usize) -> String {
    format!("adapter-{adapter}")
}

/// The result of a thread; a panic goes on here.
fn joined<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    thread
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use burn::tensor::Device;
    use loraloom_simulator::{DrawnRequests, TracedRequest};

    use super::{Case, ServingBench, ServingPolicy};
    use crate::end_to_end::tests::tiny;

    fn bench(requests: Vec<TracedRequest>) -> ServingBench {
        ServingBench {
            steps: tiny(),
            adapters: vec![0, 3],
            ranks: vec![4, 8],
            policies: vec![ServingPolicy::Vtc],
            requests,
            seed: 1,
            rate_limit: 60,
            max_sequences: 4,
            batch_tokens: 64,
            first_token_target: 1e6,
            token_target: 1e6,
            trained_adapters: None,
            inference_share: 0.5,
        }
    }

    fn drawn(requests: usize, tenants: usize) -> Vec<TracedRequest> {
        DrawnRequests {
            requests,
            rate: None,
            tenants,
            prompt_tokens: 8,
            answer_tokens: 4,
            seed: 3,
        }
        .draw()
    }

    #[test]
    fn every_case_is_measured_alone_and_beside_training() {
        let requests = drawn(12, 1);
        let bench = ServingBench {
            trained_adapters: Some(2),
            ..bench(requests.clone())
        };
        let found = bench.run(&Device::flex(), &mut |_| ()).unwrap();
        let cases: Vec<_> = found
            .iter()
            .map(|case| (case.adapters, case.trained_adapters))
            .collect();
        assert_eq!(cases, [(0, 0), (3, 0), (0, 2), (3, 2)]);
        let prompts: usize = requests.iter().map(|request| request.prompt_tokens).sum();
        let answers: usize = requests.iter().map(|request| request.answer_tokens).sum();
        for case in &found {
            assert_eq!((case.requests, case.refused, case.tenants), (12, 0, 1));
            assert_eq!(
                (case.prompt_tokens, case.answer_tokens),
                (prompts as u64, answers as u64)
            );
            let rate = case.answer_tokens as f64 / case.seconds;
            assert!((case.tokens_per_second / rate - 1.0).abs() < 1e-9);
            assert!(
                case.first_token_seconds
                    .is_some_and(|first| first.p50 > 0.0)
            );
            assert!((case.attainment - 1.0).abs() < 1e-9);
            assert_eq!(
                case.trained_tokens_per_second.is_some(),
                case.trained_adapters > 0
            );
        }
        assert_eq!(found[1].ranks, [4, 8, 4]);
    }

    #[test]
    fn prompts_are_new_to_the_server() {
        let bench = bench(drawn(12, 1));
        let case = Case {
            bench: &bench,
            steps: &bench.steps,
            adapters: 0,
            policy: ServingPolicy::Vtc,
        };
        let warm_up = case.warm_up();
        let loads = [case.warm_up_load(&warm_up), case.measured_load()];
        let asks = loads.iter().flat_map(|load| &load.asks);
        let begins: BTreeSet<_> = asks.map(|ask| ask.prompt[..4].to_vec()).collect();
        assert_eq!(begins.len(), 4 + 12);
    }

    #[test]
    fn adapters_are_those_of_the_trace_or_take_turns() {
        let models = |adapter| {
            let mut bench = bench(drawn(3, 1));
            bench.requests[0].adapter = adapter;
            let case = Case {
                bench: &bench,
                steps: &bench.steps,
                adapters: 2,
                policy: ServingPolicy::Vtc,
            };
            let asks = case.measured_load().asks;
            asks.into_iter().map(|ask| ask.model).collect::<Vec<_>>()
        };
        assert_eq!(models(None), ["adapter-0", "adapter-1", "adapter-0"]);
        assert_eq!(models(Some(1))[0], "adapter-1");
        assert_eq!(models(Some(2))[0], "adapter-0");
    }

    /// Two tenants that both send all at once: by arrival alone the first is served before the second, by counters both
    /// are served alike.
    #[test]
    fn policies_differ_in_fairness() {
        let mut requests = drawn(80, 1);
        for request in &mut requests[40..] {
            request.tenant = 1;
        }
        let bench = ServingBench {
            adapters: vec![0],
            policies: ServingPolicy::ALL.to_vec(),
            rate_limit: 10,
            ..bench(requests)
        };
        let found = bench.run(&Device::flex(), &mut |_| ()).unwrap();
        let [vtc, fcfs, rpm, lcf] = &found[..] else {
            panic!("{found:?}");
        };
        for fair in [vtc, lcf] {
            assert!(fair.fairness_gap <= fair.fairness_bound, "{fair:?}");
            assert!(
                2 * fair.fairness_gap < fcfs.fairness_gap,
                "{fair:?} {fcfs:?}"
            );
            assert_eq!(fair.refused, 0);
        }
        assert_eq!((rpm.refused, fcfs.refused), (60, 0));
        assert!((rpm.attainment - 0.25).abs() < 1e-9);
    }
}
