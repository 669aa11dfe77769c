use std::{
    fmt, io,
    net::{IpAddr, SocketAddr, UdpSocket},
    path::PathBuf,
    sync::{Arc, Mutex},
};

use burn::{
    backend::{DispatchDevice, Flex},
    server::{
        AuthorizationRequest, BURN_REMOTE_ALPN, ClientId, IrohIdentity, PeerAuthorizer,
        RemoteServer, TokenAuthorizer,
    },
    tensor::Device,
};
use iroh::{
    Endpoint, EndpointId, SecretKey,
    endpoint::Connection,
    protocol::{AcceptError, DynProtocolHandler, ProtocolHandler, Router},
};
use loraloom_config::WorkerAddress;
use loraloom_model::{Checkpoint, LlamaConfig, ModelError};
use thiserror::Error;
use tokio::runtime::Runtime;

use super::{
    MakeStandIn, lease::Leases, operation::with_operation, receive_buffer::ReceiveBuffer,
    state::Host,
};
use crate::remote::{
    connection,
    wire::{CONTROL, SESSIONS},
};

/// Settings of a worker.
pub struct WorkerOptions {
    /// Address to listen on; port 0 takes any free one.
    pub listen: SocketAddr,
    /// File of the worker's secret key, whose public key is part of the worker's address; created if it
    /// does not exist.
    pub identity: PathBuf,
    /// Token that controllers must present.
    pub token: String,
    /// The model's directory.
    pub model: PathBuf,
    /// Device to compute on.
    pub device: Device,
    /// Makes the stand-in for a stage's passes; `None` computes them.
    pub stand_in: Option<MakeStandIn>,
    /// The version to compare with the controller's: this program's own.
    pub version: String,
    /// Receives a line about every controller that connects or leaves, and every failure.
    pub log: Box<dyn Fn(&str) + Send + Sync>,
}

impl fmt::Debug for WorkerOptions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut options = formatter.debug_struct("WorkerOptions");
        options.field("listen", &self.listen);
        options.field("model", &self.model).finish_non_exhaustive()
    }
}

/// Error of starting a worker.
#[derive(Debug, Error)]
pub enum ServeError {
    /// The model cannot be read.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The identity cannot be read or written.
    #[error("identity {}: {source}", path.display())]
    Identity {
        /// The file.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// The token is empty.
    #[error("the token is empty")]
    EmptyToken,
    /// The worker cannot listen on its address.
    #[error("cannot listen on {address}: {reason}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The error.
        reason: String,
    },
    /// This build cannot host the device.
    #[error("this build cannot host {device:?} for others")]
    Device {
        /// The device.
        device: Box<Device>,
    },
}

/// Hosts a device as a stage of a controller's pipeline, for one controller at a time, until it is
/// dropped.
#[derive(Debug)]
pub struct Worker {
    address: WorkerAddress,
    router: Option<Router>,
    /// `None` when it has been dropped.
    runtime: Option<Runtime>,
}

impl Worker {
    /// Starts to serve.
    ///
    /// # Errors
    /// If the model cannot be read, or the worker cannot listen.
    pub fn start(options: WorkerOptions) -> Result<Self, ServeError> {
        let listen = options.listen;
        let token = TokenAuthorizer::new(options.token.as_str());
        let token = token.map_err(|_| ServeError::EmptyToken)?;
        let config = LlamaConfig::from_directory(&options.model)?;
        let checkpoint = Checkpoint::open(&options.model)?;
        checkpoint.verify(&config)?;
        let key = IrohIdentity::load_or_create(&options.identity);
        let key = key.map_err(|source| ServeError::Identity {
            path: options.identity,
            source,
        })?;
        let key = SecretKey::from_bytes(&key.to_bytes());
        let device = options.device.without_autodiff();
        let host = Arc::new(Host {
            version: options.version,
            checkpoint,
            config,
            device: device.clone(),
            stand_in: options.stand_in,
            leases: Leases::default(),
            received: ReceiveBuffer::default(),
            work: Mutex::new(None),
            failure: Mutex::new(None),
            log: options.log,
        });
        let cannot_listen = |reason: String| ServeError::Listen {
            address: listen,
            reason,
        };
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.enable_all().thread_name("network").build();
        let runtime = runtime.map_err(|error| cannot_listen(error.to_string()))?;
        let endpoint = runtime
            .block_on(connection::bind(Some((listen, key))))
            .map_err(|error| {
                let why = "check that the port is free and the address belongs to this machine";
                cannot_listen(format!("{error}; {why}"))
            })?;
        let address = address_of(&endpoint, listen);
        let server = RemoteServer::new(vec![device.clone(); SESSIONS])
            .with_authorizer(authorizer(token, &host));
        let server = hosting(server, &host, &device)?;
        let server = server
            .into_protocol(&endpoint)
            .map_err(|error| cannot_listen(error.to_string()))?;
        let guard = Guard {
            server: server.into(),
            host,
        };
        let router = {
            let _inside = runtime.enter();
            let router = Router::builder(endpoint).accept(BURN_REMOTE_ALPN, guard);
            router.spawn()
        };
        Ok(Self {
            address,
            router: Some(router),
            runtime: Some(runtime),
        })
    }

    /// The address for controllers.
    pub fn address(&self) -> &WorkerAddress {
        &self.address
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            if let Some(router) = self.router.take() {
                // Informs controllers at once; otherwise they wait until the connection times out.
                let _ = runtime.block_on(router.shutdown());
            }
            runtime.shutdown_background();
        }
    }
}

/// Burn's server, with counts of each controller's connections.
struct Guard {
    server: Box<dyn DynProtocolHandler>,
    host: Arc<Host>,
}

impl fmt::Debug for Guard {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Guard").finish_non_exhaustive()
    }
}

impl ProtocolHandler for Guard {
    async fn accept(&self, connection: Connection) -> Result<(), AcceptError> {
        let connected = ConnectionGuard::new(&self.host, connection.remote_id());
        let result = self.server.accept(connection).await;
        drop(connected);
        result
    }

    async fn shutdown(&self) {
        self.server.shutdown().await;
    }
}

/// An open connection; the server may be dropped before it ends.
struct ConnectionGuard {
    host: Arc<Host>,
    peer: EndpointId,
}

impl ConnectionGuard {
    fn new(host: &Arc<Host>, peer: EndpointId) -> Self {
        let host = Arc::clone(host);
        host.leases.connected(peer);
        Self { host, peer }
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        if let Some(lease) = self.host.leases.disconnected(self.peer) {
            let host = Arc::clone(&self.host);
            // Waits for the pass that is being computed, which must not block the network.
            let release = move || host.release(lease);
            let _ = std::thread::Builder::new()
                .name("release".into())
                .spawn(release);
        }
    }
}

/// The token opens the control session; the controller that has the lease may open the others.
fn authorizer(token: TokenAuthorizer, host: &Arc<Host>) -> impl PeerAuthorizer + use<> {
    let host = Arc::clone(host);
    move |request: AuthorizationRequest<'_>| {
        let (client, session) = (request.client, request.device_index as usize);
        let refused = |_: &_| (host.log)("rejects a controller with another token");
        token.authorize(request).inspect_err(refused)?;
        let ClientId::Iroh(peer) = client else {
            return Err("not over QUIC".to_owned());
        };
        if session == CONTROL || host.leases.holds(peer) {
            Ok(())
        } else {
            Err(format!("{peer} does not control this worker"))
        }
    }
}

/// Hosts the stage on the backend of its device.
fn hosting(
    server: RemoteServer,
    host: &Arc<Host>,
    device: &Device,
) -> Result<RemoteServer, ServeError> {
    let host = Arc::clone(host);
    match device.as_dispatch() {
        DispatchDevice::Flex(_) => Ok(with_operation::<Flex>(server, host)),
        #[cfg(feature = "cubecl")]
        DispatchDevice::Cube(_) => Ok(with_operation::<burn_cubecl::Cube>(server, host)),
        _ => Err(ServeError::Device {
            device: Box::new(device.clone()),
        }),
    }
}

/// The worker's address for controllers. An unspecified IP address becomes the one that this machine
/// sends from.
fn address_of(endpoint: &Endpoint, listen: SocketAddr) -> WorkerAddress {
    let bound = endpoint.bound_sockets();
    let port = bound.first().map_or(listen.port(), SocketAddr::port);
    let ip = if listen.ip().is_unspecified() {
        outward(listen.ip()).unwrap_or_else(|| listen.ip())
    } else {
        listen.ip()
    };
    WorkerAddress {
        id: endpoint.id().to_string(),
        host: ip.to_string(),
        port,
    }
}

/// The address that packets to the internet leave from. Nothing is sent.
fn outward(any: IpAddr) -> Option<IpAddr> {
    // Addresses that are reserved for documentation.
    let far = if any.is_ipv4() {
        "192.0.2.1:9"
    } else {
        "[2001:db8::1]:9"
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(far).ok()?;
    Some(socket.local_addr().ok()?.ip())
}
