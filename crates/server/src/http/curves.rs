//! Losses of a run's adapters, read from `events.jsonl` as it grows.

use std::{
    collections::HashMap,
    fs::File,
    io::{self, BufRead, BufReader, ErrorKind, Seek, SeekFrom},
    path::PathBuf,
};

use serde::{Deserialize, Serialize};

/// Most points of a curve. Of a longer one, every second is kept, then every fourth, and so on.
const MOST: usize = 4096;

/// The curves of a run's adapters, as far as the file has been read.
#[derive(Debug)]
pub(crate) struct CurveLog {
    path: PathBuf,
    /// Bytes of the file that were read: whole lines.
    read: u64,
    curves: HashMap<String, AdapterCurves>,
}

/// Losses of an adapter.
#[derive(Debug, Default)]
pub(crate) struct AdapterCurves {
    pub(crate) steps: LossCurve,
    pub(crate) evals: LossCurve,
}

/// Losses by step, in order.
#[derive(Debug)]
pub(crate) struct LossCurve {
    points: Vec<LossPoint>,
    /// Steps that are no multiple of it are left out, but for the last.
    stride: u64,
}

/// A loss after a step; `None` if it is not finite.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct LossPoint {
    pub(crate) step: u64,
    pub(crate) loss: Option<f64>,
}

#[derive(Debug, Deserialize)]
struct AdapterPoint {
    adapter: String,
    #[serde(flatten)]
    point: LossPoint,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum CurveEvent {
    Step(AdapterPoint),
    Eval(AdapterPoint),
    #[serde(other)]
    Other,
}

impl CurveLog {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self {
            path,
            read: 0,
            curves: HashMap::new(),
        }
    }

    pub(crate) fn of(&self, adapter: &str) -> Option<&AdapterCurves> {
        self.curves.get(adapter)
    }

    /// Reads the lines that were added. A file that is shorter than before is another one.
    pub(crate) fn read_on(&mut self) -> io::Result<()> {
        let mut file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        if file.metadata()?.len() < self.read {
            self.read = 0;
            self.curves.clear();
        }
        file.seek(SeekFrom::Start(self.read))?;
        let mut file = BufReader::new(file);
        let mut line = Vec::new();
        loop {
            line.clear();
            let length = file.read_until(b'\n', &mut line)?;
            // The rest of the line is not written yet.
            if line.last() != Some(&b'\n') {
                return Ok(());
            }
            self.read += length as u64;
            self.add(&line);
        }
    }

    fn add(&mut self, line: &[u8]) {
        // A line that a lost server left incomplete is no event.
        let Ok(event) = serde_json::from_slice(line) else {
            return;
        };
        match event {
            CurveEvent::Step(AdapterPoint { adapter, point }) => {
                let curves = self.curves.entry(adapter).or_default();
                curves.steps.cut(point.step);
                curves.evals.cut(point.step);
                curves.steps.push(point);
            }
            CurveEvent::Eval(AdapterPoint { adapter, point }) => {
                let curves = self.curves.entry(adapter).or_default();
                curves.evals.cut(point.step);
                curves.evals.push(point);
            }
            CurveEvent::Other => {}
        }
    }
}

impl Default for LossCurve {
    fn default() -> Self {
        Self {
            points: Vec::new(),
            stride: 1,
        }
    }
}

impl LossCurve {
    /// The points after one step and up to another.
    pub(crate) fn between(&self, after: u64, last: u64) -> &[LossPoint] {
        let start = self.points.partition_point(|point| point.step <= after);
        let end = self.points.partition_point(|point| point.step <= last);
        &self.points[start.min(end)..end]
    }

    /// Forgets a step and those after it: a task that went back to its last save takes them again.
    fn cut(&mut self, step: u64) {
        let kept = self.points.partition_point(|point| point.step < step);
        self.points.truncate(kept);
        if kept == 0 {
            self.stride = 1;
        }
    }

    fn push(&mut self, point: LossPoint) {
        let is_between = |last: &LossPoint| !last.step.is_multiple_of(self.stride);
        if self.points.last().is_some_and(is_between) {
            self.points.pop();
        }
        self.points.push(point);
        if self.points.len() > MOST {
            self.stride *= 2;
            let stride = self.stride;
            self.points
                .retain(|kept| kept.step.is_multiple_of(stride) || kept.step == point.step);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, io::Write};

    use super::*;

    fn step(adapter: &str, step: u64, loss: f64) -> String {
        format!(
            "{{\"v\":1,\"event\":\"step\",\"iteration\":9,\"adapter\":\"{adapter}\",\"step\":{step},\"loss\":{loss}}}\n"
        )
    }

    fn eval(step: u64, loss: &str) -> String {
        format!(
            "{{\"v\":1,\"event\":\"eval\",\"adapter\":\"a\",\"step\":{step},\"loss\":{loss},\"best\":true}}\n"
        )
    }

    fn steps(curve: &LossCurve) -> Vec<u64> {
        curve.points.iter().map(|point| point.step).collect()
    }

    struct Log(tempfile::NamedTempFile, CurveLog);

    impl Log {
        fn new() -> Self {
            let file = tempfile::NamedTempFile::new().unwrap();
            let log = CurveLog::new(file.path().to_owned());
            Self(file, log)
        }

        fn write(&mut self, text: &str) -> &AdapterCurves {
            self.0.as_file_mut().write_all(text.as_bytes()).unwrap();
            self.1.read_on().unwrap();
            self.1.of("a").unwrap()
        }
    }

    #[test]
    fn only_whole_new_lines_are_read() {
        let mut log = Log::new();
        let (first, second) = (step("a", 1, 2.5), step("a", 2, 1.5));
        let (begin, end) = second.split_at(second.len() / 2);
        let text = format!("{first}{}nonsense\n{begin}", step("b", 7, 1.0));
        assert_eq!(steps(&log.write(&text).steps), [1]);
        let read = log.1.read;
        // Bytes that were read are not read again.
        let zeros = vec![b'0'; read as usize];
        fs::write(log.0.path(), [&zeros, begin.as_bytes()].concat()).unwrap();
        assert_eq!(steps(&log.write("").steps), [1]);
        let mut file = File::options().append(true).open(log.0.path()).unwrap();
        file.write_all(end.as_bytes()).unwrap();
        log.1.read_on().unwrap();
        let curve = &log.1.of("a").unwrap().steps;
        let point = |step, loss| LossPoint {
            step,
            loss: Some(loss),
        };
        assert_eq!(curve.points, [point(1, 2.5), point(2, 1.5)]);
        assert_eq!(steps(&log.1.of("b").unwrap().steps), [7]);
    }

    #[test]
    fn a_shorter_file_is_read_from_its_start() {
        let mut log = Log::new();
        log.write(&[step("a", 1, 1.0), step("a", 2, 1.0)].concat());
        fs::write(log.0.path(), step("a", 5, 1.0)).unwrap();
        log.1.read_on().unwrap();
        assert_eq!(steps(&log.1.of("a").unwrap().steps), [5]);
    }

    #[test]
    fn steps_that_are_taken_again_replace_the_first() {
        let mut log = Log::new();
        let text: String = (1..=6).map(|at| step("a", at, 1.0)).collect();
        log.write(&(text + &eval(4, "0.5") + &eval(6, "null")));
        let curves = log.write(&step("a", 5, 0.25));
        assert_eq!(steps(&curves.steps), [1, 2, 3, 4, 5]);
        assert_eq!(curves.steps.points[4].loss, Some(0.25));
        assert_eq!(steps(&curves.evals), [4]);
    }

    #[test]
    fn long_curves_have_some_points_and_the_last() {
        let mut curve = LossCurve::default();
        for step in 1..=20_001 {
            curve.push(LossPoint { step, loss: None });
            assert!(curve.points.len() <= MOST);
            assert_eq!(curve.points.last().unwrap().step, step);
        }
        let kept = steps(&curve);
        assert_eq!((kept[0], kept[1]), (8, 16));
        assert_eq!(kept[kept.len() - 2..], [20_000, 20_001]);
        assert_eq!(curve.between(19_990, 20_000).len(), 2);
        assert!(curve.between(20_001, 5).is_empty());
    }
}
