//! A Hub of one model, and the server that it redirects to for large files.

use std::{
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

pub(crate) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
pub(crate) const WEIGHTS: &[u8] = &[7; 300_000];

/// Files of the repository: small ones come from the Hub itself.
pub(crate) const FILES: [(&str, &[u8]); 7] = [
    ("config.json", b"{}"),
    ("tokenizer.json", b"{\"a\": 1}"),
    ("model.safetensors", WEIGHTS),
    ("README.md", b"# A model"),
    ("consolidated.safetensors", b"the same"),
    ("onnx/model.onnx", b"other"),
    ("data/a b.jsonl", b"{}"),
];

/// A running server; it ends with the process.
pub(crate) struct Server {
    pub(crate) endpoint: String,
    /// Heads of requests, the body server's after `body: `.
    pub(crate) asked: Arc<Mutex<Vec<String>>>,
    /// Bytes of a large file after which the connection is closed, once.
    pub(crate) breaks_after: Arc<AtomicUsize>,
}

impl Server {
    pub(crate) fn start() -> Self {
        let (hub, bodies) = (listener(), listener());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let breaks_after = Arc::new(AtomicUsize::new(usize::MAX));
        let endpoint = format!("http://{}", hub.local_addr().unwrap());
        let elsewhere = format!("http://{}", bodies.local_addr().unwrap());
        let (heads, breaks) = (asked.clone(), breaks_after.clone());
        thread::spawn(move || {
            for stream in bodies.incoming().flatten() {
                let head = read_head(&stream);
                heads.lock().unwrap().push(format!("body: {head}"));
                let limit = breaks.swap(usize::MAX, Ordering::SeqCst);
                send_weights(stream, &head, limit);
            }
        });
        let heads = asked.clone();
        thread::spawn(move || {
            for stream in hub.incoming().flatten() {
                let head = read_head(&stream);
                heads.lock().unwrap().push(head.clone());
                answer(stream, &head, &elsewhere);
            }
        });
        Self {
            endpoint,
            asked,
            breaks_after,
        }
    }

    /// Heads of requests since the last call.
    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }
}

fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").unwrap()
}

fn read_head(stream: &TcpStream) -> String {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let head: Vec<String> = lines.by_ref().take_while(|line| !line.is_empty()).collect();
    head.join("\n")
}

fn send(mut stream: TcpStream, head: &str, body: &[u8]) {
    let _ = stream.write_all(format!("HTTP/1.1 {head}\r\n\r\n").as_bytes());
    let _ = stream.write_all(body);
}

fn answer(stream: TcpStream, head: &str, elsewhere: &str) {
    let mut words = head.split(' ');
    let (method, path) = (words.next().unwrap(), words.next().unwrap());
    let is_known = head.contains("Authorization: Bearer secret");
    if path.starts_with("/api/models/org/private") && !is_known {
        return send(
            stream,
            "401 Unauthorized\r\nX-Error-Message: Invalid username or password.\r\nContent-Length: 0",
            b"",
        );
    }
    if path == "/api/models/org/name/revision/main"
        || path == "/api/models/org/name/revision/refs%2Fpr%2F1"
    {
        let names = FILES.map(|(name, _)| format!("{{\"rfilename\": \"{name}\"}}"));
        let text = format!(
            "{{\"sha\": \"{COMMIT}\", \"siblings\": [{}, {{\"rfilename\": \"../x.safetensors\"}}]}}",
            names.join(",")
        );
        let (first, rest) = text.split_at(20);
        let body = format!(
            "14;a=b\r\n{first}\r\n{:x}\r\n{rest}\r\n0\r\n\r\n",
            rest.len()
        );
        return send(
            stream,
            "200 OK\r\nTransfer-Encoding: chunked",
            body.as_bytes(),
        );
    }
    let resolve = format!("/org/name/resolve/{COMMIT}/");
    if let Some(renamed) = path.strip_prefix(&format!("/old/name/resolve/{COMMIT}/")) {
        return send(
            stream,
            &format!("307 Moved\r\nLocation: {resolve}{renamed}\r\nContent-Length: 0"),
            b"",
        );
    }
    let file = path
        .strip_prefix(&resolve)
        .map(|name| name.replace("%20", " "));
    let index = FILES
        .iter()
        .position(|(name, _)| Some(*name) == file.as_deref());
    let Some(index) = index else {
        return send(stream, "404 Not Found\r\nContent-Length: 0", b"");
    };
    let (name, body) = FILES[index];
    if name == "model.safetensors" {
        let head = format!(
            "302 Found\r\nLocation: {elsewhere}/x?y=z\r\nX-Linked-Etag: \"weights\"\r\nX-Linked-Size: {}\r\nETag: \"other\"\r\n\
             Content-Length: 0",
            body.len()
        );
        return send(stream, &head, b"");
    }
    let head = format!(
        "200 OK\r\nETag: W/\"blob{index}\"\r\nContent-Length: {}",
        body.len()
    );
    send(stream, &head, if method == "HEAD" { b"" } else { body });
}

fn send_weights(stream: TcpStream, head: &str, limit: usize) {
    let range = head
        .lines()
        .find_map(|line| line.strip_prefix("Range: bytes="));
    let from: usize = range.map_or(0, |range| range.trim_end_matches('-').parse().unwrap());
    let body = &WEIGHTS[from..];
    let status = if range.is_some() {
        "206 Partial Content"
    } else {
        "200 OK"
    };
    let head = format!("{status}\r\nContent-Length: {}", body.len());
    send(stream, &head, &body[..body.len().min(limit)]);
}
