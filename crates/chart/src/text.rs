/// Width of text of 12 pixels in a wide one of the fonts, in pixels: room for it in any of them.
pub fn text_width(text: &str) -> f64 {
    text.chars().count() as f64 * 7.4
}

/// Text as the content of an element or a quoted attribute of HTML and SVG.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}
