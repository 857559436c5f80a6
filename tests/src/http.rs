//! One GET over HTTP/1.0, by hand: what a health check or a scraper sees. In 1.0 no body comes in chunks.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context as _, Result};

/// Between two bytes of an answer.
const READ_LIMIT: Duration = Duration::from_secs(10);

/// An answer: its status and its body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    pub status: u16,
    pub body: String,
}

/// Gets `path` from `address`.
///
/// # Errors
/// Nobody listens, or the answer is no HTTP.
pub fn get(address: &str, path: &str) -> Result<Page> {
    let mut stream = TcpStream::connect(address).with_context(|| format!("connecting to {address}"))?;
    stream.set_read_timeout(Some(READ_LIMIT))?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).with_context(|| format!("reading {path} from {address}"))?;
    let (head, body) = answer.split_once("\r\n\r\n").with_context(|| format!("no head in {answer:?}"))?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    Ok(Page { status: status.with_context(|| format!("no status in {head:?}"))?, body: body.to_owned() })
}
