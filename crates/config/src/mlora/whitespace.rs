//! White space around the blocks of a template.
//!
//! mLoRA's Jinja has `trim_blocks` and `lstrip_blocks`: a line with nothing but a block leaves nothing. Templates here
//! have Jinja's own rules, which keep that line's white space, so an imported template is written without it.

/// The template whose rendering by Jinja's own rules is that of `template` with `trim_blocks` and `lstrip_blocks`.
pub(super) fn trimmed(template: &str) -> String {
    let mut written = String::with_capacity(template.len());
    let mut rest = template;
    while let Some((start, kind)) = next_tag(rest) {
        let (before, tag) = rest.split_at(start);
        written.push_str(before);
        let mut end = end_of(tag, kind);
        if kind == Tag::Print {
            written.push_str(&tag[..end]);
            rest = &tag[end..];
            continue;
        }
        if !tag[2..].starts_with('+') {
            let before = &template[..template.len() - tag.len()];
            let line = &before[before.rfind('\n').map_or(0, |newline| newline + 1)..];
            if line.trim_matches([' ', '\t']).is_empty() {
                written.truncate(written.len() - line.len());
            }
        }
        if kind == Tag::Block && is_raw(&tag[..end]) {
            // Its contents are text, with the first newline, up to the block that ends it.
            let inside = next_raw_end(&tag[end..]).unwrap_or(tag.len() - end);
            written.push_str(&tag[..end + inside]);
            rest = &tag[end + inside..];
            continue;
        }
        written.push_str(&tag[..end]);
        if trims(&tag[..end]) && tag[end..].starts_with('\n') {
            end += 1;
        }
        rest = &tag[end..];
    }
    written.push_str(rest);
    written
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tag {
    Print,
    Block,
    Comment,
}

/// Where the first tag begins, and its kind.
fn next_tag(text: &str) -> Option<(usize, Tag)> {
    let braces = text.match_indices('{');
    braces.into_iter().find_map(|(at, _)| {
        let kind = match text[at + 1..].chars().next()? {
            '{' => Tag::Print,
            '%' => Tag::Block,
            '#' => Tag::Comment,
            _ => return None,
        };
        Some((at, kind))
    })
}

/// Number of bytes of the tag that the text begins with; all of them if it does not end.
fn end_of(tag: &str, kind: Tag) -> usize {
    let close = match kind {
        Tag::Print => "}}",
        Tag::Block => "%}",
        Tag::Comment => "#}",
    };
    let mut quote = None;
    let mut escaped = false;
    for (at, character) in tag.char_indices().skip(2) {
        if kind != Tag::Comment {
            match quote {
                Some(open) => {
                    if character == open && !escaped {
                        quote = None;
                    }
                    escaped = character == '\\' && !escaped;
                    continue;
                }
                None if matches!(character, '"' | '\'') => {
                    quote = Some(character);
                    continue;
                }
                None => {}
            }
        }
        if tag[at..].starts_with(close) {
            return at + close.len();
        }
    }
    tag.len()
}

/// True unless the tag says to keep the white space after it.
fn trims(tag: &str) -> bool {
    !tag[..tag.len().saturating_sub(2)].ends_with('+')
}

fn is_raw(tag: &str) -> bool {
    words(tag) == "raw"
}

/// Where the block begins that ends a raw one.
fn next_raw_end(text: &str) -> Option<usize> {
    let mut tags = text.match_indices("{%");
    let is_end = |at: usize| words(&text[at..at + end_of(&text[at..], Tag::Block)]) == "endraw";
    tags.find_map(|(at, _)| is_end(at).then_some(at))
}

/// The inside of a block's delimiters.
fn words(tag: &str) -> &str {
    let inside = tag.strip_prefix("{%").unwrap_or(tag);
    let inside = inside.strip_suffix("%}").unwrap_or(inside);
    inside.trim_matches(['-', '+']).trim()
}

#[cfg(test)]
mod tests {
    use super::trimmed;

    /// Renderings of both by Jinja 3.1 are equal: with `trim_blocks` and `lstrip_blocks` of the first, without of the
    /// second.
    #[test]
    fn a_line_with_nothing_but_a_block_leaves_nothing() {
        for (template, expected) in [
            (
                "a\n  {% if x %}\nb\n\t{% endif %}\nc",
                "a\n{% if x %}b\n{% endif %}c",
            ),
            (
                "  {{ x }}\n{% if x %} \nb{% endif %}",
                "  {{ x }}\n{% if x %} \nb{% endif %}",
            ),
            (
                "a {% if x %}\nb {# c #}\nd{% endif %}",
                "a {% if x %}b {# c #}d{% endif %}",
            ),
            (
                "  {%+ if x +%}\nb\n  {%- endif -%}\n c",
                "  {%+ if x +%}\nb\n{%- endif -%} c",
            ),
            (
                "{{ '{% if' }}\n{% set y = '%}\n' %}\nz",
                "{{ '{% if' }}\n{% set y = '%}\n' %}z",
            ),
            (
                "  {% raw %}\n  {% if %}\n  {% endraw %}\nz",
                "{% raw %}\n  {% if %}\n{% endraw %}z",
            ),
            (
                "{#\n  {% if x %}\n#}\n  {% if x %}\n1{% endif %}\n\n",
                "{#\n  {% if x %}\n#}{% if x %}1{% endif %}\n",
            ),
            ("{ {% if", "{ {% if"),
        ] {
            assert_eq!(trimmed(template), expected);
        }
    }
}
