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
        "an alias (`*name`) stands inside of what it names",
    ),
    (
        "unknown anchor",
        "an alias (`*name`) without its anchor (`&name`) above it; text that begins with `*` needs quotes",
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
        "`<<` takes in a mapping, or a list of mappings",
    ),
    ("!!binary", "the tag `!!binary` has no meaning here"),
    (
        "invalid u64",
        "the value is not what its tag (`!!int`) says",
    ),
    (
        "invalid f64",
        "the value is not what its tag (`!!float`) says",
    ),
    (
        "surrogate",
        "half of a character: codes from `\\ud800` to `\\udfff` come in pairs",
    ),
    (
        "unexpected end of hex escape",
        "half of a character: codes from `\\ud800` to `\\udfff` come in pairs",
    ),
    (
        "mapping values are not allowed",
        "a `:` where there can be no key; look at the indentation, and quote text with `: ` in it",
    ),
    (
        "did not find expected key",
        "no key where there must be one; look at the indentation above",
    ),
    ("tabs disallowed", "a tab in the indentation; use spaces"),
    (
        "unknown escape character",
        "no such escape; in double quotes a backslash is written `\\\\`",
    ),
    (
        "invalid escape",
        "no such escape; a backslash is written `\\\\`",
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
        "an escape such as `\\x` or `\\u` without the digits of a character",
    ),
    (
        "unicode hexadecimal",
        "an escape such as `\\u` without the digits of a character",
    ),
    (
        "control character",
        "line ends and tabs in text are written `\\n` and `\\t`",
    ),
    ("basic string", "quotes that are not closed"),
    (
        "string values must be quoted",
        "no value; text must be in quotes",
    ),
    (
        "may only go between digits",
        "`_` in a number may stand between two digits only",
    ),
    (
        "block scalar",
        "text blocks begin with `|` or `>` and a line end",
    ),
    (
        "multiline quoted",
        "quotes that are not closed, or lines in them that are not indented",
    ),
    ("expected ident", "no value; text must be in double quotes"),
    ("expected value", "no value; text must be in double quotes"),
    (
        "key must be a string",
        "no key in double quotes; none may follow the last comma either",
    ),
    ("trailing comma", "a comma after the last value"),
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
            return format!("the control character `{character}` is not text");
        }
        return format!("text that begins with, or has, `{character}` needs quotes");
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
