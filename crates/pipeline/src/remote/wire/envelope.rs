//! Commands as scalars of a custom operation, answers as a small tensor of fixed size.
//!
//! Scalars reach the worker's code without a copy to its device and back. An answer must be a tensor,
//! since an operation returns nothing else, and its size must be known in advance.

use burn::{backend::ir::ScalarIr, tensor::DType};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{Answer, Command};
use crate::remote::WorkerError;

/// Elements of an answer: the number of its bytes, then one byte in each.
pub(in crate::remote) const ANSWER: usize = 1024;

/// Type of an answer: supported by every device, exact for a byte.
pub(in crate::remote) const ANSWER_DTYPE: DType = DType::F32;

/// Longest text in an answer, in bytes.
const TEXT: usize = 800;

/// A command and its sender.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::remote) struct Envelope {
    /// The sender's lease; 0 before it has one.
    pub(in crate::remote) lease: u64,
    pub(in crate::remote) command: Command,
}

impl Envelope {
    pub(in crate::remote) fn to_scalars(&self) -> Result<Vec<ScalarIr>, WorkerError> {
        let bytes = encode(self)?;
        let words = bytes.chunks(8).map(|chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            ScalarIr::UInt(u64::from_le_bytes(word))
        });
        let length = ScalarIr::UInt(bytes.len() as u64);
        Ok(std::iter::once(length).chain(words).collect())
    }

    pub(in crate::remote) fn from_scalars(scalars: &[ScalarIr]) -> Result<Self, WorkerError> {
        let words: Option<Vec<u64>> = scalars
            .iter()
            .map(|scalar| match scalar {
                ScalarIr::UInt(word) => Some(*word),
                _ => None,
            })
            .collect();
        let words = words.ok_or_else(|| unreadable("it has elements that are not words"))?;
        let split = words.split_first();
        let (&length, words) = split.ok_or_else(|| unreadable("it is empty"))?;
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        if length > bytes.len() as u64 {
            return Err(unreadable("it is truncated"));
        }
        bytes.truncate(length as usize);
        decode(&bytes)
    }
}

/// An answer as elements; a text that does not fit is cut.
pub(in crate::remote) fn answer_to_elements(answer: &Answer) -> Vec<f32> {
    let mut bytes = encode(answer).unwrap_or_default();
    if 4 + bytes.len() > ANSWER {
        let mut short = answer.clone();
        short.shorten(TEXT);
        bytes = encode(&short).unwrap_or_default();
    }
    let length = (bytes.len() as u32).to_le_bytes();
    let mut elements: Vec<f32> = length.into_iter().chain(bytes).map(f32::from).collect();
    elements.resize(ANSWER, 0.0);
    elements
}

pub(in crate::remote) fn answer_from_elements(elements: &[f32]) -> Result<Answer, WorkerError> {
    let bytes: Vec<u8> = elements.iter().map(|&element| element as u8).collect();
    let split = bytes.split_first_chunk();
    let (length, bytes) = split.ok_or_else(|| unreadable("the answer is empty"))?;
    let bytes = bytes.get(..u32::from_le_bytes(*length) as usize);
    decode(bytes.ok_or_else(|| unreadable("the answer is truncated"))?)
}

fn encode(value: &impl Serialize) -> Result<Vec<u8>, WorkerError> {
    rmp_serde::to_vec(value).map_err(|error| WorkerError::failed(&error))
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, WorkerError> {
    rmp_serde::from_slice(bytes).map_err(|error| unreadable(&error.to_string()))
}

fn unreadable(problem: &str) -> WorkerError {
    WorkerError::because(format!("a message cannot be read: {problem}"))
}

#[cfg(test)]
mod tests {
    use burn::backend::ir::ScalarIr;

    use super::{ANSWER, Envelope, answer_from_elements, answer_to_elements};
    use crate::remote::{
        WorkerError,
        wire::{Answer, Command},
    };

    #[test]
    fn a_command_comes_out_as_it_went_in() {
        for slot in [0, 1, 300] {
            let command = Command::Remove {
                group: 70_000,
                slot,
            };
            let scalars = Envelope { lease: 9, command }
                .to_scalars()
                .expect("scalars");
            let envelope = Envelope::from_scalars(&scalars).expect("the command");
            assert_eq!(envelope.lease, 9);
            let Command::Remove { group, slot: found } = envelope.command else {
                panic!("another command");
            };
            assert_eq!((group, found), (70_000, slot));
        }
    }

    #[test]
    fn garbage_is_an_error() {
        for scalars in [
            vec![],
            vec![ScalarIr::Float(1.0)],
            vec![ScalarIr::UInt(u64::MAX), ScalarIr::UInt(1)],
            vec![ScalarIr::UInt(8), ScalarIr::UInt(u64::MAX)],
        ] {
            assert!(Envelope::from_scalars(&scalars).is_err(), "{scalars:?}");
        }
        assert!(answer_from_elements(&[]).is_err());
        assert!(answer_from_elements(&[255.0; 8]).is_err());
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        let reason = "ü".repeat(2000);
        let answer = Answer::Refused(WorkerError::Failed { reason });
        let elements = answer_to_elements(&answer);
        assert_eq!(elements.len(), ANSWER);
        let Ok(Answer::Refused(WorkerError::Failed { reason })) = answer_from_elements(&elements)
        else {
            panic!("another answer");
        };
        assert!(reason.len() > 700 && reason.starts_with("üü"), "{reason}");

        let long = || "ü".repeat(2000);
        let answer = Answer::Refused(WorkerError::Mismatch {
            what: long(),
            worker: long(),
            controller: long(),
        });
        let found = answer_from_elements(&answer_to_elements(&answer));
        let Ok(Answer::Refused(WorkerError::Mismatch { worker, .. })) = found else {
            panic!("another answer: {found:?}");
        };
        assert!(worker.len() > 200, "{worker}");
    }
}
