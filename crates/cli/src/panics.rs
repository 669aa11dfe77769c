//! Collects panics instead of printing them: a bug is reported once, an expected panic not at all.
//!
//! Drivers panic where a device cannot be opened, and `CubeCL` panics and recovers in its own
//! threads while it tunes. Only a panic that reaches the caller of [`catch`] is an error.

use std::{
    panic::{self, AssertUnwindSafe, PanicHookInfo},
    sync::{Mutex, PoisonError},
    thread::{self, ThreadId},
};

/// Collected panics, oldest first.
static KEPT: Mutex<Vec<(ThreadId, String)>> = Mutex::new(Vec::new());

/// Collects panics from now on instead of printing them.
pub(crate) fn install() {
    panic::set_hook(Box::new(|info| {
        let kept = (thread::current().id(), describe(info));
        KEPT.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(kept);
    }));
}

/// Runs `action` and catches its panic.
///
/// # Errors
///
/// The message of the panic, with its place in the source.
pub(crate) fn catch<T>(action: impl FnOnce() -> T) -> Result<T, String> {
    let this = thread::current().id();
    let mine = |thread| thread == this;
    take(mine);
    panic::catch_unwind(AssertUnwindSafe(action)).map_err(|_| take(mine).join("; "))
}

/// Messages of the panics of other threads.
pub(crate) fn elsewhere() -> Vec<String> {
    let this = thread::current().id();
    take(|thread| thread != this)
}

fn take(which: impl Fn(ThreadId) -> bool) -> Vec<String> {
    KEPT.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .extract_if(.., |(thread, _)| which(*thread))
        .map(|(_, message)| message)
        .collect()
}

fn describe(info: &PanicHookInfo<'_>) -> String {
    let message = info.payload_as_str().unwrap_or("panic without a message");
    match info.location() {
        Some(place) => format!("{message} ({}:{})", place.file(), place.line()),
        None => message.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::{catch, elsewhere, install};

    #[test]
    fn a_panic_becomes_its_message_and_success_passes_through() {
        install();
        let message = catch(|| panic!("no {}", "driver")).unwrap_err();
        assert!(message.starts_with("no driver ("), "{message}");
        assert_eq!(catch(|| 7).unwrap(), 7);
        thread::spawn(|| panic!("not mine")).join().unwrap_err();
        assert_eq!(catch(|| 7).unwrap(), 7);
        let others = elsewhere();
        assert!(
            others
                .iter()
                .any(|message| message.starts_with("not mine (")),
            "{others:?}"
        );
    }
}
