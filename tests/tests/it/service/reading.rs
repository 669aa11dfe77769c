//! Adapters that are read, and weights that are awaited.

use std::{
    collections::HashSet,
    fs,
    path::Path,
    process::Command,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use loraloom_inference::{
    AdapterStore, FindWeights, FoundWeights, ReadAdapter, Replace, ServiceError, TakeWeights,
};
use loraloom_tests::device;

use super::{ALL, Here, MODEL, adapter, ask, bits, expected, pipeline, reader};

const MANY: usize = 300;
const MINUTE: Duration = Duration::from_mins(1);
const PANICS: usize = 100;
const CHANGES: usize = 200;

type Asked = Arc<Mutex<Vec<(thread::ThreadId, TakeWeights)>>>;

fn wait_until(is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < MINUTE);
        thread::yield_now();
    }
}

#[test]
fn adapters_are_read_by_one_thread() {
    let pipeline = pipeline(MODEL, &[], &[]);
    let (read, threads) = (reader(&pipeline), Arc::default());
    let seen: Arc<Mutex<HashSet<_>>> = Arc::clone(&threads);
    let read: ReadAdapter = Arc::new(move |directory: &Path| {
        seen.lock().expect("threads").insert(thread::current().id());
        assert!(!directory.ends_with("panics"), "as asked");
        let read = read(directory);
        if directory.ends_with("changes") {
            fs::write(directory.join("adapter_model.safetensors"), "others").expect("written");
        }
        read
    });
    let store = AdapterStore::new("tiny".to_owned(), 0, ALL, read);
    let here = Here::of(pipeline, store, 1000).start();
    let loads = (0..MANY).map(|number| {
        let name = match number {
            PANICS => "panics".to_owned(),
            CHANGES => "changes".to_owned(),
            _ => number.to_string(),
        };
        let (directory, service) = (here.write(&name, 1, 4), here.service.clone());
        let load = async move { service.load(name, directory, Replace::Nothing).await };
        here.runtime.spawn(load)
    });
    for (number, loaded) in loads.collect::<Vec<_>>().into_iter().enumerate() {
        match here.runtime.block_on(loaded).expect("a task") {
            Ok(card) => assert_eq!(card.name, number.to_string()),
            Err(ServiceError::Failed(error)) => {
                assert!(error.ends_with("/panics` panicked"), "{error}");
                assert_eq!(number, PANICS);
            }
            Err(error) => {
                let error = error.to_string();
                assert!(error.ends_with("changed since they were loaded"), "{error}");
                assert_eq!(number, CHANGES);
            }
        }
    }
    assert_eq!(here.stats().adapters, MANY - 2);
    assert_eq!(threads.lock().expect("threads").len(), 1);
}

#[cfg(unix)]
#[test]
fn a_pipe_keeps_no_adapter_waiting() {
    let here = Here::roomy();
    let (pipe, good) = (here.write("pipe", 1, 4), here.write("good", 1, 4));
    let path = pipe.join("adapter_config.json");
    fs::remove_file(&path).expect("removed");
    let made = Command::new("mkfifo").arg(&path).status();
    assert!(made.expect("mkfifo").success());
    let loads = [("pipe", pipe), ("good", good)].map(|(name, directory)| {
        let (service, (send, loaded)) = (here.service.clone(), mpsc::channel());
        here.runtime.spawn(async move {
            let load = service.load(name.to_owned(), directory, Replace::Nothing);
            send.send(load.await)
        });
        loaded
    });
    let [pipe, good] = loads.map(|loaded| loaded.recv_timeout(MINUTE).expect("an answer"));
    let error = pipe.unwrap_err().to_string();
    assert!(error.ends_with("not a regular file"), "{error}");
    assert_eq!(good.expect("loaded").name, "good");
}

#[test]
fn a_directory_of_saves_is_told_apart_from_its_saves() {
    let here = Here::roomy();
    let last = here.write("style/last", 1, 4);
    let style = last.parent().expect("a parent");
    let error = || {
        let error = here.load("style", style, Replace::Nothing).unwrap_err();
        error.to_string()
    };
    let hint = |save: &Path| format!("; did you mean `{}`?", save.display());
    assert!(error().ends_with(&hint(&last)), "{}", error());
    let best = here.write("style/best", 1, 4);
    assert!(error().ends_with(&hint(&best)), "{}", error());
    fs::remove_file(best.join("adapter_model.safetensors")).expect("removed");
    assert!(error().ends_with(&hint(&last)), "{}", error());
    fs::remove_dir_all(&last).expect("removed");
    assert!(!error().contains("did you mean"), "{}", error());
}

#[test]
fn one_adapter_is_read_ahead() {
    let pipeline = pipeline(MODEL, &[], &[]);
    let (read, reads) = (reader(&pipeline), Arc::new(AtomicUsize::new(0)));
    let counter = Arc::clone(&reads);
    let read: ReadAdapter = Arc::new(move |directory: &Path| {
        counter.fetch_add(1, Ordering::Relaxed);
        read(directory)
    });
    let store = AdapterStore::new("tiny".to_owned(), 0, ALL, read);
    let mut here = Here::of(pipeline, store, 1000);
    for number in 0..9 {
        let name = number.to_string();
        let directory = here.write(&name, 1, 4);
        here.service.refresh(name, directory);
    }
    let (mut core, mut pipeline) = here.core.take().expect("not started");
    core.turn(&mut pipeline).expect("a turn");
    wait_until(|| reads.load(Ordering::Relaxed) > 0);
    thread::sleep(Duration::from_millis(100));
    assert_eq!(reads.load(Ordering::Relaxed), 1);
    here.core = Some((core, pipeline));
    let here = here.start();
    wait_until(|| here.stats().adapters == 9);
}

/// Requests for weights of a run in training wait for the end of an iteration.
#[test]
fn awaited_weights_hold_no_thread() {
    let pipeline = pipeline(MODEL, &[], &[]);
    let asked: Asked = Arc::default();
    let finder = Arc::clone(&asked);
    let find: FindWeights = Arc::new(move |name: &str, take| {
        assert_eq!(name, "style@live");
        let asked = (thread::current().id(), take);
        finder.lock().expect("what was asked").push(asked);
    });
    let read = reader(&pipeline);
    let parts = adapter(pipeline.config(), 3, 8, &device());
    let store = AdapterStore::new("tiny".to_owned(), 0, ALL, read).with_find(find);
    let mut here = Here::of(pipeline, store, 1000);
    let (mut core, mut pipeline) = here.core.take().expect("not started");
    let (end, ended) = mpsc::channel();
    thread::spawn(move || {
        while core.turn(&mut pipeline).expect("a turn") {}
        end.send(())
    });
    let answers: Vec<_> = (0..MANY)
        .map(|_| {
            let service = here.service.clone();
            let ask = ask("style@live", (1..20).collect(), 3);
            here.runtime.spawn(async move { service.ask(ask).await })
        })
        .collect();
    wait_until(|| asked.lock().expect("what was asked").len() == MANY);
    // Others are served meanwhile.
    let base = here.ask("tiny", 3).expect("an answer");
    assert_eq!(here.read(base).expect("tokens").len(), 3);

    let takes: Vec<_> = asked.lock().expect("what was asked").drain(..).collect();
    let threads: HashSet<_> = takes.iter().map(|(thread, _)| *thread).collect();
    assert_eq!(threads.len(), 1);
    for (number, (_, take)) in takes.into_iter().enumerate() {
        match number {
            // As when training ends.
            0 => drop(take),
            1 => take(Err("it has not begun to train".to_owned())),
            2 => take(Ok(None)),
            _ => take(Ok(Some(FoundWeights {
                digest: "style@7".to_owned(),
                parts: parts.clone(),
            }))),
        }
    }
    let mut errors = Vec::new();
    let expected = bits(&expected(3, 8, 3));
    for answer in answers {
        match here.runtime.block_on(answer).expect("a task") {
            Ok(answer) => {
                assert_eq!(answer.generation(), "style@7");
                assert_eq!(bits(&here.read(answer).expect("tokens")), expected);
            }
            Err(error) => {
                if let ServiceError::UnknownModel { known, .. } = &error {
                    assert_eq!(*known, ["tiny"]);
                }
                errors.push(error.to_string());
            }
        }
    }
    errors.sort();
    let model = "the model `style@live` does not exist";
    let not_begun = format!("{model}: it has not begun to train");
    assert_eq!(errors, [model, &not_begun, "the server is stopping"]);
    drop(here.service);
    ended.recv_timeout(MINUTE).expect("an end of the core");
}
