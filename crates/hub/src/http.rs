//! HTTP/1.1 requests, with TLS for https. Crates for this change features of crates below Burn.

use std::{
    env,
    io::{self, BufRead, BufReader, Error, ErrorKind, Read, Write},
    net::{TcpStream, ToSocketAddrs},
    sync::Arc,
    time::Duration,
};

use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned,
    crypto::ring,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};

/// Timeout of a server's answer and of each read.
const PATIENCE: Duration = Duration::from_mins(1);
/// Bytes that the head of an answer has at most.
const LONGEST_HEAD: usize = 1 << 16;
const MOST_HEADERS: usize = 128;

/// An address: `http://host:port/path` or `https://host/path`.
#[derive(Debug, Clone)]
pub(crate) struct Address {
    is_secure: bool,
    /// Host and, if there is one, port.
    pub(crate) host: String,
    path: String,
}

impl Address {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (is_secure, rest) = match text.strip_prefix("https://") {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix("http://")?),
        };
        let (host, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        let is_plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        (!host.is_empty() && !host.contains('@') && is_plain(text)).then(|| Self {
            is_secure,
            host: host.to_owned(),
            path: match path.strip_prefix('/') {
                Some(_) => path.to_owned(),
                None => format!("/{path}"),
            },
        })
    }

    /// The target of a redirection; a relative one stays on the host.
    pub(crate) fn follow(&self, location: &str) -> Option<Self> {
        match location.strip_prefix('/') {
            Some(rest) if !rest.starts_with('/') => Some(Self {
                path: location.to_owned(),
                ..self.clone()
            }),
            _ => Self::parse(location),
        }
    }

    /// True if a secret for `other` may be sent here.
    pub(crate) fn is_same_host(&self, other: &Self) -> bool {
        (self.is_secure, &self.host) == (other.is_secure, &other.host)
    }

    fn connect(&self) -> io::Result<Box<dyn Stream>> {
        let after_address = self.host.rfind(']').unwrap_or(0);
        let has_port = self.host[after_address..].contains(':');
        let port = if self.is_secure { 443 } else { 80 };
        let place = if has_port {
            self.host.clone()
        } else {
            format!("{}:{port}", self.host)
        };
        let mut result = Err(Error::new(ErrorKind::NotFound, "no such host"));
        for address in place.to_socket_addrs()? {
            result = TcpStream::connect_timeout(&address, PATIENCE);
            if result.is_ok() {
                break;
            }
        }
        let stream = result?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        if !self.is_secure {
            return Ok(Box::new(stream));
        }
        let name = place.rsplit_once(':').map_or(&*place, |(name, _)| name);
        let name = ServerName::try_from(name.to_owned()).map_err(Error::other)?;
        let roots = roots()?;
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(Error::other)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let session = ClientConnection::new(Arc::new(config), name).map_err(Error::other)?;
        Ok(Box::new(StreamOwned::new(session, stream)))
    }
}

/// Certificates of authorities: those of browsers, or those of `SSL_CERT_FILE`.
fn roots() -> io::Result<RootCertStore> {
    let mut store = RootCertStore {
        roots: webpki_roots::TLS_SERVER_ROOTS.to_vec(),
    };
    if let Some(path) = env::var_os("SSL_CERT_FILE").filter(|path| !path.is_empty()) {
        let certificates = CertificateDer::pem_file_iter(&path);
        let certificates = certificates.and_then(Iterator::collect::<Result<Vec<_>, _>>);
        let certificates = certificates.map_err(|error| {
            let path = path.display();
            Error::other(format!("SSL_CERT_FILE = `{path}`: {error}"))
        })?;
        store = RootCertStore::empty();
        store.add_parsable_certificates(certificates);
    }
    Ok(store)
}

trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

/// The answer to a request; its body is read from it.
pub(crate) struct Answer {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    body: Box<dyn Read>,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.headers.iter();
        let found = headers.find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }
}

impl Read for Answer {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.body.read(buffer)
    }
}

/// Sends a request without a body; follows no redirection.
pub(crate) fn request(
    method: &str,
    address: &Address,
    headers: &[(&str, String)],
) -> io::Result<Answer> {
    let mut stream = address.connect()?;
    let mut head = format!(
        "{method} {} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nAccept-Encoding: identity\r\n\
         User-Agent: loraloom/{}\r\n",
        address.path,
        address.host,
        env!("CARGO_PKG_VERSION"),
    );
    for (name, value) in headers {
        head.extend([name, ": ", value, "\r\n"]);
    }
    head += "\r\n";
    stream.write_all(head.as_bytes())?;
    stream.flush()?;

    let mut reader = BufReader::with_capacity(1 << 16, stream);
    let head = read_head(&mut reader)?;
    let mut parsed = [httparse::EMPTY_HEADER; MOST_HEADERS];
    let mut response = httparse::Response::new(&mut parsed);
    response
        .parse(&head)
        .map_err(|error| Error::new(ErrorKind::InvalidData, error.to_string()))?;
    let headers: Vec<(String, String)> = response
        .headers
        .iter()
        .map(|header| {
            let value = String::from_utf8_lossy(header.value).trim().to_owned();
            (header.name.to_owned(), value)
        })
        .collect();
    let mut answer = Answer {
        status: response.code.unwrap_or_default(),
        headers,
        body: Box::new(io::empty()),
    };
    let length = answer
        .header("content-length")
        .and_then(|text| text.parse().ok());
    let encoding = answer.header("transfer-encoding").unwrap_or_default();
    let is_chunked = encoding.eq_ignore_ascii_case("chunked");
    if method != "HEAD" {
        answer.body = match length {
            _ if is_chunked => Box::new(Chunks {
                reader,
                left: 0,
                is_first: true,
            }),
            Some(left) => Box::new(Exactly { reader, left }),
            None => Box::new(reader),
        };
    }
    Ok(answer)
}

fn read_head(reader: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    loop {
        let before = head.len();
        let mut line = reader.take((LONGEST_HEAD - before) as u64);
        if line.read_until(b'\n', &mut head)? == 0 {
            return Err(Error::new(
                ErrorKind::UnexpectedEof,
                "the response is incomplete",
            ));
        }
        if matches!(&head[before..], b"\r\n" | b"\n") {
            return Ok(head);
        }
    }
}

/// A body of known length.
struct Exactly<R> {
    reader: R,
    left: u64,
}

impl<R: Read> Read for Exactly<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        read_some(&mut self.reader, &mut self.left, buffer)
    }
}

/// A body in chunks, each after its length.
struct Chunks<R> {
    reader: R,
    left: u64,
    is_first: bool,
}

impl<R: BufRead> Chunks<R> {
    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        (&mut self.reader).take(1024).read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }
}

impl<R: BufRead> Read for Chunks<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 {
            if !self.is_first {
                self.line()?;
            }
            self.is_first = false;
            let line = self.line()?;
            let length = line.split(';').next().unwrap_or_default().trim();
            self.left = u64::from_str_radix(length, 16).map_err(|_| cut_off())?;
            if self.left == 0 {
                // A second call would read past the chunk.
                self.reader.read_to_end(&mut Vec::new())?;
                return Ok(0);
            }
        }
        read_some(&mut self.reader, &mut self.left, buffer)
    }
}

/// Reads some of the `left` bytes that are still to come.
fn read_some(reader: &mut impl Read, left: &mut u64, buffer: &mut [u8]) -> io::Result<usize> {
    let most = buffer
        .len()
        .min(usize::try_from(*left).unwrap_or(usize::MAX));
    let read = reader.read(&mut buffer[..most])?;
    if read == 0 && most > 0 {
        return Err(cut_off());
    }
    *left -= read as u64;
    Ok(read)
}

fn cut_off() -> Error {
    Error::new(ErrorKind::UnexpectedEof, "the connection closed early")
}
