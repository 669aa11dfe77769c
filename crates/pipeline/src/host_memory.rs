use std::sync::OnceLock;

/// What this process has allocated, where its program counts it: the memory of CPU stages, of which
/// Burn knows nothing.
#[derive(Debug, Clone, Copy)]
pub struct HostMemory {
    /// Bytes that are allocated now.
    pub in_use: fn() -> u64,
    /// Most bytes that were allocated at one time since this was last asked.
    pub take_peak: fn() -> u64,
    /// The same, without beginning anew.
    pub peak: fn() -> u64,
}

static COUNTED: OnceLock<HostMemory> = OnceLock::new();

impl HostMemory {
    /// Says how allocations are counted in this program; only the first to say so is heard. Where
    /// nobody does, CPU stages report no memory and keep to no limit.
    pub fn count_with(self) {
        let _ = COUNTED.set(self);
    }

    /// Bytes of memory that this machine has, if it says so.
    pub fn installed() -> Option<u64> {
        let info = std::fs::read_to_string("/proc/meminfo").ok()?;
        let total = info
            .lines()
            .find_map(|line| line.strip_prefix("MemTotal:"))?;
        let kibibytes: u64 = total.trim().strip_suffix("kB")?.trim().parse().ok()?;
        kibibytes.checked_mul(1024)
    }

    /// How allocations are counted, if they are.
    pub fn counted() -> Option<Self> {
        COUNTED.get().copied()
    }
}
