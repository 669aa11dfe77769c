//! Rewrites messages of parsers in the user's words.

/// Characters of a string that a message shows.
const MOST_SHOWN: usize = 60;

/// A part of a parser's message a line, and its meaning to the file's author. The first that is found
/// counts.
const WORDS: &str = include_str!("words.txt");

/// A parser's message in the words of the file's author.
pub(super) fn in_words(problem: &str) -> String {
    let mut words = WORDS.lines().filter_map(|line| line.split_once(" => "));
    if let Some((_, words)) = words.find(|(part, _)| problem.contains(part)) {
        return words.to_owned();
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

/// A string of the file, no longer than one line of a message holds.
pub(super) fn quoted(text: &str) -> String {
    match text.char_indices().nth(MOST_SHOWN) {
        Some((end, _)) => format!("the string `{}…`", &text[..end]),
        None => format!("the string `{text}`"),
    }
}
