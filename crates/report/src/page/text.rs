//! Shortens the texts of a run for a page.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::answers::Answered;

/// Bytes of all answers and their prompts.
const ANSWERS: usize = 200_000;
/// Bytes of the configuration.
const CONFIG: usize = 200_000;

/// The first elements of a list, and their total number.
#[derive(Debug, Serialize)]
pub(crate) struct Truncated<T> {
    pub(crate) shown: Vec<T>,
    pub(crate) all: usize,
}

impl<T: Clone> Truncated<T> {
    /// The last `most` elements, since the latest events show the state of a run.
    pub(crate) fn last(all: &[T], most: usize) -> Self {
        Self {
            shown: all[all.len().saturating_sub(most)..].to_vec(),
            all: all.len(),
        }
    }
}

/// The answers that fit, by adapter.
pub(crate) fn answers(all: &BTreeMap<String, Vec<Answered>>) -> Truncated<(&str, &Answered)> {
    let mut room = ANSWERS;
    let each = all.iter().flat_map(|(name, answers)| {
        answers
            .iter()
            .map(move |answered| (name.as_str(), answered))
    });
    let shown = each.clone().take_while(|(_, answered)| {
        let texts = [
            &answered.prompt,
            &answered.reference,
            &answered.before,
            &answered.after,
        ];
        let bytes: usize = texts.iter().map(|text| text.len()).sum();
        let fits = bytes <= room;
        room = room.saturating_sub(bytes);
        fits
    });
    Truncated {
        shown: shown.collect(),
        all: each.count(),
    }
}

/// The lines of the configuration that fit.
pub(crate) fn config(text: &str) -> (&str, bool) {
    if text.len() <= CONFIG {
        return (text, true);
    }
    let end = text.floor_char_boundary(CONFIG);
    let end = text[..end].rfind('\n').unwrap_or(end);
    (&text[..end], false)
}
