use std::{
    ops::Range,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use burn::{
    remote::{ConnectError, IrohHost, RemoteHost},
    tensor::{Device, FloatDType},
};
use loraloom_model::{Checkpoint, LlamaConfig};

use super::{
    COMPUTE, CONTROL, PROTOCOL, SESSIONS, WorkerAddress,
    digest::weights_digest,
    envelope::Envelope,
    error::WorkerError,
    host::describe,
    line::Line,
    link::Link,
    monitor::{Monitor, Subject},
    session::Session,
    stage::RemoteStage,
    wire::{Answer, Command, Greeting, LoadOrder, WireDtype},
};
use crate::PipelineError;

/// How long a worker is asked again that is somebody else's: its controller may have just ended.
const PATIENCE: Duration = Duration::from_secs(8);

/// Reaches workers for one run.
#[derive(Debug)]
pub struct Controller {
    link: Arc<Link>,
    token: String,
    deadline: Duration,
}

/// Which stage a worker is to hold.
#[derive(Debug, Clone)]
pub struct StageOrder<'a> {
    /// Number of the stage.
    pub stage: usize,
    /// Its decoder layers.
    pub layers: Range<usize>,
    /// The model.
    pub config: &'a LlamaConfig,
    /// The model's weights as the controller has them.
    pub checkpoint: &'a Checkpoint,
    /// What to compute in.
    pub dtype: FloatDType,
    /// Whether to keep only the inputs of layers.
    pub gradient_checkpointing: bool,
}

impl Controller {
    /// Reaches workers that have this token. A stage that has not got on with what it was told to
    /// do for `deadline` is taken for lost: it must be longer than three optimizer steps take.
    ///
    /// # Errors
    /// If this machine's network cannot be used.
    pub fn new(token: &str, deadline: Duration) -> Result<Self, PipelineError> {
        let link = Link::new().map_err(|error| PipelineError::Network {
            reason: error.to_string(),
        })?;
        Ok(Self {
            link: Arc::new(link),
            token: token.trim().to_owned(),
            deadline,
        })
    }

    /// Has a worker read the layers of a stage.
    ///
    /// # Errors
    /// [`PipelineError::Worker`] if it cannot be reached, is somebody else's, or has another
    /// version, model or weights.
    pub fn connect(
        &self,
        address: &WorkerAddress,
        order: &StageOrder<'_>,
    ) -> Result<RemoteStage, PipelineError> {
        let stage = order.stage;
        self.try_connect(address, order)
            .map_err(|problem| PipelineError::Worker {
                stage,
                address: address.to_string(),
                problem,
            })
    }

    fn try_connect(
        &self,
        address: &WorkerAddress,
        order: &StageOrder<'_>,
    ) -> Result<RemoteStage, WorkerError> {
        let Range { start, end } = order.layers;
        let failed = |reason: String| WorkerError::Failed { reason };
        let dtype = WireDtype::new(order.dtype)
            .ok_or_else(|| failed(format!("{:?} is not for weights", order.dtype)))?;
        let digest = weights_digest(order.checkpoint, order.config, (start, end))
            .map_err(|error| WorkerError::failed(&error))?;
        let host = self.host(address)?;
        let control = open(&host, CONTROL)?;
        let lease = self.claim(&control, order.config)?;
        let sessions: Result<Vec<Session>, _> =
            (0..SESSIONS).map(|session| open(&host, session)).collect();
        let sessions = sessions?;
        let load = Envelope {
            lease,
            command: Command::Load(LoadOrder {
                first: start,
                end,
                dtype,
                gradient_checkpointing: order.gradient_checkpointing,
                digest,
            }),
        };
        let Answer::Loaded { computes_in_call } = asked(&sessions[COMPUTE], &load)? else {
            return Err(failed("it does not say what it has loaded".to_owned()));
        };
        let subject = Subject {
            stage: order.stage,
            address: address.to_string(),
            link: Arc::downgrade(&self.link),
        };
        let monitor = Monitor::start(&subject, sessions.clone(), self.deadline)
            .map_err(|error| failed(format!("no thread to watch it: {error}")))?;
        let line = Line::new(order.stage, address, sessions, lease, &self.link);
        Ok(RemoteStage::new(line, order, computes_in_call, monitor))
    }

    fn host(&self, address: &WorkerAddress) -> Result<RemoteHost, WorkerError> {
        let places = address.resolve().map_err(|error| WorkerError::Unreachable {
            reason: error.to_string(),
        })?;
        let host = IrohHost::new(address.id()).with_endpoint(self.link.endpoint().clone());
        let host = places.into_iter().fold(host, IrohHost::with_address);
        Ok(RemoteHost::iroh(host).with_credential(self.token.as_str()))
    }

    /// Greets a worker until it is this controller's.
    fn claim(&self, control: &Session, config: &LlamaConfig) -> Result<u64, WorkerError> {
        let begun = Instant::now();
        loop {
            let greeting = Greeting {
                protocol: PROTOCOL,
                version: env!("CARGO_PKG_VERSION").to_owned(),
                controller: *self.link.endpoint().id().as_bytes(),
                config: describe(config),
            };
            let command = Command::Hello(greeting);
            match asked(control, &Envelope { lease: 0, command }) {
                Ok(Answer::Yours { lease }) => return Ok(lease),
                Ok(answer) => {
                    let reason = format!("it answers a greeting with {answer:?}");
                    return Err(WorkerError::Failed { reason });
                }
                Err(WorkerError::Busy { .. }) if begun.elapsed() < PATIENCE => {
                    thread::sleep(Duration::from_millis(500));
                }
                Err(error) => return Err(error),
            }
        }
    }
}

fn open(host: &RemoteHost, session: usize) -> Result<Session, WorkerError> {
    let device = Device::remote_options(host).device_index(session).init();
    let device = device.map_err(|error| match error {
        ConnectError::Unauthorized => WorkerError::Token,
        ConnectError::IncompatibleProtocol {
            client_version,
            server_version,
        } => WorkerError::Mismatch {
            what: "version of Burn's remote protocol".to_owned(),
            worker: server_version.to_string(),
            controller: client_version.to_string(),
        },
        ConnectError::NoSuchDevice { device_count } => WorkerError::Mismatch {
            what: "number of sessions".to_owned(),
            worker: device_count.to_string(),
            controller: SESSIONS.to_string(),
        },
        error => WorkerError::Unreachable {
            reason: error.to_string(),
        },
    })?;
    Ok(Session::new(device))
}

fn asked(session: &Session, envelope: &Envelope) -> Result<Answer, WorkerError> {
    let answer = session.ask(envelope, Vec::new(), &[]);
    let (answer, _) = answer.map_err(|_| WorkerError::Unreachable {
        reason: "its connection has ended".to_owned(),
    })??;
    Ok(answer)
}
