use std::{fmt, sync::Arc};

use iroh::{
    EndpointId,
    endpoint::Connection,
    protocol::{AcceptError, DynProtocolHandler, ProtocolHandler},
};

use super::host::Host;

/// Burn's server, with an eye on who comes and goes.
pub(super) struct Guard {
    pub(super) server: Box<dyn DynProtocolHandler>,
    pub(super) host: Arc<Host>,
}

impl fmt::Debug for Guard {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Guard").finish_non_exhaustive()
    }
}

impl ProtocolHandler for Guard {
    async fn accept(&self, connection: Connection) -> Result<(), AcceptError> {
        let visit = Visit::new(&self.host, connection.remote_id());
        let result = self.server.accept(connection).await;
        drop(visit);
        result
    }

    async fn shutdown(&self) {
        self.server.shutdown().await;
    }
}

/// A connection while it lasts; it may be dropped with the server, too.
struct Visit {
    host: Arc<Host>,
    peer: EndpointId,
}

impl Visit {
    fn new(host: &Arc<Host>, peer: EndpointId) -> Self {
        let host = Arc::clone(host);
        host.leases.connected(peer);
        Self { host, peer }
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        if let Some(lease) = self.host.leases.disconnected(self.peer) {
            let host = Arc::clone(&self.host);
            // A pass that is being computed is waited for, which must not hold up the network.
            let release = move || host.release(lease);
            let _ = std::thread::Builder::new()
                .name("release".into())
                .spawn(release);
        }
    }
}
