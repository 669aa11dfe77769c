//! Times as the file has them: milliseconds since 1970, UTC.

use std::time::{Duration, SystemTime};

/// The file's form of a time; what it cannot hold becomes the nearest that it can.
pub(crate) fn to_milliseconds(time: SystemTime) -> i64 {
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(after) => i64::try_from(after.as_millis()).unwrap_or(i64::MAX),
        Err(before) => i64::try_from(before.duration().as_millis()).map_or(i64::MIN, |ms| -ms),
    }
}

/// The time of a file's form; 1970 if this platform cannot express it.
pub(crate) fn from_milliseconds(milliseconds: i64) -> SystemTime {
    let distance = Duration::from_millis(milliseconds.unsigned_abs());
    let time = if milliseconds < 0 {
        SystemTime::UNIX_EPOCH.checked_sub(distance)
    } else {
        SystemTime::UNIX_EPOCH.checked_add(distance)
    };
    time.unwrap_or(SystemTime::UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_survive_the_file_on_both_sides_of_1970() {
        for milliseconds in [0, 1, -1, 1_700_000_000_123, -1_700_000_000_123] {
            assert_eq!(
                to_milliseconds(from_milliseconds(milliseconds)),
                milliseconds
            );
        }
    }
}
