//! Errors of the queue in OpenAI's terms.

use axum::http::StatusCode;
use loraloom_scheduler::SchedulerError;
use loraloom_trainer::TrainerError;

use super::error::Parts;
use crate::{ServerError, queue::QueueError};

pub(super) fn parts(error: &ServerError) -> Parts<'static> {
    let bad = |code| Parts::invalid(StatusCode::BAD_REQUEST, None, code);
    match error {
        ServerError::Queue(error) => of_queue(error),
        ServerError::NeverFits { .. }
        | ServerError::Trainer(
            TrainerError::DoesNotFit(_)
            | TrainerError::OutOfMemory { .. }
            | TrainerError::Scheduler(SchedulerError::NeverFits { .. }),
        ) => bad(Some("does_not_fit")),
        ServerError::NameUsed { .. } => conflict("name_taken"),
        ServerError::Unserved { .. } => conflict("refused_by_state"),
        // A submission reads data, and its mistakes are errors of the trainer.
        ServerError::Config(_)
        | ServerError::Trainer(_)
        | ServerError::OtherModel { .. }
        | ServerError::Path { .. }
        | ServerError::Clone { .. }
        | ServerError::TwoNames { .. } => bad(None),
        ServerError::Scheduler(_)
        | ServerError::NotServed { .. }
        | ServerError::NoConfiguration { .. }
        | ServerError::CheckpointsGone { .. }
        | ServerError::QueueGone { .. }
        | ServerError::Record { .. } => Parts::server(StatusCode::INTERNAL_SERVER_ERROR),
    }
}

fn of_queue(error: &QueueError) -> Parts<'static> {
    match error {
        QueueError::UnknownTask(_)
        | QueueError::UnknownName(_)
        | QueueError::UnknownNumber { .. } => {
            Parts::invalid(StatusCode::NOT_FOUND, None, Some("task_not_found"))
        }
        QueueError::NameTaken { .. } => conflict("name_taken"),
        QueueError::SweepTaken { .. } => conflict("sweep_taken"),
        QueueError::KeyTaken { .. } | QueueError::KeyOfOthers { .. } => conflict("key_taken"),
        QueueError::RequestRefused { .. } | QueueError::IllegalTransition { .. } => {
            conflict("refused_by_state")
        }
        QueueError::Invalid { .. } => Parts::invalid(StatusCode::BAD_REQUEST, None, None),
        QueueError::Busy { .. } => Parts::server(StatusCode::SERVICE_UNAVAILABLE),
        _ => Parts::server(StatusCode::INTERNAL_SERVER_ERROR),
    }
}

fn conflict(code: &'static str) -> Parts<'static> {
    Parts::invalid(StatusCode::CONFLICT, None, Some(code))
}
