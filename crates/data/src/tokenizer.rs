//! A Hugging Face tokenizer with its special tokens and chat template.

use std::{
    collections::BTreeMap,
    fmt,
    ops::Range,
    path::{Path, PathBuf},
};

use crate::{chat::ChatTemplate, error::DataError, special_tokens::ModelFiles};

/// Least bytes of a long text that are tokenised.
const PIECE: usize = 16 << 10;
/// Bytes tokenised for each wanted token: a few times the average.
const BYTES_OF_A_TOKEN: usize = 16;
/// Number of tokens that a piece must have beyond twice the wanted ones.
const MARGIN: usize = 1 << 10;

/// The first tokens of a text.
#[derive(Clone)]
pub(crate) struct Beginning {
    pub(crate) ids: Vec<u32>,
    /// Byte range of the text for each token, if requested.
    pub(crate) offsets: Vec<Range<usize>>,
    /// Estimated tokens of the part that was not tokenised, from the average of the tokenised part;
    /// 0 for a complete text.
    pub(crate) beyond: usize,
}

/// The tokenizer of a model directory.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    directory: PathBuf,
    bos: Option<u32>,
    pad: Option<u32>,
    eos_ids: Vec<u32>,
    special_tokens: BTreeMap<String, String>,
    chat_template: Option<ChatTemplate>,
}

impl Tokenizer {
    /// Loads `tokenizer.json` of `directory` and the settings of `tokenizer_config.json`, `special_tokens_map.json`,
    /// `generation_config.json`, `config.json` and `chat_template.jinja`, if they exist.
    ///
    /// The tokenizer's own files decide which tokens are special. The model's `bos_token_id` counts
    /// only where there are no such files, its `eos_token_id` where they name no EOS.
    ///
    /// # Errors
    /// A missing `tokenizer.json`, a file that does not parse, a special token that is not in the
    /// vocabulary, a chat template that does not compile.
    pub fn load(directory: impl AsRef<Path>) -> Result<Self, DataError> {
        let directory = directory.as_ref();
        let path = directory.join("tokenizer.json");
        if !path.is_file() {
            return Err(DataError::MissingModelFile(path));
        }
        let malformed = |error: tokenizers::Error| DataError::MalformedModelFile {
            path: path.clone(),
            reason: error.to_string(),
        };
        let mut inner = tokenizers::Tokenizer::from_file(&path).map_err(malformed)?;
        // Drop truncation and padding settings of the file; rows are cut elsewhere.
        inner.with_truncation(None).map_err(malformed)?;
        inner.with_padding(None);

        let files = ModelFiles::read(directory)?;
        let mut special_tokens = BTreeMap::new();
        let mut token = |key: &'static str| {
            let found = files.token(key, |token| inner.token_to_id(token))?;
            Ok(found.map(|(text, id)| {
                special_tokens.insert(key.to_owned(), text);
                id
            }))
        };
        let mut bos = token("bos_token")?;
        let pad = token("pad_token")?;
        token("unk_token")?;
        let mut eos_ids: Vec<u32> = token("eos_token")?.into_iter().collect();
        if bos.is_none() && !files.name_tokens() {
            bos = files.ids("bos_token_id").first().copied();
        }
        eos_ids.extend(files.ids("eos_token_id"));
        let mut seen = std::collections::HashSet::new();
        eos_ids.retain(|id| seen.insert(*id));
        for (key, id) in [("bos_token", bos), ("eos_token", eos_ids.first().copied())] {
            if let Some(text) = id.and_then(|id| inner.id_to_token(id)) {
                special_tokens.entry(key.to_owned()).or_insert(text);
            }
        }
        if files.forbid_bos() {
            bos = None;
        }

        let compile = |(source, origin): (String, String)| {
            ChatTemplate::new(&source, special_tokens.clone())
                .map_err(|source| DataError::Template { origin, source })
        };
        let chat_template = files.chat_template()?.map(compile).transpose()?;
        Ok(Self {
            inner,
            directory: directory.to_owned(),
            bos,
            pad,
            eos_ids,
            special_tokens,
            chat_template,
        })
    }

    /// Ids of `text`; nothing is added, but special tokens written in it are recognised.
    ///
    /// # Errors
    /// [`DataError::Tokenize`] if the tokenizer fails, for example without a token for unknown text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, DataError> {
        let encoding = self
            .inner
            .encode_fast(text, false)
            .map_err(|error| tokenize(&error))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The ids of a text, or of a long text at least the first `wanted`.
    pub(crate) fn beginning(&self, text: &str, wanted: usize) -> Result<Beginning, DataError> {
        self.begin(text, wanted, |text| Ok((self.encode(text)?, Vec::new())))
    }

    /// The same with the bytes of the text that each stands for.
    pub(crate) fn beginning_with_offsets(
        &self,
        text: &str,
        wanted: usize,
    ) -> Result<Beginning, DataError> {
        self.begin(text, wanted, |text| {
            let encoding = self.inner.encode(text, false);
            let encoding = encoding.map_err(|error| tokenize(&error))?;
            let offsets = encoding
                .get_offsets()
                .iter()
                .map(|&(start, end)| start..end);
            Ok((encoding.get_ids().to_vec(), offsets.collect()))
        })
    }

    /// Tokenises twice the wanted part of a long text, so that the cut at its end does not affect the tokens that are
    /// kept. BOS that the text begins with does not count.
    fn begin(
        &self,
        text: &str,
        wanted: usize,
        encode: impl Fn(&str) -> Result<(Vec<u32>, Vec<Range<usize>>), DataError>,
    ) -> Result<Beginning, DataError> {
        let mut bytes = PIECE + BYTES_OF_A_TOKEN * wanted;
        loop {
            let is_whole = text.len() <= 2 * bytes;
            let piece = if is_whole { text } else { piece(text, bytes) };
            let (ids, offsets) = encode(piece)?;
            let tokens = ids.len() - self.leading_bos(&ids);
            if is_whole || tokens > MARGIN + 2 * wanted {
                let rate = ids.len() as f64 / piece.len().max(1) as f64;
                return Ok(Beginning {
                    ids,
                    offsets,
                    beyond: (rate * (text.len() - piece.len()) as f64) as usize,
                });
            }
            bytes *= 4;
        }
    }

    /// Ids of a prompt to continue: BOS once if the tokenizer has one, then `text`.
    ///
    /// # Errors
    /// See [`encode`](Self::encode).
    pub fn encode_prompt(&self, text: &str) -> Result<Vec<u32>, DataError> {
        let ids = self.encode(text)?;
        let rest = ids.iter().skip(self.leading_bos(&ids)).copied();
        Ok(self.bos.into_iter().chain(rest).collect())
    }

    /// Tokens at the start of `ids` that are BOS.
    pub(crate) fn leading_bos(&self, ids: &[u32]) -> usize {
        ids.iter().take_while(|id| Some(**id) == self.bos).count()
    }

    /// Places of BOS after the first token, unless the token that begins a text also ends one.
    pub(crate) fn extra_bos(&self, ids: &[u32]) -> impl Iterator<Item = usize> {
        let bos = self.bos.filter(|bos| !self.eos_ids.contains(bos));
        let later = ids.iter().enumerate().skip(1);
        later.filter_map(move |(at, id)| (Some(*id) == bos).then_some(at))
    }

    /// The text of `ids`, with or without special tokens.
    ///
    /// # Errors
    /// [`DataError::Tokenize`] if the tokenizer's decoder fails.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String, DataError> {
        self.inner
            .decode(ids, skip_special)
            .map_err(|error| tokenize(&error))
    }

    /// The bytes of a token that is a part of a character: one such as `<0xE2>`, or in GPT-2's letters for bytes. `None` for
    /// other tokens.
    pub fn part_of_character(&self, id: u32) -> Option<Vec<u8>> {
        let piece = self.inner.id_to_token(id)?;
        let digits = piece
            .strip_prefix("<0x")
            .and_then(|rest| rest.strip_suffix('>'));
        let bytes = match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => vec![byte],
            None => piece.chars().map(byte_of_letter).collect::<Option<_>>()?,
        };
        std::str::from_utf8(&bytes).is_err().then_some(bytes)
    }

    /// The token that begins every row; `None` also if the tokenizer says `add_bos_token: false`.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// The token that ends a completion.
    pub fn eos(&self) -> Option<u32> {
        self.eos_ids.first().copied()
    }

    /// All tokens that end a generation: the tokenizer's EOS first, then the model's.
    pub fn eos_ids(&self) -> &[u32] {
        &self.eos_ids
    }

    /// The padding token, or EOS without one.
    pub fn pad(&self) -> Option<u32> {
        self.pad.or(self.eos())
    }

    /// Number of ids, added tokens included.
    pub fn vocab_size(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    /// The chat template, if the model directory has one.
    pub fn chat_template(&self) -> Option<&ChatTemplate> {
        self.chat_template.as_ref()
    }

    /// The model directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// `bos_token` and the like by name, as templates see them.
    pub(crate) fn special_tokens(&self) -> &BTreeMap<String, String> {
        &self.special_tokens
    }
}

/// About the first `bytes` of a text: up to the end of a word, if there is one in their second half.
fn piece(text: &str, bytes: usize) -> &str {
    let piece = &text[..text.floor_char_boundary(bytes)];
    let is_end = |(at, character): &(usize, char)| {
        character.is_whitespace() && !text[..*at].ends_with(char::is_whitespace)
    };
    let tail = piece.char_indices().rev();
    let mut ends = tail.take_while(|(at, _)| *at > bytes / 2).filter(is_end);
    ends.next().map_or(piece, |(at, _)| &text[..at])
}

/// The byte that a letter of GPT-2's vocabulary stands for: itself if it is printable in Latin-1; the others, in order, are
/// the letters from U+0100 on.
fn byte_of_letter(letter: char) -> Option<u8> {
    let is_printable = |byte: &u8| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let code = u32::from(letter);
    if let Ok(byte) = u8::try_from(code) {
        return Some(byte).filter(is_printable);
    }
    let mut others = (0..=u8::MAX).filter(|byte| !is_printable(byte));
    others.nth(code as usize - 256)
}

fn tokenize(error: &tokenizers::Error) -> DataError {
    DataError::Tokenize(error.to_string())
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Tokenizer")
            .field("directory", &self.directory)
            .field("vocab_size", &self.vocab_size())
            .field("special_tokens", &self.special_tokens)
            .finish_non_exhaustive()
    }
}
