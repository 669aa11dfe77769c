use super::profile::Profile;
use crate::{Load, Padding};

/// What the tasks of a group ask of a device's memory.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Asked {
    pub(super) tasks: usize,
    load: Load,
    rows: f64,
    longest: f64,
}

impl Asked {
    pub(super) fn with(mut self, profile: &Profile) -> Self {
        let (length, rows) = profile.pass_shape;
        self.tasks += 1;
        self.load = sum(self.load, profile.load);
        self.rows += rows;
        self.longest = self.longest.max(length);
        self
    }

    /// The load of the group's batch. Nano-batches are not counted on: a task whose neighbours leave
    /// takes whole steps again.
    pub(super) fn load(&self, padding: Padding) -> Load {
        match padding {
            Padding::None => self.load,
            Padding::ToLongest => Load {
                tokens: whole(self.rows * self.longest).max(self.load.tokens),
                squared_tokens: whole(self.rows * self.longest * self.longest)
                    .max(self.load.squared_tokens),
                adapter_bytes: self.load.adapter_bytes,
            },
        }
    }
}

/// The next whole number, but for a rounding error.
fn whole(tokens: f64) -> u64 {
    (tokens * (1.0 - 1e-12)).ceil() as u64
}

pub(super) fn sum(a: Load, b: Load) -> Load {
    Load {
        tokens: a.tokens.saturating_add(b.tokens),
        squared_tokens: a.squared_tokens.saturating_add(b.squared_tokens),
        adapter_bytes: a.adapter_bytes.saturating_add(b.adapter_bytes),
    }
}
