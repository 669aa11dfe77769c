use std::{sync::Arc, sync::mpsc::Sender, time::Instant};

use batchlora::SlotUpdate;
use burn::tensor::Tensor;

use super::{
    conductor::Notice,
    plan::{GroupPlan, StepPlan},
    post::{Inbox, Outbox, Subject},
    readback::Readback,
};
use crate::{Passage, PipelineError, TrainStage, schedule::Operation};

/// One operation with what it needs to know.
#[derive(Debug, Clone)]
pub(super) struct Work {
    pub(super) operation: Operation,
    pub(super) plan: Arc<StepPlan>,
}

impl Work {
    fn group(&self) -> &GroupPlan {
        &self.plan.groups[self.operation.group()]
    }
}

/// What a stage has to tell of a group's step that it has brought to its end.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) stage: usize,
    pub(super) group: usize,
    pub(super) step: usize,
    /// Losses from the last stage, squared norms from the first.
    pub(super) results: Option<Results>,
    /// Seconds spent on it.
    pub(super) busy: Option<f64>,
}

/// Values that are being read.
#[derive(Debug)]
pub(super) struct Results {
    pub(super) readback: Readback,
    /// How many of the tensors are losses; the norms follow, where there are any.
    pub(super) losses: usize,
    /// Whether the last one is the seconds spent on it.
    pub(super) seconds: bool,
}

/// A stage at its list.
#[derive(Debug)]
pub(super) struct StageLoop<'a, S> {
    stage: &'a mut S,
    index: usize,
    last: usize,
    inbox: Inbox,
    outbox: Outbox,
    notify: Sender<Notice>,
    groups: Vec<GroupState>,
}

#[derive(Debug, Default)]
struct GroupState {
    /// The optimizer step that is still to be taken.
    owed: Option<Vec<Option<SlotUpdate>>>,
    losses: Vec<Tensor<1>>,
    busy: f64,
}

impl<'a, S: TrainStage> StageLoop<'a, S> {
    pub(super) fn new(
        stage: &'a mut S,
        (index, stages): (usize, usize),
        groups: usize,
        (inbox, outbox): (Inbox, Outbox),
        notify: Sender<Notice>,
    ) -> Self {
        Self {
            stage,
            index,
            last: stages - 1,
            inbox,
            outbox,
            notify,
            groups: (0..groups).map(|_| GroupState::default()).collect(),
        }
    }

    /// Does what is next on the list. A place that the group has no micro-batch for stays empty.
    pub(super) fn execute(&mut self, work: &Work) -> Result<(), PipelineError> {
        match work.operation {
            Operation::Forward {
                group, microbatch, ..
            } => self.forward(Passage { group, microbatch }, work),
            Operation::Backward {
                group, microbatch, ..
            } => self.backward(Passage { group, microbatch }, work),
            Operation::Step { group, step } => self.close(group, step, work),
        }
    }

    /// Takes every optimizer step that is still to be taken.
    pub(super) fn finish(&mut self) -> Result<(), PipelineError> {
        (0..self.groups.len()).try_for_each(|group| self.settle(group))
    }

    fn forward(&mut self, at: Passage, work: &Work) -> Result<(), PipelineError> {
        self.settle(at.group)?;
        let Some(microbatch) = work.group().microbatches.get(at.microbatch) else {
            return Ok(());
        };
        let hidden = match self.index {
            0 => None,
            _ => Some(self.inbox.take(Subject::Hidden(at))?),
        };
        let begun = Instant::now();
        let out = self.stage.forward(at, microbatch, hidden)?;
        self.worked(at.group, begun);
        if let Some(hidden) = out.hidden {
            self.outbox
                .send(self.index + 1, Subject::Hidden(at), hidden)?;
        }
        self.groups[at.group].losses.extend(out.losses);
        Ok(())
    }

    fn backward(&mut self, at: Passage, work: &Work) -> Result<(), PipelineError> {
        if at.microbatch >= work.group().microbatches.len() {
            return Ok(());
        }
        let above = if self.index == self.last {
            None
        } else {
            Some(self.inbox.take(Subject::Gradient(at))?)
        };
        let begun = Instant::now();
        let below = self.stage.backward(at, above)?;
        self.worked(at.group, begun);
        if self.index > 0
            && let Some(gradient) = below
        {
            self.outbox
                .send(self.index - 1, Subject::Gradient(at), gradient)?;
        }
        Ok(())
    }

    /// Ends a group's step: its squares go down, and from the first stage the total to all.
    fn close(&mut self, group: usize, step: usize, work: &Work) -> Result<(), PipelineError> {
        let above = if self.index == self.last {
            None
        } else {
            Some(self.inbox.take(Subject::SquaresAbove(group))?)
        };
        let updates = work.group().updates.clone();
        let begun = Instant::now();
        let squares = self.stage.add_squares(group, above)?;
        let mut read = std::mem::take(&mut self.groups[group].losses);
        let losses = read.len();
        if self.index == 0 {
            self.outbox
                .send_others(0, Subject::Squares(group), &squares)?;
            read.push(self.stage.update(group, &updates, squares)?);
        } else {
            let below = Subject::SquaresAbove(group);
            self.outbox.send(self.index - 1, below, squares)?;
            self.groups[group].owed = Some(updates);
        }
        self.worked(group, begun);
        let seconds = self.stage.seconds(group)?;
        let measured = seconds.is_some();
        read.extend(seconds);
        let results = if read.is_empty() {
            None
        } else {
            let readback = Readback::request(read)?;
            Some(Results {
                readback,
                losses,
                seconds: measured,
            })
        };
        let busy = std::mem::take(&mut self.groups[group].busy);
        let report = Report {
            stage: self.index,
            group,
            step,
            results,
            busy: self.stage.computes_in_call().then_some(busy),
        };
        // Whoever no longer listens has failed and says so itself.
        let _ = self.notify.send(Notice::Report(report));
        Ok(())
    }

    /// Takes the optimizer step that a group still has to take here.
    fn settle(&mut self, group: usize) -> Result<(), PipelineError> {
        let Some(updates) = self.groups[group].owed.take() else {
            return Ok(());
        };
        let squares = self.inbox.take(Subject::Squares(group))?;
        let begun = Instant::now();
        self.stage.update(group, &updates, squares)?;
        self.worked(group, begun);
        Ok(())
    }

    fn worked(&mut self, group: usize, begun: Instant) {
        self.groups[group].busy += begun.elapsed().as_secs_f64();
    }
}
