//! The engine of continuous batches against each request alone and against forward passes over whole sequences.

mod steps;

use batchlora::{AdapterState, LoraSpec, Segment, Segments};
use burn::tensor::{Device, FloatDType, Tensor, TensorData};
use loraloom_inference::{
    BankSlot, BankSlots, Engine, EngineConfig, EngineRequest, Finish, Generation, InferenceError,
    Sampling, Token,
};
use loraloom_model::{Checkpoint, LayerAdapter, LlamaConfig, Projection, Sequences, Targets};
use loraloom_pipeline::{Microbatch, Pipeline, Stage};
use loraloom_tests::{Fixture, Random, device, keeps_bits};

const RANKS: [usize; 16] = [1, 2, 3, 4, 5, 8, 8, 12, 16, 16, 24, 32, 33, 48, 64, 64];

/// A model with adapters of these ranks, cut into stages of the layers given.
pub(crate) fn pipeline(name: &str, ranks: &[usize], cuts: &[usize]) -> Pipeline {
    let directory = Fixture::open(name).directory;
    let mut config = LlamaConfig::from_directory(&directory).expect("a model");
    if name == "llama-rope-dynamic" {
        // The length that frequencies are scaled from stays, and sequences grow beyond it.
        config.max_position_embeddings = 96;
    }
    let checkpoint = Checkpoint::open(&directory).expect("a checkpoint");
    let ends = cuts.iter().copied().chain([config.num_hidden_layers]);
    let mut start = 0;
    let stages = ends.map(|end| {
        let layers = std::mem::replace(&mut start, end)..end;
        Stage::load(&checkpoint, &config, layers, FloatDType::F32, &device()).expect("a stage")
    });
    let mut pipeline = Pipeline::new(stages.collect()).expect("a pipeline");
    for (seed, &rank) in ranks.iter().enumerate() {
        let slot = pipeline.push(0, adapter(&config, seed as u64, rank, &device()));
        assert_eq!(slot.expect("an adapter"), seed);
    }
    pipeline
}

/// A random adapter that changes what the model says, of some of the projections.
pub(crate) fn adapter(
    config: &LlamaConfig,
    seed: u64,
    rank: usize,
    device: &Device,
) -> Vec<LayerAdapter> {
    let layers = 0..config.num_hidden_layers;
    let layer = |layer: usize| {
        let mut parts = LayerAdapter::default();
        for shape in config.modules(layer) {
            let projection = shape.projection;
            if (projection as u64 + seed).is_multiple_of(3) || projection == Projection::EmbedTokens
            {
                continue;
            }
            let (size, module) = ([shape.d_in, shape.d_out], projection.number(layer));
            let spec = LoraSpec::new(rank, 16.0);
            let mut state = AdapterState::init(spec, size, seed, module, device).expect("a part");
            let b = (0..rank * shape.d_out)
                .map(|at| ((at * 37 + layer * 11 + seed as usize * 7) % 97) as f32 / 970.0 - 0.05);
            let b = TensorData::new(b.collect::<Vec<_>>(), [rank, shape.d_out]);
            state.weights.b = Tensor::from_data(b, device);
            parts[projection as usize] = Some(state);
        }
        parts
    };
    layers.map(layer).collect()
}

fn of(slot: Option<usize>) -> Generation {
    Generation(slot.map_or(0, |slot| slot as u64 + 1))
}

fn places(count: usize) -> BankSlots {
    let slots = [None].into_iter().chain((0..count).map(Some));
    slots
        .map(|slot| (of(slot), BankSlot { group: 0, slot }))
        .collect()
}

pub(crate) fn request(prompt: Vec<u32>, slot: Option<usize>, max_tokens: usize) -> EngineRequest {
    EngineRequest {
        generation: of(slot),
        prompt,
        sampling: Sampling::default(),
        max_tokens,
        stop: Vec::new(),
        top_log_probs: 2,
        tenant: String::new(),
        weight: 1.0,
    }
}

const ROOMY: EngineConfig = EngineConfig {
    blocks: 1024,
    batch_tokens: 2048,
    max_sequences: 256,
};

/// What each request is answered when they arrive in steps after the one given.
fn answer(
    pipeline: &Pipeline,
    config: EngineConfig,
    requests: &[(usize, EngineRequest)],
) -> Vec<Vec<Token>> {
    let mut engine = Engine::new(pipeline, config);
    let mut answers = vec![Vec::new(); requests.len()];
    let mut ids = vec![None; requests.len()];
    let mut step = 0;
    while ids.contains(&None) || engine.requests() > 0 {
        for (id, (arrival, request)) in ids.iter_mut().zip(requests) {
            if *arrival == step {
                *id = Some(engine.submit(request.clone()).expect("a request"));
            }
        }
        for token in engine.step(pipeline, &places(RANKS.len())).expect("a step") {
            let index = ids
                .iter()
                .position(|id| *id == Some(token.request))
                .expect("of a request");
            answers[index].push(token);
        }
        step += 1;
    }
    assert_eq!(
        engine.free_blocks(),
        config.blocks,
        "all blocks were given back"
    );
    answers
}

pub(crate) fn alone(pipeline: &Pipeline, request: &EngineRequest) -> Vec<Token> {
    answer(pipeline, ROOMY, &[(0, request.clone())]).remove(0)
}

/// Everything but the number of the request, with the bits of log-probabilities.
pub(crate) fn bits(tokens: &[Token]) -> Vec<impl PartialEq + std::fmt::Debug + use<>> {
    let of = |token: &Token| {
        let top = token.top.iter();
        let top: Vec<_> = top
            .map(|(id, log_prob)| (*id, log_prob.to_bits()))
            .collect();
        (token.id, token.log_prob.to_bits(), top, token.finish)
    };
    tokens.iter().map(of).collect()
}

#[track_caller]
fn assert_same(found: &[Token], expected: &[Token], what: &str) {
    if keeps_bits() {
        assert_eq!(bits(found), bits(expected), "{what}");
        return;
    }
    assert_eq!(found.len(), expected.len(), "{what}");
    for (found, expected) in found.iter().zip(expected) {
        assert_eq!(
            (found.id, found.finish),
            (expected.id, expected.finish),
            "{what}"
        );
        let off = (found.log_prob - expected.log_prob).abs();
        assert!(off < 1e-5, "{what}: log-probabilities are {off} apart");
    }
}

fn random_requests(
    random: &mut Random,
    count: usize,
    vocabulary: usize,
) -> Vec<(usize, EngineRequest)> {
    let shared: Vec<u32> = (0..50).map(|_| random.below(vocabulary) as u32).collect();
    let one = |_| {
        // Some prompts begin alike.
        let mut prompt = shared[..[0, 0, 17, 40, 50][random.below(5)]].to_vec();
        let own = 1 + random.below(30);
        prompt.extend((0..own).map(|_| random.below(vocabulary) as u32));
        let slot = random.below(RANKS.len() + 1).checked_sub(1);
        let mut request = request(prompt, slot, 1 + random.below(24));
        if random.below(2) == 0 {
            request.sampling = Sampling {
                temperature: 1.0,
                top_k: [0, 5][random.below(2)],
                top_p: [1.0, 0.9][random.below(2)],
                min_p: [0.0, 0.01][random.below(2)],
                repetition_penalty: [1.0, 1.3][random.below(2)],
                seed: random.below(1000) as u64,
            };
        }
        request.stop = vec![random.below(vocabulary) as u32];
        (random.below(20), request)
    };
    (0..count).map(one).collect()
}

/// 64 requests over sixteen adapters of ranks 1 to 64 and the base, that arrive at random: with much room, and with so
/// little that prompts are computed in parts and sequences give their blocks up.
#[test]
fn a_request_is_answered_as_if_alone() {
    let pipeline = pipeline("llama-gqa", &RANKS, &[]);
    let mut random = Random::seeded();
    let requests = random_requests(&mut random, 64, pipeline.config().vocab_size);
    let expected: Vec<_> = requests
        .iter()
        .map(|(_, request)| alone(&pipeline, request))
        .collect();
    let tight = EngineConfig {
        blocks: 18,
        batch_tokens: 37,
        max_sequences: 20,
    };
    for config in [ROOMY, tight] {
        let found = answer(&pipeline, config, &requests);
        for (index, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert_same(found, expected, &format!("request {index}, {config:?}"));
        }
    }
    let mut texts: Vec<_> = expected.iter().map(|tokens| tokens[0].id).collect();
    texts.sort_unstable();
    texts.dedup();
    assert!(texts.len() > 20, "answers differ: {texts:?}");
}

/// Tokens of the answer are penalised as those of the prompt, and each place has a draw of its own.
#[test]
fn a_token_depends_on_the_answer_before_it() {
    let pipeline = pipeline("llama-gqa", &[], &[]);
    let vocabulary = pipeline.config().vocab_size;
    let prompt: Vec<u32> = (1..20).collect();
    let mut asked = request(prompt.clone(), None, 24);
    asked.sampling.repetition_penalty = 1e6;
    let mut seen = prompt;
    for token in alone(&pipeline, &asked) {
        assert!(!seen.contains(&token.id), "{} is there twice", token.id);
        seen.push(token.id);
    }
    // All tokens are nearly as likely: a draw is a place in their order.
    asked.sampling = Sampling {
        temperature: 1e6,
        ..Sampling::default()
    };
    asked.top_log_probs = vocabulary;
    let places: Vec<_> = alone(&pipeline, &asked)
        .iter()
        .map(|token| {
            token
                .top
                .iter()
                .position(|(id, _)| *id == token.id)
                .expect("a token")
        })
        .collect();
    let least = places.iter().min().expect("tokens");
    let most = places.iter().max().expect("tokens");
    assert!(most - least > vocabulary / 4, "{places:?}");
}

#[test]
fn stages_do_not_matter() {
    let one = pipeline("llama-gqa", &RANKS[..3], &[]);
    let two = pipeline("llama-gqa", &RANKS[..3], &[1]);
    let mut random = Random::seeded();
    let mut requests = random_requests(&mut random, 8, one.config().vocab_size);
    for (_, request) in &mut requests {
        request.generation = Generation(request.generation.0 % 4);
    }
    let (found, expected) = (
        answer(&two, ROOMY, &requests),
        answer(&one, ROOMY, &requests),
    );
    for (found, expected) in found.iter().zip(&expected) {
        assert_same(found, expected, "two stages");
    }
}

/// The log-probability that a token is sampled with is the one that training would find for it, to the last bit on
/// the CPU: that of a forward pass over prompt and answer.
#[test]
fn log_probabilities_are_those_of_a_forward_pass() {
    for model in [
        "llama-gqa",
        "mistral-sliding",
        "gemma2",
        "gemma3",
        "qwen3",
        "olmo2",
    ] {
        let pipeline = pipeline(model, &[4, 64, 7], &[]);
        for slot in [None, Some(0), Some(1), Some(2)] {
            let mut request = request((3..24).collect(), slot, 60);
            request.sampling.temperature = 0.7;
            let tokens = alone(&pipeline, &request);
            assert_eq!(tokens.len(), 60);
            let ids: Vec<u32> = (request.prompt.iter().copied())
                .chain(tokens.iter().map(|token| token.id))
                .collect();
            let losses = losses(&pipeline, &ids, request.prompt.len(), slot);
            for (place, (token, loss)) in tokens.iter().zip(&losses).enumerate() {
                let what = format!("{model}, {slot:?}, token {place}");
                if device() == Device::flex() {
                    assert_eq!(token.log_prob.to_bits(), (-loss).to_bits(), "{what}");
                } else {
                    let off = (token.log_prob + loss).abs();
                    assert!(off < 2e-5, "{what}: {off} apart");
                }
                assert!(token.top[0].1 >= token.log_prob && token.top[0].1 >= token.top[1].1);
            }
        }
    }
}

/// Losses of the tokens after the first `prompt`.
fn losses(pipeline: &Pipeline, ids: &[u32], prompt: usize, slot: Option<usize>) -> Vec<f32> {
    let rows = 0..ids.len();
    let segments = slot.map(|slot| Segment {
        rows: rows.clone(),
        slot,
    });
    let microbatch = Microbatch {
        ids: ids.to_vec(),
        sequences: Sequences::from_lengths([ids.len()]),
        cached: None,
        rope_lengths: vec![ids.len()],
        segments: Segments::new(ids.len(), segments.into_iter().collect()).expect("segments"),
        draws: None,
        targets: Targets {
            rows: (prompt - 1..ids.len() - 1).collect(),
            ids: ids[prompt..].to_vec(),
            weights: vec![1.0; ids.len() - prompt],
            ..Targets::default()
        },
    };
    pipeline.target_scores(0, &microbatch).expect("scores").0
}

/// Dynamic scaling rotates a token for the length that its sequence has with it; a sequence that gave its blocks up is
/// computed again as it was.
#[test]
fn rotations_that_depend_on_the_length_survive_a_lack_of_blocks() {
    for model in ["llama-rope-dynamic", "phi3"] {
        let pipeline = pipeline(model, &[4], &[]);
        let requests: Vec<_> = (0..6)
            .map(|index| {
                let prompt = (5 + index..25 + 3 * index).collect();
                (
                    index as usize,
                    request(prompt, (index % 2 == 0).then_some(0), 40),
                )
            })
            .collect();
        let expected: Vec<_> = requests
            .iter()
            .map(|(_, request)| alone(&pipeline, request))
            .collect();
        let tight = EngineConfig {
            blocks: 11,
            batch_tokens: 16,
            max_sequences: 8,
        };
        let found = answer(&pipeline, tight, &requests);
        for (index, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert_same(found, expected, &format!("{model}, request {index}"));
        }
    }
}

/// Keys and values that another request computed are not computed again; those of other weights are not taken.
#[test]
fn prompts_that_begin_alike_are_computed_once() {
    let mut pipeline = pipeline("llama-gqa", &[8, 8], &[]);
    let prompt: Vec<u32> = (1..66).collect();
    let config = EngineConfig {
        batch_tokens: 16,
        ..ROOMY
    };
    let mut engine = Engine::new(&pipeline, config);
    let mut places = places(2);
    let mut steps = |pipeline: &Pipeline, places: &BankSlots, request: EngineRequest| {
        engine.submit(request).expect("a request");
        let (mut steps, mut tokens) = (0, Vec::new());
        while engine.requests() > 0 {
            tokens.extend(engine.step(pipeline, places).expect("a step"));
            steps += 1;
        }
        (steps, tokens)
    };
    let (first, expected) = steps(&pipeline, &places, request(prompt.clone(), Some(0), 1));
    let (second, found) = steps(&pipeline, &places, request(prompt.clone(), Some(0), 1));
    assert_eq!((first, second), (5, 1));
    assert_same(&found, &expected, "from the blocks of the first");
    let (other, _) = steps(&pipeline, &places, request(prompt.clone(), Some(1), 1));
    assert_eq!(other, 5, "another adapter has other keys and values");

    // Other weights in the same slot are another generation.
    let removed = pipeline.remove(0, 0).expect("the first");
    pipeline.push(0, removed).expect("the last");
    let mut later = request(prompt.clone(), None, 1);
    later.generation = Generation(9);
    places.insert(
        Generation(9),
        BankSlot {
            group: 0,
            slot: Some(1),
        },
    );
    let (other, found) = steps(&pipeline, &places, later);
    assert_eq!(other, 5);
    assert_same(
        &found,
        &alone(&pipeline, &request(prompt, Some(1), 1)),
        "what was the first",
    );
}

#[test]
fn what_cannot_be_answered_is_refused() {
    let pipeline = pipeline("llama-gqa", &[], &[]);
    let context = pipeline.config().max_position_embeddings;
    let config = EngineConfig { blocks: 2, ..ROOMY };
    let mut engine = Engine::new(&pipeline, config);
    let error = engine.submit(request(vec![], None, 4)).unwrap_err();
    assert!(matches!(error, InferenceError::EmptyPrompt), "{error}");
    let error = engine
        .submit(request(vec![1; context], None, 4))
        .unwrap_err();
    assert!(
        matches!(error, InferenceError::PromptTooLong { .. }),
        "{error}"
    );
    let error = engine.submit(request(vec![1; 20], None, 14)).unwrap_err();
    assert!(
        matches!(
            error,
            InferenceError::TooLarge {
                prompt: 20,
                answer: 14,
                tokens: 32
            }
        ),
        "{error}"
    );
    // The last token of an answer needs no place.
    engine.submit(request(vec![1; 20], None, 13)).expect("fits");
    while engine.requests() > 0 {
        engine
            .step(&pipeline, &places(RANKS.len()))
            .expect("a step");
    }
    // An unknown slot is an error, never the base model.
    engine
        .submit(request(vec![1; 4], Some(3), 2))
        .expect("enqueued");
    engine
        .step(&pipeline, &places(4))
        .expect_err("no such adapter");
}

/// Answers end at a token that ends them, after as many tokens as asked for, and where the context ends.
#[test]
fn answers_end() {
    let pipeline = pipeline("llama-gqa", &[], &[]);
    let context = pipeline.config().max_position_embeddings;
    let whole = alone(&pipeline, &request((1..9).collect(), None, 20));
    assert_eq!((whole.len(), whole[19].finish), (20, Some(Finish::Length)));
    assert!(whole[..19].iter().all(|token| token.finish.is_none()));
    let end = whole[7].id;
    let first = whole
        .iter()
        .position(|token| token.id == end)
        .expect("it is there");
    let mut stopped = request((1..9).collect(), None, 20);
    stopped.stop = vec![end];
    let stopped = alone(&pipeline, &stopped);
    assert_eq!(
        (stopped.len(), stopped[first].finish),
        (first + 1, Some(Finish::Stop))
    );
    let ids = (0..context as u32 - 3).map(|id| id % 200);
    let last = alone(&pipeline, &request(ids.collect(), None, 20));
    assert_eq!((last.len(), last[2].finish), (3, Some(Finish::Length)));
}
