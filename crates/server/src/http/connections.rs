use std::{io, net::SocketAddr, pin::pin, sync::Arc, time::Duration};

use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_io_timeout::TimeoutStream;

use super::{
    route,
    state::{HttpLimits, HttpState},
};

/// Pause after a connection that could not be accepted, mostly because the process has too many files open.
const PAUSE: Duration = Duration::from_millis(100);

/// Who sends a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer(pub(crate) SocketAddr);

/// Answers requests until `shutdown` is ready, then lets answers end for
/// [`HttpLimits::drain`](super::HttpLimits::drain). Returns the number of connections that were cut off then.
pub async fn serve(
    listener: TcpListener,
    state: HttpState,
    shutdown: impl Future<Output = ()>,
) -> usize {
    let limits = state.limits.clone();
    let router = route::router(Arc::new(state));
    let permits = Arc::new(Semaphore::new(limits.connections));
    let (close, closes) = watch::channel(false);
    let mut connections = JoinSet::new();
    let mut shutdown = pin!(shutdown);
    loop {
        tokio::select! {
            () = &mut shutdown => break,
            Some(_) = connections.join_next() => {}
            accepted = accept(&listener, &permits) => match accepted {
                Ok((stream, peer, permit)) => {
                    let connection = Connection { stream, peer, _permit: permit };
                    connections.spawn(connection.run(router.clone(), limits.clone(), closes.clone()));
                }
                Err(_) => sleep(PAUSE).await,
            }
        }
    }
    drop(listener);
    close.send_replace(true);
    let ended = async { while connections.join_next().await.is_some() {} };
    // Those that have not ended are counted next.
    let _ = timeout(limits.drain, ended).await;
    let left = connections.len();
    connections.shutdown().await;
    left
}

async fn accept(
    listener: &TcpListener,
    permits: &Arc<Semaphore>,
) -> io::Result<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
    let permit = Arc::clone(permits).acquire_owned().await;
    let permit = permit.map_err(io::Error::other)?;
    let (stream, peer) = listener.accept().await?;
    Ok((stream, peer, permit))
}

struct Connection {
    stream: TcpStream,
    peer: SocketAddr,
    _permit: OwnedSemaphorePermit,
}

impl Connection {
    /// Answers requests until the client leaves, or the current answer ends after `closes`.
    async fn run(self, router: Router, limits: HttpLimits, mut closes: watch::Receiver<bool>) {
        // Tokens would wait for the acknowledgement of those before them. Without the option, they do.
        let _ = self.stream.set_nodelay(true);
        let service = TowerToHyperService::new(router.layer(Extension(Peer(self.peer))));
        let mut connection = http1::Builder::new();
        connection
            .timer(TokioTimer::new())
            .header_read_timeout(limits.read);
        let mut stream = TimeoutStream::new(self.stream);
        stream.set_write_timeout(Some(limits.write));
        let connection = connection.serve_connection(TokioIo::new(Box::pin(stream)), service);
        let mut connection = pin!(connection);
        // A client that breaks off, or sends what is not HTTP, has no one to be told.
        tokio::select! {
            _ = connection.as_mut() => return,
            _ = closes.wait_for(|closes| *closes) => {}
        }
        connection.as_mut().graceful_shutdown();
        let _ = connection.await;
    }
}
