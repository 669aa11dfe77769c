use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{Error, SeqAccess, Unexpected, Visitor},
};

use super::{detokenizer::Decoder, error::HttpError};

/// The prompts of a completion. Reading them by hand keeps 4 bytes a token; Serde's untagged enums hold 32.
#[derive(Debug, PartialEq)]
pub(crate) enum Prompt {
    Texts(Vec<String>),
    Tokens(Vec<Vec<u32>>),
}

impl Prompt {
    /// Number of prompts.
    pub(crate) fn count(&self) -> usize {
        match self {
            Self::Texts(texts) => texts.len(),
            Self::Tokens(prompts) => prompts.len(),
        }
    }

    /// Tokens of each prompt. Texts begin with BOS if the tokenizer has one, tokens are as given.
    ///
    /// # Errors
    /// An unknown token; a text that the tokenizer has no tokens for.
    pub(crate) fn encode(self, decoder: &Decoder) -> Result<Vec<Vec<u32>>, HttpError> {
        let tokenizer = &decoder.tokenizer;
        match self {
            Self::Texts(texts) => {
                let encode = |text: &String| {
                    let refused = |error: loraloom_data::DataError| {
                        HttpError::field("prompt", error.to_string())
                    };
                    tokenizer.encode_prompt(text).map_err(refused)
                };
                texts.iter().map(encode).collect()
            }
            Self::Tokens(prompts) => {
                let size = tokenizer.vocab_size();
                let mut tokens = prompts.iter().flatten();
                if let Some(id) = tokens.find(|id| **id as usize >= size) {
                    let reason = format!("there is no token {id}: the vocabulary has {size}");
                    return Err(HttpError::field("prompt", reason));
                }
                Ok(prompts)
            }
        }
    }
}

/// An element of the list.
enum Item {
    Text(String),
    Token(u32),
    Tokens(Vec<u32>),
}

struct AnItem;

impl<'de> Visitor<'de> for AnItem {
    type Value = Item;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a string, a token or a list of tokens")
    }

    fn visit_str<E>(self, text: &str) -> Result<Item, E> {
        Ok(Item::Text(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<Item, E> {
        Ok(Item::Text(text))
    }

    fn visit_u64<E: Error>(self, token: u64) -> Result<Item, E> {
        let invalid = |_| E::invalid_value(Unexpected::Unsigned(token), &self);
        u32::try_from(token).map(Item::Token).map_err(invalid)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Item, A::Error> {
        let mut tokens = Vec::new();
        while let Some(token) = list.next_element()? {
            tokens.push(token);
        }
        Ok(Item::Tokens(tokens))
    }
}

impl<'de> Deserialize<'de> for Item {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnItem)
    }
}

struct Prompts;

impl<'de> Visitor<'de> for Prompts {
    type Value = Prompt;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a string, a list of strings, of tokens, or of lists of tokens")
    }

    fn visit_str<E>(self, text: &str) -> Result<Prompt, E> {
        Ok(Prompt::Texts(vec![text.to_owned()]))
    }

    fn visit_string<E>(self, text: String) -> Result<Prompt, E> {
        Ok(Prompt::Texts(vec![text]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Prompt, A::Error> {
        let mixed = || A::Error::custom("the list mixes strings, tokens or lists of tokens");
        match list.next_element()? {
            None => Err(A::Error::custom("there is no prompt in the list")),
            Some(Item::Text(first)) => {
                let mut texts = vec![first];
                while let Some(item) = list.next_element()? {
                    match item {
                        Item::Text(text) => texts.push(text),
                        Item::Token(_) | Item::Tokens(_) => return Err(mixed()),
                    }
                }
                Ok(Prompt::Texts(texts))
            }
            Some(Item::Token(first)) => {
                let mut tokens = vec![first];
                while let Some(token) = list.next_element()? {
                    tokens.push(token);
                }
                Ok(Prompt::Tokens(vec![tokens]))
            }
            Some(Item::Tokens(first)) => {
                let mut prompts = vec![first];
                while let Some(tokens) = list.next_element()? {
                    prompts.push(tokens);
                }
                Ok(Prompt::Tokens(prompts))
            }
        }
    }
}

impl<'de> Deserialize<'de> for Prompt {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Prompts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_has_one_of_four_forms() {
        let read = |json: &str| serde_json::from_str::<Prompt>(json);
        let texts =
            |texts: &[&str]| Prompt::Texts(texts.iter().map(|&text| text.to_owned()).collect());
        assert_eq!(read(r#""a\n""#).unwrap(), texts(&["a\n"]));
        assert_eq!(read(r#"["a", "b"]"#).unwrap(), texts(&["a", "b"]));
        assert_eq!(read("[1, 2]").unwrap(), Prompt::Tokens(vec![vec![1, 2]]));
        assert_eq!(
            read("[[1], []]").unwrap(),
            Prompt::Tokens(vec![vec![1], vec![]])
        );
        for json in [
            "[]",
            "1",
            "[1, \"a\"]",
            "[\"a\", 1]",
            "[[1], 2]",
            "[-1]",
            "[4294967296]",
            "[1.5]",
            "{}",
        ] {
            assert!(read(json).is_err(), "{json}");
        }
    }
}
