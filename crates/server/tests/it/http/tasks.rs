//! The verbs of the queue, over a queue whose server only holds the lock.

use std::{
    fs,
    path::{Path, PathBuf},
};

use loraloom_scheduler::{TaskId, TaskState};
use loraloom_server::{
    Client,
    http::{HttpLimits, Keys},
    queue::LockedQueue,
};
use serde_json::{Value, json};

use super::{
    client::{Response, get, get_with, post, post_with, receive, send, start as begin},
    fake::{Script, Server, start, start_with_queue},
};
use crate::support::{bring, progress, submit, to};

const TASKS: &str = "/v1/tasks";

struct Queue {
    server: Server,
    locked: LockedQueue,
    directory: tempfile::TempDir,
}

impl Queue {
    fn start() -> Self {
        Self::start_with(None)
    }

    fn start_with(keys: Option<Keys>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (locked, _) = LockedQueue::acquire(directory.path()).unwrap();
        let config = json!({"model": asset("tiny-llama"), "device": "cpu"});
        let path = directory.path().join("config.resolved.yaml");
        fs::write(path, config.to_string()).unwrap();
        let rows = "{\"prompt\": \"a b\", \"completion\": \"A B\"}\n".repeat(8);
        fs::write(directory.path().join("rows.jsonl"), rows).unwrap();
        let client = Client::open(directory.path()).unwrap();
        let server = start_with_queue(HttpLimits::default(), keys, Some(client), |_| {
            Script::Say("a")
        });
        Self {
            server,
            locked,
            directory,
        }
    }

    fn post(&self, path: &str, body: &Value) -> Response {
        post(self.server.address, &format!("{TASKS}{path}"), body)
    }

    fn get(&self, path: &str) -> Value {
        let response = get(self.server.address, &format!("{TASKS}{path}"));
        assert_eq!(response.status, 200, "{response:?}");
        response.json()
    }

    fn names(&self) -> Vec<String> {
        let tasks = self.locked.queue().tasks().unwrap();
        tasks.into_iter().map(|task| task.name).collect()
    }

    /// A configuration of two adapters.
    fn body(&self) -> Value {
        json!({
            "datasets": {"rows": {"path": self.directory.path().join("rows.jsonl")}},
            "defaults": {"train": {"max_steps": 3, "batch_size": 2, "max_seq_len": 32}},
            "adapters": [{"name": "one"}, {"name": "two"}],
        })
    }

    /// Status, code and message of a submission that is refused.
    fn refused(&self, body: &Value) -> (u16, Value, String) {
        let response = self.post("", body);
        let error = &response.json()["error"];
        let message = error["message"].as_str().unwrap().to_owned();
        assert!(self.names().iter().all(|name| name != "two"), "{message}");
        (response.status, error["code"].clone(), message)
    }
}

fn asset(name: &str) -> PathBuf {
    let assets = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../assets"));
    fs::canonicalize(assets.join(name)).unwrap()
}

fn keyed(server: &Server, key: &str, body: &Value) -> Response {
    let head = format!(
        "POST {TASKS} HTTP/1.1\r\nContent-Type: application/json\r\nIdempotency-Key: {key}"
    );
    receive(send(server.address, &head, body.to_string().as_bytes()))
}

#[test]
fn a_server_that_only_answers_has_no_tasks() {
    let server = start(|_| Script::Say(""));
    let responses = [
        get(server.address, TASKS),
        get(server.address, "/v1/tasks/a"),
        get(server.address, "/v1/tasks/a/steps"),
        post(server.address, TASKS, &json!({})),
        post(server.address, "/v1/tasks/a/cancel", &json!({})),
    ];
    for response in responses {
        let (status, _, _, code) = response.error();
        assert_eq!((status, code), (404, json!("no_queue")));
        assert!(response.body.contains("no queue of tasks"));
    }
}

#[test]
fn tasks_are_changed_by_admins_and_read_by_all() {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), "alone\nrestricted team\nboss team admin\n").unwrap();
    let mut queue = Queue::start_with(Some(Keys::load(file.path()).unwrap()));
    submit(&mut queue.locked, "a");
    let address = queue.server.address;
    for (key, reads, changes) in [
        ("restricted", 200, 403),
        ("other", 401, 401),
        ("alone", 200, 200),
        ("boss", 200, 200),
    ] {
        for path in ["", "/a", "/a/steps"] {
            let response = get_with(address, key, &format!("{TASKS}{path}"));
            assert_eq!(response.status, reads, "{key} {path}");
        }
        for path in ["?dry_run=true", "/a/pause", "/a/resume"] {
            let body = if path.starts_with('?') {
                queue.body()
            } else {
                json!({})
            };
            let response = post_with(address, key, &format!("{TASKS}{path}"), &body);
            assert_eq!(response.status, changes, "{key} {path}: {}", response.body);
        }
        let task = queue.locked.queue().tasks().unwrap().remove(0);
        assert_eq!(task.requested, None, "{key}");
    }
    assert_eq!(queue.names(), ["a"]);
    // A task is of the key's tenant, unless it names one.
    let mut body = queue.body();
    body["adapters"][1]["tenant"] = json!("other");
    assert_eq!(post_with(address, "boss", TASKS, &body).status, 200);
    let tasks = queue.locked.queue().tasks().unwrap();
    let tenants: Vec<&str> = tasks[1..].iter().map(|task| &*task.tenant).collect();
    assert_eq!(tenants, ["team", "other"]);
    assert_eq!(
        post_with(address, "restricted", "/v1/tasks/a/cancel", &json!({})).status,
        403
    );
}

#[test]
fn all_adapters_of_a_configuration_are_submitted_once() {
    let queue = Queue::start();
    let body = queue.body();
    let response = queue.post("?dry_run=true", &body);
    let new =
        |id: Value, name: &str, new| json!({"id": id, "name": name, "new": new, "total_steps": 3});
    let rehearsed =
        json!({"tasks": [new(Value::Null, "one", true), new(Value::Null, "two", true)]});
    assert_eq!((response.status, response.json()), (200, rehearsed));
    assert!(queue.names().is_empty());

    for is_new in [true, false] {
        let response = keyed(&queue.server, "ticket", &body);
        let tasks = json!({"tasks": [new(json!(1), "one", is_new), new(json!(2), "two", is_new)]});
        assert_eq!((response.status, response.json()), (200, tasks));
    }
    assert_eq!(queue.names(), ["one", "two"]);
    let mut other = body.clone();
    other["adapters"] = json!([{"name": "one"}]);
    let (status, _, _, code) = keyed(&queue.server, "ticket", &other).error();
    assert_eq!((status, code), (409, json!("key_taken")));
    let response = queue.post("?dry_run=false", &body);
    let error = &response.json()["error"];
    assert_eq!(
        (response.status, &error["code"]),
        (409, &json!("name_taken"))
    );
    assert_eq!(error["hint"], "choose another name, or cancel the task");
    // The base model's name would not be the adapter's.
    let mut base = body.clone();
    base["adapters"] = json!([{"name": "base"}]);
    let (status, _, param, _) = queue.post("", &base).error();
    assert_eq!((status, param), (400, json!("adapters.base")));
    let mut sweep = body.clone();
    sweep["adapters"] = json!([]);
    for (rates, expected) in [([1e-4, 2e-4], 200), ([3e-4, 4e-4], 409)] {
        sweep["sweep"] = json!([{"name": "s", "grid": {"train.learning_rate": rates}}]);
        let response = queue.post("", &sweep);
        assert_eq!(response.status, expected, "{}", response.body);
        if expected == 409 {
            assert_eq!(response.json()["error"]["code"], "sweep_taken");
        }
    }
    assert_eq!(keyed(&queue.server, "\u{e9}", &body).status, 400);
}

#[test]
fn mistakes_of_a_configuration_are_named() {
    let mut queue = Queue::start();
    let other = tempfile::tempdir().unwrap();
    let with = |change: &dyn Fn(&mut Value)| {
        let mut body = queue.body();
        change(&mut body);
        queue.refused(&body)
    };
    for (change, part) in [
        (
            &(|body: &mut Value| body["adapters"][1]["lora"] = json!({"rank": 4}))
                as &dyn Fn(&mut Value),
            "body:1:",
        ),
        (
            &|body| body["defaults"]["train"]["max_steps"] = json!("many"),
            "max_steps",
        ),
        (
            &|body| body["adapters"][1]["dataset"] = json!("none"),
            "`none`",
        ),
        (
            &|body| body["datasets"]["rows"]["path"] = json!("rows.jsonl"),
            "`datasets.rows.path`: `rows.jsonl` is relative",
        ),
        (
            &|body| body["datasets"]["rows"]["validation"] = json!("rows.jsonl"),
            "`datasets.rows.validation`: `rows.jsonl` is relative",
        ),
        (
            &|body| body["adapters"][1]["init_from"] = json!("./adapter"),
            "adapter",
        ),
        (&|body| body["model"] = json!("./tiny-llama"), "relative"),
        (&|body| body["model"] = json!(other.path()), "trains over"),
        (
            &|body| body["datasets"]["rows"]["path"] = json!("/nowhere/rows.jsonl"),
            "No such file",
        ),
    ] {
        let (status, _, message) = with(change);
        assert_eq!(status, 400, "{message}");
        assert!(message.contains(part), "{part} is not in {message}");
    }
    let mut body = queue.body();
    body["adapters"][1]["lora"] = json!({"rank": 4});
    let error = queue.post("", &body).json()["error"].clone();
    assert!(error["message"].as_str().unwrap().contains("unknown key"));
    assert!(error["hint"].is_string() || error["message"].as_str().unwrap().contains("valid"));

    submit(&mut queue.locked, "two-else");
    let yaml = b"adapters: [{name: two}]\n";
    let response = receive(begin(queue.server.address, TASKS, yaml));
    assert_eq!(response.status, 400, "{response:?}");
    let response = receive(begin(
        queue.server.address,
        TASKS,
        b"{\"adapters\": \"\xFF\"}",
    ));
    assert_eq!(response.status, 400, "{response:?}");
    let head = format!("POST {TASKS} HTTP/1.1\r\nContent-Type: text/plain");
    let text = queue.body().to_string();
    let response = receive(send(queue.server.address, &head, text.as_bytes()));
    assert_eq!(response.status, 415);
    for query in ["?dry_run=yes", "?dryrun=true", "?dry_run=true&dry_run=true"] {
        assert_eq!(queue.post(query, &queue.body()).status, 400, "{query}");
    }
    assert_eq!(queue.names(), ["two-else"]);
}

#[test]
fn warnings_are_answered() {
    let queue = Queue::start();
    let mut body = queue.body();
    body["quantization"] = json!({"type": "nf4"});
    let response = queue.post("?dry_run=true", &body);
    let warning = response.json()["warnings"].to_string();
    assert!(
        warning.contains("`quantization` has no effect"),
        "{response:?}"
    );
}

#[test]
fn owners_pause_resume_and_cancel() {
    let mut queue = Queue::start();
    let id = submit(&mut queue.locked, "a");
    bring(&mut queue.locked, id, TaskState::Running);
    let expected = |state: &str, requested: Value| json!({"id": 1, "name": "a", "state": state, "requested": requested});
    let response = queue.post("/a/pause", &json!({}));
    let paused = expected("running", json!("pause"));
    assert_eq!((response.status, response.json()), (200, paused));
    let response = queue.post("/1/resume", &json!({}));
    let resumed = expected("running", Value::Null);
    assert_eq!((response.status, response.json()), (200, resumed));
    let empty = receive(begin(queue.server.address, "/v1/tasks/a/cancel", b""));
    let cancelled = expected("running", json!("cancel"));
    assert_eq!((empty.status, empty.json()), (200, cancelled));

    let response = queue.post("/a/pause", &json!({}));
    let (status, _, _, code) = response.error();
    assert_eq!((status, code), (409, json!("refused_by_state")));
    for path in ["/b/pause", "/2/cancel", "/b/resume"] {
        let (status, _, _, code) = queue.post(path, &json!({})).error();
        assert_eq!((status, code), (404, json!("task_not_found")), "{path}");
    }
    assert_eq!(queue.post("/a/cancel", &json!({"at": 5})).status, 400);
    // A page in a browser can send this to a server on the same machine.
    let head = format!("POST {TASKS}/a/resume HTTP/1.1");
    assert_eq!(receive(send(queue.server.address, &head, b"")).status, 415);
    assert_eq!(get(queue.server.address, "/v1/tasks/a/pause").status, 405);
}

#[test]
fn a_task_is_shown_with_its_history() {
    let mut queue = Queue::start();
    let id = submit(&mut queue.locked, "a");
    bring(&mut queue.locked, id, TaskState::Running);
    let status = queue.get("");
    let client = Client::open(queue.directory.path()).unwrap();
    let expected = serde_json::to_value(client.status().unwrap()).unwrap();
    assert_eq!(status, expected);
    assert_eq!(
        (&status["served"], &status["tasks"][0]["name"]),
        (&json!(true), &json!("a"))
    );
    let task = queue.get("/a");
    assert_eq!(task, queue.get("/1"));
    let events = task["events"].as_array().unwrap();
    let kinds: Vec<&str> = events
        .iter()
        .map(|event| event["event"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["queued", "running"]);
    assert_eq!(get(queue.server.address, "/v1/tasks/b").status, 404);
}

#[test]
fn losses_come_as_they_are_written() {
    let mut queue = Queue::start();
    let id = submit(&mut queue.locked, "a");
    bring(&mut queue.locked, id, TaskState::Running);
    let steps = |queue: &Queue, path: &str| queue.get(path);
    let none = json!({"steps": [], "evals": []});
    assert_eq!(steps(&queue, "/a/steps"), none);
    let events = queue.directory.path().join("events.jsonl");
    let event = |step: u64| json!({"event": "step", "adapter": "a", "step": step, "loss": step as f64 + 0.5});
    let lines: Vec<String> = (1..=6).map(|step| event(step).to_string() + "\n").collect();
    let mut text = lines.concat();
    text += "{\"event\":\"eval\",\"adapter\":\"a\",\"step\":2,\"loss\":0.25}\n";
    fs::write(&events, &text).unwrap();
    // They are of an earlier task of the name as long as this one has taken no step.
    assert_eq!(steps(&queue, "/a/steps"), none);
    queue.locked.record(&[progress(id, 5)], &[]).unwrap();
    let point = |step: u64, loss: f64| json!({"step": step, "loss": loss});
    let evals = json!([point(2, 0.25)]);
    let expected = json!({"steps": [point(4, 4.5), point(5, 5.5)], "evals": evals});
    assert_eq!(steps(&queue, "/a/steps?after=3"), expected);
    let all = steps(&queue, "/a/steps");
    assert_eq!(all["steps"].as_array().unwrap().len(), 5);
    for query in ["?after=x", "?after=-1", "?before=3"] {
        let path = format!("{TASKS}/a/steps{query}");
        assert_eq!(get(queue.server.address, &path).status, 400, "{query}");
    }
    assert_eq!(get(queue.server.address, "/v1/tasks/b/steps").status, 404);

    // Once a task of the same name has begun, the events are its own.
    queue.locked.apply(&[to(id, TaskState::Cancelled)]).unwrap();
    let next = submit(&mut queue.locked, "a");
    assert_ne!(steps(&queue, "/1/steps"), none);
    bring(&mut queue.locked, next, TaskState::Running);
    queue.locked.record(&[progress(next, 1)], &[]).unwrap();
    assert_eq!(steps(&queue, "/1/steps"), none);
    assert_eq!(next, TaskId(2));
}
