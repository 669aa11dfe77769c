use std::sync::Arc;

use super::{line::Line, wire::Command};

/// Keys and values that a worker keeps, under a number.
#[derive(Debug)]
pub(crate) struct RemoteCache {
    line: Arc<Line>,
    number: u64,
}

impl RemoteCache {
    /// An empty one.
    pub(super) fn new(line: Arc<Line>) -> Self {
        let number = line.next_cache();
        Self { line, number }
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    fn tell(&self, command: Command) {
        // Where it cannot be told the worker is lost, which its next command says.
        let _ = self.line.send(command, Vec::new(), &[]);
    }
}

impl Clone for RemoteCache {
    fn clone(&self) -> Self {
        let copy = Self::new(Arc::clone(&self.line));
        self.tell(Command::CopyCache {
            from: self.number,
            to: copy.number,
        });
        copy
    }
}

impl Drop for RemoteCache {
    fn drop(&mut self) {
        let cache = self.number;
        self.tell(Command::DropCache { cache });
    }
}
