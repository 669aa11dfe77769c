//! The template engine, set up once as transformers does it and once as plain Jinja.

use jiff::civil::{Date, Time};
use minijinja::{Environment, Error, ErrorKind, UndefinedBehavior, syntax::SyntaxConfig};
use minijinja_contrib::pycompat::unknown_method_callback;

use crate::{error::TemplateError, python_json};

/// What `strftime_now` says today is: renderings must not depend on the day they are made.
/// Llama 3's own templates fall back to this date.
const TODAY: Date = jiff::civil::date(2024, 7, 26);

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

/// For templates over a row's columns: Jinja's white-space rules; printing a missing column is an
/// error, testing for one is not.
pub(crate) fn row_environment() -> Environment<'static> {
    let mut environment = python_environment();
    environment.set_undefined_behavior(UndefinedBehavior::SemiStrict);
    environment
}

fn python_environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_unknown_method_callback(unknown_method_callback);
    environment.add_filter("tojson", python_json::tojson);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", strftime_now);
    environment
}

fn raise_exception(message: String) -> Result<String, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

fn strftime_now(format: &str) -> Result<String, Error> {
    jiff::fmt::strtime::format(format, TODAY.to_datetime(Time::midnight()))
        .map_err(|error| Error::new(ErrorKind::InvalidOperation, error.to_string()))
}

pub(crate) fn syntax_error(error: &Error) -> TemplateError {
    TemplateError::Syntax {
        reason: error.to_string(),
    }
}

pub(crate) fn render_error(error: &Error) -> TemplateError {
    let mut reason = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        reason.push_str(": ");
        reason.push_str(&cause.to_string());
        source = cause.source();
    }
    TemplateError::Render { reason }
}
