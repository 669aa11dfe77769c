//! Reads rows of files, renders them as text, and encodes text as tokens and loss masks.
//!
//! [`Dataset::load`] reads rows and detects their format, [`Dataset::encode`] makes [`Sample`]s with
//! a [`Tokenizer`], and [`RowOrder`] gives the samples of a step. The crate does not use tensors.
//!
//! # Semantics
//!
//! - A row is `[BOS if the tokenizer has one] + prompt + completion + [EOS]`; prompt and completion are
//!   tokenised separately. Completion and EOS are the targets; with `train_on_prompt`, and for plain
//!   text, all tokens but BOS. A template of whole rows may mark other targets with `{% generation %}`.
//! - A chat is one rendering of the chat template, tokenised at once. Its targets are what the
//!   template marks with `{% generation %}`, otherwise every assistant turn with its end-of-turn
//!   token, found by rendering prefixes of the chat, or the chat with a stand-in for the turn's text
//!   where prefixes differ; a template is refused if the text of a turn cannot be determined.
//! - A row with preferences is a prompt with two completions, two adjacent samples, or with one that is rated. Its
//!   targets are the completion's tokens. Of a chat these are the tokens behind those that the prompt, with the
//!   beginning of an answer, and all its completions share.
//! - Rows longer than `max_seq_len` keep their first tokens; rows left without a target are dropped
//!   and counted.

mod chat;
mod dataset;
mod encode;
mod error;
mod format;
mod generation;
mod jinja;
mod message;
mod order;
mod permutation;
mod preference;
mod preview;
mod prompts;
mod python_json;
mod python_text;
mod reader;
mod render;
mod row;
mod row_counts;
mod row_warnings;
mod sample;
mod samples;
mod special_tokens;
mod split;
mod survey;
mod tokenizer;
mod turns;
mod warning;

pub use chat::ChatTemplate;
pub use dataset::{Dataset, Encoded};
pub use error::{DataError, NoTarget, RowError, TemplateError};
pub use format::DetectedFormat;
pub use message::Message;
pub use order::RowOrder;
pub use preference::PreferenceFault;
pub use preview::{Preview, Shown, render_masked};
pub use prompts::Prompt;
pub use reader::{Compression, Reading, reading};
pub use row::{FilePlace, Location};
pub use sample::{EncodeReport, EncodedDataset, Sample};
pub use samples::Samples;
pub use split::Split;
pub use survey::{SplitSurvey, Survey};
pub use tokenizer::Tokenizer;
pub use warning::Warning;
