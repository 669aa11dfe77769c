//! Limits of bodies, times and connections; clients that leave; the end of a server.

use std::{
    io::{Read, Write},
    net::TcpStream,
    time::{Duration, Instant},
};

use loraloom_server::http::HttpLimits;
use serde_json::{Value, json};

use super::{
    client::{get, post, receive, send, start as begin},
    fake::{Script, start, start_with},
};

const COMPLETIONS: &str = "/v1/completions";
const SHORT: Duration = Duration::from_millis(300);

fn completion(stream: bool) -> Vec<u8> {
    let body: Value =
        json!({"model": "base", "prompt": "a", "max_tokens": 100_000, "stream": stream});
    body.to_string().into_bytes()
}

/// Reads until the text is there.
fn read_until(stream: &mut TcpStream, text: &str) {
    let mut read = String::new();
    while !read.contains(text) {
        let mut bytes = [0; 1024];
        let count = stream.read(&mut bytes).unwrap();
        assert!(
            (1..1 << 20).contains(&(count + read.len())) && count > 0,
            "{text} is not in {read}"
        );
        read += &String::from_utf8_lossy(&bytes[..count]);
    }
}

#[test]
fn long_bodies_are_refused() {
    let server = start(|_| Script::Say("a"));
    let body = |bytes: usize| json!({"model": "base", "prompt": "a", "user": "x".repeat(bytes)});
    assert_eq!(
        post(server.address, COMPLETIONS, &body((4 << 20) - 100)).status,
        200
    );
    for bytes in [4 << 20, 5 << 20, 20 << 20] {
        let (status, kind, ..) = post(server.address, COMPLETIONS, &body(bytes)).error();
        assert_eq!((status, &*kind), (413, "invalid_request_error"));
    }
    // The client sends no length.
    let head = format!(
        "POST {COMPLETIONS} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\
         Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    );
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.write_all(head.as_bytes()).unwrap();
    let chunk = format!("100000\r\n{}\r\n", "x".repeat(1 << 20));
    for _ in 0..5 {
        stream.write_all(chunk.as_bytes()).unwrap();
    }
    stream.write_all(b"0\r\n\r\n").unwrap();
    assert_eq!(receive(stream).status, 413);
}

#[test]
fn slow_clients_are_cut_off() {
    let limits = HttpLimits {
        read: SHORT,
        ..HttpLimits::default()
    };
    let server = start_with(limits, None, |_| Script::Say("a"));
    let start = Instant::now();
    let mut head = TcpStream::connect(server.address).unwrap();
    head.write_all(b"GET /health HTTP/1.1\r\nHost:").unwrap();
    let mut idle = TcpStream::connect(server.address).unwrap();
    let mut body = TcpStream::connect(server.address).unwrap();
    let text = "Host: test\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{";
    body.write_all(format!("POST {COMPLETIONS} HTTP/1.1\r\n{text}").as_bytes())
        .unwrap();
    read_until(&mut body, "408 Request Timeout");
    let mut bytes = Vec::new();
    let _ = head.read_to_end(&mut bytes);
    let _ = idle.read_to_end(&mut bytes);
    assert!(start.elapsed() >= SHORT && start.elapsed() < SHORT * 20);
}

#[test]
fn a_client_that_reads_nothing_is_cut_off() {
    let limits = HttpLimits {
        write: SHORT,
        connections: 1,
        ..HttpLimits::default()
    };
    // More than the buffers between both hold.
    let text: &str = " yes".repeat(100_000).leak();
    let server = start_with(limits, None, |_| Script::Say(text));
    let mut deaf = begin(server.address, COMPLETIONS, &completion(true));
    read_until(&mut deaf, "text_completion");
    let next = send(server.address, "GET /health HTTP/1.1", b"");
    next.set_read_timeout(Some(SHORT * 100)).unwrap();
    assert_eq!(receive(next).status, 200);
}

#[test]
fn connections_beyond_the_limit_wait() {
    let limits = HttpLimits {
        connections: 1,
        ..HttpLimits::default()
    };
    let server = start_with(limits, None, |_| Script::Forever);
    let mut first = begin(server.address, COMPLETIONS, &completion(true));
    read_until(&mut first, "text_completion");
    let second = send(server.address, "GET /health HTTP/1.1", b"");
    second.set_read_timeout(Some(SHORT)).unwrap();
    assert!((&second).read(&mut [0; 1]).is_err());
    drop(first);
    second.set_read_timeout(None).unwrap();
    assert_eq!(receive(second).status, 200);
}

#[test]
fn requests_beyond_the_limit_are_told_to_come_later() {
    let limits = HttpLimits {
        requests: 1,
        ..HttpLimits::default()
    };
    let server = start_with(limits, None, |_| Script::Forever);
    // An answer that is streamed is the service's to limit.
    let mut streamed = begin(server.address, COMPLETIONS, &completion(true));
    read_until(&mut streamed, "text_completion");
    let whole = begin(server.address, COMPLETIONS, &completion(false));
    while server.asks().len() < 2 {
        std::thread::sleep(Duration::from_millis(5));
    }
    let refused = receive(begin(server.address, COMPLETIONS, &completion(false)));
    assert_eq!(refused.header("retry-after"), Some("1"));
    let (status, kind, ..) = refused.error();
    assert_eq!((status, &*kind), (429, "rate_limit_error"));
    assert_eq!(get(server.address, "/health").status, 200);
    drop(whole);
    server.wait_for_cancelled(1);
    let next = begin(server.address, COMPLETIONS, &completion(false));
    while server.asks().len() < 3 {
        std::thread::sleep(Duration::from_millis(5));
    }
    drop((streamed, next));
}

#[test]
fn a_client_that_leaves_cancels_its_answers() {
    let server = start(|_| Script::Forever);
    let mut stream = begin(server.address, COMPLETIONS, &completion(true));
    read_until(&mut stream, "text_completion");
    drop(stream);
    server.wait_for_cancelled(1);
    let stream = begin(server.address, COMPLETIONS, &completion(false));
    while server.asks().len() < 2 {
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(stream);
    server.wait_for_cancelled(2);
    // It leaves before it has sent the body.
    let mut stream = TcpStream::connect(server.address).unwrap();
    let head = "Host: a\r\nContent-Type: application/json\r\nContent-Length: 10\r\n\r\n{";
    stream
        .write_all(format!("POST {COMPLETIONS} HTTP/1.1\r\n{head}").as_bytes())
        .unwrap();
    drop(stream);
    assert_eq!(get(server.address, "/health").status, 200);
}

#[test]
fn connections_are_kept_and_requests_may_follow_each_other() {
    let server = start(|_| Script::Say("a"));
    let mut stream = TcpStream::connect(server.address).unwrap();
    for _ in 0..3 {
        stream
            .write_all(b"GET /health HTTP/1.1\r\nHost: test\r\n\r\n")
            .unwrap();
        read_until(&mut stream, "\r\n\r\n");
    }
    stream.write_all(b"nonsense\r\n\r\n").unwrap();
    read_until(&mut stream, "400 Bad Request");
}

#[test]
fn answers_end_before_the_server_does() {
    let mut server = start(|_| Script::Slow(SHORT, "one two"));
    let streamed = begin(server.address, COMPLETIONS, &completion(true));
    let whole = begin(server.address, COMPLETIONS, &completion(false));
    let _idle = TcpStream::connect(server.address).unwrap();
    while server.asks().len() < 2 {
        std::thread::sleep(Duration::from_millis(5));
    }
    server.stop();
    let start = Instant::now();
    while TcpStream::connect(server.address).is_ok() {
        assert!(start.elapsed() < SHORT * 20, "it accepts connections");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(receive(whole).json()["choices"][0]["text"], "one two");
    let events = receive(streamed).events();
    assert_eq!(
        events[events.len() - 1]["choices"][0]["finish_reason"],
        "stop"
    );
    assert_eq!(server.wait(), 0);
}

#[test]
fn long_answers_are_cut_off_after_a_while() {
    let limits = HttpLimits {
        drain: SHORT,
        ..HttpLimits::default()
    };
    let mut server = start_with(limits, None, |_| Script::Forever);
    let mut stream = begin(server.address, COMPLETIONS, &completion(true));
    read_until(&mut stream, "text_completion");
    let start = Instant::now();
    server.stop();
    assert_eq!(server.wait(), 1);
    assert!(start.elapsed() >= SHORT && start.elapsed() < SHORT * 20);
    server.wait_for_cancelled(1);
}
