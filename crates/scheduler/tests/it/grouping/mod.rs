//! What grouping promises, against slow references that know nothing of how it is done.

mod examples;
mod invariants;
mod optimum;
mod reference;
mod speed;
mod support;
