//! Samples, which may exceed memory.

use std::{
    collections::BTreeMap,
    env,
    fs::File,
    io::{self, Write},
    iter,
    ops::Range,
    path::{Path, PathBuf},
};

use crate::{error::DataError, sample::Sample};

/// Bytes of samples that are collected in memory before they are written to a file.
const MOST_IN_MEMORY: usize = 64 << 20;
/// Samples that are read at once where all are read.
const READ_AT_ONCE: usize = 256;

/// Samples in the order of their rows. Once they exceed 64 MiB they are in a temporary file without a name; memory
/// keeps the place of each, 8 bytes, and counts.
#[derive(Debug)]
pub struct Samples {
    /// Per sample, the end of its bytes.
    ends: Vec<u64>,
    /// The bytes behind those in the file.
    in_memory: Vec<u8>,
    most_in_memory: usize,
    file: Option<File>,
    in_file: u64,
    /// Directory of the file.
    directory: PathBuf,
    predicting_lengths: BTreeMap<usize, usize>,
    target_counts: BTreeMap<usize, usize>,
    longest: usize,
    largest_id: u32,
    per_row: usize,
}

impl Default for Samples {
    fn default() -> Self {
        Self::new(MOST_IN_MEMORY, temporary())
    }
}

impl Samples {
    fn new(most_in_memory: usize, directory: PathBuf) -> Self {
        Self {
            ends: Vec::new(),
            in_memory: Vec::new(),
            most_in_memory,
            file: None,
            in_file: 0,
            directory,
            predicting_lengths: BTreeMap::new(),
            target_counts: BTreeMap::new(),
            longest: 0,
            largest_id: 0,
            per_row: 1,
        }
    }

    /// Samples of rows that have `count` each, one after another.
    #[must_use]
    pub fn with_per_row(mut self, count: usize) -> Self {
        self.per_row = count;
        self
    }

    /// Number of samples of each row.
    pub fn per_row(&self) -> usize {
        self.per_row
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.len() / self.per_row
    }

    /// The samples of a row.
    ///
    /// # Errors
    ///
    /// As [`get`](Self::get).
    pub fn row(&self, row: usize) -> Result<Vec<Sample>, DataError> {
        self.range(row * self.per_row..(row + 1) * self.per_row)
    }

    /// Number of samples.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// True without samples.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Tokens of the longest sample.
    pub fn longest(&self) -> usize {
        self.longest
    }

    /// The largest token id.
    pub fn largest_id(&self) -> u32 {
        self.largest_id
    }

    /// Number of samples by their [`predicting_len`](Sample::predicting_len).
    pub fn predicting_lengths(&self) -> &BTreeMap<usize, usize> {
        &self.predicting_lengths
    }

    /// Number of samples by their [`num_targets`](Sample::num_targets).
    pub fn target_counts(&self) -> &BTreeMap<usize, usize> {
        &self.target_counts
    }

    /// Adds a sample.
    ///
    /// # Errors
    ///
    /// [`DataError::Kept`] if the temporary file cannot be written.
    pub fn push(&mut self, sample: &Sample) -> Result<(), DataError> {
        let mut bytes = Vec::new();
        write(sample, &mut bytes);
        if self.in_memory.len() + bytes.len() > self.most_in_memory {
            self.empty_memory().map_err(|source| self.error(source))?;
        }
        self.in_memory.extend_from_slice(&bytes);
        self.ends.push(self.in_file + self.in_memory.len() as u64);
        let lengths = &mut self.predicting_lengths;
        *lengths.entry(sample.predicting_len()).or_default() += 1;
        let counts = &mut self.target_counts;
        *counts.entry(sample.num_targets()).or_default() += 1;
        self.longest = self.longest.max(sample.len());
        self.largest_id = sample.ids.iter().copied().fold(self.largest_id, u32::max);
        Ok(())
    }

    fn empty_memory(&mut self) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(tempfile::tempfile_in(&self.directory)?),
        };
        file.write_all(&self.in_memory)?;
        self.in_file += self.in_memory.len() as u64;
        self.in_memory.clear();
        Ok(())
    }

    /// Frees memory that no sample needs.
    pub(crate) fn shrink(&mut self) {
        self.ends.shrink_to_fit();
        self.in_memory.shrink_to_fit();
    }

    /// The sample at `index`.
    ///
    /// # Errors
    ///
    /// [`DataError::Kept`] if the temporary file cannot be read.
    pub fn get(&self, index: usize) -> Result<Sample, DataError> {
        let mut samples = self.range(index..index + 1)?;
        let damaged = || self.error(io::ErrorKind::InvalidData.into());
        samples.pop().ok_or_else(damaged)
    }

    /// Samples beside one another.
    ///
    /// # Errors
    ///
    /// As [`get`](Self::get).
    pub fn range(&self, indices: Range<usize>) -> Result<Vec<Sample>, DataError> {
        self.read(indices).map_err(|source| self.error(source))
    }

    /// All samples, in order.
    ///
    /// # Errors
    ///
    /// As [`get`](Self::get).
    pub fn iter(&self) -> impl Iterator<Item = Result<Sample, DataError>> {
        self.chunks(READ_AT_ONCE).flat_map(|chunk| {
            let (samples, error) = match chunk {
                Ok(samples) => (samples, None),
                Err(error) => (Vec::new(), Some(Err(error))),
            };
            samples.into_iter().map(Ok).chain(error)
        })
    }

    /// All samples, `size` at once.
    ///
    /// # Errors
    ///
    /// As [`get`](Self::get).
    pub fn chunks(&self, size: usize) -> impl Iterator<Item = Result<Vec<Sample>, DataError>> {
        let starts = (0..self.len()).step_by(size);
        starts.map(move |start| self.range(start..self.len().min(start.saturating_add(size))))
    }

    fn read(&self, indices: Range<usize>) -> io::Result<Vec<Sample>> {
        let count = indices.len();
        let end = |index: usize| index.checked_sub(1).map_or(0, |last| self.ends[last]);
        let (start, end) = (end(indices.start), end(indices.end));
        let in_file = start.min(self.in_file)..end.min(self.in_file);
        let mut bytes = vec![0; (in_file.end - in_file.start) as usize];
        if let Some(file) = &self.file {
            read_at(file, &mut bytes, in_file.start)?;
        }
        let behind = |place: u64| place.saturating_sub(self.in_file) as usize;
        bytes.extend_from_slice(&self.in_memory[behind(start)..behind(end)]);
        let mut bytes = bytes.iter();
        iter::repeat_with(|| sample(&mut bytes).ok_or_else(|| io::ErrorKind::InvalidData.into()))
            .take(count)
            .collect()
    }

    fn error(&self, source: io::Error) -> DataError {
        let directory = self.directory.clone();
        DataError::Kept { directory, source }
    }
}

/// The directory of temporary files that may be large: `/tmp` is in memory on many machines.
fn temporary() -> PathBuf {
    let disk = Path::new("/var/tmp");
    if env::var_os("TMPDIR").is_none() && disk.is_dir() {
        disk.to_owned()
    } else {
        env::temp_dir()
    }
}

/// Fills `bytes` from a place in a file, for several threads at once.
fn read_at(file: &File, bytes: &mut [u8], place: u64) -> io::Result<()> {
    #[cfg(unix)]
    return std::os::unix::fs::FileExt::read_exact_at(file, bytes, place);
    #[cfg(not(unix))]
    {
        use std::io::{Read, Seek, SeekFrom};
        // Threads share the position.
        static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());
        let _turn = TURN
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut file = file;
        file.seek(SeekFrom::Start(place))?;
        file.read_exact(bytes)
    }
}

/// Writes the preference, the number of ids, the ids, and the lengths of runs of the mask, which begins with a run that is no target.
fn write(sample: &Sample, to: &mut Vec<u8>) {
    let preferred = PREFERENCES.iter().position(|&one| one == sample.preferred);
    write_number(preferred.unwrap_or(0) as u64, to);
    write_number(sample.len() as u64, to);
    for &id in &sample.ids {
        write_number(u64::from(id), to);
    }
    if sample.is_target.first() == Some(&true) {
        write_number(0, to);
    }
    for run in sample.is_target.chunk_by(|left, right| left == right) {
        write_number(run.len() as u64, to);
    }
}

const PREFERENCES: [Option<bool>; 3] = [None, Some(false), Some(true)];

/// Reads what [`write`] wrote; `None` if it is damaged.
fn sample<'b>(from: &mut impl Iterator<Item = &'b u8>) -> Option<Sample> {
    let preferred = *PREFERENCES.get(usize::try_from(number(from)?).ok()?)?;
    let length = usize::try_from(number(from)?).ok()?;
    let ids = (0..length).map(|_| u32::try_from(number(from)?).ok());
    let ids = ids.collect::<Option<Vec<_>>>()?;
    let mut is_target = Vec::with_capacity(length);
    let mut run_is_target = false;
    while is_target.len() < length {
        let run = usize::try_from(number(from)?).ok()?;
        is_target.resize(length.min(is_target.len().checked_add(run)?), run_is_target);
        run_is_target = !run_is_target;
    }
    Some(Sample {
        ids,
        is_target,
        preferred,
    })
}

/// LEB128: seven bits a byte, the lowest first; the highest bit marks that another byte follows.
fn write_number(mut number: u64, to: &mut Vec<u8>) {
    while number >= 0x80 {
        to.push(number as u8 | 0x80);
        number >>= 7;
    }
    to.push(number as u8);
}

fn number<'b>(from: &mut impl Iterator<Item = &'b u8>) -> Option<u64> {
    let mut number = 0;
    for shift in (0..u64::BITS).step_by(7) {
        let byte = *from.next()?;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, env, fs, path::PathBuf};

    use proptest::prelude::*;

    use super::Samples;
    use crate::{error::DataError, sample::Sample};

    fn samples(most_in_memory: usize, directory: PathBuf, all: &[Sample]) -> Samples {
        let mut samples = Samples::new(most_in_memory, directory);
        for sample in all {
            samples.push(sample).unwrap();
        }
        samples.shrink();
        samples
    }

    fn any_sample() -> impl Strategy<Value = Sample> {
        let id = prop_oneof![0_u32..300, any::<u32>()];
        let tokens = prop::collection::vec((id, any::<bool>()), 0..12);
        let preferred = any::<Option<bool>>();
        (tokens, preferred).prop_map(|(tokens, preferred)| {
            let (ids, is_target) = tokens.into_iter().unzip();
            Sample {
                ids,
                is_target,
                preferred,
            }
        })
    }

    proptest! {
        #[test]
        fn what_is_read_is_what_was_added(
            all in prop::collection::vec(any_sample(), 0..300),
            most_in_memory in prop_oneof![0_usize..1000, Just(usize::MAX)],
            (from, to) in any::<(prop::sample::Index, prop::sample::Index)>(),
            size in 1_usize..50,
        ) {
            let kept = samples(most_in_memory, env::temp_dir(), &all);
            prop_assert_eq!(kept.len(), all.len());
            prop_assert_eq!(kept.iter().collect::<Result<Vec<_>, _>>().unwrap(), &*all);
            let chunks: Vec<_> = kept.chunks(size).map(Result::unwrap).collect();
            prop_assert_eq!(chunks, all.chunks(size).collect::<Vec<_>>());
            let (from, to) = (from.index(all.len() + 1), to.index(all.len() + 1));
            let range = from.min(to)..from.max(to);
            prop_assert_eq!(kept.range(range.clone()).unwrap(), &all[range.clone()]);
            for index in range {
                prop_assert_eq!(&kept.get(index).unwrap(), &all[index]);
            }
            let sorted = |number: fn(&Sample) -> usize| {
                let mut numbers: Vec<_> = all.iter().map(number).collect();
                numbers.sort_unstable();
                numbers
            };
            let listed = |counts: &BTreeMap<usize, usize>| {
                let counts = counts.iter();
                counts.flat_map(|(&number, &count)| vec![number; count]).collect::<Vec<_>>()
            };
            prop_assert_eq!(listed(kept.predicting_lengths()), sorted(Sample::predicting_len));
            prop_assert_eq!(listed(kept.target_counts()), sorted(Sample::num_targets));
            prop_assert_eq!(kept.longest(), all.iter().map(Sample::len).max().unwrap_or(0));
            let ids = all.iter().flat_map(|sample| &sample.ids);
            prop_assert_eq!(kept.largest_id(), ids.copied().max().unwrap_or(0));
        }
    }

    fn tokens(count: u32) -> Sample {
        Sample {
            ids: (0..count).collect(),
            is_target: (0..count).map(|token| token >= count / 2).collect(),
            preferred: None,
        }
    }

    #[test]
    fn memory_holds_eight_bytes_a_sample_and_the_newest() {
        let (count, most) = (20_000, 50_000);
        let kept = samples(most, env::temp_dir(), &vec![tokens(300); count]);
        assert!(kept.in_file > 5_000_000, "{}", kept.in_file);
        let held = size_of_val(&*kept.ends) + kept.in_memory.capacity();
        assert!(held <= 8 * count + 2 * most, "{held}");
        assert_eq!(kept.get(count / 2).unwrap(), tokens(300));
    }

    #[test]
    fn a_file_that_fails_is_an_error_that_names_its_directory() {
        let directory = tempfile::tempdir().unwrap();
        let gone = directory.path().join("gone");
        let error = Samples::new(0, gone.clone()).push(&tokens(9)).unwrap_err();
        assert!(matches!(&error, DataError::Kept { .. }), "{error:?}");
        assert!(
            error.to_string().ends_with(gone.to_str().unwrap()),
            "{error}"
        );
        assert!(error.hint().unwrap().contains("TMPDIR"));

        let mut full = Samples::new(0, env::temp_dir());
        full.file = fs::File::options().write(true).open("/dev/full").ok();
        let mut push = || full.push(&tokens(9));
        let pushed = push().and_then(|()| push());
        assert!(pushed.is_err() || !cfg!(target_os = "linux"));

        let cut = samples(0, env::temp_dir(), &[tokens(9), tokens(9)]);
        cut.file.as_ref().unwrap().set_len(9).unwrap();
        assert!(cut.get(0).is_err() && cut.get(1).is_ok());
        assert!(cut.iter().any(|sample| sample.is_err()));
    }
}
