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
static KEPT: Mutex<Vec<(ThreadId, Caught)>> = Mutex::new(Vec::new());

/// A panic's message and source location.
struct Caught {
    message: String,
    place: Option<String>,
}

/// Collects panics from now on instead of printing them.
pub(crate) fn install() {
    panic::set_hook(Box::new(|info| {
        let kept = (thread::current().id(), Caught::of(info));
        KEPT.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(kept);
    }));
}

/// Runs `action` and catches its panic.
///
/// # Errors
/// The message of the panic, with its source location.
pub(crate) fn catch<T>(action: impl FnOnce() -> T) -> Result<T, String> {
    caught(action, Caught::with_place)
}

/// As [`catch`], for an action that panics if a device does not work: the message is plain text without a location.
pub(crate) fn catch_of_device<T>(action: impl FnOnce() -> T) -> Result<T, String> {
    caught(action, |caught| loraloom_model::causes(&caught.message))
}

fn caught<T>(action: impl FnOnce() -> T, told: fn(Caught) -> String) -> Result<T, String> {
    let this = thread::current().id();
    let mine = |thread| thread == this;
    take(mine);
    panic::catch_unwind(AssertUnwindSafe(action)).map_err(|_| {
        let mut caught = take(mine);
        if caught.is_empty() {
            // A thread that this one waited for passed its panic on.
            caught = take(|_| true);
        }
        let messages: Vec<String> = caught.into_iter().map(told).collect();
        messages.join("; ")
    })
}

/// Messages of the panics in other threads.
pub(crate) fn elsewhere() -> Vec<String> {
    let this = thread::current().id();
    let others = take(|thread| thread != this);
    others.into_iter().map(Caught::with_place).collect()
}

fn take(which: impl Fn(ThreadId) -> bool) -> Vec<Caught> {
    KEPT.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .extract_if(.., |(thread, _)| which(*thread))
        .map(|(_, caught)| caught)
        .collect()
}

impl Caught {
    fn of(info: &PanicHookInfo<'_>) -> Self {
        let message = info.payload_as_str().unwrap_or("panic without a message");
        let place = info.location();
        Self {
            message: message.to_owned(),
            place: place.map(|place| format!("{}:{}", place.file(), place.line())),
        }
    }

    fn with_place(self) -> String {
        let Self { message, place } = self;
        match place {
            Some(place) => format!("{message} ({place})"),
            None => message,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{panic::resume_unwind, thread};

    use super::{catch, catch_of_device, elsewhere, install};

    #[test]
    fn a_panic_becomes_its_message_and_success_passes_through() {
        install();
        let message = catch(|| panic!("no {}", "driver")).unwrap_err();
        assert!(message.starts_with("no driver ("), "{message}");
        // As CubeCL does without a driver.
        let found = std::fs::metadata("no such driver").map_err(|error| error.kind());
        let driver = || found.unwrap();
        assert_eq!(catch_of_device(driver).unwrap_err(), "NotFound");
        assert_eq!(catch(|| 7).unwrap(), 7);
        let passed_on = || thread::spawn(|| panic!("not here")).join();
        let message = catch(|| passed_on().unwrap_or_else(|panic| resume_unwind(panic)));
        assert!(message.unwrap_err().starts_with("not here ("));
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
