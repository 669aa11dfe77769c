//! A user's template over the columns of a row.

use minijinja::{Environment, context};

use crate::{
    error::TemplateError,
    jinja::{self, add_template, row_environment, syntax_error},
    row::Row,
};

const NAME: &str = "template";

/// Jinja over a row's columns by name; `data_point` is the row as a whole, as in mLoRA's templates.
#[derive(Debug, Clone)]
pub(crate) struct RowTemplate {
    environment: Environment<'static>,
}

impl RowTemplate {
    pub(crate) fn new(source: &str) -> Result<Self, TemplateError> {
        let mut environment = row_environment();
        add_template(&mut environment, NAME, source)?;
        Ok(Self { environment })
    }

    pub(crate) fn render(&self, row: &Row) -> Result<String, TemplateError> {
        let template = self
            .environment
            .get_template(NAME)
            .map_err(|error| syntax_error(&error))?;
        let columns = row.columns.clone();
        let context = context! { data_point => columns.clone(), ..columns };
        jinja::render(&template, context)
    }
}
