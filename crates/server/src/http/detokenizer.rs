use std::sync::Arc;

use loraloom_data::{DataError, Tokenizer};

/// Stands for bytes that are not UTF-8, also for those of an incomplete character.
const REPLACEMENT: char = '\u{FFFD}';

/// A tokenizer that decodes parts of a text.
#[derive(Debug)]
pub(crate) struct Decoder {
    pub(crate) tokenizer: Tokenizer,
    /// A token of a byte that no character begins with.
    invalid: Option<u32>,
}

impl Decoder {
    /// Searches the vocabulary for a byte, which is among the first tokens of most.
    pub(crate) fn new(tokenizer: Tokenizer) -> Self {
        let is_invalid = |id: &u32| {
            let decode = |ids: &[u32]| tokenizer.decode(ids, true).ok();
            // A token of U+FFFD itself, which is valid, comes after the bytes in a vocabulary.
            decode(&[*id]).is_some_and(|text| text.chars().eq([REPLACEMENT]))
        };
        let ids = 0..u32::try_from(tokenizer.vocab_size()).unwrap_or(u32::MAX);
        let invalid = ids.into_iter().find(is_invalid);
        Self { tokenizer, invalid }
    }

    /// The text of a token after another. A decoder may drop the space before the first token of a text, so the token
    /// follows itself.
    pub(crate) fn token(&self, id: u32) -> Result<String, DataError> {
        let once = self.tokenizer.decode(&[id], false)?;
        let twice = self.tokenizer.decode(&[id, id], false)?;
        let second = twice.strip_prefix(&once).map(str::to_owned);
        Ok(second.unwrap_or(once))
    }

    /// True if the token never adds text, as special tokens.
    fn is_silent(&self, id: u32) -> Result<bool, DataError> {
        Ok(self.tokenizer.decode(&[id, id], true)?.is_empty())
    }

    /// True if no further token changes `text`, which is that of `ids`.
    fn is_final(&self, ids: &[u32], text: &str) -> Result<bool, DataError> {
        if text.ends_with(REPLACEMENT) {
            return Ok(false);
        }
        // Decoders of byte tokens replace a whole run of them if one is invalid.
        let Some(invalid) = self.invalid else {
            return Ok(true);
        };
        let more: Vec<u32> = ids.iter().copied().chain([invalid]).collect();
        Ok(self.tokenizer.decode(&more, true)?.starts_with(text))
    }
}

/// Decodes an answer token by token. The texts it returns, joined, are the text of all tokens decoded at once.
#[derive(Debug)]
pub(crate) struct Detokenizer {
    decoder: Arc<Decoder>,
    /// The last tokens with text, from a place where the text before could not change.
    window: Vec<u32>,
    /// Tokens of the window whose text was returned. They decide whether a space follows.
    returned: usize,
    /// Their text.
    before: String,
    /// The window's length that is decoded next. Without it, a long run of invalid bytes is decoded once a token.
    next: usize,
}

impl Detokenizer {
    /// At the start of an answer.
    pub(crate) fn new(decoder: Arc<Decoder>) -> Self {
        Self {
            decoder,
            window: Vec::new(),
            returned: 0,
            before: String::new(),
            next: 0,
        }
    }

    /// The text that a token adds and that no later token changes.
    ///
    /// # Errors
    /// If the tokenizer's decoder fails.
    pub(crate) fn push(&mut self, id: u32) -> Result<String, DataError> {
        if self.decoder.is_silent(id)? {
            return Ok(String::new());
        }
        self.window.push(id);
        if self.window.len() < self.next {
            return Ok(String::new());
        }
        let text = self.decoder.tokenizer.decode(&self.window, true)?;
        let added = match text.strip_prefix(&self.before) {
            Some(added) if self.decoder.is_final(&self.window, &text)? => added,
            _ => {
                let length = self.window.len();
                self.next = length + 1 + length / 16;
                return Ok(String::new());
            }
        };
        // Tokens whose own text is empty do not show whether they take the space of the next.
        if !added.is_empty() {
            self.window.drain(..self.returned);
            self.returned = self.window.len();
            self.before = self.decoder.tokenizer.decode(&self.window, true)?;
        }
        self.next = 0;
        Ok(added.to_owned())
    }

    /// The text that is left at the end of the answer.
    ///
    /// # Errors
    /// If the tokenizer's decoder fails.
    pub(crate) fn finish(&mut self) -> Result<String, DataError> {
        let text = self.decoder.tokenizer.decode(&self.window, true)?;
        let added = text.get(self.before.len()..).unwrap_or_default().to_owned();
        self.window.clear();
        self.before.clear();
        self.returned = 0;
        Ok(added)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use proptest::prelude::*;

    use super::*;

    fn tiny() -> Arc<Decoder> {
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../assets/tiny-llama");
        Arc::new(Decoder::new(Tokenizer::load(directory).unwrap()))
    }

    /// Words with spaces before them, and bytes as `<0x41>`: the decoder of Llama 2.
    fn sentencepiece() -> Arc<Decoder> {
        let mut vocabulary = serde_json::Map::new();
        let words = ["<unk>", "<s>", "</s>"].map(str::to_owned);
        let bytes = (0..256).map(|byte| format!("<0x{byte:02X}>"));
        let pieces = ["▁", "▁a", "a", "é", "▁▁", ".", "\u{FFFD}"].map(str::to_owned);
        for (id, token) in words.into_iter().chain(bytes).chain(pieces).enumerate() {
            vocabulary.insert(token, id.into());
        }
        let special = |id: u32, content: &str| {
            serde_json::json!({
                "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true,
            })
        };
        let file = serde_json::json!({
            "version": "1.0", "truncation": null, "padding": null, "normalizer": null,
            "pre_tokenizer": null, "post_processor": null,
            "added_tokens": [special(1, "<s>"), special(2, "</s>")],
            "decoder": {"type": "Sequence", "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"}, {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ]},
            "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>",
                "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": true,
                "byte_fallback": true, "ignore_merges": false, "vocab": vocabulary, "merges": []},
        });
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("tokenizer.json"), file.to_string()).unwrap();
        Arc::new(Decoder::new(Tokenizer::load(directory.path()).unwrap()))
    }

    /// The text after each token and after the end.
    fn pieces(decoder: &Arc<Decoder>, ids: &[u32]) -> Vec<String> {
        let mut detokenizer = Detokenizer::new(Arc::clone(decoder));
        let mut pieces: Vec<String> = ids
            .iter()
            .map(|id| detokenizer.push(*id).unwrap())
            .collect();
        pieces.push(detokenizer.finish().unwrap());
        pieces
    }

    fn check(decoder: &Arc<Decoder>, ids: &[u32]) {
        let whole = decoder.tokenizer.decode(ids, true).unwrap();
        assert_eq!(pieces(decoder, ids).concat(), whole, "{ids:?}");
    }

    #[test]
    fn characters_of_several_tokens_come_whole() {
        let decoder = tiny();
        let ids = decoder.tokenizer.encode("a 🦀 é").unwrap();
        let pieces = pieces(&decoder, &ids);
        assert_eq!(pieces.concat(), "a 🦀 é");
        for piece in &pieces {
            assert!(!piece.contains(REPLACEMENT), "{pieces:?}");
        }
        assert_eq!(pieces.last().unwrap(), "");
    }

    #[test]
    fn an_incomplete_character_is_replaced_at_the_end() {
        let decoder = tiny();
        let mut ids = decoder.tokenizer.encode("b🦀").unwrap();
        ids.pop();
        let pieces = pieces(&decoder, &ids);
        assert_eq!(pieces[..ids.len()].concat(), "b");
        assert_eq!(pieces.concat(), "b\u{FFFD}");
    }

    #[test]
    fn special_tokens_have_no_text() {
        let decoder = tiny();
        let ids = decoder.tokenizer.encode("<s>yes</s><|user|> no").unwrap();
        assert_eq!(pieces(&decoder, &ids).concat(), "yes no");
        assert_eq!(decoder.token(1).unwrap(), "</s>");
    }

    #[test]
    fn spaces_stay_between_words() {
        let decoder = sentencepiece();
        let id = |token: &str| {
            let found = (0..300).find(|id| decoder.token(*id).unwrap() == token);
            found.unwrap()
        };
        let (a, space) = (id(" a"), id(" "));
        assert_eq!(
            pieces(&decoder, &[a, a, 2, a, space, a]).concat(),
            "a a a  a"
        );
        assert_eq!(pieces(&decoder, &[a, a])[1], " a");
    }

    #[test]
    fn valid_bytes_wait_for_the_bytes_after_them() {
        let decoder = sentencepiece();
        let byte = |byte: u32| 3 + byte;
        // "AB" in bytes, then a byte that replaces them, too.
        let ids = [260, byte(0x41), byte(0x42), byte(0xFF), 260];
        assert_eq!(
            pieces(&decoder, &ids),
            ["a", "", "", "", "\u{FFFD}\u{FFFD}\u{FFFD} a", ""]
        );
    }

    #[test]
    fn long_invalid_runs_are_not_decoded_once_a_token() {
        for decoder in [tiny(), sentencepiece()] {
            let invalid = decoder.invalid.unwrap();
            let mut ids = vec![invalid; 20_000];
            ids.push(260);
            let start = std::time::Instant::now();
            check(&decoder, &ids);
            assert!(start.elapsed().as_secs() < 20);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

        #[test]
        fn any_tokens_are_decoded_as_at_once(ids in prop::collection::vec(0u32..1280, 0..60)) {
            check(&tiny_once(), &ids);
        }

        #[test]
        fn any_bytes_are_decoded_as_at_once(ids in prop::collection::vec(0u32..262, 0..40)) {
            check(&tiny_once(), &ids);
        }

        #[test]
        fn any_text_is_decoded_as_at_once(text in "\\PC{0,40}") {
            let decoder = tiny_once();
            check(&decoder, &decoder.tokenizer.encode(&text).unwrap());
        }

        #[test]
        fn words_and_bytes_are_decoded_as_at_once(
            ids in prop::collection::vec(prop_oneof![0u32..3, 3u32..266, 100u32..220, 259u32..266], 0..40)
        ) {
            static DECODER: std::sync::OnceLock<Arc<Decoder>> = std::sync::OnceLock::new();
            check(DECODER.get_or_init(sentencepiece), &ids);
        }
    }

    fn tiny_once() -> Arc<Decoder> {
        static DECODER: std::sync::OnceLock<Arc<Decoder>> = std::sync::OnceLock::new();
        Arc::clone(DECODER.get_or_init(tiny))
    }
}
