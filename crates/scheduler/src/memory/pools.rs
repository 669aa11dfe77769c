/// A device's memory pools, as far as reports of them tell.
#[derive(Debug, Clone, Default)]
pub(super) struct Pools {
    /// What they held at the last report.
    reserved_bytes: Option<u64>,
    /// Whether iterations have made them grow since they were last known.
    grown: bool,
    /// Most bytes that any iteration had in use.
    largest_peak_bytes: Option<u64>,
    /// Most that a load took above what had been enough for a larger one.
    fragmentation_bytes: u64,
}

impl Pools {
    /// What the pools hold before an iteration, for whatever reason.
    pub(super) fn hold(&mut self, bytes: u64) {
        self.reserved_bytes = Some(bytes);
        self.grown = false;
    }

    /// Takes note of an iteration's peak.
    pub(super) fn peak(&mut self, bytes: u64) {
        self.largest_peak_bytes = self.largest_peak_bytes.max(Some(bytes));
    }

    /// Takes note of what the pools hold after an iteration. If it made them grow, returns what they
    /// held before: only then is what they hold what it needed. The first report has nothing to be
    /// compared with.
    pub(super) fn grow(&mut self, bytes: u64) -> Option<u64> {
        let before = self.reserved_bytes.replace(bytes)?;
        if bytes > before {
            self.grown = true;
            return Some(before);
        }
        if bytes < before {
            // Pools shrink only if someone has emptied them.
            self.grown = false;
        }
        None
    }

    /// Takes note that a load took so much more than a larger one had.
    pub(super) fn fragmented(&mut self, bytes: u64) {
        self.fragmentation_bytes = self.fragmentation_bytes.max(bytes);
    }

    /// Bytes that the pools hold beyond what an iteration has in use at its peak, or, where peaks are
    /// not reported, beyond what loads of its size took.
    ///
    /// What pools hold that iterations did not make them reserve, as while weights were loaded, is
    /// there for the next iteration and does not count.
    pub(super) fn overhead_bytes(&self) -> u64 {
        match (self.largest_peak_bytes, self.reserved_bytes) {
            (Some(peak), Some(reserved)) if self.grown => reserved.saturating_sub(peak),
            (Some(_), _) => 0,
            (None, _) => self.fragmentation_bytes,
        }
    }

    /// What was enough for a load once is enough again, but for fragmentation; and no more than what
    /// the pools hold anyway.
    pub(super) fn enough_again(&self, bytes: u64) -> u64 {
        let fragmented = bytes.saturating_add(self.fragmentation_bytes);
        bytes.max(fragmented.min(self.reserved_bytes.unwrap_or(0)))
    }
}

#[cfg(test)]
mod tests {
    use super::Pools;

    #[test]
    fn only_growth_tells_what_an_iteration_needed() {
        let mut pools = Pools::default();
        assert_eq!(pools.grow(100), None);
        assert_eq!(pools.grow(100), None);
        assert_eq!(pools.grow(200), Some(100));
        assert_eq!(pools.grow(50), None);
        assert_eq!(pools.grow(60), Some(50));
        pools.hold(80);
        assert_eq!(pools.grow(80), None);
    }

    #[test]
    fn overhead_is_what_growth_took_beyond_the_largest_peak() {
        let mut pools = Pools::default();
        pools.hold(500);
        pools.peak(100);
        pools.grow(500);
        assert_eq!(pools.overhead_bytes(), 0);
        pools.peak(510);
        pools.grow(640);
        assert_eq!(pools.overhead_bytes(), 130);
        pools.peak(600);
        pools.grow(640);
        assert_eq!(pools.overhead_bytes(), 40);
    }

    #[test]
    fn without_peaks_overhead_is_fragmentation() {
        let mut pools = Pools::default();
        pools.grow(100);
        assert_eq!(pools.overhead_bytes(), 0);
        pools.fragmented(30);
        pools.fragmented(10);
        assert_eq!(pools.overhead_bytes(), 30);
        pools.grow(120);
        assert_eq!(pools.enough_again(100), 120);
        assert_eq!(pools.enough_again(60), 90);
        assert_eq!(pools.enough_again(150), 150);
    }
}
