use std::path::Path;

/// Quotes a path or another text as one word of a shell, for commands in messages.
pub fn quoted(path: impl AsRef<Path>) -> String {
    word(&path.as_ref().to_string_lossy(), cfg!(windows))
}

/// On Windows, cmd and PowerShell take a backslash as it is, and both know double quotes, which no path there has.
fn word(text: &str, windows: bool) -> String {
    let is_plain =
        |c: char| c.is_alphanumeric() || "/._-+:,@%=".contains(c) || (windows && c == '\\');
    if !text.is_empty() && text.chars().all(is_plain) {
        text.to_owned()
    } else if windows {
        format!("\"{text}\"")
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::{quoted, word};

    #[test]
    fn windows_reads_a_backslash_and_double_quotes() {
        assert_eq!(word(r"C:\runs\first", true), r"C:\runs\first");
        assert_eq!(word(r"C:\my runs", true), r#""C:\my runs""#);
    }

    #[cfg(unix)]
    #[test]
    fn a_shell_reads_back_what_was_quoted() {
        assert_eq!(quoted("runs/a-1.5"), "runs/a-1.5");
        for text in [
            "runs/a", "", "my run", "it's", "a\"b", "$HOME", "~", "*", "a\\b", "a;b", "`c`",
            "a\nb", "ü",
        ] {
            let line = format!("printf %s {}", quoted(text));
            let output = Command::new("sh").args(["-c", &line]).output().unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), text, "{line}");
        }
    }
}
