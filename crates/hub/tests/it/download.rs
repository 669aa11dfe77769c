use std::{fs, path::Path, sync::atomic::Ordering};

use loraloom_hub::{Cache, Downloaded, Hub, HubError, NotCached, Repository, is_model_file};
use tempfile::TempDir;

use crate::server::{COMMIT, FILES, Server, WEIGHTS};

struct Here {
    directory: TempDir,
    server: Server,
}

impl Here {
    fn new() -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
            server: Server::start(),
        }
    }

    fn cache(&self) -> Cache {
        Cache {
            folder: self.directory.path().join("hub"),
        }
    }

    fn get(&self, name: &str) -> Result<Vec<String>, HubError> {
        let hub = Hub::new(&self.server.endpoint, Some("secret".to_owned()));
        let repository = Repository::model(name).unwrap();
        let mut progress = Vec::new();
        let report = &mut |at: Downloaded<'_>| {
            progress.push(format!("{} {} {}", at.file, at.bytes, at.total));
        };
        hub.download(&self.cache(), &repository, &is_model_file, report)?;
        Ok(progress)
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.cache().folder.join("models--org--name").join(name)
    }
}

#[test]
fn a_model_comes_into_the_cache_as_huggingface_hub_lays_it_out() {
    let here = Here::new();
    let progress = here.get("org/name").unwrap();
    assert_eq!(progress.first().unwrap(), "tokenizer.json 0 8");
    assert_eq!(progress.last().unwrap(), "config.json 2 2");
    let snapshot = here.path(&format!("snapshots/{COMMIT}"));
    let mut names: Vec<_> = fs::read_dir(&snapshot)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(
        names,
        ["config.json", "model.safetensors", "tokenizer.json"]
    );
    assert_eq!(
        fs::read(snapshot.join("model.safetensors")).unwrap(),
        WEIGHTS
    );
    assert_eq!(fs::read_to_string(here.path("refs/main")).unwrap(), COMMIT);
    #[cfg(unix)]
    {
        let link = fs::read_link(snapshot.join("model.safetensors")).unwrap();
        assert_eq!(link, Path::new("../../blobs/weights"));
        assert_eq!(fs::read(here.path("blobs/blob0")).unwrap(), FILES[0].1);
    }
    let found = here
        .cache()
        .snapshot(&Repository::model("org/name").unwrap());
    assert_eq!(found.unwrap(), snapshot);
    // Who the token is for is told it, and nobody else.
    let asked = here.server.take();
    for head in &asked {
        assert_eq!(
            head.contains("Authorization: Bearer secret"),
            !head.starts_with("body: "),
            "{head}"
        );
    }
    assert!(
        asked
            .iter()
            .any(|head| head.starts_with("body: GET /x?y=z ")),
        "{asked:?}"
    );
    // What is there is not asked for again.
    assert_eq!(here.get("org/name").unwrap(), Vec::<String>::new());
    assert_eq!(here.server.take().len(), 1);
    // Another name of the same commit has its own reference.
    here.get("org/name@refs/pr/1").unwrap();
    assert_eq!(
        fs::read_to_string(here.path("refs/refs/pr/1")).unwrap(),
        COMMIT
    );
}

#[test]
fn a_download_that_broke_off_goes_on_where_it_was() {
    let here = Here::new();
    here.server.breaks_after.store(100_000, Ordering::SeqCst);
    let error = here.get("org/name").unwrap_err();
    assert!(matches!(error, HubError::Network { .. }), "{error}");
    assert!(
        error.to_string().ends_with("the connection closed early"),
        "{error}"
    );
    assert_eq!(
        fs::metadata(here.path("blobs/weights.incomplete"))
            .unwrap()
            .len(),
        100_000
    );
    // Nothing refers to a commit that is not whole.
    assert!(!here.path("refs/main").exists());
    let commit = Repository::model(&format!("org/name@{COMMIT}")).unwrap();
    assert!(matches!(
        here.cache().model(&commit),
        Err(NotCached::Files(_))
    ));
    here.server.take();
    let progress = here.get("org/name").unwrap();
    assert_eq!(progress[0], "model.safetensors 100000 300000");
    assert!(
        here.server
            .take()
            .iter()
            .any(|head| head.contains("Range: bytes=100000-"))
    );
    let weights = here.path(&format!("snapshots/{COMMIT}/model.safetensors"));
    assert_eq!(fs::read(weights).unwrap(), WEIGHTS);
    assert!(!here.path("blobs/weights.incomplete").exists());
}

#[test]
fn a_part_that_is_too_long_is_fetched_anew() {
    let here = Here::new();
    let part = here.path("blobs/weights.incomplete");
    fs::create_dir_all(part.parent().unwrap()).unwrap();
    fs::write(&part, vec![0; 300_001]).unwrap();
    here.get("org/name").unwrap();
    let weights = here.path(&format!("snapshots/{COMMIT}/model.safetensors"));
    assert_eq!(fs::read(weights).unwrap(), WEIGHTS);
}

#[cfg(unix)]
#[test]
fn links_that_lead_nowhere_are_replaced() {
    let here = Here::new();
    here.get("org/name").unwrap();
    fs::remove_file(here.path("blobs/weights")).unwrap();
    here.get("org/name").unwrap();
    assert_eq!(fs::read(here.path("blobs/weights")).unwrap(), WEIGHTS);
}

#[test]
fn files_with_folders_and_spaces_have_their_paths() {
    let here = Here::new();
    let hub = Hub::new(&format!("{}/", here.server.endpoint), None);
    let repository = Repository::model("org/name").unwrap();
    let wanted = |name: &str| name.starts_with("data/");
    let snapshot = hub
        .download(&here.cache(), &repository, &wanted, &mut |_| {})
        .unwrap();
    assert_eq!(fs::read(snapshot.join("data/a b.jsonl")).unwrap(), b"{}");
    let none = hub.download(&here.cache(), &repository, &|_| false, &mut |_| {});
    assert!(matches!(none, Err(HubError::NoFiles(_))));
}

#[test]
fn refusals_say_what_was_asked_for_and_why() {
    let here = Here::new();
    let private = Repository::model("org/private").unwrap();
    let hub = Hub::new(&here.server.endpoint, None);
    let error = hub
        .download(&here.cache(), &private, &is_model_file, &mut |_| {})
        .unwrap_err();
    let address = format!(
        "{}/api/models/org/private/revision/main",
        here.server.endpoint
    );
    assert_eq!(
        error.to_string(),
        format!("{address} returned 401: Invalid username or password.")
    );
    assert!(error.hint().unwrap().contains("HF_TOKEN"));
    let error = here.get("org/nothing").unwrap_err();
    assert!(
        matches!(error, HubError::Status { status: 404, .. }),
        "{error}"
    );
    let nowhere = Hub::new("http://127.0.0.1:1", None);
    let error = nowhere
        .download(&here.cache(), &private, &is_model_file, &mut |_| {})
        .unwrap_err();
    assert!(matches!(error, HubError::Network { .. }), "{error}");
    let wrong = Hub::new("huggingface.co", None);
    let error = wrong
        .download(&here.cache(), &private, &is_model_file, &mut |_| {})
        .unwrap_err();
    assert!(matches!(error, HubError::Endpoint(_)), "{error}");
    assert!(!here.cache().folder.exists());
}
