//! Answers compared by the part that a regular expression extracts.

use std::borrow::Cow;

use regex::Regex;

/// Extracts answers from texts, to compare them.
#[derive(Debug, Clone)]
pub struct ExactMatch {
    /// The first match is the answer: its first capture group that matched, or the whole match if the expression has
    /// no groups.
    pub answer: Regex,
    /// Matches that are removed from an answer, such as commas in numbers.
    pub ignored: Vec<Regex>,
}

impl ExactMatch {
    /// The answer in a text, without ignored matches and surrounding white space. `None` without a match, or if
    /// nothing is left of a text that is not empty: otherwise an expression that matches anything would find an empty
    /// answer everywhere.
    pub fn extract(&self, text: &str) -> Option<String> {
        let captures = self.answer.captures(text)?;
        let groups = captures.iter().skip(1).flatten();
        let answer = groups.chain(captures.get(0)).next()?.as_str();
        let mut answer = Cow::from(answer);
        for ignored in &self.ignored {
            answer = ignored.replace_all(&answer, "").into_owned().into();
        }
        let answer = answer.trim().to_owned();
        Some(answer).filter(|answer| !answer.is_empty() || text.trim().is_empty())
    }
}

#[cfg(test)]
mod tests {
    use regex::Regex;

    use super::ExactMatch;

    #[test]
    fn the_first_match_or_its_first_group_is_the_answer() {
        for (answer, ignored, text, expected) in [
            (
                r"#### (\S+)",
                &[][..],
                "9 + 9 = 18\n#### 18\n#### 7",
                Some("18"),
            ),
            (r"(?s).*#### (\S+)", &[], "#### 18\n#### 7", Some("7")),
            (r"-?\d[\d,.]*", &[], "about 1,200 of 3", Some("1,200")),
            (
                r"#### (.+)",
                &[",", r"\$", r"\.$"],
                "#### $1,200.  ",
                Some("1200."),
            ),
            (
                r"#### (.+)",
                &[",", r"\$", r"\.\s*$"],
                "#### $1,200.  ",
                Some("1200"),
            ),
            (r"yes (a)|no (b)", &[], "no b", Some("b")),
            (r"(?i)^(yes|no)?", &[], "maybe", None),
            (r"#### (.*)", &[r"\$"], "#### $ ", None),
            (r"#### (\S+)", &[], "it is 18", None),
            (".*", &[], " ", Some("")),
            ("^$", &[], "", Some("")),
            (r"(\S+)", &[], "", None),
        ] {
            let regex = |pattern: &&str| Regex::new(pattern).expect("a pattern");
            let exact = ExactMatch {
                answer: regex(&answer),
                ignored: ignored.iter().map(regex).collect(),
            };
            assert_eq!(
                exact.extract(text).as_deref(),
                expected,
                "{answer} in {text}"
            );
        }
    }
}
