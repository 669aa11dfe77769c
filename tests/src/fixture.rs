use std::{
    env, fs,
    path::{Path, PathBuf},
};

use safetensors::{SafeTensors, serialize_to_file, tensor::TensorView};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A frozen model directory with what PEFT made of it; see `fixtures/README.md`.
#[derive(Debug, Clone)]
pub struct Fixture {
    /// The model directory.
    pub directory: PathBuf,
}

/// One adapter that PEFT trained alone.
#[derive(Debug, Clone)]
pub struct Job {
    /// The adapter's name.
    pub name: String,
    /// The adapter's fields as a configuration file has them.
    pub fields: Value,
    /// Directory with `init/`, `final/` and `losses.json`.
    pub directory: PathBuf,
}

impl Fixture {
    /// The fixture of this name.
    pub fn open(name: &str) -> Self {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("fixtures")
            .join(name);
        assert!(
            directory.join("config.json").exists(),
            "no fixture {}",
            directory.display()
        );
        Self { directory }
    }

    /// All fixtures that have jobs, by name.
    pub fn with_jobs() -> Vec<Self> {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
        let entries = fs::read_dir(&fixtures).expect("fixtures");
        let mut found: Vec<Self> = entries
            .map(|entry| Self {
                directory: entry.expect("an entry").path(),
            })
            .filter(|fixture| fixture.directory.join("jobs.json").exists())
            .collect();
        found.sort_by(|a, b| a.directory.cmp(&b.directory));
        found
    }

    /// The jobs that PEFT trained on this model.
    pub fn jobs(&self) -> Vec<Job> {
        let jobs: Vec<Value> = read_json(&self.directory.join("jobs.json"));
        jobs.into_iter()
            .map(|fields| {
                let name = fields["name"]
                    .as_str()
                    .expect("a job has a name")
                    .to_owned();
                let directory = self.directory.join("jobs").join(&name);
                Job {
                    name,
                    fields,
                    directory,
                }
            })
            .collect()
    }

    /// A configuration that trains these adapters on the fixture's data, on the CPU in `float32`; with
    /// `LORALOOM_TEST_QUANTIZATION=nf4` over a base in NF4. What compares runs with runs holds there too.
    pub fn config(&self, adapters: &[Value], output_dir: &Path) -> Value {
        let mut config = json!({
            "model": self.directory,
            "output_dir": output_dir,
            "device": "cpu",
            "dtype": "float32",
            "datasets": {"data": {
                "path": self.directory.join("data.jsonl"),
                "columns": {"prompt": "question", "completion": "answer"},
            }},
            "adapters": adapters,
        });
        let is_nf4 = self
            .directory
            .parent()
            .is_some_and(|parent| parent.ends_with("nf4"));
        if let Ok(r#type) = env::var("LORALOOM_TEST_QUANTIZATION")
            && !is_nf4
        {
            config["quantization"] = json!({"type": r#type});
        }
        let chat = self.directory.join("chat.jsonl");
        if chat.exists() {
            config["datasets"]["chat"] = json!({"path": chat});
        }
        config
    }

    /// The fixture's model with output projections of zeros.
    pub fn without_output_projections(&self) -> TempDir {
        let model = tempfile::tempdir().expect("a temporary directory");
        for entry in fs::read_dir(&self.directory).expect("a fixture") {
            let path = entry.expect("an entry").path();
            if path.is_file() {
                let name = path.file_name().expect("a name");
                fs::copy(&path, model.path().join(name)).expect("a copy");
            }
        }
        let path = model.path().join("model.safetensors");
        let bytes = fs::read(&path).expect("weights");
        let weights = SafeTensors::deserialize(&bytes).expect("weights");
        let zeros = vec![0; bytes.len()];
        let tensors: Vec<(String, TensorView<'_>)> = weights
            .tensors()
            .into_iter()
            .map(|(name, tensor)| {
                let data = tensor.data();
                let data = if name.contains("o_proj") {
                    &zeros[..data.len()]
                } else {
                    data
                };
                let tensor = TensorView::new(tensor.dtype(), tensor.shape().to_vec(), data);
                (name, tensor.expect("a tensor"))
            })
            .collect();
        serialize_to_file(tensors, None, &path).expect("weights are written");
        model
    }
}

impl Job {
    /// The job as an adapter that begins where PEFT began.
    pub fn adapter(&self) -> Value {
        let mut adapter = self.fields.clone();
        if adapter["dataset"].is_null() {
            adapter["dataset"] = json!("data");
        }
        adapter["init_from"] = json!(self.directory.join("init"));
        adapter
    }

    /// PEFT's loss of every step.
    pub fn losses(&self) -> Vec<f64> {
        self.series("losses")
    }

    /// PEFT's gradient norm of every step, before clipping.
    pub fn grad_norms(&self) -> Vec<f64> {
        self.series("grad_norms")
    }

    fn series(&self, key: &str) -> Vec<f64> {
        let recorded: Value = read_json(&self.directory.join("losses.json"));
        let values = recorded[key].as_array().expect("a list of numbers");
        values
            .iter()
            .map(|value| value.as_f64().expect("a number"))
            .collect()
    }
}

fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> T {
    let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}
