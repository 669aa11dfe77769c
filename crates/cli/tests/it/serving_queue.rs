//! `serve RUN --listen`: the queue of a run over HTTP.

use serde_json::{Value, json};

use crate::{
    inference::Server,
    server::{ok, served, until, wait_for_state, workspace},
    support::Workspace,
};

fn get(server: &Server, path: &str) -> Value {
    let (status, body) = server.request("GET", path, "");
    assert_eq!(status, 200, "{path}: {body}");
    serde_json::from_str(&body).unwrap()
}

fn steps(server: &Server, after: u64) -> Vec<u64> {
    let curve = get(server, &format!("/v1/tasks/loud/steps?after={after}"));
    let steps = curve["steps"].as_array().unwrap().iter();
    steps.map(|point| point["step"].as_u64().unwrap()).collect()
}

/// A task that does not end in a test.
fn configuration(here: &Workspace) -> Value {
    json!({
        "datasets": {"shout": {"path": here.path("data/shout.jsonl"), "validation": 0.1}},
        "defaults": {
            "train": {"batch_size": 2, "max_steps": 100_000, "max_seq_len": 48},
            "eval": {"steps": 5}, "save": {"steps": 5},
        },
        "adapters": [{"name": "loud", "lora": {"r": 2}}],
    })
}

#[test]
fn a_task_is_submitted_trained_paused_and_cancelled_over_http() {
    let here = workspace();
    let server = Server::listening(
        &here,
        &[
            "serve",
            "run",
            "--no-progress",
            "--config",
            "server.yaml",
            "--set",
            "scheduler.memory_limit=60MB",
            "--memory-limit",
            "20MB",
            "--listen",
            "127.0.0.1:0",
        ],
    );
    // It takes tasks before its directory has a configuration.
    let body = configuration(&here);
    let rehearsed = server.post("/v1/tasks?dry_run=true", &body);
    served(&here);
    here.write("loud.json", body.to_string());
    let said = ok(
        &here,
        &["submit", "run", "loud.json", "--dry-run", "--json"],
    );
    assert_eq!(rehearsed, said.json());
    assert_eq!(get(&server, "/v1/tasks")["tasks"], json!([]));

    let mut huge = body.clone();
    huge["adapters"][0]["lora"] = json!({"r": 4000, "target_modules": ["all-linear"]});
    let (status, refused) = server.request("POST", "/v1/tasks", &huge.to_string());
    assert!(
        status == 400 && refused.contains("does_not_fit") && refused.contains("batch_size"),
        "{status} {refused}"
    );

    let submitted = server.post("/v1/tasks", &body);
    assert_eq!(submitted["tasks"][0]["id"], 1);
    until("steps", || steps(&server, 0).len() > 6);
    let first = steps(&server, 0);
    assert_eq!(first[..3], [1, 2, 3]);
    let last = *first.last().unwrap();
    until("more steps", || {
        steps(&server, last).first() == Some(&(last + 1))
    });
    until("an evaluation", || {
        get(&server, "/v1/tasks/loud/steps?after=100000")["evals"][0]["step"] == 5
    });
    assert!(!server.text("loud@live").is_empty());

    let paused = server.post("/v1/tasks/loud/pause", &json!({}));
    assert_eq!(
        (&paused["id"], &paused["requested"]),
        (&json!(1), &json!("pause"))
    );
    wait_for_state(&here, "loud", "paused");
    let status = ok(&here, &["status", "run", "--json"]).json();
    assert_eq!(get(&server, "/v1/tasks"), status);
    let explained = ok(&here, &["explain", "run", "loud", "--json"]).json();
    assert_eq!(get(&server, "/v1/tasks/loud"), explained);
    let at = status["tasks"][0]["step"].as_u64().unwrap();
    server.post("/v1/tasks/1/resume", &json!({}));
    until("steps after the pause", || !steps(&server, at).is_empty());
    server.post("/v1/tasks/loud/cancel", &json!({}));
    wait_for_state(&here, "loud", "cancelled");
    let (status, refused) = server.request("POST", "/v1/tasks/loud/pause", "{}");
    assert!(
        status == 409 && refused.contains("is cancelled"),
        "{status} {refused}"
    );
    let (status, page) = server.request("GET", "/", "");
    assert!(status == 200 && page.contains("data-queue=\"yes\""));
}

#[test]
fn a_server_that_only_answers_takes_no_tasks() {
    let here = workspace();
    let server = Server::listening(
        &here,
        &[
            "serve",
            "--inference-only",
            "--model",
            "tiny-llama",
            "--device",
            "cpu",
            "--listen",
            "127.0.0.1:0",
        ],
    );
    let body = configuration(&here).to_string();
    let (status, refused) = server.request("POST", "/v1/tasks", &body);
    assert!(
        status == 404 && refused.contains("no queue of tasks"),
        "{status} {refused}"
    );
}
