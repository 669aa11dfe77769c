//! `verify PATH`: checks an adapter or a merged model.

use std::path::Path;

use loraloom_trainer::{Verdict, verify};

use super::findings::Findings;
use crate::{
    arguments::VerifyArguments, exit::Exit, failure::Failure, printer::Printer, run_directory,
};

pub(super) fn run(arguments: &VerifyArguments, printer: &Printer) -> anyhow::Result<Exit> {
    let configurations =
        |run: &Path| run_directory::configs(run).map_err(|error| error.to_string());
    let work = || {
        let (path, model) = (&arguments.path, arguments.model.as_deref());
        verify(path, model, &configurations)
    };
    let results = printer.while_busy("verifying", work)?;
    let mut findings = Findings::new(printer, arguments.json);
    for result in results {
        let (name, message) = (result.name, result.message);
        match result.verdict {
            Verdict::Holds => findings.pass(name, message)?,
            Verdict::Unchecked => {
                let message = format!("not checked: {message}");
                findings.warn(name, message, result.hint.as_deref())?;
            }
            Verdict::Fails => {
                let mut failure = Failure::new(Exit::Data, message);
                if let Some(hint) = result.hint {
                    failure = failure.hint(hint);
                }
                findings.fail(name, &failure.into())?;
            }
        }
    }
    findings.finish()
}
