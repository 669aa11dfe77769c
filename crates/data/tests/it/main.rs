//! Rows to samples: readers, formats, chat templates, tokenizers.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod chats;
mod common;
mod compressed;
mod formats;
mod long_rows;
mod preferences;
mod readers;
mod remarks;
mod survey;
mod tokenizer;
mod transformers;
