//! Adapters by name that come and go while requests run.

pub(crate) mod accounts;
mod limits;
mod reading;

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::Duration,
};

use loraloom_inference::{
    AdapterStore, AnswerStream, Ask, EngineConfig, Finish, InferenceError, ReadAdapter, Replace,
    Sampling, Service, ServiceConfig, ServiceCore, ServiceError, Stats, StoreLimits, Token,
};
use loraloom_model::cost::{STORED_BYTES, adapter_parameters};
use loraloom_pipeline::Pipeline;
use loraloom_tests::device;
use tokio::runtime::Runtime;

use crate::engine::{adapter, alone, bits, pipeline, request};

const MODEL: &str = "llama-gqa";
const ALL: StoreLimits = StoreLimits {
    device: 1 << 40,
    host: 1 << 40,
};
/// Seed of an adapter whose weights are infinite.
const OVERFLOWS: usize = 99;

/// Whoever asks a core, which has a thread of its own.
struct Here {
    core: Option<(ServiceCore, Pipeline)>,
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
        let mut parts = adapter(&config, seed as u64, rank, &device());
        if seed == OVERFLOWS {
            for state in parts.iter_mut().flatten().flatten() {
                state.weights.b = state.weights.b.clone() * f32::INFINITY;
            }
        }
        Ok(parts)
    })
}

/// Bytes of an adapter of this rank and seed.
fn bytes(pipeline: &Pipeline, seed: u64, rank: usize) -> u64 {
    let parts = adapter(pipeline.config(), seed, rank, &device());
    (adapter_parameters(&parts) * STORED_BYTES) as u64
}

impl Here {
    /// Nothing is answered before [`start`](Self::start).
    fn new(limits: impl Fn(&Pipeline) -> StoreLimits, max_waiting: usize) -> Self {
        let pipeline = pipeline(MODEL, &[], &[]);
        let store = AdapterStore::new("tiny".to_owned(), 0, limits(&pipeline), reader(&pipeline));
        Self::of(pipeline, store, max_waiting)
    }

    fn of(pipeline: Pipeline, store: AdapterStore, max_waiting: usize) -> Self {
        let config = ServiceConfig {
            engine: EngineConfig {
                blocks: 256,
                batch_tokens: 256,
                max_sequences: 64,
            },
            max_waiting,
        };
        let (core, service) = ServiceCore::new(&pipeline, config, store, None);
        let runtime = tokio::runtime::Builder::new_multi_thread();
        Self {
            core: Some((core, pipeline)),
            service,
            runtime: { runtime }.worker_threads(1).build().expect("a runtime"),
            directory: tempfile::tempdir().expect("a directory"),
        }
    }

    fn start(mut self) -> Self {
        let (mut core, mut pipeline) = self.core.take().expect("not started");
        thread::spawn(move || while core.turn(&mut pipeline).expect("a turn") {});
        self
    }

    fn roomy() -> Self {
        Self::new(|_| ALL, 1000).start()
    }

    /// A directory with an adapter.
    fn write(&self, name: &str, seed: u64, rank: usize) -> PathBuf {
        let path = self.directory.path().join(name);
        fs::create_dir_all(&path).expect("a directory");
        fs::write(path.join("adapter_config.json"), format!("{seed} {rank}")).expect("written");
        fs::write(path.join("adapter_model.safetensors"), "weights").expect("written");
        path
    }

    fn load(
        &self,
        name: &str,
        directory: &Path,
        replaces: Replace,
    ) -> Result<String, ServiceError> {
        let load = self
            .service
            .load(name.to_owned(), directory.to_owned(), replaces);
        self.runtime.block_on(load).map(|card| card.generation)
    }

    fn unload(&self, name: &str) -> Result<(), ServiceError> {
        self.runtime.block_on(self.service.unload(name.to_owned()))
    }

    fn ask(&self, model: &str, max_tokens: usize) -> Result<AnswerStream, ServiceError> {
        let ask = ask(model, (1..20).collect(), max_tokens);
        self.runtime.block_on(self.service.ask(ask))
    }

    fn read(&self, mut answer: AnswerStream) -> Result<Vec<Token>, ServiceError> {
        self.runtime.block_on(async move {
            let mut tokens = Vec::new();
            while let Some(token) = answer.next().await {
                tokens.push(token?);
            }
            Ok(tokens)
        })
    }

    fn stats(&self) -> Stats {
        self.runtime
            .block_on(self.service.stats())
            .expect("numbers")
    }
}

fn ask(model: &str, prompt: Vec<u32>, max_tokens: usize) -> Ask {
    Ask {
        model: model.to_owned(),
        prompt,
        sampling: Sampling::default(),
        max_tokens,
        stop: Vec::new(),
        top_log_probs: 2,
        tenant: String::new(),
        weight: 1.0,
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
    let here = Here::roomy();
    let (old, new) = (here.write("old", 1, 8), here.write("new", 2, 16));
    let first = here
        .load("support", &old, Replace::Nothing)
        .expect("loaded");
    let begun = here.ask("support", 200).expect("an answer");
    assert_eq!(begun.generation(), first);
    let error = here.load("support", &new, Replace::Nothing).unwrap_err();
    assert!(matches!(&error, ServiceError::NameTaken { .. }), "{error}");
    let wrong = Replace::Generation("0123".to_owned());
    let error = here.load("support", &new, wrong.clone()).unwrap_err();
    assert!(
        matches!(&error, ServiceError::OtherGeneration { found, .. } if *found == first),
        "{error}"
    );
    let second = here
        .load("support", &new, Replace::Generation(first.clone()))
        .expect("replaced");
    assert_ne!(first, second);
    let later = here.ask("support", 200).expect("an answer");
    assert_eq!(later.generation(), second);
    let base = here.ask("tiny", 200).expect("an answer");
    assert_eq!(
        bits(&here.read(begun).expect("tokens")),
        bits(&expected(1, 8, 200))
    );
    assert_eq!(
        bits(&here.read(later).expect("tokens")),
        bits(&expected(2, 16, 200))
    );
    let base = here.read(base).expect("tokens");
    let alone = alone(
        &pipeline(MODEL, &[], &[]),
        &request((1..20).collect(), None, 200),
    );
    assert_eq!(bits(&base), bits(&alone));

    // The old weights are gone, the new ones are not.
    assert_eq!(
        (here.stats().resident_adapters, here.stats().adapters),
        (1, 1)
    );
    // A new name is no replacement.
    let error = here.load("other", &new, wrong).unwrap_err();
    assert!(matches!(error, ServiceError::UnknownModel { .. }));
    // The base model's name stays its own.
    let error = here.load("tiny", &new, Replace::Anything).unwrap_err();
    assert!(matches!(error, ServiceError::BaseName { .. }));
    let error = here.unload("tiny").unwrap_err();
    assert!(matches!(error, ServiceError::BaseName { .. }));
    // The same files are the same weights.
    assert_eq!(
        here.load("again", &new, Replace::Nothing).expect("loaded"),
        second
    );
}

#[test]
fn an_unloaded_adapter_finishes_its_answers() {
    let here = Here::roomy();
    let path = here.write("a", 3, 4);
    here.load("a", &path, Replace::Nothing).expect("loaded");
    let begun = here.ask("a", 200).expect("an answer");
    here.unload("a").expect("unloaded");
    let error = here.ask("a", 1).unwrap_err();
    assert!(
        matches!(&error, ServiceError::UnknownModel { known, .. } if known == &["tiny"]),
        "{error}"
    );
    assert_eq!(
        bits(&here.read(begun).expect("tokens")),
        bits(&expected(3, 4, 200))
    );
    assert!(here.unload("a").is_err());
    assert_eq!(here.stats().resident_adapters, 0);
}

/// Of two names for equal files each has its own, also if those of the other go.
#[test]
fn equal_adapters_are_read_again_from_either_directory() {
    let one = |pipeline: &Pipeline| StoreLimits {
        device: bytes(pipeline, 1, 8),
        host: 0,
    };
    let here = Here::new(one, 1000).start();
    let paths = [("x", 1), ("y", 1), ("other", 4)].map(|(name, seed)| here.write(name, seed, 8));
    for (name, path) in ["x", "y", "other"].into_iter().zip(&paths) {
        here.load(name, path, Replace::Nothing).expect("loaded");
    }
    here.unload("x").expect("unloaded");
    fs::remove_dir_all(&paths[0]).expect("removed");
    for (name, seed) in [("other", 4), ("y", 1)] {
        let answer = here.ask(name, 2).expect("an answer");
        let found = here.read(answer).expect("tokens");
        assert_eq!(bits(&found), bits(&expected(seed, 8, 2)), "{name}");
    }
}

#[test]
fn an_answer_that_is_no_number_is_an_error() {
    let here = Here::roomy();
    let path = here.write("huge", OVERFLOWS as u64, 8);
    here.load("huge", &path, Replace::Nothing).expect("loaded");
    let answer = here.ask("huge", 3).expect("an answer");
    let error = here.read(answer).unwrap_err();
    assert!(
        matches!(&error, ServiceError::Failed(why) if why.contains("not finite")),
        "{error}"
    );
    let base = here.ask("tiny", 3).expect("an answer");
    assert_eq!(here.read(base).expect("tokens").len(), 3);
}

#[test]
fn files_that_are_gone_or_changed_are_an_error() {
    let here = Here::new(
        |pipeline| StoreLimits {
            device: bytes(pipeline, 1, 8),
            host: 0,
        },
        1000,
    )
    .start();
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
        Err(ServiceError::Adapter(_))
    ));
    let large = here.write("large", 1, 64);
    let error = here.load("d", &large, Replace::Nothing).unwrap_err();
    let ServiceError::AdapterTooLarge { bytes, limit, .. } = error else {
        panic!("{error}");
    };
    assert_eq!(bytes, 64 / 8 * limit);
}

#[test]
fn requests_are_refused_and_forgotten() {
    let all = StoreLimits {
        device: 1 << 40,
        host: 1 << 40,
    };
    let here = Here::new(|_| all, 3);
    // Asked before the first turn, so that they all wait.
    let asked = (0..5).map(|_| {
        let service = here.service.clone();
        let ask = ask("tiny", (1..20).collect(), 200);
        here.runtime.spawn(async move { service.ask(ask).await })
    });
    let asked: Vec<_> = asked.collect();
    thread::sleep(Duration::from_millis(300));
    let here = here.start();
    let asked = asked.into_iter();
    let asked = asked.map(|asked| here.runtime.block_on(asked).expect("no panic"));
    let asked: Vec<_> = asked.collect();
    let busy = asked
        .iter()
        .filter(|asked| matches!(asked, Err(ServiceError::Busy { waiting: 3 })));
    assert_eq!(busy.count(), 2);
    // Those that nobody reads give their blocks back.
    drop(asked);
    while here.stats().running + here.stats().waiting > 0 {
        thread::sleep(Duration::from_millis(5));
    }
    let stats = here.stats();
    assert_eq!((stats.free_blocks, stats.waiting), (stats.blocks, 0));
    assert!(
        stats.generated_tokens < 600 && stats.prompt_tokens == 3 * 19,
        "{stats:?}"
    );

    let path = here.write("a", 1, 8);
    here.load("a", &path, Replace::Nothing).expect("loaded");
    assert!(matches!(
        here.ask("b", 1),
        Err(ServiceError::UnknownModel { name, known }) if name == "b" && known == ["tiny", "a"]
    ));
    let empty = here.service.ask(ask("a", Vec::new(), 3));
    let error = here.runtime.block_on(empty).unwrap_err();
    assert!(
        matches!(error, ServiceError::Refused(InferenceError::EmptyPrompt)),
        "{error}"
    );
    let answer = here.ask("a", 3).expect("an answer");
    let tokens = here.read(answer).expect("tokens");
    assert_eq!((tokens.len(), tokens[2].finish), (3, Some(Finish::Length)));
    // The refused request does not keep the adapter.
    here.unload("a").expect("unloaded");
    assert_eq!(here.stats().resident_adapters, 0);

    // After the core has ended, whoever asks is told.
    let Here {
        service, runtime, ..
    } = Here::new(|_| all, 3);
    let error = runtime.block_on(service.stats()).unwrap_err();
    assert!(matches!(error, ServiceError::Stopped), "{error}");
}
