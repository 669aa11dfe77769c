use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use burn::remote::EndpointId;

use crate::remote::WorkerError;

/// The right to use a worker. One controller at a time has it, from its greeting until its last
/// connection ends.
#[derive(Debug, Default)]
pub(super) struct Leases(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Connections that are open, by key.
    connections: HashMap<EndpointId, usize>,
    holder: Option<(EndpointId, u64)>,
    given: u64,
}

impl Leases {
    fn state(&self) -> MutexGuard<'_, State> {
        // No panic leaves the state half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a new connection.
    pub(super) fn connected(&self, peer: EndpointId) {
        *self.state().connections.entry(peer).or_default() += 1;
    }

    /// Counts the end of a connection. Returns the lease that ends with it, if one does.
    pub(super) fn disconnected(&self, peer: EndpointId) -> Option<u64> {
        let mut state = self.state();
        let left = state.connections.get_mut(&peer)?;
        *left -= 1;
        if *left > 0 {
            return None;
        }
        state.connections.remove(&peer);
        let ended = state.holder.take_if(|(holder, _)| *holder == peer);
        ended.map(|(_, lease)| lease)
    }

    /// Gives the worker to a controller that is connected.
    ///
    /// # Errors
    /// [`WorkerError::Busy`] if another controller has it.
    pub(super) fn claim(&self, peer: EndpointId) -> Result<u64, WorkerError> {
        let mut state = self.state();
        if let Some((holder, _)) = state.holder {
            let controller = holder.to_string();
            return Err(WorkerError::Busy { controller });
        }
        if !state.connections.contains_key(&peer) {
            let reason = format!("no controller {peer} is connected");
            return Err(WorkerError::because(reason));
        }
        state.given += 1;
        state.holder = Some((peer, state.given));
        Ok(state.given)
    }

    /// True if this controller has the worker.
    pub(super) fn holds(&self, peer: EndpointId) -> bool {
        let holder = self.state().holder;
        holder.is_some_and(|(holder, _)| holder == peer)
    }

    /// True if this is the current lease.
    pub(super) fn is_current(&self, lease: u64) -> bool {
        let holder = self.state().holder;
        holder.is_some_and(|(_, number)| number == lease)
    }
}

#[cfg(test)]
mod tests {
    use burn::remote::{EndpointId, IrohIdentity};

    use super::Leases;
    use crate::remote::WorkerError;

    fn key() -> EndpointId {
        IrohIdentity::random().id()
    }

    #[test]
    fn a_worker_is_one_controllers_until_that_one_is_gone() {
        let (leases, [first, second]) = (Leases::default(), [key(), key()]);
        leases.connected(first);
        leases.connected(first);
        leases.connected(second);
        let lease = leases.claim(first).expect("a free worker");
        assert!(leases.holds(first) && !leases.holds(second));
        assert!(matches!(
            leases.claim(second),
            Err(WorkerError::Busy { .. })
        ));
        assert_eq!(leases.disconnected(first), None);
        assert!(leases.is_current(lease));
        assert_eq!(leases.disconnected(first), Some(lease));
        assert!(!leases.is_current(lease));
        let next = leases.claim(second).expect("a free worker");
        assert_ne!(next, lease);
    }

    #[test]
    fn who_is_not_connected_gets_nothing() {
        let leases = Leases::default();
        assert!(matches!(
            leases.claim(key()),
            Err(WorkerError::Failed { .. })
        ));
        assert_eq!(leases.disconnected(key()), None);
    }
}
