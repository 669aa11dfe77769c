//! What the scheduler's policies promise.

mod aging;
mod backfill;
mod examples;
mod fair;
mod fifo;
mod happenings;
mod reference;
mod restart;
mod room;
mod speed;
mod world;
