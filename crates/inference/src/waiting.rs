//! Requests that wait, and which of them starts next.
//!
//! Tenants are served fairly by virtual token counters (Sheng et al., VTC, OSDI'24): of those that wait the one with the
//! least service is next, and its requests start in the order of their arrival. Requests for weights that have no place
//! are passed by others, but only so often: the bound that dLoRA (Wu et al., OSDI'24, section 4.2) keeps by credits.

use std::collections::{BTreeMap, VecDeque};

use loraloom_scheduler::TenantCounters;

use crate::{BankSlots, EngineRequest, Generation, RequestId, sequence::Sequence};

/// Cost of a prompt's token.
const PROMPT_TOKEN: f64 = 1.0;
/// Cost of an answer's token, which is computed alone; twice as in VTC's experiments.
const ANSWER_TOKEN: f64 = 2.0;
/// How often a request without a place is passed.
const MOST_PASSED: usize = 32;

/// Requests that wait, in the order of their arrival.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    sequences: VecDeque<Sequence>,
    counters: TenantCounters,
    /// Parts of the service that tenants are entitled to, unless it is 1.
    weights: BTreeMap<String, f64>,
}

impl Waiting {
    pub(crate) fn len(&self) -> usize {
        self.sequences.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Sequence> {
        self.sequences.iter()
    }

    pub(crate) fn push(&mut self, sequence: Sequence) {
        let EngineRequest { tenant, weight, .. } = &sequence.request;
        self.weights.insert(tenant.clone(), *weight);
        self.sequences.push_back(sequence);
        self.update();
    }

    /// Takes back a request that has begun.
    pub(crate) fn push_front(&mut self, sequence: Sequence) {
        self.sequences.push_front(sequence);
        self.update();
    }

    pub(crate) fn remove(&mut self, id: RequestId) -> bool {
        let before = self.len();
        self.sequences.retain(|sequence| sequence.id != id);
        self.update();
        self.len() < before
    }

    /// Notes which tenants wait.
    fn update(&mut self) {
        let tenants = self.sequences.iter();
        let tenants = tenants.map(|sequence| sequence.request.tenant.clone());
        self.counters.set_backlogged(tenants.collect(), true);
    }

    /// Charges service to a tenant, by its weight.
    pub(crate) fn charge(&mut self, tenant: &str, cost: f64) {
        let weight = self.weights.get(tenant).copied().unwrap_or(1.0);
        self.counters.charge(tenant, cost / weight);
    }

    /// Cost of a request that begins, or nothing if it has begun before.
    pub(crate) fn prompt_cost(sequence: &Sequence) -> f64 {
        if sequence.has_begun {
            0.0
        } else {
            sequence.request.prompt.len() as f64 * PROMPT_TOKEN
        }
    }

    /// Cost of a token of an answer.
    pub(crate) fn answer_cost() -> f64 {
        ANSWER_TOKEN
    }

    /// Positions in the order in which requests are to start.
    fn order(&self) -> Vec<usize> {
        let key = |at: &usize| {
            let sequence = &self.sequences[*at];
            let is_passed = sequence.passed >= MOST_PASSED;
            (!is_passed, self.counters.counter(&sequence.request.tenant))
        };
        let mut order: Vec<usize> = (0..self.len()).collect();
        order.sort_by(|a, b| {
            let ((a_waits, a_cost), (b_waits, b_cost)) = (key(a), key(b));
            a_waits.cmp(&b_waits).then(a_cost.total_cmp(&b_cost))
        });
        order
    }

    /// The weights that requests need, in the order in which they are to start.
    pub(crate) fn needed(&self) -> impl Iterator<Item = Generation> {
        let order = self.order().into_iter();
        order.map(|at| self.sequences[at].request.generation)
    }

    /// Takes the request that is to start next, of those with a place, if it fits. `None` if there is none, or one without a
    /// place was passed too often.
    pub(crate) fn next(
        &mut self,
        places: &BankSlots,
        fits: impl FnOnce(&mut Sequence) -> bool,
    ) -> Option<Sequence> {
        let order = self.order();
        let has_place = |at: &usize| places.contains_key(&self.sequences[*at].request.generation);
        let ahead = order.iter().position(has_place)?;
        let (passed, next) = (&order[..ahead], order[ahead]);
        let is_owed = |at: &usize| self.sequences[*at].passed >= MOST_PASSED;
        if passed.iter().any(is_owed) || !fits(&mut self.sequences[next]) {
            return None;
        }
        for at in passed {
            self.sequences[*at].passed += 1;
        }
        let sequence = self.sequences.remove(next);
        self.update();
        sequence
    }
}
