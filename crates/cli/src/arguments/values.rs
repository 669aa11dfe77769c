//! Values that several commands take.

use std::{
    net::{SocketAddr, ToSocketAddrs},
    path::PathBuf,
};

use clap::builder::{PathBufValueParser, TypedValueParser};
use loraloom_config::{ColumnMap, DtypeChoice, MemoryLimit, ParseError};
use loraloom_hub::{Cache, Repository};
use loraloom_inference::is_of_run;

/// A model's directory: the path itself, or the snapshot of a model of the Hub in the Hugging Face cache.
pub(super) fn model_parser() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(resolve_model)
}

fn resolve_model(path: PathBuf) -> Result<PathBuf, String> {
    let repository = path.to_str().and_then(Repository::model);
    let Some(repository) = repository.filter(|_| !path.exists()) else {
        return Ok(path);
    };
    let cached = Cache::of_environment().map(|cache| cache.model(&repository));
    cached.and_then(Result::ok).ok_or_else(|| {
        let command = repository.download_command();
        format!(
            "neither a directory nor complete in the Hugging Face cache; if it is a model of the Hub, download it with \
             `{command}`"
        )
    })
}

pub(super) fn parse_positive(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(number) if number > 0.0 && f64::is_finite(number) => Ok(number),
        _ => Err("expected a number above 0".to_owned()),
    }
}

pub(super) fn parse_slowdown(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(number) if number >= 1.0 && f64::is_finite(number) => Ok(number),
        _ => Err("expected a number of at least 1".to_owned()),
    }
}

pub(super) fn parse_not_negative(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(number) if number >= 0.0 && f64::is_finite(number) => Ok(number),
        _ => Err("expected a number of at least 0".to_owned()),
    }
}

pub(super) fn parse_count(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("expected a whole number above 0".to_owned()),
        Ok(count) => Ok(count),
    }
}

/// A part of something, above 0 and at most 1.
pub(super) fn parse_share(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(share) if share > 0.0 && share <= 1.0 => Ok(share),
        _ => Err("expected a number above 0 and at most 1".to_owned()),
    }
}

pub(super) fn parse_index(text: &str) -> Result<usize, String> {
    let number = parse_whole(text)?;
    usize::try_from(number).map_err(|_| format!("expected at most {}", usize::MAX))
}

pub(super) fn parse_whole(text: &str) -> Result<u64, String> {
    let expected = "expected a whole number of at least 0";
    text.parse().map_err(|_| expected.to_owned())
}

pub(super) fn parse_probability(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(number) if number > 0.0 && number <= 1.0 => Ok(number),
        _ => Err("expected a number above 0 and at most 1".to_owned()),
    }
}

pub(super) fn parse_dtype(text: &str) -> Result<DtypeChoice, String> {
    match text {
        "auto" => Ok(DtypeChoice::Auto),
        "float32" => Ok(DtypeChoice::Float32),
        "bfloat16" => Ok(DtypeChoice::Bfloat16),
        "float16" => Ok(DtypeChoice::Float16),
        _ => Err("expected auto, float32, bfloat16 or float16".to_owned()),
    }
}

/// A name in a list, whose commas may have spaces after them.
pub(super) fn parse_name(text: &str) -> Result<String, String> {
    match text.trim() {
        "" => Err("expected the name or directory of an adapter".to_owned()),
        name => Ok(name.to_owned()),
    }
}

/// An address of a host, IPv4 before IPv6, and a port.
pub(super) fn parse_address(text: &str) -> Result<SocketAddr, String> {
    let found = text.to_socket_addrs().map(|addresses| {
        let addresses = addresses.into_iter();
        addresses.min_by_key(SocketAddr::is_ipv6)
    });
    let reason = match found {
        Ok(Some(address)) => return Ok(address),
        Ok(None) => "the host has no address".to_owned(),
        Err(error) => error.to_string(),
    };
    Err(format!(
        "expected HOST:PORT, such as 127.0.0.1:8000: {reason}"
    ))
}

/// A name and a directory.
pub(super) fn parse_named(text: &str) -> Result<(String, PathBuf), String> {
    match text.split_once('=') {
        Some((name, directory)) if !name.trim().is_empty() && !directory.is_empty() => {
            Ok((parse_served_name(name)?, PathBuf::from(directory)))
        }
        _ => Err(format!("expected NAME=DIR, found `{text}`")),
    }
}

/// A name of a model in requests.
pub(super) fn parse_served_name(text: &str) -> Result<String, String> {
    let name = text.trim();
    if name.is_empty() || name.chars().any(char::is_control) {
        return Err("expected a name without control characters".to_owned());
    }
    if is_of_run(name) {
        return Err(format!(
            "`@live`, `@best`, `@last` and `@STEP` name adapters of a run: choose another name than `{name}`"
        ));
    }
    Ok(name.to_owned())
}

/// A size, or a fraction of a device's memory.
pub(super) fn parse_memory(text: &str) -> Result<MemoryLimit, String> {
    match text.parse::<f64>() {
        Ok(fraction) if fraction > 0.0 && fraction <= 1.0 => Ok(MemoryLimit::Fraction(fraction)),
        Ok(_) => {
            Err("expected a fraction above 0 and at most 1, or a size such as 20GiB".to_owned())
        }
        Err(_) => text.parse().map_err(|error: ParseError| error.to_string()),
    }
}

/// An adapter and the factor of its product.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct WeightedAdapter {
    pub(crate) adapter: String,
    pub(crate) weight: f64,
}

pub(super) fn parse_weighted(text: &str) -> Result<WeightedAdapter, String> {
    let (adapter, weight) = match text.rsplit_once('*') {
        None => (text, 1.0),
        Some((adapter, weight)) => {
            let weight = weight.trim().parse().ok();
            let weight = weight.filter(|weight: &f64| weight.is_finite() && weight.abs() > 0.0);
            let expected = "expected a number other than 0 after `*`";
            (adapter, weight.ok_or(expected)?)
        }
    };
    let adapter = parse_name(adapter)?;
    Ok(WeightedAdapter { adapter, weight })
}

pub(super) fn parse_columns(text: &str) -> Result<ColumnMap, String> {
    let mut columns = serde_json::Map::new();
    for pair in text.split(',') {
        let Some((role, column)) = pair.split_once('=') else {
            return Err(format!("expected ROLE=COLUMN, found `{pair}`"));
        };
        let column = serde_json::Value::from(column.trim());
        if columns.insert(role.trim().to_owned(), column).is_some() {
            return Err(format!("`{}` is named twice", role.trim()));
        }
    }
    serde_json::from_value(columns.into()).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use loraloom_config::ColumnMap;

    use super::{WeightedAdapter, parse_columns, parse_weighted};

    #[test]
    fn a_weight_follows_a_star() {
        let parsed = |text| {
            let parsed = parse_weighted(text);
            parsed.map(|WeightedAdapter { adapter, weight }| (adapter, weight))
        };
        for (text, adapter, weight) in [
            ("a", "a", 1.0),
            ("a@last*0.5", "a@last", 0.5),
            ("runs/a b/last*-2", "runs/a b/last", -2.0),
            ("a * 1e-3", "a", 1e-3),
        ] {
            assert_eq!(parsed(text), Ok((adapter.to_owned(), weight)), "{text}");
        }
        for text in ["", "*2", "a*", "a*0", "a*x", "a*inf", "a*NaN"] {
            assert!(parsed(text).is_err(), "{text}");
        }
    }

    #[test]
    fn roles_are_those_of_a_configuration() {
        let expected = ColumnMap::PromptCompletion {
            prompt: "question".to_owned(),
            completion: "the answer".to_owned(),
        };
        let text = "prompt=question, completion=the answer";
        assert_eq!(parse_columns(text), Ok(expected));
        for text in ["", "prompt", "prompt=a", "prompt=a,text=b", "text=a,text=b"] {
            assert!(parse_columns(text).is_err(), "{text}");
        }
    }
}
