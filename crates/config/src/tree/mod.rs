//! A configuration as written: values of any format, each with its place, and a deserializer for them.

mod de;
mod de_error;
mod node;
mod read;
mod words;
mod yaml;

pub(crate) use node::{Key, Node, Value};
pub(crate) use read::{read_file, read_fragment, read_json_text, read_text};
