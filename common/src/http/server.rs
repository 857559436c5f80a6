//! The HTTP shell. One request a connection, so that every connection ends by itself within a known time; nothing a
//! peer sends is read beyond the head of its request.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::{Body as _, Incoming};
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::exposition::Exposition;
use super::{Observed, Readiness};
use crate::config::HttpListener;
use crate::wire::places::Places;
use crate::wire::server::listen;

/// Connections at once; one more is closed unread.
const CONNECTIONS_MAX: usize = 64;
/// Connections at once from one address, so that one peer cannot keep a health check out.
const CONNECTIONS_PER_ADDRESS_MAX: usize = 16;
const BACKLOG: u32 = 64;
/// Size of a request's head in bytes; a larger one is answered 431.
const HEAD_BYTES_MAX: usize = 16 << 10;
const HEADERS_MAX: usize = 64;
const TIMES: Times = Times { head: Duration::from_secs(5), connection: Duration::from_secs(30) };
/// Pause after the operating system refused to hand over a connection.
const ACCEPT_RETRY_PAUSE: Duration = Duration::from_millis(100);

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const METRICS: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
const PAGES: &str = "/live\n/ready\n/metrics\n";

/// How long a peer may take.
#[derive(Debug, Clone, Copy)]
struct Times {
    /// For the whole head of the request to arrive.
    head: Duration,
    /// From accept to the last byte of the answer.
    connection: Duration,
}

/// A listening server; dropping it closes the listener and every connection.
#[derive(Debug)]
pub struct HttpServer {
    address: SocketAddr,
    stop: CancellationToken,
}

impl HttpServer {
    /// Begins to answer, on the runtime that calls it.
    ///
    /// # Errors
    /// A host that does not resolve, an address in use, a port that needs privileges.
    pub async fn bind(listener: &HttpListener, process: Arc<dyn Observed>) -> anyhow::Result<Self> {
        Self::bind_with(listener, process, TIMES).await
    }

    async fn bind_with(
        listener: &HttpListener,
        process: Arc<dyn Observed>,
        times: Times,
    ) -> anyhow::Result<Self> {
        let socket = listen(&listener.host, listener.port, BACKLOG)
            .await
            .with_context(|| format!("cannot listen on {listener} (http.listener)"))?;
        let address = socket.local_addr().context("a bound socket has no address")?;
        info!(%address, "answering /live, /ready and /metrics over HTTP");
        let stop = CancellationToken::new();
        let accepting = accept_loop(socket, process, times, stop.clone());
        let stopped = stop.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = accepting => {}
                () = stopped.cancelled() => {}
            }
        });
        Ok(Self { address, stop })
    }

    /// The bound address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn accept_loop(socket: TcpListener, process: Arc<dyn Observed>, times: Times, stop: CancellationToken) {
    let scrapes = Arc::new(Mutex::new(0));
    let places = Places::new(CONNECTIONS_MAX, CONNECTIONS_PER_ADDRESS_MAX);
    loop {
        let (stream, peer) = match socket.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                warn!(%error, "cannot accept an HTTP connection; trying again (look at the limit on open files)");
                sleep(ACCEPT_RETRY_PAUSE).await;
                continue;
            }
        };
        let Some(place) = places.take(peer.ip()) else {
            debug!(%peer, "HTTP connection refused: too many at once");
            continue;
        };
        let (process, scrapes, stop) = (Arc::clone(&process), Arc::clone(&scrapes), stop.clone());
        tokio::spawn(async move {
            tokio::select! {
                served = timeout(times.connection, serve(stream, process, scrapes, times)) => match served {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => debug!(%peer, %error, "HTTP connection closed"),
                    Err(_) => debug!(%peer, "HTTP connection closed: not done in {:?}", times.connection),
                },
                () = stop.cancelled() => {}
            }
            drop(place);
        });
    }
}

async fn serve(
    stream: TcpStream,
    process: Arc<dyn Observed>,
    scrapes: Arc<Mutex<usize>>,
    times: Times,
) -> hyper::Result<()> {
    let service = service_fn(|request: Request<Incoming>| {
        let (process, scrapes) = (Arc::clone(&process), Arc::clone(&scrapes));
        async move { Ok::<_, Infallible>(answer(&request, process, scrapes).await) }
    });
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(times.head)
        .max_buf_size(HEAD_BYTES_MAX)
        .max_headers(HEADERS_MAX)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service)
        .await
}

async fn answer(
    request: &Request<Incoming>,
    process: Arc<dyn Observed>,
    scrapes: Arc<Mutex<usize>>,
) -> Response<Full<Bytes>> {
    if request.method() != Method::GET && request.method() != Method::HEAD {
        let mut refused = page(StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET and HEAD are served here\n");
        refused.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return refused;
    }
    if !request.body().is_end_stream() {
        return page(StatusCode::PAYLOAD_TOO_LARGE, TEXT, "a request here has no body\n");
    }
    match request.uri().path() {
        "/live" => page(StatusCode::OK, TEXT, "live\n"),
        "/ready" => ready(&process.readiness()),
        "/metrics" => metrics(process, scrapes).await,
        _ => page(StatusCode::NOT_FOUND, TEXT, format!("no such page; there are\n{PAGES}")),
    }
}

fn ready(readiness: &Readiness) -> Response<Full<Bytes>> {
    let status = if readiness.is_ready() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    page(status, JSON, readiness.to_json() + "\n")
}

/// One at a time, on a thread that may wait; who comes meanwhile waits too. `scrapes`: size of the last page in bytes; the
/// next one will not be much larger.
async fn metrics(process: Arc<dyn Observed>, scrapes: Arc<Mutex<usize>>) -> Response<Full<Bytes>> {
    let written = async {
        let mut last_bytes = scrapes.lock_owned().await;
        let writing = tokio::task::spawn_blocking(move || {
            // Locked until the work is done, even if nobody waits for it any more.
            let mut page = Exposition::with_capacity(*last_bytes + *last_bytes / 8);
            process.metrics(&mut page);
            let text = page.into_text();
            *last_bytes = text.len();
            text
        });
        writing.await.ok()
    };
    match written.await {
        Some(text) => page(StatusCode::OK, METRICS, text),
        None => {
            page(StatusCode::INTERNAL_SERVER_ERROR, TEXT, "the metrics cannot be written; the log says why\n")
        }
    }
}

fn page(status: StatusCode, content_type: HeaderValue, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
#[path = "server_tests.rs"]
mod tests;
