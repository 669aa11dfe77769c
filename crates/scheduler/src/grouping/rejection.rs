use crate::Load;

/// Why a task may not join a group.
#[derive(Debug, Clone, Copy)]
pub(super) enum Rejection {
    /// A device's memory does not hold them all.
    Memory {
        device: usize,
        load: Load,
        tasks: usize,
    },
    /// Somebody would be slowed down more than is allowed, this much at least.
    Slowdown(f64),
    /// An iteration would take longer than its steps one after another.
    Throughput { together: f64, apart: f64 },
}

impl Rejection {
    /// Which of two rejections tells more: the one that came closer to a place.
    pub(super) fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::Slowdown(a), Self::Slowdown(b)) if b < a => other,
            (a, b) if b.closeness() > a.closeness() => b,
            _ => self,
        }
    }

    fn closeness(&self) -> u8 {
        match self {
            Self::Memory { .. } => 0,
            Self::Slowdown(_) => 1,
            Self::Throughput { .. } => 2,
        }
    }
}
