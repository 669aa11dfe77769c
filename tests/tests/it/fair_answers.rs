//! Requests of several tenants, and of adapters that have no place.

use std::collections::BTreeMap;

use loraloom_inference::{BankSlot, BankSlots, Engine, EngineConfig, EngineRequest, Generation};
use loraloom_pipeline::Pipeline;

use crate::engine::{pipeline, request};

const PROMPT: usize = 12;
const ANSWER: usize = 6;
const SEQUENCES: usize = 4;

fn of(tenant: &str, weight: f64) -> EngineRequest {
    EngineRequest {
        tenant: tenant.to_owned(),
        weight,
        ..request((1..=PROMPT as u32).collect(), None, ANSWER)
    }
}

fn base() -> BankSlots {
    let place = BankSlot {
        group: 0,
        slot: None,
    };
    [(Generation::BASE, place)].into()
}

fn engine(pipeline: &Pipeline) -> Engine {
    Engine::new(
        pipeline,
        EngineConfig {
            blocks: 64,
            batch_tokens: 256,
            max_sequences: SEQUENCES,
        },
    )
}

/// Service of each tenant after each step while both have requests that wait: prompts at their first token.
fn service(requests: &[EngineRequest]) -> Vec<[f64; 2]> {
    let pipeline = pipeline("llama-gqa", &[], &[]);
    let mut engine = engine(&pipeline);
    let mut open = BTreeMap::new();
    for request in requests {
        let id = engine.submit(request.clone()).expect("a request");
        open.insert(id, (request.tenant.clone(), false));
    }
    let mut waiting: BTreeMap<String, usize> = BTreeMap::new();
    for request in requests {
        *waiting.entry(request.tenant.clone()).or_default() += 1;
    }
    let (mut sums, mut found) = ([0.0; 2], Vec::new());
    while waiting.values().all(|waiting| *waiting > 0) {
        for token in engine.step(&pipeline, &base()).expect("a step") {
            let (tenant, has_begun) = open.get_mut(&token.request).expect("of a request");
            let sum = &mut sums[usize::from(tenant == "second")];
            if !std::mem::replace(has_begun, true) {
                *sum += PROMPT as f64;
                *waiting.get_mut(tenant).expect("a tenant") -= 1;
            }
            *sum += 2.0;
        }
        found.push(sums);
    }
    found
}

/// Theorem 4.4 of VTC: twice the larger one of a prompt's cost and of that of all tokens of a batch.
const BOUND: f64 = 2.0 * (2 * SEQUENCES * (PROMPT + ANSWER)) as f64;

#[test]
fn tenants_that_wait_are_served_alike() {
    let mut requests = vec![of("first", 1.0); 40];
    requests.extend(vec![of("second", 1.0); 40]);
    let found = service(&requests);
    assert!(found.len() > 20, "{found:?}");
    for [first, second] in &found {
        assert!((first - second).abs() <= BOUND, "{first} {second}");
    }
    // By arrival alone all of the first come before the second.
    let [first, second] = found[found.len() - 1];
    assert!(second > first / 2.0, "{first} {second}");
}

#[test]
fn a_weight_is_a_part_of_the_service() {
    let mut requests = vec![of("first", 1.0); 60];
    requests.extend(vec![of("second", 3.0); 60]);
    let found = service(&requests);
    for [first, second] in &found {
        assert!((first - second / 3.0).abs() <= BOUND, "{first} {second}");
    }
    let [first, second] = found[found.len() - 1];
    let ratio = second / first;
    assert!((2.0..4.0).contains(&ratio), "{ratio}");
}

/// A tenant that was away has no claim to what others got meanwhile.
#[test]
fn who_was_away_is_lifted() {
    let pipeline = pipeline("llama-gqa", &[], &[]);
    let mut engine = engine(&pipeline);
    let mut first = Vec::new();
    for _ in 0..60 {
        first.push(engine.submit(of("first", 1.0)).expect("a request"));
    }
    let mut begun = 0;
    while begun < 30 {
        let tokens = engine.step(&pipeline, &base()).expect("a step");
        begun += tokens.iter().filter(|token| token.finish.is_some()).count();
    }
    let mut second = Vec::new();
    for _ in 0..30 {
        second.push(engine.submit(of("second", 1.0)).expect("a request"));
    }
    let (mut of_first, mut of_second) = (0, 0);
    while of_second < 10 {
        for token in engine.step(&pipeline, &base()).expect("a step") {
            if token.finish.is_some() {
                of_first += usize::from(first.contains(&token.request));
                of_second += usize::from(second.contains(&token.request));
            }
        }
    }
    assert!(
        of_first >= 5,
        "{of_first} of the first, {of_second} of the second"
    );
}

/// An adapter that does not fit beside those in use gets its place after a while.
#[test]
fn requests_without_a_place_are_passed_so_often() {
    let pipeline = pipeline("llama-gqa", &[], &[]);
    let mut engine = engine(&pipeline);
    let cold = EngineRequest {
        generation: Generation(7),
        ..of("first", 1.0)
    };
    engine.submit(cold).expect("a request");
    let mut begun = 0;
    for step in 0..400 {
        // As soon as one has ended another arrives.
        while engine.waiting() < 3 && step < 300 {
            engine.submit(of("first", 1.0)).expect("a request");
        }
        let tokens = engine.step(&pipeline, &base()).expect("a step");
        begun += tokens.iter().filter(|token| token.finish.is_some()).count();
    }
    assert_eq!(begun, 32);
    assert_eq!(engine.in_use().count(), 0, "nothing keeps its place");
    assert_eq!(engine.needed().next(), Some(Generation(7)));
}
