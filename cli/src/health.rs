//! `zurau health`: asks a broker or controller over HTTP whether it is ready, so that an image needs no other program for
//! its health check.

use std::io::{Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::Args;
use zurau_common::config::split_host_port;

/// For connecting, and for each part of the answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(3);
/// Reasons are some lines of text.
const ANSWER_BYTES_MAX: u64 = 64 << 10;

/// Arguments of `zurau health`.
#[derive(Args, Debug)]
pub(crate) struct HealthArguments {
    /// What to ask; /live and /ready answer 200 when all is well.
    #[arg(default_value = "http://127.0.0.1:9644/ready")]
    url: String,
}

/// Exit code 0 if the answer is 200, else 1; prints the answer.
pub(crate) fn run(arguments: &HealthArguments) -> ExitCode {
    match ask(&arguments.url) {
        Ok((status, body)) => {
            println!("{}", body.trim_end());
            if status == 200 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("zurau health: {} does not answer: {error:#}", arguments.url);
            ExitCode::FAILURE
        }
    }
}

/// Status and body of a GET.
fn ask(url: &str) -> anyhow::Result<(u16, String)> {
    let rest = url.strip_prefix("http://").context("only http:// is spoken")?;
    let (address, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let path = if path.is_empty() { "/" } else { path };
    let (host, port) = split_host_port(address).context("the form is http://host:port/path")?;
    let mut addresses = (host.as_str(), port).to_socket_addrs().context("looking up the host")?;
    let address_found = addresses.next().context("the host has no address")?;
    let mut stream = TcpStream::connect_timeout(&address_found, ANSWER_LIMIT)?;
    stream.set_read_timeout(Some(ANSWER_LIMIT))?;
    stream.set_write_timeout(Some(ANSWER_LIMIT))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n").context("the answer is no HTTP")?;
    ensure!(head.starts_with("HTTP/1."), "the answer is no HTTP");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    Ok((status.context("the answer has no status")?, body.to_owned()))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn an_answer_is_read_whole() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/ready", listener.local_addr().unwrap());
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 1024];
            let count = stream.read(&mut request).unwrap();
            stream
                .write_all(b"HTTP/1.1 503 Service Unavailable\r\nA: b\r\n\r\nrecovering 3 of 9 logs\n")
                .unwrap();
            String::from_utf8_lossy(&request[..count]).into_owned()
        });
        assert_eq!(ask(&url).unwrap(), (503, "recovering 3 of 9 logs\n".to_owned()));
        assert!(server.join().unwrap().starts_with("GET /ready HTTP/1.1\r\nHost: 127.0.0.1:"));
        for bad in ["ftp://127.0.0.1:1/", "http://127.0.0.1", "http://nowhere.invalid:1/"] {
            assert!(ask(bad).is_err(), "{bad}");
        }
    }
}
