use std::{
    collections::HashMap,
    panic,
    sync::mpsc::{Sender, channel},
    thread,
};

use super::{
    conductor::{Conductor, Notice},
    mailbox::{Outbox, boxes},
    outcome::StepOutcome,
    plan::StepPlan,
    stage_loop::{StageLoop, Work},
};
use crate::{
    PipelineError, TrainStage,
    schedule::{PipelineShape, Schedule},
    simulate::submission_order,
};

/// Who runs the stages' lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Driver {
    /// A thread per stage. The thread that asks does it all if there is one stage only, or one that
    /// [cannot have a thread](TrainStage::may_have_thread): where passes are only handed over, one
    /// thread is as fast.
    #[default]
    ThreadPerStage,
    /// The thread that asks, stage by stage in one order: the obvious way, which the other must
    /// equal, and the slower one.
    OneThread,
}

/// Optimizer steps to run one after another.
#[derive(Debug, Clone, Copy)]
pub struct Passes {
    /// In which order stages work.
    pub schedule: Schedule,
    /// How many there are of everything; `steps` at most are run.
    pub shape: PipelineShape,
    /// Who runs the stages' lists.
    pub driver: Driver,
}

/// Where steps come from and their results go.
pub trait Steps {
    /// What can go wrong.
    type Error: From<PipelineError>;

    /// What all groups do in a step, counted from 0; `None` if it and those after it are not to be
    /// begun. Asked before steps shortly before it have ended.
    ///
    /// # Errors
    /// If the run cannot go on.
    fn plan(&mut self, step: usize) -> Result<Option<StepPlan>, Self::Error>;

    /// Takes the results of the next step; whether further steps may begin. Those that have begun
    /// are brought to their end and booked all the same.
    ///
    /// # Errors
    /// If the run cannot go on.
    fn book(&mut self, outcome: StepOutcome) -> Result<bool, Self::Error>;
}

/// Runs steps over the stages, in the order they hold the model. Afterwards no pass is under way and
/// every optimizer step is taken.
///
/// # Errors
/// The first error of a stage or of `steps`. The stages hold half a step then.
///
/// # Panics
/// If a stage does.
pub fn run<S: TrainStage, T: Steps>(
    stages: &mut [S],
    passes: &Passes,
    steps: &mut T,
) -> Result<(), T::Error> {
    let shape = PipelineShape {
        stages: stages.len(),
        ..passes.shape
    };
    let lists = passes.schedule.operations(&shape);
    let order = submission_order(&lists).map_err(PipelineError::from)?;
    let apart = stages.len() > 1 && stages.iter().all(TrainStage::may_have_thread);
    let threads = apart && passes.driver == Driver::ThreadPerStage;
    let (inboxes, outbox) = boxes(stages, threads);
    let elsewhere: Vec<bool> = stages
        .iter()
        .map(|stage| stage.remote_inbox().is_some())
        .collect();
    let (notify, notices) = channel();
    let loops: Vec<StageLoop<'_, S>> = stages
        .iter_mut()
        .zip(inboxes)
        .enumerate()
        .map(|(index, (stage, inbox))| {
            let post = (inbox, outbox.clone());
            StageLoop::new(
                stage,
                (index, shape.stages),
                shape.groups,
                post,
                notify.clone(),
            )
        })
        .collect();
    let conductor = Conductor {
        shape: &shape,
        // Two stages that are elsewhere are in two places.
        linked: elsewhere
            .windows(2)
            .map(|pair| pair[0] || pair[1])
            .collect(),
        notices,
        // One step is computed while the next is prepared; where stages are at several steps at
        // once, one more.
        lookahead: if shape.stages > 1 { 3 } else { 2 },
        reports: HashMap::new(),
    };
    if threads {
        in_threads(loops, conductor, &order, &outbox, &notify, steps)
    } else {
        drop(notify);
        in_order(loops, conductor, &order, steps)
    }
}

type Order = [(usize, crate::schedule::Operation)];

fn in_order<S: TrainStage, T: Steps>(
    mut loops: Vec<StageLoop<'_, S>>,
    mut conductor: Conductor<'_>,
    order: &Order,
    steps: &mut T,
) -> Result<(), T::Error> {
    conductor.conduct(order, steps, |stage, work| loops[stage].execute(&work))?;
    for stage in &mut loops {
        stage.finish()?;
    }
    Ok(())
}

fn in_threads<S: TrainStage, T: Steps>(
    loops: Vec<StageLoop<'_, S>>,
    mut conductor: Conductor<'_>,
    order: &Order,
    outbox: &Outbox,
    notify: &Sender<Notice>,
    steps: &mut T,
) -> Result<(), T::Error> {
    thread::scope(|scope| {
        let (mut lists, mut threads) = (Vec::new(), Vec::new());
        let mut conducted = Ok(());
        for (index, mut stage) in loops.into_iter().enumerate() {
            let (list, works) = channel::<Work>();
            let alarm = Alarm {
                armed: true,
                stage: index,
                outbox: outbox.clone(),
                notify: notify.clone(),
            };
            let work = move || {
                let result = works.iter().try_for_each(|work| stage.execute(&work));
                let result = result.and_then(|()| stage.finish());
                if result.is_ok() {
                    alarm.disarm();
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
            conducted = conductor.conduct(order, steps, |stage, work| {
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
        // What made the others stop is the reason, not that they did.
        match failed {
            Some(error) => Err(error.into()),
            None => conducted,
        }
    })
}

/// Tells everybody, when it is dropped, that a stage has failed: by an error or in a panic.
struct Alarm {
    armed: bool,
    stage: usize,
    outbox: Outbox,
    notify: Sender<Notice>,
}

impl Alarm {
    fn disarm(mut self) {
        self.armed = false;
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        if self.armed {
            self.outbox.stop();
            let stage = self.stage;
            let _ = self.notify.send(Notice::Failed { stage });
        }
    }
}
