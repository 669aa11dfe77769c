//! `{% generation %}` blocks: the text that is trained on, marked by a chat template or a dataset's template.
//!
//! The engine has no custom tags, so the tags are rewritten before compilation. Each becomes an
//! `if` block, which keeps the white-space rules of a block, around a marker character that is taken
//! out of the rendering again. The markers are Unicode noncharacters.

use std::ops::Range;

use minijinja::Environment;

use crate::{error::TemplateError, jinja::add_template};

/// The name of a template's form with markers.
pub(crate) const MARKED: &str = "template with generation marks";

const BEGIN: char = '\u{FDD0}';
const END: char = '\u{FDD1}';

/// A template in two forms the engine can compile.
#[derive(Debug)]
struct Rewritten {
    /// Without its generation tags.
    plain: String,
    /// With markers in their place; `None` if there are no such tags.
    marked: Option<String>,
}

/// Adds a template without its generation tags under `name` and, if there are any, with markers as [`MARKED`].
/// Returns whether there are.
pub(crate) fn add(
    environment: &mut Environment<'static>,
    name: &'static str,
    source: &str,
) -> Result<bool, TemplateError> {
    let Rewritten { plain, marked } = rewrite(source);
    add_template(environment, name, &plain)?;
    if let Some(marked) = &marked {
        add_template(environment, MARKED, marked)?;
    }
    Ok(marked.is_some())
}

/// Rewrites `{% generation %}` and `{% endgeneration %}`, with any white-space control.
fn rewrite(source: &str) -> Rewritten {
    let mut plain = String::with_capacity(source.len());
    let mut marked = String::with_capacity(source.len());
    let (mut rest, mut found) = (source, false);
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        plain.push_str(before);
        marked.push_str(before);
        if let Some((open, marker, close, after)) = generation_tag(tag) {
            found = true;
            for (text, mark) in [(&mut plain, None), (&mut marked, Some(marker))] {
                let mark = mark
                    .map(|mark| format!("{{{{ \"{mark}\" }}}}"))
                    .unwrap_or_default();
                text.extend([open, " if true %}", &mark, "{% endif ", close]);
            }
            rest = after;
        } else {
            plain.push_str("{%");
            marked.push_str("{%");
            rest = &tag[2..];
        }
    }
    plain.push_str(rest);
    marked.push_str(rest);
    Rewritten {
        plain,
        marked: found.then_some(marked),
    }
}

/// Opening delimiter, marker, closing delimiter and what follows, if a generation tag is first.
fn generation_tag(text: &str) -> Option<(&str, char, &str, &str)> {
    let open = text.len() - text[2..].trim_start_matches(['-', '+']).len();
    let body = text[open..].trim_start();
    let (marker, body) = if let Some(body) = body.strip_prefix("generation") {
        (BEGIN, body)
    } else {
        (END, body.strip_prefix("endgeneration")?)
    };
    let close = body.trim_start();
    let end = close.trim_start_matches(['-', '+']).strip_prefix("%}")?;
    Some((
        &text[..open],
        marker,
        &close[..close.len() - end.len()],
        end,
    ))
}

/// Byte ranges of `plain` between the markers of `marked`, in order.
///
/// # Errors
/// [`TemplateError::Generation`] if markers nest or do not pair, or if taking them out does not give
/// `plain`, which then holds such characters itself.
pub(crate) fn spans(marked: &str, plain: &str) -> Result<Vec<Range<usize>>, TemplateError> {
    let mut stripped = String::with_capacity(plain.len());
    let (mut spans, mut open) = (Vec::new(), None);
    for character in marked.chars() {
        match (character, open) {
            (BEGIN, None) => open = Some(stripped.len()),
            (END, Some(start)) => {
                spans.push(start..stripped.len());
                open = None;
            }
            (BEGIN | END, _) => return Err(TemplateError::Generation),
            _ => stripped.push(character),
        }
    }
    if open.is_some() || stripped != plain {
        return Err(TemplateError::Generation);
    }
    Ok(spans)
}

#[cfg(test)]
mod tests {
    use super::{rewrite, spans};

    #[test]
    fn tags_keep_their_white_space_control() {
        let rewritten = rewrite("a {%- generation -%} b {%endgeneration+%} c {% if x %}");
        assert_eq!(
            rewritten.plain,
            "a {%- if true %}{% endif -%} b {% if true %}{% endif +%} c {% if x %}"
        );
        assert_eq!(
            rewritten.marked.as_deref(),
            Some(
                "a {%- if true %}{{ \"\u{FDD0}\" }}{% endif -%} b \
                 {% if true %}{{ \"\u{FDD1}\" }}{% endif +%} c {% if x %}"
            )
        );
    }

    #[test]
    fn other_templates_are_left_alone() {
        let source = "{{ generation }}{% generations %}{% set generation = 1 %}{%";
        let rewritten = rewrite(source);
        assert_eq!(rewritten.plain, source);
        assert!(rewritten.marked.is_none());
    }

    #[test]
    fn spans_are_byte_ranges_of_the_plain_text() {
        assert_eq!(
            spans("é\u{FDD0}ab\u{FDD1}c\u{FDD0}\u{FDD1}", "éabc").unwrap(),
            [2..4, 5..5]
        );
        for marked in [
            "\u{FDD0}a",
            "a\u{FDD1}",
            "\u{FDD0}\u{FDD0}a\u{FDD1}\u{FDD1}",
            "b",
        ] {
            assert!(spans(marked, "a").is_err(), "{marked:?}");
        }
    }
}
