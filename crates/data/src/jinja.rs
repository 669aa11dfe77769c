//! The template engine, set up once as transformers does it and once as plain Jinja.

use std::io;

use jiff::civil::{Date, Time};
use minijinja::{
    Environment, Error, ErrorKind, Template, UndefinedBehavior, Value, syntax::SyntaxConfig,
};

use crate::{error::TemplateError, python_json, python_text};

/// Fixed date of `strftime_now`, so that renderings do not depend on the current day.
/// Llama 3's own templates fall back to this date.
const TODAY: Date = jiff::civil::date(2024, 7, 26);

/// Most steps of the engine for one rendering: twenty times those of 10,000 messages, and less than a second.
pub(crate) const MAX_STEPS: u64 = 10_000_000;
/// Most bytes of text from one rendering.
pub(crate) const MAX_TEXT: usize = 64 << 20;

/// Most characters of a tag, strings excluded: the engine recurses into chains such as `1+1+…` without a bound, and
/// twice as many take half of a thread's stack.
const MAX_TAG: usize = 4096;

/// For chat templates: transformers' white-space rules and lenient undefined values.
pub(crate) fn chat_environment() -> Result<Environment<'static>, TemplateError> {
    let mut environment = python_environment();
    let syntax = SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build();
    environment.set_syntax(syntax.map_err(|error| syntax_error(&error))?);
    Ok(environment)
}

/// Text that identifies the engine's error.
const PRINTS_NULL: &str = "prints a null";

/// For templates over a row's columns: Jinja's white-space rules; printing a missing column or a null
/// is an error, testing for one is not.
pub(crate) fn row_environment() -> Environment<'static> {
    let mut environment = python_environment();
    environment.set_formatter(|output, state, value| {
        if value.is_none() {
            return Err(Error::new(ErrorKind::BadSerialization, PRINTS_NULL));
        }
        minijinja::escape_formatter(output, state, value)
    });
    environment.set_undefined_behavior(UndefinedBehavior::SemiStrict);
    // The engine then names the undefined value.
    environment.set_debug(true);
    environment
}

fn python_environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_fuel(Some(MAX_STEPS));
    minijinja_contrib::add_to_environment(&mut environment);
    environment.set_unknown_method_callback(python_text::method);
    environment.add_filter("tojson", python_json::tojson);
    environment.add_filter("indent", python_text::indent);
    environment.add_test("iterable", is_iterable);
    environment.add_test("sequence", is_sequence);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", strftime_now);
    environment
}

/// Jinja's test `iterable`: none is not, as in Python.
fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

/// Jinja's test `sequence`: everything with a length, strings and mappings included.
fn is_sequence(value: &Value) -> bool {
    value.is_undefined() || value.len().is_some()
}

fn raise_exception(message: String) -> Result<String, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

fn strftime_now(format: &str) -> Result<String, Error> {
    jiff::fmt::strtime::format(format, TODAY.to_datetime(Time::midnight()))
        .map_err(|error| Error::new(ErrorKind::InvalidOperation, error.to_string()))
}

/// Adds a template; Jinja takes `\r\n` and `\r` in a source as `\n`, in its strings as well.
pub(crate) fn add_template(
    environment: &mut Environment<'static>,
    name: &'static str,
    source: &str,
) -> Result<(), TemplateError> {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let longest = longest_tag(&source);
    if longest > MAX_TAG {
        return Err(TemplateError::Syntax(format!(
            "a tag has {longest} characters outside strings; the limit is {MAX_TAG}"
        )));
    }
    environment
        .add_template_owned(name, source)
        .map_err(|error| syntax_error(&error))
}

/// Characters of the longest `{{ … }}` or `{% … %}` without the strings in it.
fn longest_tag(source: &str) -> usize {
    let (mut longest, mut length) = (0, None);
    let (mut quote, mut before) = (None, ' ');
    for character in source.chars() {
        match (&mut length, quote) {
            (None, _) if before == '{' && matches!(character, '{' | '%') => length = Some(0),
            (None, _) => {}
            (Some(_), Some(open)) => {
                if character == open && before != '\\' {
                    quote = None;
                }
            }
            (Some(_), None) if matches!(character, '"' | '\'') => quote = Some(character),
            (Some(_), None) if character == '}' && matches!(before, '}' | '%') => length = None,
            (Some(length), None) => {
                *length += 1;
                longest = longest.max(*length);
            }
        }
        before = character;
    }
    longest
}

/// The text of a template, within the limits.
pub(crate) fn render(template: &Template<'_, '_>, context: Value) -> Result<String, TemplateError> {
    let mut text = LimitedText::default();
    match template.render_captured_to(context, &mut text) {
        Ok(_) => {
            String::from_utf8(text.bytes).map_err(|error| TemplateError::Render(error.to_string()))
        }
        Err(_) if text.is_full => Err(TemplateError::TooLong(MAX_TEXT)),
        Err(error) => Err(render_error(&error)),
    }
}

/// Accepts at most [`MAX_TEXT`] bytes.
#[derive(Default)]
struct LimitedText {
    bytes: Vec<u8>,
    is_full: bool,
}

impl io::Write for LimitedText {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > MAX_TEXT {
            self.is_full = true;
            return Err(io::ErrorKind::WriteZero.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub(crate) fn syntax_error(error: &Error) -> TemplateError {
    TemplateError::Syntax(error.to_string())
}

fn render_error(error: &Error) -> TemplateError {
    if error.kind() == ErrorKind::OutOfFuel {
        return TemplateError::TooManySteps(MAX_STEPS);
    }
    if error.kind() == ErrorKind::BadSerialization && error.detail() == Some(PRINTS_NULL) {
        return TemplateError::PrintsNull;
    }
    let mut reason = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        reason.push_str(": ");
        reason.push_str(&cause.to_string());
        source = cause.source();
    }
    TemplateError::Render(reason)
}

#[cfg(test)]
mod tests {
    use minijinja::context;

    use super::{MAX_TAG, MAX_TEXT, add_template, longest_tag, render, row_environment};
    use crate::error::TemplateError;

    #[test]
    fn strings_and_text_are_no_part_of_a_tag() {
        for (source, length) in [
            ("no tag { % } here", 0),
            ("{{x}} {{ a.b }}", 6),
            (r#"{% if x == 'a }} \' b' %}{{"'"}}"#, 11),
        ] {
            assert_eq!(longest_tag(source), length, "{source}");
        }
        let mut environment = row_environment();
        let long = format!("{{{{ '{}' }}}}", "word ".repeat(MAX_TAG));
        add_template(&mut environment, "long", &long).expect("a long string is no chain");
    }

    #[test]
    fn steps_and_text_have_limits() {
        let rendered = |template: &str| {
            let mut environment = row_environment();
            add_template(&mut environment, "limits", template).expect("a template");
            let template = environment.get_template("limits").expect("the template");
            render(&template, context! { text => "x".repeat(1 << 20) })
        };
        let endless =
            "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}";
        let error = rendered(endless).expect_err("too many steps");
        assert!(
            matches!(error, TemplateError::TooManySteps { .. }),
            "{error}"
        );
        let error = rendered("{% for a in range(65) %}{{ text }}{% endfor %}");
        let error = error.expect_err("too much text");
        assert!(matches!(error, TemplateError::TooLong { .. }), "{error}");
        let most = rendered("{% for a in range(64) %}{{ text }}{% endfor %}");
        assert_eq!(most.expect("as much as is allowed").len(), MAX_TEXT);
    }

    /// Each of them ends the process with a stack overflow if the engine gets it, and half as many
    /// as are allowed do not.
    #[test]
    fn chains_are_as_long_as_the_stack_allows() {
        for (chain, last) in [("1+", "1"), ("not ", "1"), ("x.a|e or ", "1"), ("-", "1")] {
            let template = |count| format!("{{{{ {}{last} }}}}", chain.repeat(count));
            let mut environment = row_environment();
            let most = (MAX_TAG - 4) / chain.len();
            add_template(&mut environment, "most", &template(most)).expect(chain);
            let error = add_template(&mut environment, "more", &template(100_000));
            let error = error.expect_err(chain).to_string();
            assert!(error.contains("the limit is 4096"), "{error}");
        }
    }
}
