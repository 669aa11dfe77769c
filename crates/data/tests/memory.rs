//! Memory that a file takes which is larger than it: the allocator counts.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    fs::File,
    io::{BufWriter, Write},
    path::Path,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    thread,
    time::Duration,
};

use loraloom_config::{DatasetConfig, Validation};
use loraloom_data::{Dataset, Shown, Split, Tokenizer, reading};

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[allow(
    unsafe_code,
    reason = "an allocator is unsafe; this one passes everything on"
)]
// SAFETY: passes everything on.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let held = HELD.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(held, Relaxed);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Relaxed);
        unsafe { System.dealloc(block, layout) }
    }
}

#[test]
fn a_file_takes_less_memory_than_its_size_and_says_how_far_it_is_read() {
    const ROWS: usize = 10_000;
    const FILE: usize = 100_000_000;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("large.jsonl");
    let mut file = BufWriter::new(File::create(&path).unwrap());
    for row in 0..ROWS {
        let words = "many words ".repeat(FILE / ROWS / 11);
        // To tokenise as much would take long.
        let row = format!(r#"{{"prompt":"{row}","completion":"short","source":"{words}"}}"#);
        writeln!(file, "{row}").unwrap();
    }
    file.into_inner().unwrap();
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/tiny-llama");
    let tokenizer = Tokenizer::load(&model).unwrap();
    let config = DatasetConfig {
        path: vec![path],
        columns: None,
        template: None,
        validation: Validation::Fraction(0.1),
    };
    let before = HELD.load(Relaxed);
    PEAK.store(before, Relaxed);
    let done = AtomicBool::new(false);
    let said = thread::scope(|scope| {
        let listener = scope.spawn(|| {
            let mut said = Vec::new();
            while !done.load(Relaxed) {
                said.extend(reading().map(|reading| reading.to_string()));
                thread::sleep(Duration::from_millis(5));
            }
            said
        });
        let dataset = Dataset::load("large", &config, 0).unwrap();
        let encoded = dataset.encode(&tokenizer, 32, false).unwrap();
        let survey = dataset.survey(&tokenizer, 32, false).unwrap();
        let shown = dataset.preview(Split::Validation, Shown::First(2), &tokenizer, 32, false);
        assert_eq!(shown.unwrap().len(), 2);
        assert_eq!(encoded.train.report, survey.train.report);
        assert_eq!(encoded.train.samples.len(), ROWS * 9 / 10);
        done.store(true, Relaxed);
        listener.join().unwrap()
    });
    let most = PEAK.load(Relaxed) - before;
    assert!(most < FILE / 2, "{most} bytes");
    for pass in ["checking", "encoding", "counting"] {
        let said = said.iter().filter(|said| said.starts_with(pass));
        let distinct: std::collections::BTreeSet<_> = said.collect();
        assert!(distinct.len() > 3, "{distinct:?}");
    }
    assert!(reading().is_none());
}
