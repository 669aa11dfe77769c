//! `serve --inference-only`: adapters of a run over HTTP.

use std::{
    fs,
    io::{self, BufRead, BufReader, Read, Write},
    net::TcpStream,
    process::{Child, Stdio},
    thread::{self, JoinHandle},
    time::Duration,
};

use serde_json::{Value, json};

use crate::{
    support::{Workspace, signal},
    train,
};

pub(crate) const PROMPT: &str = "List: boat, drum\nAgain:";

/// A server and where it listens. It ends with the test.
pub(crate) struct Server {
    pub(crate) process: Child,
    address: String,
    /// Lines before it listened.
    said: Vec<String>,
    /// Lines after that.
    says: Option<JoinHandle<Vec<String>>>,
}

impl Server {
    pub(crate) fn start(here: &Workspace, arguments: &[&str]) -> Self {
        let line = ["serve", "--inference-only", "--device", "cpu"];
        let listen = ["--listen", "127.0.0.1:0"];
        Self::listening(here, &[&line[..], &listen, arguments].concat())
    }

    /// By all of its arguments.
    pub(crate) fn listening(here: &Workspace, arguments: &[&str]) -> Self {
        let mut command = here.command(arguments);
        let mut process = command.stderr(Stdio::piped()).spawn().expect("a process");
        let mut lines = BufReader::new(process.stderr.take().expect("stderr")).lines();
        let mut said = Vec::new();
        let address = loop {
            let line = lines
                .next()
                .unwrap_or_else(|| panic!("it ended: {said:?}"))
                .expect("text");
            if let Some((_, address)) = line.split_once("listening on http://") {
                break address.to_owned();
            }
            said.push(line);
        };
        // The server would fail if it wrote to a closed pipe.
        let says = thread::spawn(move || lines.map_while(Result::ok).collect());
        Self {
            process,
            address,
            said,
            says: Some(says),
        }
    }

    /// Waits for its end. Returns its exit code and the lines since it listened.
    pub(crate) fn end(mut self) -> (Option<i32>, Vec<String>) {
        let status = self.process.wait().expect("an end");
        let says = self.says.take().map(JoinHandle::join);
        (status.code(), says.expect("once").expect("lines"))
    }

    /// Status and body.
    pub(crate) fn request(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let answered = self.try_request(method, path, body);
        answered.expect("a response")
    }

    /// The same of a server that may end.
    ///
    /// # Errors
    /// If it ends before it has answered.
    pub(crate) fn try_request(
        &self,
        method: &str,
        path: &str,
        body: &str,
    ) -> io::Result<(u16, String)> {
        self.request_with(method, path, body, "")
    }

    /// With more lines in the head, each with its end.
    pub(crate) fn request_with(
        &self,
        method: &str,
        path: &str,
        body: &str,
        more: &str,
    ) -> io::Result<(u16, String)> {
        let mut stream = TcpStream::connect(&self.address)?;
        stream.set_read_timeout(Some(Duration::from_mins(1)))?;
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
             {more}Content-Length: {}\r\n\r\n{body}",
            body.len()
        )?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        let (head, body) = text
            .split_once("\r\n\r\n")
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        let status = head
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok());
        let body = if head.to_lowercase().contains("transfer-encoding: chunked") {
            dechunked(body)
        } else {
            body.to_owned()
        };
        Ok((status.expect("a status"), body))
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Value {
        let (status, body) = self.request("POST", path, &body.to_string());
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).expect("JSON")
    }

    pub(crate) fn text(&self, model: &str) -> String {
        let body = json!({"model": model, "prompt": PROMPT, "max_tokens": 8, "temperature": 0});
        let answer = self.post("/v1/completions", &body);
        answer["choices"][0]["text"]
            .as_str()
            .expect("text")
            .to_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn dechunked(mut body: &str) -> String {
    let mut text = String::new();
    while let Some((length, rest)) = body.split_once("\r\n") {
        let length = usize::from_str_radix(length.trim(), 16).expect("a length");
        text.push_str(&rest[..length]);
        body = rest[length..].trim_start_matches("\r\n");
        if length == 0 {
            break;
        }
    }
    text
}

fn trained() -> Workspace {
    let here = train::workspace();
    let steps = "defaults.train.max_steps=40";
    let run = here.run(&["train", "short.yaml", "--quiet", "--set", steps]);
    assert_eq!(run.code, 0, "{}", run.all());
    here
}

/// Every adapter of a run and the base answer as `generate` does, streamed or not; adapters come and go.
#[test]
#[cfg(unix)]
fn the_adapters_of_a_run_answer_requests() {
    let here = trained();
    let generated = here.run(&[
        "generate",
        "--run",
        "run",
        "--compare-base",
        "--device",
        "cpu",
        "--max-new-tokens",
        "8",
        "--json",
        PROMPT,
    ]);
    let generated = generated.json();
    let server = Server::start(&here, &["run"]);
    let (status, models) = server.request("GET", "/v1/models", "");
    assert_eq!(status, 200, "{models}");
    let models: Value = serde_json::from_str(&models).expect("JSON");
    let names = models["data"].as_array().expect("a list").iter();
    let names: Vec<&str> = names
        .map(|card| card["id"].as_str().expect("a name"))
        .collect();
    assert_eq!(names[0], "tiny-llama");
    for name in [
        "number-r4",
        "number-r4@last",
        "shout-r2",
        "shout-r2@best",
        "shout-r2@last",
    ] {
        assert!(names.contains(&name), "{name} in {names:?}");
    }
    let mut texts = Vec::new();
    for completion in generated["completions"].as_array().expect("a list") {
        let name = completion["adapter"].as_str().unwrap_or("tiny-llama");
        assert_eq!(completion["text"], server.text(name), "{name}");
        texts.push(server.text(name));
    }
    assert!(texts.iter().any(|text| *text != texts[0]), "{texts:?}");

    // Streamed, the pieces are the same text.
    let body = json!({
        "model": "shout-r2", "prompt": PROMPT, "max_tokens": 8, "temperature": 0, "stream": true,
    });
    let (status, stream) = server.request("POST", "/v1/completions", &body.to_string());
    assert_eq!(status, 200, "{stream}");
    let events = stream
        .lines()
        .filter_map(|line| line.strip_prefix("data: "));
    let events: Vec<&str> = events.collect();
    assert_eq!(events.last(), Some(&"[DONE]"));
    let pieces = events[..events.len() - 1].iter().map(|event| {
        let event: Value = serde_json::from_str(event).expect("JSON");
        event["choices"][0]["text"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    });
    assert_eq!(pieces.collect::<String>(), server.text("shout-r2"));

    let body = json!({"model": "nobody", "prompt": PROMPT});
    let (status, error) = server.request("POST", "/v1/completions", &body.to_string());
    assert!(
        status == 404 && error.contains("model_not_found"),
        "{status} {error}"
    );
    let directory = here.path("run/adapters/shout-r2/best");
    let load = json!({"lora_name": "loud", "lora_path": directory}).to_string();
    assert_eq!(
        server.request("POST", "/v1/load_lora_adapter", &load).0,
        200
    );
    assert_eq!(server.text("loud"), server.text("shout-r2"));
    let unload = json!({"lora_name": "loud"}).to_string();
    assert_eq!(
        server.request("POST", "/v1/unload_lora_adapter", &unload).0,
        200
    );
    let body = json!({"model": "loud", "prompt": PROMPT}).to_string();
    assert_eq!(server.request("POST", "/v1/completions", &body).0, 404);

    #[cfg(target_os = "linux")]
    {
        // The kernel adds pages to memory that is marked for huge ones, whenever it likes.
        let maps = fs::read_to_string(format!("/proc/{}/smaps", server.process.id()));
        let maps = maps.expect("the process's memory");
        let flags: Vec<&str> = maps
            .lines()
            .filter(|line| line.starts_with("VmFlags:"))
            .collect();
        assert!(
            !flags.is_empty() && flags.iter().all(|flags| !flags.contains(" hg")),
            "{maps}"
        );
    }

    // A signal ends it.
    signal(&server.process, "-TERM");
    let mut server = server;
    let status = server.process.wait().expect("an end");
    assert_eq!(status.code(), Some(0));
}

#[test]
fn keys_and_adapters_of_the_command_line() {
    let here = trained();
    here.write("keys", "secret team # the only one\n");
    let server = Server::start(
        &here,
        &[
            "--model",
            "tiny-llama",
            "--adapter",
            "mine=run/adapters/shout-r2/last",
            "--served-model-name",
            "tiny",
            "--api-keys",
            "keys",
            "--memory-limit",
            "200MB",
        ],
    );
    let (status, body) = server.request("GET", "/v1/models", "");
    assert!(status == 401 && !body.contains("secret"), "{status} {body}");
    assert_eq!(server.request("GET", "/health", "").0, 200);
    let refused = |arguments: &[&str], why: &str| {
        let all = [
            &["serve", "--inference-only", "--listen", "127.0.0.1:0"],
            arguments,
        ]
        .concat();
        let run = here.run(&all);
        assert!(
            run.code != 0 && run.all().contains(why),
            "{arguments:?}: {}",
            run.all()
        );
    };
    refused(&["--model", "tiny-llama", "--adapter", "mine"], "NAME=DIR");
    refused(
        &["--model", "tiny-llama", "--adapter", "a=run/adapters"],
        "adapter_config.json",
    );
    let twice = "mine=run/adapters/shout-r2/last";
    let twice = [
        "--model",
        "tiny-llama",
        "--adapter",
        twice,
        "--adapter",
        twice,
    ];
    refused(&twice, "already");
    for name in ["a@live", "a@best", "a@last", "a@40", " a@live "] {
        let named = format!("{name}=run/adapters/shout-r2/last");
        refused(
            &["--model", "tiny-llama", "--adapter", &named],
            "name adapters of a run",
        );
    }
    let base = "tiny-llama=run/adapters/shout-r2/last";
    refused(
        &["--model", "tiny-llama", "--adapter", base],
        "--served-model-name",
    );
    for name in ["", "tiny@best", "a\nb"] {
        refused(
            &["--model", "tiny-llama", "--served-model-name", name],
            "--served-model-name",
        );
    }
    refused(
        &["--model", "tiny-llama", "--listen", "localhost"],
        "HOST:PORT",
    );
    refused(
        &["--model", "tiny-llama", "--api-keys", "none"],
        "`none`: No such file",
    );
    refused(
        &["--model", "tiny-llama", "--memory-limit", "1KB"],
        "nothing is left",
    );
    let weights = fs::metadata(here.path("tiny-llama/model.safetensors")).expect("weights");
    let limit = format!("{}KB", weights.len() / 1000);
    refused(
        &["--model", "tiny-llama", "--memory-limit", &limit],
        "nothing is left",
    );
    refused(&["run", "--drain"], "--drain");
    refused(&["--model", "tiny-llama", "--listen", "nowhere"], "listen");
    let run = here.run(&["serve", "run", "--listen", "127.0.0.1:0"]);
    assert!(
        run.code == 2 && run.all().contains("without a queue"),
        "{}",
        run.all()
    );
    let run = here.run(&["serve", "new", "--api-keys", "keys"]);
    assert!(
        run.code == 2 && run.all().contains("--listen"),
        "{}",
        run.all()
    );
}

/// A quarter of what the model leaves is for adapters.
#[test]
fn an_adapter_beyond_the_memory_limit_is_refused() {
    let here = trained();
    // In float16.
    let weights = fs::metadata(here.path("tiny-llama/model.safetensors")).expect("weights");
    let limit = format!("{}KB", 2 * weights.len() / 1000 + 100);
    let run = here.run(&[
        "serve",
        "--inference-only",
        "--listen",
        "127.0.0.1:0",
        "--model",
        "tiny-llama",
        "--adapter",
        "mine=run/adapters/shout-r2/last",
        "--memory-limit",
        &limit,
    ]);
    let said = "where all adapters may take";
    assert!(run.code == 4 && run.all().contains(said), "{}", run.all());
    assert!(run.all().contains("raise --memory-limit"), "{}", run.all());
}

/// Clap takes an option that requires another one alone if something is there that conflicts with that one.
#[test]
fn options_that_would_do_nothing_are_refused() {
    let here = Workspace::empty();
    let asks = [
        "--model=m",
        "--adapter=a=b",
        "--device=cpu",
        "--dtype=float32",
        "--quantization=nf4",
    ];
    let trains = [
        "--drain",
        "--config=c.yaml",
        "--set=a=b",
        "--events-to=cat",
        "--inference-share=0.3",
        "--tui",
    ];
    let mut lines = vec![vec!["generate", "text", "--model=m", "--batch-size=3"]];
    for training in trains {
        let listen = ["serve", "run", "--listen=127.0.0.1:0", training];
        lines.extend(asks.map(|option| [&listen[..], &[option]].concat()));
        lines.push(vec!["serve", "run", "--inference-only", training]);
    }
    lines.extend(asks.map(|option| vec!["serve", "run", option]));
    for line in lines {
        let run = here.run(&line);
        assert_eq!(run.code, 2, "{line:?}: {}", run.all());
        let refused = ["cannot be used with", "were not provided"];
        assert!(
            refused.iter().any(|refused| run.all().contains(refused)),
            "{line:?}: {}",
            run.all()
        );
    }
}

/// A run whose adapters are not there answers with the base model, and says so.
#[test]
#[cfg(unix)]
fn adapters_without_a_save_are_named() {
    let here = trained();
    let said = || Server::start(&here, &["run"]).said.join("\n");
    assert!(!said().contains("no save"), "{}", said());
    fs::remove_dir_all(here.path("run/adapters/shout-r2")).expect("removed");
    assert!(
        said().contains("`run` has no save of `shout-r2`"),
        "{}",
        said()
    );
}

/// An adapter of another base, and a signal that is for servers that train.
#[test]
#[cfg(unix)]
fn another_base_is_said_and_a_save_is_nothing() {
    let here = trained();
    let other = here.path("other");
    fs::create_dir(&other).expect("a directory");
    for entry in fs::read_dir(here.path("tiny-llama")).expect("a model") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name");
        fs::copy(&path, other.join(name)).expect("a copy");
    }
    let weights = other.join("model.safetensors");
    let mut bytes = fs::read(&weights).expect("weights");
    let last = bytes.len() - 2;
    bytes[last] ^= 1;
    fs::write(&weights, bytes).expect("written");
    let own = "own=run/adapters/shout-r2/last";
    for (model, is_other) in [("tiny-llama", false), ("other", true)] {
        let line = [
            "serve",
            "--inference-only",
            "--device",
            "cpu",
            "--listen",
            "localhost:0",
            "--model",
            model,
            "--adapter",
            own,
        ];
        let server = Server::listening(&here, &line);
        let warning = "was trained over another model";
        assert_eq!(
            server.said.join("\n").contains(warning),
            is_other,
            "{:?}",
            server.said
        );
        signal(&server.process, "-USR1");
        assert!(!server.text("own").is_empty());
    }
}

/// One request runs and 128 wait, as many as one may ask for; others are told to come later.
#[test]
fn so_many_requests_wait() {
    let here = train::workspace();
    let one = ["--model", "tiny-llama", "--max-num-seqs", "1"];
    let server = Server::start(&here, &one);
    let body =
        json!({"model": "tiny-llama", "prompt": PROMPT, "max_tokens": 60, "ignore_eos": true});
    let body = body.to_string();
    let statuses = thread::scope(|scope| {
        let asked =
            (0..180).map(|_| scope.spawn(|| server.request("POST", "/v1/completions", &body).0));
        let asked: Vec<_> = asked.collect();
        let asked = asked
            .into_iter()
            .map(|asked| asked.join().expect("a status"));
        asked.collect::<Vec<_>>()
    });
    let count = |status: u16| statuses.iter().filter(|found| **found == status).count();
    assert_eq!(count(200) + count(429), 180, "{statuses:?}");
    assert!((129..180).contains(&count(200)), "{statuses:?}");
}
