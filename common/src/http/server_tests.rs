use std::io;

use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;

const LIMIT: Duration = Duration::from_secs(20);

struct Process(Vec<String>);

impl Observed for Process {
    fn readiness(&self) -> Readiness {
        Readiness::new(self.0.clone(), vec!["a disk is slow".to_owned()], json!({ "id": 1 }))
    }

    fn metrics(&self, page: &mut Exposition) {
        page.gauge("one", "One.", 1_u64);
    }
}

async fn start(reasons: &[&str]) -> HttpServer {
    let process = Process(reasons.iter().map(|reason| (*reason).to_owned()).collect());
    let listener = HttpListener { host: "127.0.0.1".to_owned(), port: 0 };
    HttpServer::bind(&listener, Arc::new(process)).await.unwrap()
}

/// Sends bytes and reads until the server closes.
async fn exchange(server: &HttpServer, request: &[u8]) -> io::Result<String> {
    let mut stream = TcpStream::connect(server.address()).await?;
    stream.write_all(request).await?;
    let mut answer = Vec::new();
    timeout(LIMIT, stream.read_to_end(&mut answer)).await.expect("the server ends every connection")?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

async fn get(server: &HttpServer, path: &str) -> String {
    exchange(server, format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n").as_bytes()).await.unwrap()
}

fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").unwrap().1
}

#[tokio::test]
async fn ready_says_why_not() {
    let server = start(&["no ZooKeeper session"]).await;
    let answer = get(&server, "/ready").await;
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    let found: serde_json::Value = serde_json::from_str(body(&answer)).unwrap();
    let expected = json!({
        "ready": false, "reasons": ["no ZooKeeper session"], "warnings": ["a disk is slow"], "details": { "id": 1 },
    });
    assert_eq!(found, expected);
    assert!(get(&server, "/live").await.starts_with("HTTP/1.1 200 "), "alive all the same");
    let server = start(&[]).await;
    let answer = get(&server, "/ready?verbose=1").await;
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("\"ready\": true"), "{answer}");
}

#[tokio::test]
async fn metrics_are_text_for_prometheus() {
    let server = start(&["not ready"]).await;
    let answer = get(&server, "/metrics").await;
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("text/plain; version=0.0.4"), "{answer}");
    assert_eq!(body(&answer), "# HELP one One.\n# TYPE one gauge\none 1\n");
}

#[tokio::test]
async fn only_what_is_served_is_answered() {
    let server = start(&[]).await;
    let rows: [(&str, &str); 9] = [
        ("GET /live HTTP/1.0\r\n\r\n", "200 OK"),
        ("HEAD /live HTTP/1.1\r\nHost: h\r\n\r\n", "200 OK"),
        ("GET /nothing HTTP/1.1\r\nHost: h\r\n\r\n", "404 Not Found"),
        ("GET /live/../live HTTP/1.1\r\nHost: h\r\n\r\n", "404 Not Found"),
        ("DELETE /live HTTP/1.1\r\nHost: h\r\n\r\n", "405 Method Not Allowed"),
        ("POST /live HTTP/1.1\r\nHost: h\r\nContent-Length: 999999999\r\n\r\n", "405 Method Not Allowed"),
        ("GET /live HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\n", "413 Payload Too Large"),
        ("GET /live HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n", "413 Payload Too Large"),
        ("\u{0}\u{1}\u{2} nonsense\r\n\r\n", "400 Bad Request"),
    ];
    for (request, status) in rows {
        let answer = exchange(&server, request.as_bytes()).await.unwrap();
        assert_eq!(
            answer.lines().next(),
            Some(format!("HTTP/1.{} {status}", u8::from(!request.contains("1.0"))).as_str()),
            "{request}: {answer}"
        );
        assert_eq!(
            body(&answer).is_empty(),
            request.starts_with("HEAD") || status.starts_with("400"),
            "{answer}"
        );
    }
    let refused = exchange(&server, b"PUT /live HTTP/1.1\r\nHost: h\r\n\r\n").await.unwrap();
    assert!(refused.contains("allow: GET, HEAD"), "{refused}");
}

#[tokio::test]
async fn hostile_input_ends_its_own_connection_only() {
    let server = start(&[]).await;
    let header = format!("X-A: {}\r\n", "a".repeat(1000));
    let huge = [b"GET /live HTTP/1.1\r\nHost: h\r\n", header.repeat(100).as_bytes(), b"\r\n"].concat();
    let many = [b"GET /live HTTP/1.1\r\nHost: h\r\n", "X: y\r\n".repeat(1000).as_bytes(), b"\r\n"].concat();
    let garbage: Vec<u8> = (0..200_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for request in [huge, many, garbage, vec![0; 100_000], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec()] {
        // The server may close before it has read everything: then there is a reset instead of an answer.
        if let Ok(answer) = exchange(&server, &request).await {
            assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
        }
    }
    assert!(get(&server, "/live").await.starts_with("HTTP/1.1 200 "));
}

#[tokio::test]
async fn who_never_finishes_a_head_is_closed() {
    let listener = HttpListener { host: "127.0.0.1".to_owned(), port: 0 };
    let times = Times { head: Duration::from_millis(50), ..TIMES };
    let server = HttpServer::bind_with(&listener, Arc::new(Process(vec![])), times).await.unwrap();
    for head in ["", "GET /live HTT", "GET /live HTTP/1.1\r\nHost: h\r\n"] {
        let answer = exchange(&server, head.as_bytes()).await.unwrap();
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
    }
}

#[tokio::test]
async fn one_address_cannot_take_every_place() {
    let server = start(&[]).await;
    let mut held = Vec::new();
    for _ in 0..CONNECTIONS_PER_ADDRESS_MAX {
        let mut stream = TcpStream::connect(server.address()).await.unwrap();
        stream.write_all(b"GET /live").await.unwrap();
        held.push(stream);
    }
    let refused = exchange(&server, b"GET /live HTTP/1.1\r\nHost: h\r\n\r\n").await;
    assert!(refused.as_ref().map_or(true, String::is_empty), "{refused:?}");
    drop(held);
    let answered = async {
        while !exchange(&server, b"GET /live HTTP/1.1\r\nHost: h\r\n\r\n")
            .await
            .is_ok_and(|a| a.contains("200"))
        {
            tokio::task::yield_now().await;
        }
    };
    timeout(LIMIT, answered).await.expect("places are given back");
}

#[tokio::test]
async fn an_address_in_use_is_named() {
    let server = start(&[]).await;
    let listener = HttpListener { host: "127.0.0.1".to_owned(), port: server.address().port() };
    let error = HttpServer::bind(&listener, Arc::new(Process(vec![]))).await.unwrap_err();
    let expected = format!("cannot listen on 127.0.0.1:{} (http.listener)", listener.port);
    assert!(format!("{error:#}").starts_with(&expected), "{error:#}");
}
