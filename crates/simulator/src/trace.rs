use csv::{Reader, ReaderBuilder, StringRecord, Trim};

use super::{
    SimulationError,
    replay::{MOST_YEARS, YEAR},
};

/// A job of a cluster trace.
#[derive(Debug, Clone, PartialEq)]
pub struct TracedJob {
    /// Seconds since 1970, in the time zone of the trace.
    pub arrival: u64,
    /// Seconds that it ran.
    pub duration: f64,
    /// Devices that it had.
    pub devices: usize,
    /// Its owner.
    pub tenant: String,
}

/// Reads a trace with the columns `timestamp` (`YYYY-MM-DD HH:MM:SS`), `duration` (seconds), `num_gpus` and
/// `cluster`, in any order and among others. Returns its jobs in order of arrival, equal arrivals in their
/// order in the file.
///
/// # Errors
/// [`SimulationError`] with the line of the first row that cannot be read: rows are not skipped.
/// [`SimulationError::NoJobs`] if there is no row.
pub fn read_trace(text: &str) -> Result<Vec<TracedJob>, SimulationError> {
    let mut reader = reader(text);
    let failed = |error| not_csv(&error, text);
    let header = reader.headers().map_err(failed)?;
    let place = |column| {
        let found = header.iter().position(|name| name == column);
        found.ok_or_else(|| SimulationError::MissingColumn {
            column,
            header: header.iter().collect::<Vec<_>>().join(","),
            needed: "timestamp, duration, num_gpus and cluster",
        })
    };
    let [timestamp, duration, devices, tenant] = [
        place("timestamp")?,
        place("duration")?,
        place("num_gpus")?,
        place("cluster")?,
    ];
    let mut jobs = Vec::new();
    for record in reader.records() {
        let record = record.map_err(failed)?;
        let row = Row {
            record: &record,
            text,
        };
        jobs.push(TracedJob {
            arrival: row.field(
                (timestamp, "timestamp"),
                "a time like 2017-10-09 07:01:55",
                seconds_since_1970,
            )?,
            duration: row.field(
                (duration, "duration"),
                "seconds above 0, and at most 3155760000 (100 years)",
                |text| {
                    let in_range = |seconds: &f64| *seconds > 0.0 && *seconds <= MOST_YEARS * YEAR;
                    text.parse().ok().filter(in_range)
                },
            )?,
            devices: row.field((devices, "num_gpus"), "a number above 0", |text| {
                text.parse().ok().filter(|&count| count > 0)
            })?,
            tenant: row.field((tenant, "cluster"), "a name", |text| {
                (!text.is_empty()).then(|| text.to_owned())
            })?,
        });
    }
    if jobs.is_empty() {
        return Err(SimulationError::NoJobs);
    }
    jobs.sort_by_key(|job| job.arrival);
    Ok(jobs)
}

pub(super) fn reader(text: &str) -> Reader<&[u8]> {
    ReaderBuilder::new()
        .trim(Trim::All)
        .from_reader(text.as_bytes())
}

pub(super) fn not_csv(error: &csv::Error, text: &str) -> SimulationError {
    SimulationError::Csv {
        line: error.position().map_or(1, |at| line_of(at, text)),
        reason: match error.kind() {
            // The reader's own message names its own line.
            csv::ErrorKind::UnequalLengths {
                expected_len, len, ..
            } => format!("{len} fields, but the first line has {expected_len}"),
            _ => error.to_string(),
        },
    }
}

/// The line where a record begins. The reader's own count is too low after `\r\n` and empty lines, which it
/// takes to the next record.
fn line_of(position: &csv::Position, text: &str) -> u64 {
    let begin = usize::try_from(position.byte()).unwrap_or(usize::MAX);
    let (before, record) = text.split_at_checked(begin).unwrap_or((text, ""));
    let between = record.len() - record.trim_start_matches(['\r', '\n']).len();
    let ends = before.matches('\n').count() + record[..between].matches('\n').count();
    ends as u64 + 1
}

pub(super) struct Row<'a> {
    pub(super) record: &'a StringRecord,
    /// The whole trace.
    pub(super) text: &'a str,
}

impl Row<'_> {
    pub(super) fn field<T>(
        &self,
        (place, column): (usize, &'static str),
        expected: &'static str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<T, SimulationError> {
        // Rows have as many fields as the header, or the reader refuses them.
        let text = self.record.get(place).unwrap_or_default();
        let position = self.record.position();
        parse(text).ok_or_else(|| SimulationError::Field {
            line: position.map_or(0, |at| line_of(at, self.text)),
            column,
            value: text.to_owned(),
            expected,
        })
    }
}

/// Seconds of a date in the Gregorian calendar and a time of day; `None` if there is no such date or time.
pub(super) fn seconds_since_1970(text: &str) -> Option<u64> {
    let (date, time) = text.split_once([' ', 'T'])?;
    let [year, month, day] = numbers(date, '-')?;
    let [hour, minute, second] = numbers(time, ':')?;
    let leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    let length = |month| match month {
        2 if leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    };
    let is_date = (1970..=9999).contains(&year) && (1..=12).contains(&month);
    if !is_date || !(1..=length(month)).contains(&day) || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let of_years: u64 = (1970..year).map(|year| 365 + u64::from(leap(year))).sum();
    let of_months: u64 = (1..month).map(length).sum();
    let days = of_years + of_months + day - 1;
    Some(((days * 24 + hour) * 60 + minute) * 60 + second)
}

fn numbers(text: &str, between: char) -> Option<[u64; 3]> {
    let mut parts = text.split(between).map(|part| {
        let digits =
            !part.is_empty() && part.len() <= 4 && part.bytes().all(|b| b.is_ascii_digit());
        digits.then(|| part.parse().ok()).flatten()
    });
    let numbers = [parts.next()??, parts.next()??, parts.next()??];
    parts.next().is_none().then_some(numbers)
}

#[cfg(test)]
mod tests {
    use super::{SimulationError, read_trace, seconds_since_1970};

    const HEADER: &str = "timestamp,duration,num_gpus,gpu_time,cluster\n";

    #[test]
    fn times_are_those_of_date() {
        // As `date -u -d … +%s` prints them.
        let known = [
            ("1970-01-01 00:00:00", 0),
            ("2000-02-29 12:00:00", 951_825_600),
            ("2017-10-09 07:01:55", 1_507_532_515),
            ("2100-03-01 00:00:00", 4_107_542_400),
        ];
        for (text, seconds) in known {
            assert_eq!(seconds_since_1970(text), Some(seconds), "{text}");
        }
        let not = [
            "",
            "2017-10-09",
            "2017-13-09 00:00:00",
            "2017-02-29 00:00:00",
            "2017-10-09 24:00:00",
            "2017-10-9x 00:00:00",
            "2017-10-09 00:00",
            "+017-10-09 00:00:00",
            "2017-10-09 00:00:00:1",
        ];
        for text in not {
            assert_eq!(seconds_since_1970(text), None, "{text}");
        }
    }

    #[test]
    fn jobs_come_in_order_of_arrival() {
        let text = format!(
            "{HEADER}2017-10-09 07:01:55,66.0,1,66.0,b\n2017-10-09 06:13:03,2951.5,8,1.0,a\n\
             2017-10-09 07:01:55,1,1,1,c\n\n"
        );
        let jobs = read_trace(&text).unwrap();
        let tenants: Vec<_> = jobs.iter().map(|job| job.tenant.as_str()).collect();
        assert_eq!(tenants, ["a", "b", "c"]);
        assert_eq!((jobs[0].devices, jobs[0].arrival), (8, 1_507_529_583));
        assert_eq!(jobs[0].duration.to_bits(), 2951.5_f64.to_bits());
        let turned = "cluster,num_gpus,duration,timestamp\nx,2,3,2017-10-09 00:00:00\n";
        assert_eq!(read_trace(turned).unwrap()[0].tenant, "x");
    }

    #[test]
    fn what_cannot_be_read_is_refused_with_its_line() {
        let cases = [
            (
                "2017-10-09,66,1,66,b",
                "line 3: timestamp is `2017-10-09`, expected a time like 2017-10-09 07:01:55",
            ),
            (
                "2017-10-09 00:00:00,-1,1,66,b",
                "line 3: duration is `-1`, expected seconds above 0, and at most 3155760000 (100 \
                 years)",
            ),
            (
                "2017-10-09 00:00:00,1e300,1,66,b",
                "line 3: duration is `1e300`, expected seconds above 0, and at most 3155760000 (100 \
                 years)",
            ),
            (
                "2017-10-09 00:00:00,NaN,1,66,b",
                "line 3: duration is `NaN`, expected seconds above 0, and at most 3155760000 (100 \
                 years)",
            ),
            (
                "2017-10-09 00:00:00,1,0,66,b",
                "line 3: num_gpus is `0`, expected a number above 0",
            ),
            (
                "2017-10-09 00:00:00,1,1,66,",
                "line 3: cluster is ``, expected a name",
            ),
        ];
        for (row, message) in cases {
            let text = format!("{HEADER}2017-10-09 00:00:00,1,1,1,a\n{row}\n");
            for text in [text.replace('\n', "\r\n"), text] {
                assert_eq!(read_trace(&text).unwrap_err().to_string(), message);
            }
        }
        for (between, line) in [("", 2), ("\n\n", 4)] {
            let short = format!("{HEADER}{between}2017-10-09 00:00:00,1\n");
            for short in [short.replace('\n', "\r\n"), short] {
                let message = read_trace(&short).unwrap_err().to_string();
                let expected = format!("line {line}: 2 fields, but the first line has 5");
                assert_eq!(message, expected, "{short:?}");
            }
        }
        let message = read_trace("timestamp;duration\n").unwrap_err().to_string();
        assert!(message.contains("`timestamp;duration`"), "{message}");
        let message = read_trace("a,b\n1,2\n").unwrap_err().to_string();
        assert!(message.starts_with("no column `timestamp`"), "{message}");
        assert!(read_trace("").is_err());
        let empty = read_trace(HEADER).unwrap_err();
        assert!(matches!(empty, SimulationError::NoJobs), "{empty}");
    }
}
