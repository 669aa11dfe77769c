//! The HTTP interface over a service that answers as told.

mod client;
mod errors;
mod fake;
mod keys;
mod limits;
mod page;
mod shapes;
mod streams;
mod tasks;
