/// Service of tenants that wait at the same time.
///
/// The fairness gap is VTC's (OSDI'24): over all pairs of tenants and all spans of time in which both have a task
/// waiting throughout, the largest difference of their service in that span.
#[derive(Debug)]
pub struct Fairness {
    served: Vec<u128>,
    waits: Vec<bool>,
    /// Lowest and highest difference of service of each pair since both wait.
    ranges: Vec<Option<(i128, i128)>>,
    gap: u128,
}

impl Fairness {
    /// Of so many tenants, none of which waits.
    pub fn new(tenants: usize) -> Self {
        Self {
            served: vec![0; tenants],
            waits: vec![false; tenants],
            ranges: vec![None; tenants * tenants],
            gap: 0,
        }
    }

    /// Adds service of a tenant.
    pub fn serve(&mut self, tenant: usize, service: u128) {
        self.served[tenant] += service;
    }

    /// Service of all tenants.
    pub fn total(&self) -> u128 {
        self.served.iter().sum()
    }

    /// Updates the gap. Until now the same tenants have been waiting.
    pub fn observe(&mut self) {
        for (one, other) in self.pairs() {
            if self.waits[one] && self.waits[other] {
                self.observe_pair(one, other);
            }
        }
    }

    fn pairs(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let tenants = self.served.len();
        (0..tenants).flat_map(move |one| (one + 1..tenants).map(move |other| (one, other)))
    }

    fn observe_pair(&mut self, one: usize, other: usize) {
        let difference = self.served[one] as i128 - self.served[other] as i128;
        let range = &mut self.ranges[one * self.served.len() + other];
        let (low, high) = range.unwrap_or((difference, difference));
        let (low, high) = (low.min(difference), high.max(difference));
        *range = Some((low, high));
        self.gap = self.gap.max(low.abs_diff(high));
    }

    /// Sets which tenants have tasks waiting from now on.
    pub fn wait(&mut self, waits: &[bool]) {
        for (one, other) in self.pairs() {
            let both = waits[one] && waits[other];
            if both && !(self.waits[one] && self.waits[other]) {
                self.ranges[one * self.served.len() + other] = None;
                self.observe_pair(one, other);
            }
        }
        self.waits.copy_from_slice(waits);
    }

    /// The largest gap so far.
    pub fn gap(&self) -> u128 {
        self.gap
    }
}

#[cfg(test)]
mod tests {
    use super::Fairness;

    #[test]
    fn only_spans_in_which_both_wait_count() {
        let mut fairness = Fairness::new(3);
        fairness.serve(0, 100);
        fairness.observe();
        assert_eq!(fairness.gap(), 0);
        fairness.wait(&[true, true, false]);
        fairness.serve(1, 30);
        fairness.observe();
        assert_eq!(fairness.gap(), 30);
        // 30 behind, then 40 ahead: 70 in the span between.
        fairness.serve(0, 70);
        fairness.observe();
        assert_eq!(fairness.gap(), 70);
        fairness.wait(&[true, false, true]);
        fairness.serve(1, 500);
        fairness.observe();
        // A new span: what was before it is forgotten.
        fairness.wait(&[true, true, true]);
        fairness.serve(2, 69);
        fairness.observe();
        assert_eq!(fairness.gap(), 70);
        fairness.serve(2, 2);
        fairness.observe();
        assert_eq!((fairness.gap(), fairness.total()), (71, 771));
    }
}
