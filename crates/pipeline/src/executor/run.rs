use std::{
    collections::HashMap,
    panic,
    sync::mpsc::{Sender, channel},
    thread,
    time::Instant,
};

use batchlora::SlotUpdate;

use super::{
    conductor::{Conductor, Notice},
    mailbox::{Outbox, boxes},
    stage_loop::{GroupState, StageLoop, Work},
    times::{StagePass, Stopwatch, TransferTimes},
};
use crate::{
    Microbatch, PipelineError, TrainStage,
    schedule::{Operation, PipelineShape, Schedule, operations},
    simulate::submission_order,
};

/// The passes of several iterations: their order and numbers.
#[derive(Debug, Clone, Copy)]
pub struct Passes {
    /// The order of a stage's operations.
    pub schedule: Schedule,
    /// Numbers of stages, groups, micro-batches and, at most, iterations.
    pub shape: PipelineShape,
}

/// The work of all groups in one iteration.
#[derive(Debug, Default)]
pub struct IterationPlan {
    /// By group.
    pub groups: Vec<GroupPlan>,
}

/// The work of one group in one iteration.
#[derive(Debug, Default)]
pub struct GroupPlan {
    /// The micro-batches. Where there are fewer than the schedule has places, the last places stay
    /// empty.
    pub microbatches: Vec<Microbatch>,
    /// One entry per slot. `None` leaves an adapter as it is and keeps its gradient, to which the
    /// micro-batches of later iterations add until it is updated. The gradient is lost when an adapter
    /// joins or leaves the group: see [`Pipeline::revision`](crate::Pipeline::revision).
    pub updates: Vec<Option<SlotUpdate>>,
}

/// Results of one iteration.
#[derive(Debug, Clone)]
pub struct IterationOutcome {
    /// Counted from 0 in each run.
    pub iteration: usize,
    /// By group.
    pub groups: Vec<GroupOutcome>,
    /// When the last result was read.
    pub at: Instant,
    /// Seconds that each stage worked on the iteration; `None` where calls return before the work is done.
    pub busy: Vec<Option<f64>>,
    /// When each stage worked on each pass; none of one stage alone, or where a stage does not know when its
    /// passes end.
    pub passes: Vec<StagePass>,
    /// Transfers between stages in different processes; `None` where there are none, or a stage does
    /// not know when its passes end.
    pub transfers: Option<TransferTimes>,
    /// Largest number of bytes that this process had allocated while a CPU stage of it worked on the
    /// iteration; `None` without such a stage, or where allocations are not
    /// [counted](crate::HostMemory). With several such stages, which work on several iterations at a
    /// time, the peak of all.
    pub host_peak_bytes: Option<u64>,
}

/// Results of one iteration of a group.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GroupOutcome {
    /// Cross-entropy of every target in nats, by micro-batch in the order of its targets.
    pub losses: Vec<Vec<f32>>,
    /// Square of the global norm of each slot's gradient, before clipping.
    pub squared_norms: Vec<f32>,
}

/// Plans iterations and takes their results.
pub trait IterationPlanner {
    /// Error of a plan or of a stage.
    type Error: From<PipelineError>;

    /// Plans an iteration, counted from 0; `None` ends the run before it. Called while the iterations
    /// just before it are still being computed.
    ///
    /// # Errors
    /// If the run cannot go on.
    fn plan(&mut self, iteration: usize) -> Result<Option<IterationPlan>, Self::Error>;

    /// Takes the results of the next iteration. `false` begins no further one; iterations that have begun
    /// are still completed and booked.
    ///
    /// # Errors
    /// If the run cannot go on.
    fn book(&mut self, outcome: IterationOutcome) -> Result<bool, Self::Error>;
}

/// Runs iterations over the stages, in the order of the model's layers. Afterwards no pass is under way
/// and every optimizer step is taken.
///
/// Every stage has a thread, unless there is a single stage or one that
/// [cannot have a thread](TrainStage::may_have_thread): then the calling thread runs all lists, which is
/// as fast where calls return before the work is done.
///
/// # Errors
/// The first error of a stage or of `planner`. The stages are then left in the middle of an iteration.
///
/// # Panics
/// If a stage does.
pub fn run<S: TrainStage + ?Sized, T: IterationPlanner>(
    stages: &mut [Box<S>],
    passes: &Passes,
    planner: &mut T,
) -> Result<(), T::Error> {
    let shape = PipelineShape {
        stages: stages.len(),
        ..passes.shape
    };
    let lists = operations(passes.schedule, &shape);
    let order = submission_order(&lists).map_err(PipelineError::from)?;
    let threads = stages.len() > 1 && stages.iter().all(|stage| stage.may_have_thread());
    let (inboxes, outbox) = boxes(stages, threads);
    let elsewhere = stages.iter().map(|stage| stage.remote_inbox().is_some());
    let elsewhere: Vec<bool> = elsewhere.collect();
    let (notify, notices) = channel();
    let loops = stages.iter_mut().zip(inboxes).enumerate();
    let loops = loops.map(|(index, (stage, inbox))| StageLoop {
        stage: &mut **stage,
        index,
        last: index + 1 == shape.stages,
        inbox,
        outbox: outbox.clone(),
        notify: notify.clone(),
        groups: (0..shape.groups).map(|_| GroupState::default()).collect(),
        watch: Stopwatch::start(),
    });
    let mut loops: Vec<StageLoop<'_, S>> = loops.collect();
    let mut conductor = Conductor {
        shape: &shape,
        // Two workers are two processes.
        linked: elsewhere
            .windows(2)
            .map(|pair| pair[0] || pair[1])
            .collect(),
        notices,
        // One iteration is computed while the next is prepared; with several stages, which may be at
        // two iterations at once, one more.
        lookahead: if shape.stages > 1 { 3 } else { 2 },
        reports: HashMap::new(),
    };
    if threads {
        return in_threads(loops, conductor, &order, &outbox, &notify, planner);
    }
    drop(notify);
    conductor.conduct(&order, planner, |stage, work| loops[stage].execute(&work))?;
    loops.iter_mut().try_for_each(StageLoop::finish)?;
    Ok(())
}

fn in_threads<S: TrainStage + ?Sized, T: IterationPlanner>(
    loops: Vec<StageLoop<'_, S>>,
    mut conductor: Conductor<'_>,
    order: &[(usize, Operation)],
    outbox: &Outbox,
    notify: &Sender<Notice>,
    planner: &mut T,
) -> Result<(), T::Error> {
    thread::scope(|scope| {
        let (mut lists, mut threads) = (Vec::new(), Vec::new());
        let mut conducted = Ok(());
        for (index, mut stage) in loops.into_iter().enumerate() {
            let (list, works) = channel::<Work>();
            let guard = FailureGuard {
                armed: true,
                stage: index,
                outbox: outbox.clone(),
                notify: notify.clone(),
            };
            let work = move || {
                let result = works.iter().try_for_each(|work| stage.execute(&work));
                let result = result.and_then(|()| stage.finish());
                if result.is_ok() {
                    guard.disarm();
                }
                result
            };
            let builder = thread::Builder::new().name(format!("stage {index}"));
            match builder.spawn_scoped(scope, work) {
                Ok(thread) => threads.push(thread),
                Err(source) => {
                    let stage = index;
                    conducted = Err(PipelineError::Thread { stage, source }.into());
                    break;
                }
            }
            lists.push(list);
        }
        if conducted.is_ok() {
            conducted = conductor.conduct(order, planner, |stage, work| {
                let sent = lists[stage].send(work);
                sent.map_err(|_| PipelineError::Stopped { stage })
            });
        }
        if conducted.is_err() {
            outbox.stop();
        }
        drop(lists);
        let mut failed = None;
        for thread in threads {
            match thread.join() {
                Ok(Ok(()) | Err(PipelineError::Stopped { .. })) => {}
                Ok(Err(error)) => failed = failed.or(Some(error)),
                Err(panicked) => panic::resume_unwind(panicked),
            }
        }
        // The error of the stage that failed first, not that others stopped.
        match failed {
            Some(error) => Err(error.into()),
            None => conducted,
        }
    })
}

/// Announces the failure of a stage, by an error or a panic, when it is dropped.
struct FailureGuard {
    armed: bool,
    stage: usize,
    outbox: Outbox,
    notify: Sender<Notice>,
}

impl FailureGuard {
    fn disarm(mut self) {
        self.armed = false;
    }
}

impl Drop for FailureGuard {
    fn drop(&mut self) {
        if self.armed {
            self.outbox.stop();
            let stage = self.stage;
            let _ = self.notify.send(Notice::Failed { stage });
        }
    }
}
