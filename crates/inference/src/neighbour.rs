//! Training on the same devices: its part of the time, and one account of each tenant with it.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use rayon::ThreadPoolBuilder;

/// Training computes with a token twice, forward and backward, where a prompt's token is computed with once.
pub const TRAINED_TOKEN: f64 = 2.0;

/// Runs `answer` on this thread and a pool of threads of its own, with this one as many as Rayon's global pool has by default.
/// With one pool for training and answers, each short operation of an answer on the CPU waits for a long one of training. A
/// thread that is in no pool hands each operation to one and sleeps until it is done.
///
/// The thread is of no use to other pools afterwards: it should end, too.
pub fn apart<T>(answer: impl FnOnce() -> T) -> T {
    // Without one where the system has no more threads.
    let pool = ThreadPoolBuilder::new().thread_name(|index| format!("answers-{index}"));
    let _pool = pool.use_current_thread().build();
    answer()
}

/// Lets answers go before training, which is on this thread and Rayon's current pool: both get a lower priority, and so do threads
/// that they start. With equal priorities training takes half of the cores while an answer computes on the CPU.
///
/// It is for good: only an administrator may raise a priority. Only Linux has one for each thread; elsewhere this does nothing.
pub fn train_behind() {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{getpriority_process, setpriority_process};
        let priority = getpriority_process(None).unwrap_or(0) + NICE;
        // Where the system refuses, answers only take longer.
        let yields = || _ = setpriority_process(None, priority);
        yields();
        rayon::broadcast(|_| yields());
    }
}

/// A third of the time of a thread without it, where both want the same core. With more answers are hardly faster, and training
/// stands still beside other programs.
#[cfg(target_os = "linux")]
const NICE: i32 = 5;

/// Training that shares the devices with requests.
#[derive(Debug)]
pub struct Neighbour {
    /// Most of the time that answers take while it trains, between 0 and 1.
    pub share: f64,
    is_training: AtomicBool,
    /// Cost of trained tokens and of answers that the other side has not charged yet, by tenant.
    trained: Mutex<BTreeMap<String, f64>>,
    answered: Mutex<BTreeMap<String, f64>>,
}

impl Neighbour {
    /// One that does not train yet.
    pub fn new(share: f64) -> Self {
        Self {
            share,
            is_training: AtomicBool::new(false),
            trained: Mutex::default(),
            answered: Mutex::default(),
        }
    }

    /// Notes whether it trains now.
    pub fn trains(&self, trains: bool) {
        self.is_training.store(trains, Ordering::Relaxed);
    }

    /// Adds the cost of a tenant's trained tokens: [`TRAINED_TOKEN`] each.
    pub fn trained(&self, tenant: &str, cost: f64) {
        add(&self.trained, tenant, cost);
    }

    /// Takes the cost of answers since the last call, by tenant.
    pub fn take_answered(&self) -> BTreeMap<String, f64> {
        take(&self.answered)
    }

    pub(crate) fn answered(&self, tenant: &str, cost: f64) {
        add(&self.answered, tenant, cost);
    }

    pub(crate) fn take_trained(&self) -> BTreeMap<String, f64> {
        take(&self.trained)
    }
}

fn add(costs: &Mutex<BTreeMap<String, f64>>, tenant: &str, cost: f64) {
    let mut costs = costs.lock().unwrap_or_else(PoisonError::into_inner);
    *costs.entry(tenant.to_owned()).or_default() += cost;
}

fn take(costs: &Mutex<BTreeMap<String, f64>>) -> BTreeMap<String, f64> {
    std::mem::take(&mut costs.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Leaves training its part of the time.
#[derive(Debug)]
pub(crate) struct Pace {
    /// Until then the devices are for training.
    until: Instant,
}

impl Pace {
    /// Time that may be owed when a request waits for its first token.
    const BURST: Duration = Duration::from_secs(1);

    pub(crate) fn new() -> Self {
        Self {
            until: Instant::now(),
        }
    }

    /// Notes that answers took so long.
    pub(crate) fn took(&mut self, busy: Duration, neighbour: &Neighbour) {
        let share = neighbour.share.clamp(0.01, 1.0);
        let owed = busy.mul_f64((1.0 - share) / share);
        self.until = self.until.max(Instant::now()) + owed;
    }

    /// How long the devices are still for training.
    pub(crate) fn owed(&mut self, is_urgent: bool, neighbour: &Neighbour) -> Option<Duration> {
        let now = Instant::now();
        if !neighbour.is_training.load(Ordering::Relaxed) {
            self.until = now;
        }
        let owed = self.until.saturating_duration_since(now);
        let may_wait = !is_urgent || owed > Self::BURST;
        (owed > Duration::ZERO && may_wait).then_some(owed)
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread, time::Duration};

    use super::{Neighbour, Pace, apart};

    #[test]
    fn answers_have_threads_of_their_own() {
        assert_eq!(rayon::current_thread_index(), None);
        let threads = rayon::current_num_threads();
        let answer = move || {
            let this = thread::current().id();
            assert_eq!(rayon::current_thread_index(), Some(0));
            assert_eq!(rayon::current_num_threads(), threads);
            let (sender, other) = mpsc::channel();
            rayon::spawn(move || _ = sender.send(thread::current().id()));
            if threads > 1 {
                let second = other.recv_timeout(Duration::from_mins(1));
                assert_ne!(second.expect("a second thread"), this);
            }
            this
        };
        let spawned = thread::spawn(move || (thread::current().id(), apart(answer)));
        let (this, answered) = spawned.join().expect("answers");
        assert_eq!(this, answered);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn training_yields_on_all_its_threads() {
        let nice = || rustix::process::getpriority_process(None).expect("a priority");
        let before = nice();
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build();
        let niced = pool.expect("threads").install(|| {
            rustix::process::nice(1).expect("one more");
            super::train_behind();
            rayon::broadcast(|_| nice())
        });
        assert_eq!(niced, [(before + 6).min(19); 3]);
        assert_eq!(nice(), before);
    }

    #[test]
    fn training_gets_its_part_of_the_time() {
        let neighbour = Neighbour::new(0.25);
        neighbour.trains(true);
        let second = Duration::from_secs(1);
        let mut pace = Pace::new();
        assert_eq!(pace.owed(false, &neighbour), None);
        pace.took(second / 10, &neighbour);
        let owed = pace.owed(false, &neighbour).expect("three times as long");
        let least = second * 29 / 100;
        assert!(owed > least && owed <= second * 3 / 10, "{owed:?}");
        // A first token does not wait, unless more than a second is owed.
        pace.took(second / 5, &neighbour);
        assert_eq!(pace.owed(true, &neighbour), None);
        pace.took(second / 10, &neighbour);
        let owed = pace.owed(true, &neighbour).expect("0.3 seconds more");
        assert!(owed > second && owed <= second * 6 / 5, "{owed:?}");
        neighbour.trains(false);
        assert_eq!(pace.owed(false, &neighbour), None);
    }
}
