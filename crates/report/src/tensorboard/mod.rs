//! Curves as TensorBoard's event files.
//!
//! Every adapter is a TensorBoard run in a folder of its own, with the tags of Hugging Face's trainer (`train/loss`,
//! `eval/loss`, …) by its own steps. The folder itself is another run, with the measurements of whole iterations.

mod record;

use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
};

use record::{EventFile, Scalars};

use crate::{
    ReportError, RunHistory,
    adapter::{AdapterHistory, EvalRow, StepRow},
};

impl RunHistory {
    /// Writes an event file for each adapter and one for the run below `directory`. Files of an earlier call for the
    /// same run are continued if they only lack events, so that an open TensorBoard keeps reading them.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn write_tensorboard(&self, directory: &Path) -> Result<(), ReportError> {
        let begun = self.wall_time(0.0);
        // Named by the run's start, so that another run in the same folder has another file.
        let file = format!("events.out.tfevents.{begun:.0}.loraloom");
        let write = |folder: &Path, events: EventFile| {
            let path = folder.join(&file);
            continue_file(&path, &events.into_bytes()).map_err(|source| ReportError::Write {
                path: path.clone(),
                source,
            })
        };
        write(directory, self.iterations_as_events(begun))?;
        let metrics = self.metrics.iter().map(|metric| format!("train/{metric}"));
        let metrics: Vec<String> = metrics.collect();
        for (index, adapter) in self.adapters.iter().enumerate() {
            if !adapter.rows.is_empty() || !adapter.evals.is_empty() {
                let folder = directory.join(folder_of(index, &adapter.name));
                write(&folder, self.adapter_as_events(adapter, &metrics, begun))?;
            }
        }
        Ok(())
    }

    fn adapter_as_events(
        &self,
        adapter: &AdapterHistory,
        metrics: &[String],
        begun: f64,
    ) -> EventFile {
        let mut file = EventFile::begin(begun);
        let of_step = |row: &StepRow| {
            let mut values = vec![
                ("train/loss", row.loss as f32),
                ("train/grad_norm", row.grad_norm as f32),
                ("train/learning_rate", row.learning_rate as f32),
            ];
            let named = metrics.iter().zip(&row.metrics);
            values.extend(named.map(|(name, value)| (name.as_str(), *value as f32)));
            self.scalars(row.seconds, row.step, values)
        };
        let of_eval = |row: &EvalRow| {
            let mut values = vec![("eval/loss", row.loss as f32)];
            for (name, value) in [
                ("eval/rewards/margins", row.margins),
                ("eval/rewards/accuracies", row.accuracies),
            ] {
                values.extend(value.map(|value| (name, value as f32)));
            }
            self.scalars(row.seconds, row.step, values)
        };
        let mut evals = adapter.evals.iter().peekable();
        // The time of a step is that of its iteration.
        let last = self.iterations.last().map_or(0, |last| last.iteration);
        for row in adapter.rows.iter().take_while(|row| row.iteration <= last) {
            while let Some(eval) = evals.next_if(|eval| eval.step < row.step) {
                file.add(&of_eval(eval));
            }
            file.add(&of_step(row));
        }
        evals.for_each(|eval| file.add(&of_eval(eval)));
        file
    }

    fn iterations_as_events(&self, begun: f64) -> EventFile {
        let mut file = EventFile::begin(begun);
        for row in &self.iterations {
            let values = vec![
                ("run/tokens_per_second", row.tokens_per_second as f32),
                ("run/bytes_reserved", row.bytes_reserved as f32),
                ("run/bytes_predicted", row.bytes_predicted as f32),
                ("run/bubble_ratio", row.bubble_ratio as f32),
                ("run/transfer_seconds", row.transfer_seconds as f32),
                ("run/transfer_overlap", row.transfer_overlap as f32),
            ];
            file.add(&self.scalars(row.clock, row.iteration, values));
        }
        file
    }

    /// A point of the curves that have a value.
    fn scalars<'a>(&self, seconds: f64, step: u64, mut values: Vec<(&'a str, f32)>) -> Scalars<'a> {
        values.retain(|(_, value)| value.is_finite());
        Scalars {
            time: self.wall_time(seconds),
            step,
            values,
        }
    }
}

/// The folder of an adapter, always directly below.
fn folder_of(index: usize, name: &str) -> PathBuf {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    if !name.is_empty() && name.chars().all(is_plain) && !name.starts_with('.') {
        return name.into();
    }
    let plain = |letter| if is_plain(letter) { letter } else { '_' };
    let name: String = name.chars().map(plain).take(80).collect();
    format!("{index}_{name}").into()
}

/// Updates a file to this content: appends the missing part, or rewrites it.
fn continue_file(path: &Path, content: &[u8]) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    match fs::read(path) {
        Ok(before) if content.starts_with(&before) => {
            let mut file = fs::OpenOptions::new().append(true).open(path)?;
            file.write_all(&content[before.len()..])
        }
        _ => fs::write(path, content),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::folder_of;

    #[test]
    fn folders_of_adapters_are_below() {
        for (name, folder) in [
            ("shout-r4", "shout-r4"),
            ("a.b_c", "a.b_c"),
            ("..", "7_.."),
            ("", "7_"),
            (".hidden", "7_.hidden"),
            ("../../etc", "7_.._.._etc"),
            ("/abs", "7__abs"),
            ("ü", "7__"),
            ("C:\\x", "7_C__x"),
        ] {
            assert_eq!(folder_of(7, name), Path::new(folder), "{name}");
        }
    }
}
