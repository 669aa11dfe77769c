//! What a task's owner may ask for.

use crate::{
    Answer, EventKind, Queue, QueueError, Request, TaskId, TaskState,
    lock::ServerLock,
    request::Ruling,
    write::{Standing, Write},
};

impl Queue {
    /// Asks for a task to be paused, resumed or cancelled.
    ///
    /// The server carries it out at the end of an iteration. Without a server it is carried out now, and
    /// tasks that a lost server left as running are parked first.
    ///
    /// # Errors
    ///
    /// [`QueueError::UnknownTask`]; [`QueueError::RequestRefused`] if the task has ended, is to be
    /// cancelled, or is to be resumed and has neither been paused nor failed; [`QueueError::NameTaken`] if
    /// a failed task is to be resumed and another one has its name now.
    pub fn request(&mut self, id: TaskId, request: Request) -> Result<Answer, QueueError> {
        let write = self.write()?;
        let answer = write.take_down(id, request)?;
        write.commit()?;
        if answer != Answer::Waits {
            return Ok(answer);
        }
        let Some(_lock) = ServerLock::try_acquire(&self.directory)? else {
            return Ok(Answer::Waits);
        };
        let write = self.write()?;
        write.recover()?;
        write.carry_out_waiting()?;
        write.commit()?;
        Ok(Answer::CarriedOut)
    }
}

impl Write<'_> {
    fn take_down(&self, id: TaskId, request: Request) -> Result<Answer, QueueError> {
        let Standing {
            name,
            state,
            requested: pending,
            ..
        } = self.standing(id)?;
        if state == TaskState::Failed && request == Request::Resume {
            self.refuse_taken(&name)?;
        }
        match request.ruling(state, pending) {
            Ruling::Record => {
                self.set_request(id, Some(request))?;
                self.event(id, EventKind::Requested(request), "asked by its owner")?;
                Ok(Answer::Waits)
            }
            Ruling::Withdraw => {
                self.set_request(id, None)?;
                if let Some(pending) = pending {
                    self.event(id, EventKind::Withdrawn(pending), "asked by its owner")?;
                }
                Ok(Answer::Withdrew)
            }
            // One that still waits may have been left by a server that is gone.
            Ruling::Already if pending == Some(request) => Ok(Answer::Waits),
            Ruling::Already => Ok(Answer::Already),
            Ruling::Refuse => Err(QueueError::RequestRefused {
                id,
                name,
                request,
                state,
                pending,
            }),
        }
    }

    /// Carries out what was asked of tasks that are not training, in order of arrival.
    pub(crate) fn carry_out_waiting(&self) -> Result<Vec<(TaskId, TaskState)>, QueueError> {
        let mut carried = Vec::new();
        for id in self.ids("requested IS NOT NULL AND state != 'running'")? {
            let standing = self.standing(id)?;
            let Some(request) = standing.requested else {
                continue;
            };
            if let Some(to) = request.destination(standing.state, standing.begun) {
                self.enter(id, to, &format!("asked to {request}"))?;
                if standing.state == TaskState::Failed {
                    self.back_to_saved(id)?;
                }
                carried.push((id, to));
            } else {
                self.set_request(id, None)?;
            }
        }
        Ok(carried)
    }
}
