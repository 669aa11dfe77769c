//! Requests byte by byte.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use serde_json::Value;

/// A response.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    /// Lower-case names.
    headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Response {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(other, _)| other == name);
        found.map(|(_, value)| value.as_str())
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).expect(&self.body)
    }

    /// The data of server-sent events; the last must be `[DONE]`, which is left out.
    pub(crate) fn events(&self) -> Vec<Value> {
        assert_eq!(
            self.header("content-type"),
            Some("text/event-stream"),
            "{self:?}"
        );
        let events = self.body.split_terminator("\n\n");
        let mut events: Vec<&str> = events
            .map(|event| event.strip_prefix("data: ").expect(event))
            .collect();
        assert_eq!(events.pop(), Some("[DONE]"));
        let parse = |event: &str| serde_json::from_str(event).expect(event);
        events.into_iter().map(parse).collect()
    }

    /// Type, parameter and code of an error.
    pub(crate) fn error(&self) -> (u16, String, Value, Value) {
        let error = &self.json()["error"];
        assert!(!error["message"].as_str().unwrap().is_empty());
        let kind = error["type"].as_str().unwrap().to_owned();
        (
            self.status,
            kind,
            error["param"].clone(),
            error["code"].clone(),
        )
    }
}

/// Sends a request's head and body.
pub(crate) fn send(address: SocketAddr, head: &str, body: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    let length = body.len();
    let head = format!(
        "{head}\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body).unwrap();
    stream
}

/// Reads a response to its end.
pub(crate) fn receive(mut stream: TcpStream) -> Response {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    parse(&String::from_utf8(bytes).unwrap())
}

fn parse(text: &str) -> Response {
    let (head, body) = text.split_once("\r\n\r\n").expect(text);
    let mut lines = head.lines();
    let status = lines.next().unwrap().split(' ').nth(1).unwrap();
    let header = |line: &str| {
        let (name, value) = line.split_once(": ").unwrap();
        (name.to_lowercase(), value.to_owned())
    };
    let mut response = Response {
        status: status.parse().unwrap(),
        headers: lines.map(header).collect(),
        body: body.to_owned(),
    };
    if response.header("transfer-encoding") == Some("chunked") {
        response.body = unchunked(body);
    }
    response
}

fn unchunked(mut rest: &str) -> String {
    let mut body = String::new();
    loop {
        let (size, after) = rest.split_once("\r\n").expect("a chunk");
        let size = usize::from_str_radix(size, 16).unwrap();
        if size == 0 {
            return body;
        }
        body += &after[..size];
        rest = &after[size + 2..];
    }
}

pub(crate) fn get(address: SocketAddr, path: &str) -> Response {
    receive(send(address, &format!("GET {path} HTTP/1.1"), b""))
}

pub(crate) fn get_with(address: SocketAddr, key: &str, path: &str) -> Response {
    let head = format!("GET {path} HTTP/1.1\r\nAuthorization: Bearer {key}");
    receive(send(address, &head, b""))
}

/// A request of JSON, whose response is not read yet.
pub(crate) fn start(address: SocketAddr, path: &str, body: &[u8]) -> TcpStream {
    let head = format!("POST {path} HTTP/1.1\r\nContent-Type: application/json");
    send(address, &head, body)
}

pub(crate) fn post(address: SocketAddr, path: &str, body: &Value) -> Response {
    receive(start(address, path, body.to_string().as_bytes()))
}

/// A request of JSON with a key.
pub(crate) fn post_with(address: SocketAddr, key: &str, path: &str, body: &Value) -> Response {
    let head = format!(
        "POST {path} HTTP/1.1\r\nContent-Type: application/json\r\nAuthorization: Bearer {key}"
    );
    receive(send(address, &head, body.to_string().as_bytes()))
}
