//! Adapters by name that come and go while requests run.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use loraloom_inference::{
    AdapterStore, Answer, Ask, EngineConfig, Finish, InferenceError, ReadAdapter, Replace,
    Sampling, Service, ServiceConfig, ServiceCore, ServiceError, StoreError, StoreLimits, Token,
};
use loraloom_model::cost::{STORED_BYTES, adapter_parameters};
use loraloom_pipeline::Pipeline;
use loraloom_tests::device;
use tokio::runtime::Runtime;

use crate::engine::{adapter, alone, bits, pipeline, request};

const MODEL: &str = "llama-gqa";

/// A pipeline, a core over it, and whoever asks.
struct Here {
    pipeline: Pipeline,
    core: ServiceCore,
    service: Service,
    runtime: Runtime,
    directory: tempfile::TempDir,
}

/// Directories hold the seed and rank of an adapter.
fn reader(pipeline: &Pipeline) -> ReadAdapter {
    let config = pipeline.config().clone();
    Arc::new(move |directory: &Path| {
        let text = fs::read_to_string(directory.join("adapter_config.json"));
        let text = text.map_err(|error| error.to_string())?;
        let numbers = text
            .split_whitespace()
            .map(|word| word.parse::<usize>().ok());
        let [Some(seed), Some(rank)] = numbers.collect::<Vec<_>>()[..] else {
            return Err(format!("{text} is no adapter"));
        };
        Ok(adapter(&config, seed as u64, rank, &device()))
    })
}

/// Bytes of an adapter of this rank and seed.
fn bytes(pipeline: &Pipeline, seed: u64, rank: usize) -> u64 {
    let parts = adapter(pipeline.config(), seed, rank, &device());
    (adapter_parameters(&parts) * STORED_BYTES) as u64
}

impl Here {
    fn new(limits: impl Fn(&Pipeline) -> StoreLimits, max_waiting: usize) -> Self {
        let mut pipeline = pipeline(MODEL, &[], &[]);
        pipeline.reserve_groups(1).expect("a group");
        let store = AdapterStore::new(0, limits(&pipeline), reader(&pipeline));
        let config = ServiceConfig {
            base: "tiny".to_owned(),
            engine: EngineConfig {
                blocks: 256,
                batch_tokens: 256,
                max_sequences: 64,
            },
            max_waiting,
        };
        let (core, service) = ServiceCore::new(&pipeline, config, store);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .build()
            .expect("a runtime");
        Self {
            pipeline,
            core,
            service,
            runtime,
            directory: tempfile::tempdir().expect("a directory"),
        }
    }

    fn roomy() -> Self {
        let all = StoreLimits {
            device: 1 << 40,
            host: 1 << 40,
        };
        Self::new(|_| all, 1000)
    }

    /// A directory with an adapter.
    fn write(&self, name: &str, seed: u64, rank: usize) -> PathBuf {
        let path = self.directory.path().join(name);
        fs::create_dir_all(&path).expect("a directory");
        fs::write(path.join("adapter_config.json"), format!("{seed} {rank}")).expect("written");
        fs::write(path.join("adapter_model.safetensors"), "weights").expect("written");
        path
    }

    /// Turns until a call has its reply.
    fn call<T: Send + 'static>(
        &mut self,
        call: impl Future<Output = Result<T, ServiceError>> + Send + 'static,
    ) -> Result<T, ServiceError> {
        let call = self.runtime.spawn(call);
        while !call.is_finished() {
            self.core.turn(&mut self.pipeline).expect("a turn");
        }
        self.runtime.block_on(call).expect("no panic")
    }

    fn load(
        &mut self,
        name: &str,
        directory: &Path,
        replaces: Replace,
    ) -> Result<String, ServiceError> {
        let (service, name, directory) =
            (self.service.clone(), name.to_owned(), directory.to_owned());
        let card = self.call(async move { service.load(name, directory, replaces).await });
        card.map(|card| card.generation)
    }

    fn unload(&mut self, name: &str) -> Result<(), ServiceError> {
        let (service, name) = (self.service.clone(), name.to_owned());
        self.call(async move { service.unload(name).await })
    }

    fn ask(&mut self, model: &str, max_tokens: usize) -> Result<Answer, ServiceError> {
        let ask = Ask {
            model: model.to_owned(),
            prompt: (1..20).collect(),
            sampling: Sampling::default(),
            max_tokens,
            stop: Vec::new(),
            top_log_probs: 2,
        };
        let service = self.service.clone();
        self.call(async move { service.ask(ask).await })
    }

    /// Turns until an answer ends.
    fn read(&mut self, mut answer: Answer) -> Result<Vec<Token>, ServiceError> {
        let reading = self.runtime.spawn(async move {
            let mut tokens = Vec::new();
            while let Some(token) = answer.next().await {
                tokens.push(token?);
            }
            Ok(tokens)
        });
        while !reading.is_finished() {
            self.core.turn(&mut self.pipeline).expect("a turn");
        }
        self.runtime.block_on(reading).expect("no panic")
    }

    fn stats(&mut self) -> loraloom_inference::Stats {
        let service = self.service.clone();
        self.call(async move { service.stats().await })
            .expect("numbers")
    }
}

/// What an adapter says when it is the only one.
fn expected(seed: u64, rank: usize, max_tokens: usize) -> Vec<Token> {
    let mut pipeline = pipeline(MODEL, &[], &[]);
    let parts = adapter(pipeline.config(), seed, rank, &device());
    pipeline.push(0, parts).expect("an adapter");
    alone(&pipeline, &request((1..20).collect(), Some(0), max_tokens))
}

#[test]
fn a_replaced_adapter_answers_what_it_began() {
    let mut here = Here::roomy();
    let (old, new) = (here.write("old", 1, 8), here.write("new", 2, 16));
    let first = here
        .load("support", &old, Replace::Nothing)
        .expect("loaded");
    let begun = here.ask("support", 20).expect("an answer");
    assert_eq!(begun.generation(), first);
    let error = here.load("support", &new, Replace::Nothing).unwrap_err();
    assert!(
        matches!(&error, ServiceError::Store(StoreError::NameTaken { .. })),
        "{error}"
    );
    let wrong = Replace::Generation("0123".to_owned());
    let error = here.load("support", &new, wrong.clone()).unwrap_err();
    assert!(
        matches!(&error, ServiceError::Store(StoreError::OtherGeneration { found, .. }) if *found == first),
        "{error}"
    );
    let second = here
        .load("support", &new, Replace::Generation(first.clone()))
        .expect("replaced");
    assert_ne!(first, second);
    let later = here.ask("support", 20).expect("an answer");
    assert_eq!(later.generation(), second);
    let base = here.ask("tiny", 20).expect("an answer");
    assert_eq!(
        bits(&here.read(begun).expect("tokens")),
        bits(&expected(1, 8, 20))
    );
    assert_eq!(
        bits(&here.read(later).expect("tokens")),
        bits(&expected(2, 16, 20))
    );
    let base = here.read(base).expect("tokens");
    let alone = alone(
        &pipeline(MODEL, &[], &[]),
        &request((1..20).collect(), None, 20),
    );
    assert_eq!(bits(&base), bits(&alone));

    // The old weights are gone, the new ones are not.
    assert_eq!(
        (here.stats().resident_adapters, here.stats().adapters),
        (1, 1)
    );
    // A new name is no replacement.
    let error = here.load("other", &new, wrong).unwrap_err();
    assert!(matches!(
        error,
        ServiceError::Store(StoreError::Unknown { .. })
    ));
    // The base model's name stays its own.
    let error = here.load("tiny", &new, Replace::Anything).unwrap_err();
    assert!(matches!(
        error,
        ServiceError::Store(StoreError::NameTaken { .. })
    ));
    // The same files are the same weights.
    assert_eq!(
        here.load("again", &new, Replace::Nothing).expect("loaded"),
        second
    );
}

#[test]
fn an_unloaded_adapter_finishes_its_answers() {
    let mut here = Here::roomy();
    let path = here.write("a", 3, 4);
    here.load("a", &path, Replace::Nothing).expect("loaded");
    let begun = here.ask("a", 10).expect("an answer");
    here.unload("a").expect("unloaded");
    let error = here.ask("a", 1).unwrap_err();
    assert!(
        matches!(&error, ServiceError::Store(StoreError::Unknown { known, .. }) if known.is_empty()),
        "{error}"
    );
    assert_eq!(
        bits(&here.read(begun).expect("tokens")),
        bits(&expected(3, 4, 10))
    );
    assert!(here.unload("a").is_err());
    // A turn later nothing of it is in the pipeline.
    let base = here.ask("tiny", 1).expect("an answer");
    here.read(base).expect("a token");
    assert_eq!(here.stats().resident_adapters, 0);
}

/// Two thousand adapters are registered where a hundred fit in host memory, and ten in the pipeline: each is answered
/// with its own weights, a cold one costs one copy, and the bytes stay within the limits.
#[test]
fn many_adapters_share_a_budget() {
    let mut here = Here::new(
        |pipeline| StoreLimits {
            device: 10
                * bytes(pipeline, 0, 8)
                    .max(bytes(pipeline, 1, 8))
                    .max(bytes(pipeline, 2, 8)),
            host: 100 * bytes(pipeline, 0, 8),
        },
        1000,
    );
    for index in 0..2000 {
        let path = here.write(&format!("{index}"), index, 8);
        here.load(&format!("a{index}"), &path, Replace::Nothing)
            .expect("loaded");
    }
    assert_eq!(here.stats().adapters, 2000);
    for (count, index) in [0, 1999, 7, 1000, 3].into_iter().enumerate() {
        let answer = here.ask(&format!("a{index}"), 3).expect("an answer");
        assert_eq!(
            bits(&here.read(answer).expect("tokens")),
            bits(&expected(index, 8, 3)),
            "{index}"
        );
        assert_eq!(here.stats().fetches, count as u64 + 1);
    }
    let warm = here.ask("a1000", 1).expect("an answer");
    here.read(warm).expect("a token");
    assert_eq!(here.stats().fetches, 5);
    // More at a time than there is room for: they take turns.
    let answers: Vec<_> = (100..140)
        .map(|index| here.ask(&format!("a{index}"), 4).expect("an answer"))
        .collect();
    for (answer, index) in answers.into_iter().zip(100..) {
        assert_eq!(
            bits(&here.read(answer).expect("tokens")),
            bits(&expected(index, 8, 4)),
            "{index}"
        );
        assert!(here.stats().resident_adapters <= 12);
    }
    assert_eq!(here.stats().fetches, 45);
}

#[test]
fn files_that_are_gone_or_changed_are_an_error() {
    let mut here = Here::new(
        |pipeline| StoreLimits {
            device: bytes(pipeline, 1, 8),
            host: 0,
        },
        1000,
    );
    let paths = [1, 4, 7].map(|seed| here.write(&format!("{seed}"), seed, 8));
    for (path, name) in paths.iter().zip(["a", "b", "c"]) {
        here.load(name, path, Replace::Nothing).expect("loaded");
    }
    fs::write(paths[0].join("adapter_model.safetensors"), "others").expect("written");
    let answer = here.ask("a", 2).expect("an answer");
    let error = here.read(answer).unwrap_err();
    assert!(
        matches!(&error, ServiceError::Failed(why) if why.contains("changed")),
        "{error}"
    );
    fs::remove_dir_all(&paths[1]).expect("removed");
    let answer = here.ask("b", 2).expect("an answer");
    let error = here.read(answer).unwrap_err();
    assert!(
        matches!(&error, ServiceError::Failed(why) if why.contains("adapter_config")),
        "{error}"
    );
    // Others do not notice.
    let answer = here.ask("c", 2).expect("an answer");
    assert_eq!(
        bits(&here.read(answer).expect("tokens")),
        bits(&expected(7, 8, 2))
    );

    let path = here.directory.path().join("none");
    assert!(matches!(
        here.load("d", &path, Replace::Nothing),
        Err(ServiceError::Store(StoreError::Unreadable(_)))
    ));
    let large = here.write("large", 1, 64);
    let error = here.load("d", &large, Replace::Nothing).unwrap_err();
    assert!(
        matches!(error, ServiceError::Store(StoreError::TooLarge { .. })),
        "{error}"
    );
}

#[test]
fn requests_are_refused_and_forgotten() {
    let mut here = Here::new(
        |_| StoreLimits {
            device: 1 << 40,
            host: 1 << 40,
        },
        3,
    );
    let path = here.write("a", 1, 8);
    here.load("a", &path, Replace::Nothing).expect("loaded");
    assert!(matches!(
        here.ask("b", 1),
        Err(ServiceError::Store(StoreError::Unknown { name, known })) if name == "b" && known == ["a"]
    ));
    let ask = |prompt: Vec<u32>| Ask {
        model: "a".to_owned(),
        prompt,
        sampling: Sampling::default(),
        max_tokens: 3,
        stop: Vec::new(),
        top_log_probs: 0,
    };
    let (service, empty) = (here.service.clone(), ask(Vec::new()));
    let error = here
        .call(async move { service.ask(empty).await })
        .unwrap_err();
    assert!(
        matches!(error, ServiceError::Refused(InferenceError::EmptyPrompt)),
        "{error}"
    );

    // Asked between two turns, so that they all wait.
    let asked: Vec<_> = (0..5)
        .map(|_| {
            let (service, ask) = (here.service.clone(), ask((1..20).collect()));
            here.runtime.spawn(async move { service.ask(ask).await })
        })
        .collect();
    std::thread::sleep(std::time::Duration::from_millis(200));
    here.core.turn(&mut here.pipeline).expect("a turn");
    let asked: Vec<_> = asked
        .into_iter()
        .map(|asked| here.runtime.block_on(asked).expect("no panic"))
        .collect();
    let busy = asked
        .iter()
        .filter(|asked| matches!(asked, Err(ServiceError::Busy { waiting: 3 })));
    assert_eq!(busy.count(), 2);
    // Those that nobody reads give their blocks back.
    drop(asked);
    while here.stats().running > 0 {
        here.core.turn(&mut here.pipeline).expect("a turn");
    }
    let stats = here.stats();
    assert_eq!((stats.free_blocks, stats.waiting), (stats.blocks, 0));
    assert!(stats.generated_tokens < 9 && stats.prompt_tokens == 3 * 19);

    let answer = here.ask("a", 3).expect("an answer");
    let tokens = here.read(answer).expect("tokens");
    assert_eq!((tokens.len(), tokens[2].finish), (3, Some(Finish::Length)));
}
