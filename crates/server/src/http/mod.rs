//! The OpenAI-compatible HTTP interface of the inference server: [`serve`] answers requests with a
//! [`Service`](loraloom_inference::Service).
//!
//! A request for text passes [`route`], [`fields`] and [`options`] check it, [`prompt`] makes its tokens, [`generate`]
//! asks the service, and [`choice`] makes text of the tokens that [`reply`] writes as JSON. [`tasks`] are the verbs of
//! the queue, beside a server that trains; [`page`] is for people.

mod adapters;
mod admin;
mod bucket;
mod choice;
mod connections;
mod curves;
mod detokenizer;
mod error;
mod fields;
mod generate;
mod key;
mod log_probs;
mod messages;
mod metrics;
mod models;
mod options;
mod page;
mod prompt;
mod queue_error;
mod read;
mod reply;
mod route;
mod served_queue;
mod state;
mod stop_strings;
mod submission;
mod tasks;
mod unsupported;

pub use connections::serve;
pub use key::{Keys, KeysError};
pub use state::{HttpLimits, HttpState};
