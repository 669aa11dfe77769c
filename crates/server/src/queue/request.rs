use std::fmt;

use loraloom_scheduler::{TaskId, TaskState};
use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ToSql, ToSqlOutput, ValueRef};

use super::{
    EventKind, Queue, QueueError, Result,
    lock::ServerLock,
    write::{TaskRowState, Write},
};

/// A request of a task's owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Request {
    /// Stop training and keep everything.
    Pause,
    /// Continue after a pause or a failure.
    Resume,
    /// End for good.
    Cancel,
}

/// The answer to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Pending; the server carries it out at the end of an iteration.
    Waits,
    /// No server runs, so it was carried out at once.
    CarriedOut,
    /// An earlier request that had not been carried out was withdrawn.
    Withdrew,
    /// The task is in that state already.
    Already,
}

impl Request {
    /// Every request.
    pub const ALL: [Self; 3] = [Self::Pause, Self::Resume, Self::Cancel];

    /// The request's name, in the file and in messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Cancel => "cancel",
        }
    }

    /// The request with this name.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|request| request.as_str() == word)
    }

    /// The answer to this request for a task in `state` with a `pending` request, before the server sees it;
    /// `None` if the state or a pending cancellation forbids it.
    fn answer(self, state: TaskState, pending: Option<Self>) -> Option<Answer> {
        Some(match (self, state, pending) {
            (Self::Cancel, TaskState::Cancelled, _)
            | (Self::Resume, TaskState::Failed, Some(Self::Resume)) => Answer::Already,
            (Self::Resume, TaskState::Failed, None) => Answer::Waits,
            (_, TaskState::Failed, Some(Self::Resume)) => Answer::Withdrew,
            _ if state.is_final() => return None,
            _ if pending == Some(self) => Answer::Already,
            (Self::Cancel, ..) => Answer::Waits,
            (.., Some(Self::Cancel)) => return None,
            (Self::Pause, TaskState::Paused, Some(_)) => Answer::Withdrew,
            (Self::Pause, TaskState::Paused, None) => Answer::Already,
            (Self::Pause, ..) | (Self::Resume, TaskState::Paused, _) => Answer::Waits,
            (Self::Resume, _, Some(_)) => Answer::Withdrew,
            (Self::Resume, _, None) => return None,
        })
    }

    /// The state that this request leads a task that is not training to; `None` if that is not a transition.
    ///
    /// A task that has begun continues from its checkpoint, so it resumes as parked.
    fn destination(self, state: TaskState, begun: bool) -> Option<TaskState> {
        let to = match self {
            Self::Pause => TaskState::Paused,
            Self::Cancel => TaskState::Cancelled,
            Self::Resume if begun => TaskState::Parked,
            Self::Resume => TaskState::Queued,
        };
        state.can_become(to).then_some(to)
    }

    /// True if a transition from `from` to `to` completes this request.
    pub(super) fn is_settled(self, from: TaskState, to: TaskState) -> bool {
        match self {
            _ if to.is_final() => true,
            Self::Pause => to == TaskState::Paused,
            Self::Resume => matches!(from, TaskState::Paused | TaskState::Failed),
            Self::Cancel => false,
        }
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl ToSql for Request {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(self.as_str().into())
    }
}

impl FromSql for Request {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        let word = value.as_str()?;
        Self::from_word(word)
            .ok_or_else(|| FromSqlError::Other(format!("`{word}` is not a request").into()))
    }
}

impl Queue {
    /// Asks for a task to be paused, resumed or cancelled.
    ///
    /// The server carries the request out at the end of an iteration. Without a server this process does,
    /// after parking tasks that a lost server left as running.
    ///
    /// # Errors
    /// [`QueueError::UnknownTask`]; [`QueueError::RequestRefused`] if the task has ended, has a pending
    /// cancellation, or is asked to resume and is neither paused nor failed; [`QueueError::NameTaken`] if a
    /// failed task is asked to resume and another live task has its name.
    pub fn request(&mut self, id: TaskId, request: Request) -> Result<Answer> {
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
    fn take_down(&self, id: TaskId, request: Request) -> Result<Answer> {
        let TaskRowState {
            name,
            state,
            requested: pending,
            ..
        } = self.row_state(id)?;
        if state == TaskState::Failed && request == Request::Resume {
            self.refuse_taken(&name)?;
        }
        let Some(answer) = request.answer(state, pending) else {
            return Err(QueueError::RequestRefused {
                id,
                name,
                request,
                state,
                pending,
            });
        };
        match (answer, pending) {
            (Answer::Waits, _) => {
                self.set_request(id, Some(request))?;
                self.event(id, EventKind::Requested(request), "asked by its owner")?;
            }
            (Answer::Withdrew, Some(pending)) => {
                self.set_request(id, None)?;
                self.event(id, EventKind::Withdrawn(pending), "asked by its owner")?;
            }
            // A lost server may have left the same request pending.
            (Answer::Already, Some(pending)) if pending == request => return Ok(Answer::Waits),
            _ => {}
        }
        Ok(answer)
    }

    /// Carries out the requests of tasks that are not training, in order of arrival.
    pub(super) fn carry_out_waiting(&self) -> Result<Vec<(TaskId, TaskState)>> {
        let mut carried = Vec::new();
        for id in self.ids("requested IS NOT NULL AND state != 'running'")? {
            let row_state = self.row_state(id)?;
            let Some(request) = row_state.requested else {
                continue;
            };
            if let Some(to) = request.destination(row_state.state, row_state.begun) {
                self.enter(id, to, &format!("asked to {request}"))?;
                if row_state.state == TaskState::Failed {
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
