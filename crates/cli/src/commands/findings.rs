//! PASS, WARN and FAIL: findings of `check`, `doctor` and `verify`.

use loraloom_data::Warning;
use serde::Serialize;

use crate::{
    exit::Exit,
    failure,
    printer::{Printer, Status},
};

/// Findings, printed one by one or as one JSON object at the end.
#[derive(Debug)]
pub(super) struct Findings<'a> {
    pub(super) printer: &'a Printer,
    json: bool,
    all: Vec<Finding>,
    exit: Exit,
    /// False once the reader has closed the pipe; checks continue for the exit code.
    is_read: bool,
}

#[derive(Debug, Serialize)]
struct Finding {
    name: String,
    status: Status,
    message: String,
    hint: Option<String>,
}

#[derive(Debug, Serialize)]
struct FindingsOutput<'a> {
    ok: bool,
    checks: &'a [Finding],
}

impl<'a> Findings<'a> {
    pub(super) fn new(printer: &'a Printer, json: bool) -> Self {
        Self {
            printer,
            json,
            all: Vec::new(),
            exit: Exit::Success,
            is_read: true,
        }
    }

    /// Reports that `name` passed.
    pub(super) fn pass(&mut self, name: &str, message: String) -> anyhow::Result<()> {
        self.add(Status::Pass, name, message, None)
    }

    /// Reports a warning about `name`.
    pub(super) fn warn(
        &mut self,
        name: &str,
        message: String,
        hint: Option<&str>,
    ) -> anyhow::Result<()> {
        self.add(Status::Warn, name, message, hint.map(str::to_owned))
    }

    /// Reports the warnings that training also gives.
    pub(super) fn warn_all(&mut self, warnings: &[Warning]) -> anyhow::Result<()> {
        for warning in warnings {
            self.warn(&warning.about, warning.message.clone(), warning.hint)?;
        }
        Ok(())
    }

    /// Reports that `name` failed. The first failure decides the exit code.
    pub(super) fn fail(&mut self, name: &str, error: &anyhow::Error) -> anyhow::Result<()> {
        if self.exit == Exit::Success {
            self.exit = failure::exit(error);
        }
        let message = loraloom_server::with_causes(error.as_ref());
        self.add(Status::Fail, name, message, failure::hint(error))
    }

    /// Reports the finding of a check, or its failure. Returns the check's value.
    pub(super) fn checked<T>(
        &mut self,
        name: &str,
        checked: anyhow::Result<(String, T)>,
    ) -> anyhow::Result<Option<T>> {
        match checked {
            Ok((message, found)) => self.pass(name, message).map(|()| Some(found)),
            Err(error) => self.fail(name, &error).map(|()| None),
        }
    }

    /// True if nothing has failed.
    pub(super) fn passes(&self) -> bool {
        self.exit == Exit::Success
    }

    /// Prints the rest and returns the exit code.
    pub(super) fn finish(self) -> anyhow::Result<Exit> {
        if self.json {
            let written = self.printer.json(&FindingsOutput {
                ok: self.passes(),
                checks: &self.all,
            });
            failure::unless_unread(written)?;
        }
        Ok(self.exit)
    }

    fn add(
        &mut self,
        status: Status,
        name: &str,
        message: String,
        hint: Option<String>,
    ) -> anyhow::Result<()> {
        if !self.json && self.is_read {
            let line = format!("{name}: {message}");
            let written = self.printer.status(status, &line, hint.as_deref());
            self.is_read = failure::unless_unread(written.map_err(Into::into))?;
        }
        self.all.push(Finding {
            name: name.to_owned(),
            status,
            message,
            hint,
        });
        Ok(())
    }
}
