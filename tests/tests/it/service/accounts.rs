//! Tenants who wait, and what answers cost them beside training.

use std::{
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use loraloom_inference::{AdapterStore, Ask, EngineConfig, Neighbour, ServiceConfig, ServiceCore};

use super::{ALL, MODEL, ask, pipeline, reader};

/// The order in which two requests of the tenant `busy` and then two of `quiet` are answered, one at a time.
pub(crate) fn order_of_answers(neighbour: &Arc<Neighbour>) -> Vec<&'static str> {
    answers_beside(neighbour, 1, 3).0
}

/// The order of these answers of so many tokens, so many at a time, and how often one lost its blocks.
fn answers_beside(
    neighbour: &Arc<Neighbour>,
    max_sequences: usize,
    tokens: usize,
) -> (Vec<&'static str>, u64) {
    let mut pipeline = pipeline(MODEL, &[], &[]);
    let store = AdapterStore::new("tiny".to_owned(), 0, ALL, reader(&pipeline));
    let config = ServiceConfig {
        engine: EngineConfig {
            blocks: 6,
            batch_tokens: 64,
            max_sequences,
        },
        max_waiting: 10,
    };
    let shared = Some(Arc::clone(neighbour));
    let (mut core, service) = ServiceCore::new(&pipeline, config, store, shared);
    let runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = { runtime }.worker_threads(1).build().expect("a runtime");
    let (done, order) = mpsc::channel();
    for tenant in ["busy", "busy", "quiet", "quiet"] {
        let (service, done) = (service.clone(), done.clone());
        let ask = Ask {
            tenant: tenant.to_owned(),
            ..ask("tiny", (1..20).collect(), tokens)
        };
        runtime.spawn(async move {
            let mut answer = service.ask(ask).await.expect("an answer");
            while answer.next().await.is_some() {}
            let stats = service.stats().await.expect("numbers");
            done.send((tenant, stats.preemptions)).expect("awaited");
        });
    }
    drop(service);
    drop(done);
    // All are asked before the first turn.
    thread::sleep(Duration::from_millis(200));
    while core.turn(&mut pipeline).expect("a turn") {}
    let (answered, preemptions): (Vec<_>, Vec<u64>) = order.iter().unzip();
    (answered, preemptions.into_iter().max().unwrap_or(0))
}

/// A tenant whose adapters train much comes after others, and training learns what its answers cost.
#[test]
fn training_and_answers_are_one_account() {
    let neighbour = Arc::new(Neighbour::new(1.0));
    assert_eq!(order_of_answers(&neighbour)[0], "busy");
    neighbour.take_answered();
    neighbour.trained("busy", 1e6);
    let order = order_of_answers(&neighbour);
    assert_eq!(order, ["quiet", "quiet", "busy", "busy"]);
    let cost = 2.0 * (19.0 + 3.0 * 2.0);
    let expected = [("busy".to_owned(), cost), ("quiet".to_owned(), cost)];
    assert_eq!(neighbour.take_answered(), expected.into());
    assert!(neighbour.take_answered().is_empty());
}

/// A prompt is computed again if its blocks were taken, but charged once.
#[test]
fn a_prompt_is_charged_once() {
    let neighbour = Arc::new(Neighbour::new(1.0));
    let (_, preemptions) = answers_beside(&neighbour, 4, 40);
    assert!(preemptions > 0);
    let cost = 2.0 * (19.0 + 40.0 * 2.0);
    let expected = [("busy".to_owned(), cost), ("quiet".to_owned(), cost)];
    assert_eq!(neighbour.take_answered(), expected.into());
}
