//! Rewrites messages of parsers in the user's words.

/// Characters of a string that a message shows.
const MOST_SHOWN: usize = 60;

/// A part of a parser's message, and its translation for the user.
const WORDS: [(&str, &str); 40] = [
    (
        "budget breached: Depth",
        "lists and mappings are nested too deeply",
    ),
    (
        "recursion limit exceeded",
        "lists and mappings are nested too deeply",
    ),
    (
        "budget breached",
        "too many values; aliases (`*name`) of aliases multiply them",
    ),
    (
        "alias expansion limit",
        "too many values; aliases (`*name`) of aliases multiply them",
    ),
    (
        "alias replay",
        "too many values; aliases (`*name`) of aliases multiply them",
    ),
    (
        "recursive references",
        "an alias (`*name`) refers to a value that contains it",
    ),
    (
        "unknown anchor",
        "no anchor (`&name`) precedes the alias (`*name`); text that begins with `*` needs quotes",
    ),
    (
        "anchor or alias",
        "text that begins with `*` or `&` needs quotes",
    ),
    (
        "cannot deserialize null into string",
        "a key is empty, `~` or `null`; it must be a word",
    ),
    (
        "expected string scalar",
        "a key is a list or a mapping; it must be a word",
    ),
    (
        "merge value",
        "`<<` requires a mapping, or a list of mappings",
    ),
    ("!!binary", "the tag `!!binary` is not supported"),
    ("invalid u64", "the value does not match its tag (`!!int`)"),
    (
        "invalid f64",
        "the value does not match its tag (`!!float`)",
    ),
    (
        "surrogate",
        "an unpaired surrogate: codes from `\\ud800` to `\\udfff` come in pairs",
    ),
    (
        "unexpected end of hex escape",
        "an unpaired surrogate: codes from `\\ud800` to `\\udfff` come in pairs",
    ),
    (
        "mapping values are not allowed",
        "a `:` where no key is allowed; check the indentation, and quote text that contains `: `",
    ),
    (
        "did not find expected key",
        "expected a key; check the indentation above",
    ),
    ("tabs disallowed", "a tab in the indentation; use spaces"),
    (
        "unknown escape character",
        "unknown escape; in double quotes write a backslash as `\\\\`",
    ),
    (
        "invalid escape",
        "unknown escape; write a backslash as `\\\\`",
    ),
    (
        "trailing content after",
        "more text after the closing quote",
    ),
    (
        "implicit flow mapping",
        "no value between two commas, or a bracket that is not closed",
    ),
    (
        "parsing a quoted scalar",
        "an escape such as `\\x` or `\\u` without its hexadecimal digits",
    ),
    (
        "unicode hexadecimal",
        "an escape such as `\\u` without its hexadecimal digits",
    ),
    (
        "control character",
        "write line ends and tabs in text as `\\n` and `\\t`",
    ),
    ("basic string", "unclosed quotes"),
    (
        "string values must be quoted",
        "expected a value; text must be in quotes",
    ),
    (
        "may only go between digits",
        "`_` in a number must be between two digits",
    ),
    (
        "block scalar",
        "text blocks begin with `|` or `>` and a line end",
    ),
    (
        "multiline quoted",
        "unclosed quotes, or lines in them that are not indented",
    ),
    (
        "expected ident",
        "expected a value; text must be in double quotes",
    ),
    (
        "expected value",
        "expected a value; text must be in double quotes",
    ),
    (
        "key must be a string",
        "expected a key in double quotes; a trailing comma is not allowed",
    ),
    ("trailing comma", "a trailing comma after the last value"),
    (
        "trailing characters",
        "more text after the end of the configuration",
    ),
    (
        "EOF while parsing an object",
        "the file ends within a mapping",
    ),
    ("EOF while parsing a list", "the file ends within a list"),
    ("EOF while parsing a string", "the file ends within quotes"),
    ("EOF while parsing", "the file ends where a value should be"),
];

/// A parser's message in the user's words.
pub(super) fn in_words(problem: &str) -> String {
    if let Some((_, words)) = WORDS.iter().find(|(part, _)| problem.contains(part)) {
        return (*words).to_owned();
    }
    if let Some(character) = problem.strip_prefix("unexpected character: `") {
        let character = character.strip_suffix('\'').unwrap_or(character);
        if character.starts_with("\\u") {
            return format!("the control character `{character}` is not allowed");
        }
        return format!("text that begins with or contains `{character}` needs quotes");
    }
    problem.to_owned()
}

/// A string of the file, shortened to a line of a message.
pub(super) fn quoted(text: &str) -> String {
    match text.char_indices().nth(MOST_SHOWN) {
        Some((end, _)) => format!("the string `{}…`", &text[..end]),
        None => format!("the string `{text}`"),
    }
}
