//! Rewrites error messages of drivers, CubeCL and wgpu in plain words.

/// The causes in a device's error message, without CubeCL's list of everything that depended on them, and with debug
/// output of Rust values in words.
pub fn causes(told: &str) -> String {
    const ACCOUNT: [&str; 15] = [
        "Caused by:",
        "Backtrace",
        "No backtrace available",
        "Asked at:",
        "Several failures at once",
        "A compilation error happened during launch",
        "A launch error happened",
        "A validation error happened during execution",
        "An error happened during execution",
        "An IO error happened",
        "An out-of-memory error happened during launch",
        "An unknown error happened during launch",
        "The bytes were never written",
        "The work ",
        "skipped `",
    ];
    let mut causes: Vec<String> = Vec::new();
    for line in told.lines().map(str::trim) {
        let account = ACCOUNT.iter().any(|begin| line.starts_with(begin));
        let cause = in_words(line);
        if !account && !line.is_empty() && !causes.contains(&cause) {
            causes.push(cause);
        }
    }
    if causes.is_empty() {
        causes.push(told.to_owned());
    }
    causes.join("; ")
}

/// Rewrites debug output of Rust values in a line, such as `DriverError(CODE, "lost")`, in words: `driver error:
/// CODE, lost`.
fn in_words(line: &str) -> String {
    let line = line.replace("called `Result::unwrap()` on an `Err` value: ", "");
    let mut words = String::new();
    // Open parentheses: true for those of a value.
    let mut open: Vec<bool> = Vec::new();
    let mut rest = line.as_str();
    while let Some(first) = rest.chars().next() {
        let name = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let (name, after) = rest.split_at(name.unwrap_or(rest.len()));
        let in_value = open.contains(&true);
        let opened = [" {", "("]
            .into_iter()
            .find(|opener| after.starts_with(opener));
        if is_type(name) && (opened.is_some() || in_value) {
            words.push_str(&separated(name));
            if let Some(opener) = opened {
                words.push_str(": ");
                open.push(true);
                rest = after[opener.len()..].trim_start();
            } else {
                rest = after;
            }
        } else if name.is_empty() {
            rest = &rest[first.len_utf8()..];
            match first {
                '(' | '{' => open.push(false),
                ')' | '}' if open.pop() == Some(true) => {
                    words.truncate(words.trim_end().len());
                    continue;
                }
                '"' if in_value => {
                    let end = rest.find('"').unwrap_or(rest.len());
                    words.push_str(&rest[..end]);
                    rest = rest[end..].strip_prefix('"').unwrap_or_default();
                    continue;
                }
                _ => {}
            }
            words.push(first);
        } else {
            words.push_str(name);
            rest = after;
        }
    }
    words
}

/// True if a name is that of a type or variant: `OutOfMemory`, not `CODE` or `max_size`.
fn is_type(name: &str) -> bool {
    let is_lower = |c: char| c.is_ascii_lowercase();
    name.starts_with(|c: char| c.is_ascii_uppercase())
        && name.contains(is_lower)
        && !name.contains('_')
}

/// Rewrites `OutOfMemory` as `out of memory`.
fn separated(name: &str) -> String {
    let mut words = String::new();
    for c in name.chars() {
        if c.is_ascii_uppercase() && words.ends_with(|last: char| last.is_ascii_lowercase()) {
            words.push(' ');
        }
        words.push(c.to_ascii_lowercase());
    }
    words
}

#[cfg(test)]
mod tests {
    use super::causes;

    #[test]
    fn a_failure_is_told_by_its_causes() {
        let told = "An error happened during execution\nCaused by:\n  Several failures at once\nCaused by:\n  \
                    The bytes were never written (failure #1, still claiming 4 buffer(s))\n  skipped `K`: it \
                    needed memory\nCaused by:\n  out of device memory allocating 8 bytes\nNo backtrace \
                    available\nAsked at:\nNo backtrace available\n  out of device memory allocating 8 bytes\n  \
                    another\nBacktrace:\nNo backtrace available";
        assert_eq!(
            causes(told),
            "out of device memory allocating 8 bytes; another"
        );
        for plain in [
            "lost",
            "Caused by:",
            "buffer (of 8 bytes) is \"lost\", not Found",
        ] {
            assert_eq!(causes(plain), plain);
        }
    }

    #[test]
    fn values_of_rust_are_told_in_words() {
        for (told, words) in [
            (
                "called `Result::unwrap()` on an `Err` value: DriverError(CUDA_ERROR_NOT_READY, \"not \
                 ready\")",
                "driver error: CUDA_ERROR_NOT_READY, not ready",
            ),
            (
                "Unable to acquire wgpu device: DeviceRequest { message: \"Vulkan (lost)\" }",
                "Unable to acquire wgpu device: device request: message: Vulkan (lost)",
            ),
            (
                "no device: Core(LimitsExceeded(FailedLimit { name: \"max_size\", requested: 4, allowed: 2 \
                 })) here",
                "no device: core: limits exceeded: failed limit: name: max_size, requested: 4, allowed: 2 here",
            ),
            ("Some(OutOfMemory)", "some: out of memory"),
        ] {
            assert_eq!(causes(told), words);
        }
    }
}
