use std::{sync::Arc, sync::mpsc::Sender};

use batchlora::SlotUpdate;
use burn::tensor::Tensor;

use super::{
    conductor::Notice,
    mailbox::{Inbox, Outbox, Tag},
    readback::Readback,
    run::{GroupPlan, IterationPlan},
    times::{PendingTimes, StageClock, StageTimes, Stopwatch, now},
};
use crate::{HostMemory, MicrobatchId, PipelineError, TrainStage, schedule::Operation};

/// An operation of an iteration.
#[derive(Debug, Clone)]
pub(super) struct Work {
    pub(super) operation: Operation,
    pub(super) plan: Arc<IterationPlan>,
}

impl Work {
    fn group(&self) -> &GroupPlan {
        &self.plan.groups[self.operation.group()]
    }
}

/// A stage's report of a group's iteration that it has finished.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) stage: usize,
    pub(super) group: usize,
    pub(super) iteration: usize,
    /// Losses from the last stage, squared norms from the first.
    pub(super) results: Option<Results>,
    /// Where the stage computes in the call.
    pub(super) times: Option<StageTimes>,
    /// Peak of this process's allocated bytes since a stage's last report.
    pub(super) host_peak_bytes: Option<u64>,
}

/// Values that are being read.
#[derive(Debug)]
pub(super) struct Results {
    pub(super) readback: Readback,
    /// Number of tensors that are losses. The norms follow on the first stage, then the times where
    /// there is a `clock`.
    pub(super) losses: usize,
    /// The clock of a stage that measures itself.
    pub(super) clock: Option<Arc<StageClock>>,
}

/// Runs the list of one stage.
#[derive(Debug)]
pub(super) struct StageLoop<'a, S: ?Sized> {
    pub(super) stage: &'a mut S,
    pub(super) index: usize,
    pub(super) last: bool,
    pub(super) inbox: Inbox,
    pub(super) outbox: Outbox,
    pub(super) notify: Sender<Notice>,
    pub(super) groups: Vec<GroupState>,
    pub(super) watch: Stopwatch,
}

#[derive(Debug, Default)]
pub(super) struct GroupState {
    /// The optimizer step that is still to be taken.
    owed: Option<Vec<Option<SlotUpdate>>>,
    losses: Vec<Tensor<1>>,
}

impl<S: TrainStage + ?Sized> StageLoop<'_, S> {
    /// Executes the next operation. Does nothing at a place for which the group has no micro-batch.
    pub(super) fn execute(&mut self, work: &Work) -> Result<(), PipelineError> {
        match work.operation {
            Operation::Forward {
                group, microbatch, ..
            } => self.forward(MicrobatchId { group, microbatch }, work),
            Operation::Backward {
                group, microbatch, ..
            } => self.backward(MicrobatchId { group, microbatch }, work),
            Operation::Step { group, iteration } => self.close(group, iteration, work),
        }
    }

    /// Takes every optimizer step that is still to be taken.
    pub(super) fn finish(&mut self) -> Result<(), PipelineError> {
        (0..self.groups.len()).try_for_each(|group| self.settle(group))
    }

    fn forward(&mut self, at: MicrobatchId, work: &Work) -> Result<(), PipelineError> {
        self.settle(at.group)?;
        let Some(microbatch) = work.group().microbatches.get(at.microbatch) else {
            return Ok(());
        };
        let (hidden, arrived) = match self.index {
            0 => (None, None),
            _ => self.inbox.take(Tag::Hidden(at))?,
        };
        let begun = now();
        let out = self.stage.forward(at, microbatch, hidden)?;
        self.watch
            .passed(at, arrived, begun, |times| &mut times.forward);
        if let Some(hidden) = out.hidden {
            self.outbox.send(self.index + 1, Tag::Hidden(at), hidden)?;
        }
        self.groups[at.group].losses.extend(out.losses);
        Ok(())
    }

    fn backward(&mut self, at: MicrobatchId, work: &Work) -> Result<(), PipelineError> {
        if at.microbatch >= work.group().microbatches.len() {
            return Ok(());
        }
        let (above, arrived) = if self.last {
            (None, None)
        } else {
            self.inbox.take(Tag::Gradient(at))?
        };
        let begun = now();
        let below = self.stage.backward(at, above)?;
        self.watch
            .passed(at, arrived, begun, |times| &mut times.backward);
        if self.index > 0
            && let Some(gradient) = below
        {
            self.outbox
                .send(self.index - 1, Tag::Gradient(at), gradient)?;
        }
        Ok(())
    }

    /// Ends a group's iteration: sends the squares down, and from the first stage the total to all.
    fn close(&mut self, group: usize, iteration: usize, work: &Work) -> Result<(), PipelineError> {
        let above = if self.last {
            None
        } else {
            self.inbox.take(Tag::SquaresAbove(group))?.0
        };
        let updates = work.group().updates.clone();
        let begun = now();
        let squares = self.stage.add_squares(group, above)?;
        let mut read = std::mem::take(&mut self.groups[group].losses);
        let losses = read.len();
        if self.index == 0 {
            self.outbox.send_others(0, Tag::Squares(group), &squares)?;
            read.push(self.stage.update(group, &updates, Some(squares))?);
        } else {
            let below = Tag::SquaresAbove(group);
            self.outbox.send(self.index - 1, below, squares)?;
            self.groups[group].owed = Some(updates);
        }
        self.watch.worked(group, begun);
        let microbatches = work.group().microbatches.len();
        let measurement = self.stage.measurement(group, microbatches)?;
        let measurement = measurement.map(|PendingTimes { values, clock }| (values, clock));
        let (values, clock) = measurement.unzip();
        read.extend(values);
        let mut results = None;
        if !read.is_empty() {
            results = Some(Results {
                readback: Readback::request(read)?,
                losses,
                clock,
            });
        }
        let times = self.watch.take(group);
        let in_call = self.stage.computes_in_call();
        let memory = HostMemory::counted().filter(|_| in_call);
        let report = Report {
            stage: self.index,
            group,
            iteration,
            results,
            times: in_call.then_some(times),
            host_peak_bytes: memory.map(|memory| (memory.take_peak)()),
        };
        // A conductor that no longer receives reports its own error.
        let _ = self.notify.send(Notice::Report(report));
        Ok(())
    }

    /// Takes the optimizer step that a group still has to take here.
    fn settle(&mut self, group: usize) -> Result<(), PipelineError> {
        let Some(updates) = self.groups[group].owed.take() else {
            return Ok(());
        };
        let (squares, _) = self.inbox.take(Tag::Squares(group))?;
        let begun = now();
        self.stage.update(group, &updates, squares)?;
        self.watch.worked(group, begun);
        Ok(())
    }
}
