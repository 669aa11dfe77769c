use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use burn::{
    backend::{Remote, tensor::FloatTensor},
    tensor::{Device, Tensor},
};

use super::{
    COMPUTE, CONTROL, GRADIENT, HIDDEN, SQUARES, WorkerAddress,
    envelope::Envelope,
    error::WorkerError,
    link::Link,
    session::{Promise, Session, Silence},
    wire::{Answer, Command, Trouble},
};
use crate::{PipelineError, RemoteInbox, StageClock, Tag, stage_clock::now};

/// What a worker is asked over.
#[derive(Debug)]
pub(crate) struct Line {
    stage: usize,
    address: String,
    sessions: Vec<Session>,
    lease: u64,
    link: Arc<Link>,
    caches: AtomicU64,
    clock: Arc<StageClock>,
    /// Bytes that the worker's device had reserved when it was last asked; 0 where it cannot tell.
    reserved_bytes: AtomicU64,
}

impl Line {
    pub(super) fn new(
        stage: usize,
        address: &WorkerAddress,
        sessions: Vec<Session>,
        lease: u64,
        link: &Arc<Link>,
    ) -> Arc<Self> {
        let line = Arc::new(Self {
            stage,
            address: address.to_string(),
            sessions,
            lease,
            link: Arc::clone(link),
            caches: AtomicU64::new(0),
            clock: Arc::default(),
            reserved_bytes: AtomicU64::new(0),
        });
        link.join(Arc::downgrade(&line));
        line
    }

    pub(super) fn next_cache(&self) -> u64 {
        self.caches.fetch_add(1, Ordering::Relaxed)
    }

    /// Number of the stage, and where it is.
    pub(super) fn place(&self) -> (usize, &str) {
        (self.stage, &self.address)
    }

    pub(super) fn link(&self) -> &Arc<Link> {
        &self.link
    }

    pub(super) fn sessions(&self) -> &[Session] {
        &self.sessions
    }

    /// The session that computes.
    pub(super) fn compute(&self) -> &Device {
        self.sessions[COMPUTE].device()
    }

    fn envelope(&self, command: Command) -> Envelope {
        let lease = self.lease;
        Envelope { lease, command }
    }

    /// The worker's problem as an error of its stage.
    pub(super) fn problem(&self, problem: WorkerError) -> PipelineError {
        PipelineError::Worker {
            stage: self.stage,
            address: self.address.clone(),
            problem,
        }
    }

    /// What went wrong first at the worker. Does not wait for what it computes.
    pub(super) fn health(&self) -> Result<Option<Trouble>, Silence> {
        let envelope = self.envelope(Command::Health);
        match self.sessions[CONTROL].ask(&envelope, Vec::new(), &[])? {
            Ok((Answer::Health(trouble), _)) => Ok(trouble),
            _ => Err(Silence),
        }
    }

    /// The worker's clock.
    pub(super) fn clock(&self) -> &Arc<StageClock> {
        &self.clock
    }

    /// Bytes that the worker's device has reserved, as of its last [`pulse`](Self::pulse), where it
    /// can tell.
    pub(crate) fn reserved_bytes(&self) -> Option<u64> {
        let bytes = self.reserved_bytes.load(Ordering::Relaxed);
        Some(bytes).filter(|&bytes| bytes > 0)
    }

    /// Asks the worker for its time and memory. Does not wait for what it computes.
    pub(super) fn pulse(&self) -> Result<(), Silence> {
        let envelope = self.envelope(Command::Pulse);
        let asked = now();
        match self.sessions[CONTROL].ask(&envelope, Vec::new(), &[])? {
            Ok((
                Answer::Pulse {
                    time,
                    reserved_bytes,
                },
                _,
            )) => {
                self.clock.observe(asked, now(), time);
                let bytes = reserved_bytes.unwrap_or_default();
                self.reserved_bytes.store(bytes, Ordering::Relaxed);
                Ok(())
            }
            _ => Err(Silence),
        }
    }

    /// Why stages on workers cannot go on, if one of them cannot.
    pub(super) fn inquire(&self) -> Option<PipelineError> {
        self.link.inquire()
    }

    /// Has something computed, and returns what will come of it.
    pub(super) fn send(
        &self,
        command: Command,
        inputs: Vec<Tensor<2>>,
        promises: &[Promise],
    ) -> Result<Vec<FloatTensor<Remote>>, PipelineError> {
        self.link.check()?;
        let sent = self.sessions[COMPUTE].send(&self.envelope(command), inputs, promises);
        sent.map_err(|problem| self.problem(problem))
    }

    /// Has something done, and waits for it.
    pub(super) fn ask(
        &self,
        command: Command,
        inputs: Vec<Tensor<2>>,
        promises: &[Promise],
    ) -> Result<(Answer, Vec<FloatTensor<Remote>>), PipelineError> {
        self.link.check()?;
        let answer = self.sessions[COMPUTE].ask(&self.envelope(command), inputs, promises);
        let answer = answer.map_err(|Silence| {
            let lost = || {
                let reason = "one of its sessions has ended";
                self.link.lose(self.stage, &self.address, reason)
            };
            self.link.inquire().unwrap_or_else(lost)
        })?;
        answer.map_err(|problem| self.problem(problem))
    }
}

impl RemoteInbox for Line {
    fn send(&self, tag: Tag, tensor: Tensor<2>) -> Result<(), PipelineError> {
        self.link.check()?;
        let way = match tag {
            Tag::Hidden(_) => HIDDEN,
            Tag::Gradient(_) => GRADIENT,
            Tag::SquaresAbove(_) | Tag::Squares(_) => SQUARES,
        };
        let envelope = self.envelope(Command::Deliver { tag });
        let sent = self.sessions[way].send(&envelope, vec![tensor], &[]);
        sent.map(drop).map_err(|problem| self.problem(problem))
    }
}
