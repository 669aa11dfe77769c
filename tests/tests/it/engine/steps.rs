//! Which requests a step computes.

use loraloom_inference::{Engine, EngineConfig, EngineRequest, InferenceError, Token};
use loraloom_pipeline::Pipeline;

use super::{RANKS, ROOMY, of, pipeline, places, request};

/// Tokens of each step, by the request they belong to, of requests that arrive in order.
fn steps(
    pipeline: &Pipeline,
    config: EngineConfig,
    requests: Vec<(usize, EngineRequest)>,
) -> (Vec<Vec<usize>>, u64) {
    let mut engine = Engine::new(pipeline, config);
    let (mut ids, mut steps) = (Vec::new(), Vec::new());
    while ids.len() < requests.len() || engine.requests() > 0 {
        for (_, request) in requests
            .iter()
            .skip(ids.len())
            .filter(|(at, _)| *at == steps.len())
        {
            ids.push(engine.submit(request.clone()).expect("a request"));
        }
        let tokens = engine.step(pipeline, &places(0)).expect("a step");
        let of = |token: &Token| ids.iter().position(|id| *id == token.request);
        steps.push(tokens.iter().filter_map(of).collect());
    }
    (steps, engine.preemptions())
}

/// Of a running request, one that arrived later and lost its blocks, and one that waits: the second goes on before the third
/// begins, though only the third would fit.
#[test]
fn a_request_that_lost_its_blocks_is_next() {
    let pipeline = pipeline("llama-gqa", &[], &[]);
    let config = EngineConfig {
        blocks: 7,
        batch_tokens: 64,
        max_sequences: 2,
    };
    let prompts = [(1..17, 48), (21..37, 40), (41..44, 2)];
    let requests = prompts.map(|(ids, tokens)| (0, request(ids.collect(), None, tokens)));
    let (steps, preemptions) = steps(&pipeline, config, requests.into());
    assert!(preemptions > 0);
    let first = |request: usize| steps.iter().position(|step| step.contains(&request));
    let last = |request: usize| steps.iter().rposition(|step| step.contains(&request));
    assert!(first(2) > last(0) && last(1) > last(0), "{steps:?}");
}

/// A long prompt does not delay those that are being answered.
#[test]
fn answers_come_before_prompts() {
    let pipeline = pipeline("llama-gqa", &[], &[]);
    let config = EngineConfig {
        blocks: 64,
        batch_tokens: 8,
        max_sequences: 4,
    };
    let requests = vec![
        (0, request((1..5).collect(), None, 30)),
        (3, request((1..101).collect(), None, 2)),
    ];
    let (steps, _) = steps(&pipeline, config, requests);
    let answered = steps.iter().filter(|step| step.contains(&0)).count();
    assert_eq!(answered, 30);
    assert!(
        steps[..30].iter().all(|step| step.contains(&0)),
        "{steps:?}"
    );
    // 100 tokens of a prompt in parts of 7.
    let first = steps.iter().position(|step| step.contains(&1));
    assert_eq!(first, Some(3 + 100_usize.div_ceil(7) - 1), "{steps:?}");
}

#[test]
fn a_cancelled_request_gives_its_blocks_back() {
    let pipeline = pipeline("llama-gqa", &[8], &[]);
    let mut engine = Engine::new(&pipeline, ROOMY);
    let ids: Vec<_> = (0..3)
        .map(|index| {
            engine
                .submit(request((1..40 + index).collect(), Some(0), 30))
                .expect("a request")
        })
        .collect();
    engine
        .step(&pipeline, &places(RANKS.len()))
        .expect("a step");
    let held = ROOMY.blocks - engine.free_blocks();
    assert!(engine.cancel(ids[1]));
    assert!(ROOMY.blocks - engine.free_blocks() < held);
    assert!(!engine.cancel(ids[1]));
    let mut answered = Vec::new();
    while engine.requests() > 0 {
        answered.extend(
            engine
                .step(&pipeline, &places(RANKS.len()))
                .expect("a step")
                .into_iter()
                .map(|token| token.request),
        );
    }
    assert!(!answered.contains(&ids[1]) && answered.contains(&ids[2]));
    assert_eq!(engine.free_blocks(), ROOMY.blocks);
}

/// A request for weights that are not there yet lets others pass, and starts when they are.
#[test]
fn requests_wait_for_their_weights() {
    let pipeline = pipeline("llama-gqa", &[8, 8], &[]);
    let mut engine = Engine::new(&pipeline, ROOMY);
    let ids = [Some(1), None, Some(0), Some(1)].map(|slot| {
        engine
            .submit(request((1..20).collect(), slot, 2))
            .expect("a request")
    });
    let step = |engine: &mut Engine, count: usize| -> Vec<_> {
        let tokens = engine.step(&pipeline, &places(count)).expect("a step");
        let mut found: Vec<_> = tokens.iter().map(|token| token.request).collect();
        found.sort_unstable();
        found
    };
    let needed = |engine: &Engine| engine.needed().collect::<Vec<_>>();
    assert_eq!(needed(&engine), [Some(1), None, Some(0), Some(1)].map(of));
    assert_eq!(step(&mut engine, 1), [ids[1], ids[2]]);
    assert_eq!(needed(&engine), [of(Some(1)); 2]);
    assert_eq!(engine.in_use().collect::<Vec<_>>(), [of(None), of(Some(0))]);
    assert_eq!(step(&mut engine, 2), ids);
    assert_eq!(step(&mut engine, 2), [ids[0], ids[3]]);
    // Weights of a running request that are gone are an error.
    engine
        .submit(request((1..20).collect(), Some(1), 3))
        .expect("a request");
    step(&mut engine, 2);
    let error = engine.step(&pipeline, &places(1)).unwrap_err();
    assert!(matches!(error, InferenceError::Removed), "{error}");
}
