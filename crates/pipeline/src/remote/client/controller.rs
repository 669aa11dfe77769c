use std::{
    collections::HashMap,
    net::ToSocketAddrs,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use burn::{
    remote::{ConnectError, EndpointId, IrohHost, RemoteHost},
    tensor::{Device, FloatDType},
};
use loraloom_config::WorkerAddress;
use loraloom_model::{Checkpoint, LlamaConfig};

use super::{
    link::{Link, Monitor},
    stage::RemoteStage,
    worker_connection::{SessionEnded, WorkerConnection, WorkerSession},
};
use crate::{
    PipelineError, StageLayers,
    remote::{
        WorkerError, connection,
        wire::{Answer, CONTROL, Command, Envelope, Greeting, LoadRequest, PROTOCOL, SESSIONS},
    },
};

/// Time for which a busy worker is asked again: its controller may have just ended.
const PATIENCE: Duration = Duration::from_secs(8);

/// Number of times that a worker's clock is read before its first pass.
const FIRST_PULSES: usize = 3;

/// Connects the workers of one run.
#[derive(Debug)]
pub struct Controller {
    link: Arc<Link>,
    token: String,
    deadline: Duration,
}

/// The stage that a worker is to load.
#[derive(Debug, Clone)]
pub struct StageSpec<'a> {
    /// Its decoder layers.
    pub layers: StageLayers,
    /// The model's weights as the controller has them.
    pub checkpoint: &'a Checkpoint,
    /// The type to compute in.
    pub dtype: FloatDType,
    /// True if a forward pass keeps only the inputs of layers.
    pub gradient_checkpointing: bool,
}

/// A worker that has accepted this controller and has not loaded its stage.
#[derive(Debug)]
pub struct Reached {
    worker: Arc<WorkerConnection>,
    deadline: Duration,
    config: LlamaConfig,
    on_cpu: bool,
    dtypes: Vec<FloatDType>,
}

impl Reached {
    /// True if the worker computes on its CPU.
    pub fn on_cpu(&self) -> bool {
        self.on_cpu
    }

    /// True if the worker's device can compute in a type.
    pub fn supports(&self, dtype: FloatDType) -> bool {
        self.dtypes.contains(&dtype)
    }

    /// Lets the worker read its layers, and reads them here as well, to compare digests.
    ///
    /// # Errors
    /// [`PipelineError::Worker`] if it has other weights or cannot hold them.
    pub fn load(self, spec: &StageSpec<'_>) -> Result<RemoteStage, PipelineError> {
        let by_partition = spec.layers.by_partition().iter();
        let command = Command::Load(LoadRequest {
            layers: by_partition.map(|range| [range.start, range.end]).collect(),
            dtype: spec.dtype,
            quantization: self.config.quantization.clone(),
            gradient_checkpointing: spec.gradient_checkpointing,
            digest: connection::weights_digest(spec.checkpoint, &self.config, &spec.layers.held())?,
        });
        let (answer, _) = self.worker.ask(command, Vec::new(), &[])?;
        let Answer::Loaded {
            weight_bytes,
            products,
        } = answer
        else {
            return Err(self.worker.failed("it does not report the loaded weights"));
        };
        for _ in 0..FIRST_PULSES {
            let answer = self.worker.pulse();
            answer.map_err(|SessionEnded| self.worker.failed("its connection closed"))?;
        }
        let monitor = Monitor::start(&self.worker, self.deadline).map_err(|error| {
            let reason = format!("no thread to watch it: {error}");
            self.worker.failed(reason)
        })?;
        Ok(RemoteStage {
            worker: self.worker,
            config: self.config,
            layers: spec.layers.clone(),
            dtype: spec.dtype.into(),
            on_cpu: self.on_cpu,
            weight_bytes,
            products,
            groups: Vec::new(),
            under_way: HashMap::new(),
            _monitor: monitor,
        })
    }
}

impl Controller {
    /// Connects to workers that were started with this token. A stage that makes no progress for
    /// `deadline` counts as lost; three optimizer steps must take less.
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

    /// Claims a worker for a stage of a model.
    ///
    /// # Errors
    /// [`PipelineError::Worker`] if it cannot be reached, serves another controller, or has another
    /// version or model.
    pub fn reach(
        &self,
        stage: usize,
        address: &WorkerAddress,
        config: &LlamaConfig,
    ) -> Result<Reached, PipelineError> {
        let reach = || {
            let host = self.host(address)?;
            let control = open(&host, CONTROL)?;
            let Answer::Yours {
                lease,
                on_cpu,
                dtypes,
            } = self.claim(&control, config)?
            else {
                return Err(WorkerError::because("unexpected answer to the greeting"));
            };
            let sessions = (0..SESSIONS).map(|session| open(&host, session));
            let sessions = sessions.collect::<Result<Vec<_>, _>>()?;
            Ok(Reached {
                worker: WorkerConnection::new(stage, address, sessions, lease, &self.link),
                deadline: self.deadline,
                config: config.clone(),
                on_cpu,
                dtypes,
            })
        };
        reach().map_err(|problem| PipelineError::Worker {
            stage,
            address: address.to_string(),
            problem,
        })
    }

    fn host(&self, address: &WorkerAddress) -> Result<RemoteHost, WorkerError> {
        let id: EndpointId = address.id.parse().map_err(|_| WorkerError::NoKey)?;
        let places = (address.host.as_str(), address.port).to_socket_addrs();
        let places = places.map_err(|error| WorkerError::Unreachable {
            reason: error.to_string(),
        })?;
        let host = IrohHost::new(id).with_endpoint(self.link.endpoint().clone());
        let host = places.fold(host, IrohHost::with_address);
        Ok(RemoteHost::iroh(host).with_credential(self.token.as_str()))
    }

    /// Greets a worker until it accepts this controller.
    fn claim(&self, control: &WorkerSession, config: &LlamaConfig) -> Result<Answer, WorkerError> {
        let begun = Instant::now();
        loop {
            let greeting = Greeting {
                protocol: PROTOCOL,
                version: env!("CARGO_PKG_VERSION").to_owned(),
                controller: *self.link.endpoint().id().as_bytes(),
                config: connection::describe(config),
            };
            let command = Command::Hello(greeting);
            let answer = control.ask(&Envelope { lease: 0, command }, Vec::new(), &[]);
            let answer = answer.map_err(|SessionEnded| WorkerError::Unreachable {
                reason: "its connection closed".to_owned(),
            });
            match answer? {
                Ok((answer, _)) => return Ok(answer),
                Err(WorkerError::Busy { .. }) if begun.elapsed() < PATIENCE => {
                    thread::sleep(Duration::from_millis(500));
                }
                Err(error) => return Err(error),
            }
        }
    }
}

fn open(host: &RemoteHost, session: usize) -> Result<WorkerSession, WorkerError> {
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
            reason: reason(&error.to_string()),
        },
    })?;
    Ok(WorkerSession::new(device))
}

/// Reason of a failed connection, as text. Workers are known by their keys, and there are no relays.
fn reason(said: &str) -> String {
    if said.contains("invalid peer certificate") {
        "another worker answers at the address, not the one with this ID".to_owned()
    } else if said.contains("relay") {
        "no worker answers at the address".to_owned()
    } else {
        said.to_owned()
    }
}
