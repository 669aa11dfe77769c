use std::{fs, path::Path};

use loraloom_report::RunHistory;
use serde_json::{Value, json};
use tempfile::TempDir;

/// A run directory that events are written to.
pub(crate) struct Log {
    directory: TempDir,
    text: String,
}

impl Log {
    /// With these adapters.
    pub(crate) fn of(adapters: &[&str]) -> Self {
        let mut log = Self {
            directory: tempfile::tempdir().unwrap(),
            text: String::new(),
        };
        log.write(json!({
            "event": "run_start", "time": "2026-11-26T18:30:02.123456789Z", "adapters": adapters,
            "stages": ["cpu"], "layers": [[0, 4]], "weight_bytes": [1], "products": ["Burn"],
            "versions": {"loraloom": "0.1.0", "burn": "0.22.1"},
        }));
        for adapter in adapters {
            log.admit(adapter, 0);
        }
        log
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Writes an event.
    pub(crate) fn write(&mut self, mut event: Value) {
        event["v"] = json!(1);
        self.text.push_str(&event.to_string());
        self.text.push('\n');
    }

    /// Writes anything.
    pub(crate) fn raw(&mut self, text: &str) {
        self.text.push_str(text);
    }

    pub(crate) fn admit(&mut self, adapter: &str, step: u64) {
        self.write(json!({
            "event": "admit", "adapter": adapter, "step": step, "total_steps": 9, "reason": "first",
        }));
    }

    /// A step of an adapter with ten tokens.
    pub(crate) fn step(&mut self, iteration: u64, adapter: &str, step: u64, loss: f64) {
        self.write(json!({
            "event": "step", "iteration": iteration, "adapter": adapter, "step": step,
            "total_steps": 9, "loss": loss, "target_tokens": 4, "tokens": 10,
            "grad_norm": loss / 3.0, "learning_rate": 1e-3, "group": 0,
        }));
    }

    /// An iteration of half a second.
    pub(crate) fn iteration(&mut self, iteration: u64) {
        self.write(json!({
            "event": "iteration", "iteration": iteration, "seconds": 0.5, "tokens": 10,
            "tokens_per_second": 20.0, "bubble_ratio": 0.0, "transfer_seconds": null,
            "transfer_overlap": null, "bytes_reserved": 1000 + iteration, "bytes_predicted": null,
            "groups": [["a"]], "parts": {},
        }));
    }

    pub(crate) fn eval(&mut self, adapter: &str, step: u64, loss: f64) {
        self.write(json!({
            "event": "eval", "adapter": adapter, "step": step, "loss": loss, "best": true,
        }));
    }

    pub(crate) fn history(&self) -> RunHistory {
        fs::write(self.path().join("events.jsonl"), &self.text).unwrap();
        RunHistory::read(self.path()).unwrap()
    }

    /// The data of the page.
    pub(crate) fn data(&self) -> Value {
        data(&self.history().page().unwrap())
    }
}

/// The data in a page.
pub(crate) fn data(page: &str) -> Value {
    let (_, rest) = page.split_once(r#"id="data">"#).unwrap();
    let (json, _) = rest.split_once("</script>").unwrap();
    serde_json::from_str(json).unwrap()
}
