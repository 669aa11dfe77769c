//! BOS, EOS and other special tokens, from the files of a model directory that may name them.

use std::{collections::BTreeMap, fs, io, path::Path};

use serde_json::Value;

use crate::{error::DataError, reader::cannot_read};

const CONFIG: &str = "tokenizer_config.json";
const MAP: &str = "special_tokens_map.json";
const MODEL: [&str; 2] = ["generation_config.json", "config.json"];
const CHAT_TEMPLATE: &str = "chat_template.jinja";

/// Contents of the JSON files next to `tokenizer.json`.
#[derive(Debug)]
pub(crate) struct ModelFiles<'a> {
    directory: &'a Path,
    tokenizer_config: Option<Value>,
    special_tokens_map: Option<Value>,
    model: [Option<Value>; 2],
}

impl<'a> ModelFiles<'a> {
    /// Reads the files that exist.
    pub(crate) fn read(directory: &'a Path) -> Result<Self, DataError> {
        let [generation, config] = MODEL;
        Ok(Self {
            directory,
            tokenizer_config: read_json(&directory.join(CONFIG))?,
            special_tokens_map: read_json(&directory.join(MAP))?,
            model: [
                read_json(&directory.join(generation))?,
                read_json(&directory.join(config))?,
            ],
        })
    }

    /// The token under `key`, such as `bos_token`, and its id by `id_of`.
    ///
    /// A null in `tokenizer_config.json` means no such token.
    pub(crate) fn token(
        &self,
        key: &'static str,
        id_of: impl Fn(&str) -> Option<u32>,
    ) -> Result<Option<(String, u32)>, DataError> {
        let files = [
            (&self.tokenizer_config, CONFIG),
            (&self.special_tokens_map, MAP),
        ];
        for (file, name) in files {
            let Some(value) = file.as_ref().and_then(|file| file.get(key)) else {
                continue;
            };
            let token = match value {
                Value::Null => return Ok(None),
                Value::String(token) => token,
                Value::Object(object) if object.get("content").is_some_and(Value::is_string) => {
                    object["content"].as_str().unwrap_or_default()
                }
                _ => {
                    return Err(DataError::MalformedModelFile {
                        path: self.directory.join(name),
                        reason: format!("`{key}` is neither a string nor an object with `content`"),
                    });
                }
            };
            let id = id_of(token).ok_or_else(|| DataError::UnknownSpecialToken {
                path: self.directory.join(name),
                key,
                token: token.to_owned(),
            })?;
            return Ok(Some((token.to_owned(), id)));
        }
        Ok(None)
    }

    /// True if any file defines the tokenizer's special tokens.
    pub(crate) fn name_tokens(&self) -> bool {
        self.tokenizer_config.is_some() || self.special_tokens_map.is_some()
    }

    /// `add_bos_token: false` of the tokenizer: the model was trained without one.
    pub(crate) fn forbid_bos(&self) -> bool {
        let config = self.tokenizer_config.as_ref();
        config.and_then(|config| config.get("add_bos_token")) == Some(&Value::Bool(false))
    }

    /// Ids under `key`, such as `eos_token_id`, of the model's own files: one or a list.
    pub(crate) fn ids(&self, key: &str) -> Vec<u32> {
        let values = self.model.iter().flatten().filter_map(|file| file.get(key));
        values
            .flat_map(|value| match value {
                Value::Array(ids) => ids.iter().collect(),
                id => vec![id],
            })
            .filter_map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok()))
            .collect()
    }

    /// The chat template and the file it is in: a file of its own, or the configuration's `default`.
    pub(crate) fn chat_template(&self) -> Result<Option<(String, String)>, DataError> {
        let path = self.directory.join(CHAT_TEMPLATE);
        if let Some(source) = read_optional(&path)? {
            return Ok(Some((source, path.display().to_string())));
        }
        let origin = || self.directory.join(CONFIG);
        let config = self.tokenizer_config.as_ref();
        let source = match config.and_then(|config| config.get("chat_template")) {
            None | Some(Value::Null) => return Ok(None),
            Some(Value::String(source)) => Some(source.clone()),
            Some(Value::Array(templates)) => named_template(templates),
            Some(_) => None,
        };
        match source {
            Some(source) => Ok(Some((source, origin().display().to_string()))),
            None => Err(DataError::MalformedModelFile {
                path: origin(),
                reason: "`chat_template` is neither a string nor a list with one named `default`"
                    .to_owned(),
            }),
        }
    }
}

/// The template named `default`, or the only one.
fn named_template(templates: &[Value]) -> Option<String> {
    let named = templates
        .iter()
        .filter_map(|entry| {
            Some((
                entry.get("name")?.as_str()?,
                entry.get("template")?.as_str()?,
            ))
        })
        .collect::<BTreeMap<_, _>>();
    let only = named.values().next().filter(|_| named.len() == 1);
    named
        .get("default")
        .or(only)
        .map(|&source| source.to_owned())
}

fn read_json(path: &Path) -> Result<Option<Value>, DataError> {
    let Some(text) = read_optional(path)? else {
        return Ok(None);
    };
    serde_json::from_str(&text)
        .map(Some)
        .map_err(|error| DataError::MalformedModelFile {
            path: path.to_owned(),
            reason: error.to_string(),
        })
}

fn read_optional(path: &Path) -> Result<Option<String>, DataError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(cannot_read(path, source)),
    }
}
