//! Commands that this version does not have: refused by name, with an alternative if
//! there is one (docs/adr/0009).

use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::{arguments::OutputArguments, exit::Exit, printer::Printer};

/// Commands that do not exist yet, with alternatives.
const COMMANDS: [(&str, Option<&str>); 1] = [(
    "eval",
    Some("a dataset with `validation` is evaluated while it trains"),
)];

/// Prints a usage error or the requested help, and returns the exit code.
pub(crate) fn explain(error: &clap::Error) -> Exit {
    let printer = Printer::new(&OutputArguments::default());
    if let Some((what, hint)) = unserved(error) {
        printer.error(&format!("`{what}` is not in this version"));
        if let Some(hint) = hint {
            printer.hint(hint);
        }
        return Exit::Usage;
    }
    let hint = run_to_resume(error);
    // Help may go into a closed pipe; clap prints it to the stream it belongs on.
    let _ = error.print();
    if let Some(hint) = hint {
        printer.hint(hint);
    }
    if error.use_stderr() {
        Exit::Usage
    } else {
        Exit::Success
    }
}

/// `resume` is of tasks; who names none may mean a run.
fn run_to_resume(error: &clap::Error) -> Option<&'static str> {
    let Some(ContextValue::StyledStr(usage)) = error.get(ContextKind::Usage) else {
        return None;
    };
    let lacks = error.kind() == ErrorKind::MissingRequiredArgument;
    let of_tasks = lacks && usage.to_string().contains("loraloom resume ");
    of_tasks.then_some(
        "TASK is a paused task of a server; continue a run of `train` with `loraloom train --resume RUN`",
    )
}

fn unserved(error: &clap::Error) -> Option<(String, Option<&'static str>)> {
    let Some(ContextValue::String(name)) = error.get(ContextKind::InvalidSubcommand) else {
        return None;
    };
    if name == "data" {
        let hint = "`loraloom check CONFIG` prints the rows of each dataset that are trained, cut and dropped";
        return Some(("loraloom data preview".to_owned(), Some(hint)));
    }
    let (_, hint) = COMMANDS.iter().find(|(command, _)| command == name)?;
    Some((format!("loraloom {name}"), *hint))
}

#[cfg(test)]
mod tests {
    use super::{COMMANDS, unserved};
    use crate::arguments::Arguments;

    fn refused(line: &str) -> Option<String> {
        let error = Arguments::parse_from(line.split(' ')).unwrap_err();
        unserved(&error).map(|(what, _)| what)
    }

    #[test]
    fn only_what_the_interface_names_is_refused_by_name() {
        for (name, _) in COMMANDS {
            let what = format!("loraloom {name}");
            assert_eq!(refused(&format!("{what} --json x")), Some(what));
        }
        assert_eq!(
            refused("loraloom data preview x.yaml").as_deref(),
            Some("loraloom data preview")
        );
        assert_eq!(refused("loraloom trian x.yaml"), None);
        assert_eq!(refused("loraloom train x.yaml --rsume"), None);
    }
}
