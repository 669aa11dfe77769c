//! A server, and the commands that speak to it.

mod data;
mod owners;
mod reading;
mod training;
