/// Ends a text before the first of some strings. It is the string that ends first; the longest of those that end
/// together.
#[derive(Debug)]
pub(crate) struct StopStrings {
    strings: Vec<String>,
    /// The text's end that may begin a string.
    held: String,
}

impl StopStrings {
    /// Without a string, all text passes.
    pub(crate) fn new(strings: Vec<String>) -> Self {
        Self {
            strings,
            held: String::new(),
        }
    }

    /// The text that can be shown once `text` follows; `true` if a string ends it.
    pub(crate) fn push(&mut self, text: &str) -> (String, bool) {
        self.held.push_str(text);
        let ends = self.strings.iter().filter_map(|string| {
            let start = self.held.find(string)?;
            Some((start + string.len(), start))
        });
        if let Some((_, start)) = ends.min() {
            self.held.truncate(start);
            return (std::mem::take(&mut self.held), true);
        }
        let begun = self.strings.iter().map(|string| begun(&self.held, string));
        let kept = self.held.len() - begun.max().unwrap_or(0);
        let kept = self.held.split_off(kept);
        (std::mem::replace(&mut self.held, kept), false)
    }

    /// The text that was held back, at the end of the text.
    pub(crate) fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// Bytes of the longest end of `text` that begins `string`.
fn begun(text: &str, string: &str) -> usize {
    let lengths = string.char_indices().map(|(length, _)| length).rev();
    let mut lengths = lengths.filter(|length| text.ends_with(&string[..*length]));
    lengths.next().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The texts that are shown, and whether a string ended them.
    fn shown(strings: &[&str], texts: &[&str]) -> (Vec<String>, bool) {
        let mut stops = StopStrings::new(strings.iter().map(|&string| string.to_owned()).collect());
        let mut shown = Vec::new();
        for text in texts {
            let (text, stopped) = stops.push(text);
            shown.push(text);
            if stopped {
                return (shown, true);
            }
        }
        shown.push(stops.finish());
        (shown, false)
    }

    #[test]
    fn what_may_begin_a_string_is_held_back() {
        let (texts, stopped) = shown(&["END"], &["an E", "N", "d EN"]);
        assert_eq!(
            (texts, stopped),
            (["an ", "", "ENd ", "EN"].map(str::to_owned).to_vec(), false)
        );
    }

    #[test]
    fn a_string_over_several_texts_ends_the_text() {
        let (texts, stopped) = shown(&["END", "x"], &["an E", "N", "D and more"]);
        assert_eq!((texts.concat().as_str(), stopped), ("an ", true));
        assert_eq!(shown(&["aab"], &["aa", "a", "b"]).0.concat(), "a");
        assert_eq!(shown(&["é\n"], &["aé", "\n"]).0.concat(), "a");
    }

    #[test]
    fn the_string_that_ends_first_counts_and_the_longest_of_them() {
        assert_eq!(shown(&["abc", "b"], &["xabc"]).0.concat(), "xa");
        assert_eq!(shown(&["b", "ab"], &["xab"]).0.concat(), "x");
        assert_eq!(shown(&["bc", "abcd"], &["xab", "cd"]).0.concat(), "xa");
    }

    #[test]
    fn all_text_passes_without_strings() {
        let (texts, stopped) = shown(&[], &["a", "b"]);
        assert_eq!(
            (texts, stopped),
            (["a", "b", ""].map(str::to_owned).to_vec(), false)
        );
    }

    /// The text before the string that ends first.
    fn reference<'a>(strings: &[String], text: &'a str) -> &'a str {
        for end in 1..=text.len() {
            let Some(part) = text.get(..end) else {
                continue;
            };
            let ending = strings
                .iter()
                .filter(|string| part.ends_with(string.as_str()));
            if let Some(longest) = ending.map(String::len).max() {
                return &part[..end - longest];
            }
        }
        text
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_cut_of_a_text_shows_the_same(
            strings in prop::collection::vec("[abé]{1,4}", 0..4),
            texts in prop::collection::vec("[abé]{0,3}", 0..12),
        ) {
            let strings: Vec<&str> = strings.iter().map(String::as_str).collect();
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            let (shown, _) = shown(&strings, &texts);
            let strings: Vec<String> = strings.into_iter().map(str::to_owned).collect();
            let text = texts.concat();
            prop_assert_eq!(shown.concat(), reference(&strings, &text));
        }
    }
}
