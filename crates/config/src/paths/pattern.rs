//! Patterns of paths, such as `data/*.jsonl`.

use std::path::{Component, Path, PathBuf};

use glob::{MatchOptions, Pattern, glob_with};

/// As in a shell, `*` matches no `/` and no dot at the start of a name.
const OPTIONS: MatchOptions = MatchOptions {
    case_sensitive: true,
    require_literal_separator: true,
    require_literal_leading_dot: true,
};

/// True if a path has a pattern character.
pub(super) fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?', '['])
}

/// True if a name matches a pattern, which may be a plain name.
pub(crate) fn is_match(pattern: &str, name: &str) -> bool {
    Pattern::new(pattern).is_ok_and(|pattern| pattern.matches_with(name, OPTIONS))
}

/// Splits a pattern into its leading folder and the rest.
pub(super) fn split(pattern: &Path) -> (PathBuf, PathBuf) {
    let is_plain = |part: &Component| {
        part.as_os_str()
            .to_str()
            .is_some_and(|part| !is_pattern(part))
    };
    let folder: PathBuf = pattern.components().take_while(is_plain).collect();
    let rest = pattern.components().skip_while(is_plain).collect();
    (folder, rest)
}

/// All files below a folder that match a pattern, sorted by path.
///
/// # Errors
/// A sentence about an invalid pattern, or a folder that cannot be read.
pub(super) fn matches(folder: &Path, pattern: &Path) -> Result<Vec<PathBuf>, String> {
    let mut files = all_matches(folder, pattern)?;
    files.retain(|path| !path.is_dir());
    files.sort();
    Ok(files)
}

/// True if folders match a pattern.
pub(super) fn matches_folders(folder: &Path, pattern: &Path) -> bool {
    let found = all_matches(folder, pattern).unwrap_or_default();
    pattern.ends_with("**") || found.iter().any(|path| path.is_dir())
}

fn all_matches(folder: &Path, pattern: &Path) -> Result<Vec<PathBuf>, String> {
    let escaped = PathBuf::from(Pattern::escape(&folder.to_string_lossy()));
    let whole = escaped.join(pattern);
    let found = glob_with(&whole.to_string_lossy(), OPTIONS);
    let found = found.map_err(|error| {
        format!(
            "`{}` is not a valid pattern: {}; write `[[]` for a literal `[`",
            pattern.display(),
            error.msg
        )
    })?;
    let found: Result<Vec<PathBuf>, _> = found.collect();
    found.map_err(|error| error.to_string())
}
