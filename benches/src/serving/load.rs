use std::time::{Duration, Instant};

use loraloom_inference::{Ask, Service, ServiceError};
use loraloom_simulator::{Fairness, TracedRequest};
use tokio::{
    sync::mpsc::{UnboundedSender, unbounded_channel},
    time::sleep_until,
};

use super::{
    figures::Times,
    policy::{ServingPolicy, Unsent},
};

/// Cost of a prompt's token, as the server charges it.
const PROMPT_TOKEN: u64 = 1;
/// Cost of an answer's token.
pub(super) const ANSWER_TOKEN: u64 = 2;

/// Sends the requests of a trace at their times.
pub(super) struct Load<'a> {
    pub(super) trace: &'a [TracedRequest],
    /// As many as requests.
    pub(super) asks: Vec<Ask>,
    pub(super) policy: ServingPolicy,
    pub(super) max_sequences: usize,
    pub(super) rate_limit: usize,
}

/// Results of a [`Load`].
#[derive(Debug)]
pub(super) struct Seen {
    /// Of each request.
    pub(super) times: Vec<Times>,
    pub(super) fairness_gap: u64,
    pub(super) preemptions: u64,
}

/// A token, or the end of an answer.
type Event = (usize, Result<Instant, Option<ServiceError>>);

impl Load<'_> {
    /// Number of tenants.
    pub(super) fn tenants(trace: &[TracedRequest]) -> usize {
        trace
            .iter()
            .map(|request| request.tenant + 1)
            .max()
            .unwrap_or(0)
    }

    /// Sends all requests, and waits for their answers.
    ///
    /// # Errors
    /// The first error of an answer.
    pub(super) async fn run(self, service: Service) -> Result<Seen, ServiceError> {
        let tenants = Self::tenants(self.trace);
        let mut unsent = Unsent::new(self.policy, tenants, self.max_sequences, self.rate_limit);
        let mut seen = Progress {
            trace: self.trace,
            times: vec![Times::default(); self.trace.len()],
            fairness: Fairness::new(tenants),
            without_token: vec![0; tenants],
        };
        let (sender, mut events) = unbounded_channel::<Event>();
        let (mut arrived, mut open) = (0, 0);
        let begun = Instant::now();
        while arrived < self.trace.len() || !unsent.is_empty() || open > 0 {
            let next = self.trace.get(arrived);
            let at = next.map_or(begun, |next| begun + Duration::from_secs_f64(next.arrival));
            tokio::select! {
                // Requests that arrive together wait for each other, not for answers.
                biased;
                () = sleep_until(at.into()), if next.is_some() => {
                    if let Some(request) = next {
                        let is_accepted = unsent.arrive(arrived, request.tenant, request.arrival);
                        seen.arrive(arrived, is_accepted);
                        arrived += 1;
                    }
                }
                Some((index, event)) = events.recv() => match event {
                    Ok(at) => unsent.charge(
                        self.trace[index].tenant,
                        seen.token(index, (at - begun).as_secs_f64()),
                    ),
                    Err(None) => {
                        open -= 1;
                        unsent.end();
                    }
                    Err(Some(error)) => return Err(error),
                }
            }
            while let Some(index) = unsent.next() {
                open += 1;
                let mut ask = self.asks[index].clone();
                if self.policy == ServingPolicy::Vtc {
                    ask.tenant = self.trace[index].tenant.to_string();
                }
                tokio::spawn(answer(service.clone(), ask, index, sender.clone()));
            }
        }
        Ok(Seen {
            times: seen.times,
            fairness_gap: u64::try_from(seen.fairness.gap()).unwrap_or(u64::MAX),
            preemptions: service.stats().await?.preemptions,
        })
    }
}

/// Tells of every token, and of the end.
async fn answer(service: Service, ask: Ask, index: usize, events: UnboundedSender<Event>) {
    let answered = async {
        let mut answer = service.ask(ask).await?;
        while let Some(token) = answer.next().await {
            token?;
            let _ = events.send((index, Ok(Instant::now())));
        }
        Ok::<_, ServiceError>(())
    };
    let error = answered.await.err();
    // After an error the receiver is gone.
    let _ = events.send((index, Err(error)));
}

struct Progress<'a> {
    trace: &'a [TracedRequest],
    times: Vec<Times>,
    fairness: Fairness,
    /// Requests of each tenant that have arrived and have no token.
    without_token: Vec<usize>,
}

impl Progress<'_> {
    fn arrive(&mut self, index: usize, is_accepted: bool) {
        self.times[index].arrival = self.trace[index].arrival;
        if is_accepted {
            self.without_token[self.trace[index].tenant] += 1;
            self.wait();
        }
    }

    /// Notes a token, and returns its cost; the prompt's is in that of the first.
    fn token(&mut self, index: usize, now: f64) -> u64 {
        let (request, times) = (&self.trace[index], &mut self.times[index]);
        let is_first = times.tokens == 0;
        times.tokens += 1;
        times.last = now;
        let mut cost = ANSWER_TOKEN;
        if is_first {
            times.first = now;
            cost += request.prompt_tokens as u64 * PROMPT_TOKEN;
        }
        self.fairness.serve(request.tenant, cost.into());
        self.fairness.observe();
        if is_first {
            self.without_token[request.tenant] -= 1;
            self.wait();
        }
        cost
    }

    fn wait(&mut self) {
        let waits: Vec<bool> = self.without_token.iter().map(|&count| count > 0).collect();
        self.fairness.wait(&waits);
    }
}
