//! Python's string methods that the engine lacks or implements differently.

use minijinja::{
    Error, ErrorKind, State, Value,
    value::{Tuple, from_args},
};
use minijinja_contrib::pycompat::unknown_method_callback;

/// Jinja's filter `indent`: `width` is a number of spaces or the indentation itself.
pub(crate) fn indent(
    text: &str,
    width: Option<&Value>,
    first: Option<bool>,
    blank: Option<bool>,
    options: minijinja::value::Kwargs,
) -> Result<String, Error> {
    let width = match width {
        Some(width) => Some(width.clone()),
        None => options.get("width")?,
    };
    let first = first.or(options.get("first")?).unwrap_or_default();
    let blank = blank.or(options.get("blank")?).unwrap_or_default();
    options.assert_all_used()?;
    let indent = match width {
        None => " ".repeat(4),
        Some(width) => match width.as_str() {
            Some(indent) => indent.to_owned(),
            None => " ".repeat(usize::try_from(width)?),
        },
    };
    let mut indented = String::new();
    for (index, line) in text.split('\n').enumerate() {
        if index > 0 {
            indented.push('\n');
        }
        let wanted = if index == 0 {
            first
        } else {
            blank || !line.is_empty()
        };
        if wanted {
            indented.push_str(&indent);
        }
        indented.push_str(line);
    }
    Ok(indented)
}

/// Methods of Python's strings, lists and dictionaries.
pub(crate) fn method(
    state: &mut State,
    value: &Value,
    method: &str,
    arguments: &[Value],
) -> Result<Value, Error> {
    let known = unknown_method_callback(state, value, method, arguments);
    match (&known, value.as_str()) {
        (Err(error), Some(text)) if error.kind() == ErrorKind::UnknownMethod => {
            string_method(text, method, arguments)
        }
        _ => known,
    }
}

fn string_method(text: &str, method: &str, arguments: &[Value]) -> Result<Value, Error> {
    let is_known = matches!(
        method,
        "removeprefix" | "removesuffix" | "partition" | "rpartition"
    );
    if !is_known {
        return Err(ErrorKind::UnknownMethod.into());
    }
    let (part,): (&str,) = from_args(arguments)?;
    let three = |parts: [&str; 3]| Value::from(Tuple::from(parts.map(Value::from)));
    Ok(match method {
        "removeprefix" => text.strip_prefix(part).unwrap_or(text).into(),
        "removesuffix" => text.strip_suffix(part).unwrap_or(text).into(),
        "partition" => three(match text.split_once(part) {
            Some((before, after)) => [before, part, after],
            None => [text, "", ""],
        }),
        _ => three(match text.rsplit_once(part) {
            Some((before, after)) => [before, part, after],
            None => ["", "", text],
        }),
    })
}
