use kafka_protocol::messages::{MetadataRequest, MetadataResponse};
use tokio::net::TcpListener;

use super::*;
use crate::wire::frame::{RequestFrame, encode_response, parse_request};

const TIMEOUT: Duration = Duration::from_secs(20);

async fn listener() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (listener, address)
}

/// The answer names its own request, so that a mix-up shows.
fn answer_to(request: &RequestFrame) -> Bytes {
    let asked: MetadataRequest = frame::decode_request_body(request).unwrap();
    let name = asked.topics.unwrap()[0].name.clone().unwrap();
    let answer = MetadataResponse::default().with_cluster_id(Some(name.0));
    encode_response(request.api_key, request.api_version, request.correlation_id, &answer).unwrap()
}

fn asking(name: &str) -> MetadataRequest {
    let topic = kafka_protocol::messages::metadata_request::MetadataRequestTopic::default()
        .with_name(Some(crate::wire::control::to_wire_topic(name)));
    MetadataRequest::default().with_topics(Some(vec![topic]))
}

#[tokio::test]
async fn many_calls_in_flight_get_their_own_answers() {
    let (listener, address) = listener().await;
    let server = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let (reader, mut writer) = stream.into_split();
        let mut frames = FrameReader::new(reader, 1 << 20);
        let mut held = Vec::new();
        // Nothing is answered before 100 requests are in: they must all be in flight at once.
        while let Some(frame) = frames.next().await.unwrap() {
            held.push(parse_request(frame).unwrap());
            if 100 <= held.len() {
                for request in held.drain(..) {
                    writer.write_all(&answer_to(&request)).await.unwrap();
                }
            }
        }
    });
    let peer = Arc::new(Peer::connect(&address, "test", TIMEOUT).await.unwrap());
    let calls = (0..300).map(|index| {
        let peer = Arc::clone(&peer);
        tokio::spawn(async move {
            let version = if index % 2 == 0 { 7 } else { 12 };
            let answer = peer.call(version, &asking(&format!("topic-{index}"))).await.unwrap();
            assert_eq!(answer.cluster_id.unwrap().to_string(), format!("topic-{index}"));
        })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.unwrap();
    }
    assert!(!peer.is_closed());
    drop(peer);
    server.await.unwrap();
}

#[tokio::test]
async fn a_call_that_gave_up_does_not_disturb_the_next_one() {
    let (listener, address) = listener().await;
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let (reader, mut writer) = stream.into_split();
        let mut frames = FrameReader::new(reader, 1 << 20);
        let first = parse_request(frames.next().await.unwrap().unwrap()).unwrap();
        let second = parse_request(frames.next().await.unwrap().unwrap()).unwrap();
        writer.write_all(&answer_to(&first)).await.unwrap();
        writer.write_all(&answer_to(&second)).await.unwrap();
        frames.next().await.unwrap();
    });
    let peer = Peer::connect(&address, "test", TIMEOUT).await.unwrap();
    let error = peer.call_within(Duration::from_millis(20), 9, &asking("one")).await.unwrap_err();
    assert!(matches!(error, PeerError::TimedOut { .. }), "{error}");
    let answer = peer.call(9, &asking("two")).await.unwrap();
    assert_eq!(answer.cluster_id.unwrap().to_string(), "two");
}

#[tokio::test]
async fn a_closed_connection_fails_all_calls_at_once() {
    let (listener, address) = listener().await;
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let (reader, _writer) = stream.into_split();
        FrameReader::new(reader, 1 << 20).next().await.unwrap();
    });
    let peer = Peer::connect(&address, "test", TIMEOUT).await.unwrap();
    let (a, b) = (asking("a"), asking("b"));
    let (first, second) = tokio::join!(peer.call(9, &a), peer.call(9, &b));
    for outcome in [first, second] {
        assert!(matches!(outcome, Err(PeerError::Closed { .. })), "{outcome:?}");
    }
    peer.closed().await;
    let error = peer.call(9, &asking("c")).await.unwrap_err().to_string();
    assert!(error.contains(&address), "{error}");
}

#[tokio::test]
async fn an_answer_to_nobody_and_an_oversized_one_close_the_connection() {
    let bad_id = encode_response(3, 9, 77, &MetadataResponse::default()).unwrap();
    let oversized = Bytes::from_static(&[0x7f, 0, 0, 0, 0]);
    for (sent, expected) in
        [(bad_id, "answer 77 came in place of answer 0"), (oversized, "larger than the limit")]
    {
        let (listener, address) = listener().await;
        tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let (reader, mut writer) = stream.into_split();
            let mut frames = FrameReader::new(reader, 1 << 20);
            frames.next().await.unwrap();
            writer.write_all(&sent).await.unwrap();
            let _ = frames.next().await;
        });
        let peer = Peer::connect(&address, "test", TIMEOUT).await.unwrap();
        let error = peer.call(9, &asking("a")).await.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert!(peer.is_closed());
    }
}

#[tokio::test]
async fn dropping_the_peer_closes_the_socket() {
    let (listener, address) = listener().await;
    let peer = Peer::connect(&address, "test", TIMEOUT).await.unwrap();
    let (stream, _) = listener.accept().await.unwrap();
    drop(peer);
    let ended = tokio::time::timeout(TIMEOUT, FrameReader::new(stream, 10).next()).await.unwrap();
    assert!(matches!(ended, Ok(None)), "{ended:?}");
}

#[tokio::test]
async fn nobody_listening_is_an_error_with_the_address() {
    let (listener, address) = listener().await;
    drop(listener);
    let error = Peer::connect(&address, "test", TIMEOUT).await.unwrap_err();
    assert!(format!("{error:#}").contains(&address));
}

#[tokio::test]
async fn what_is_told_takes_no_answer_of_a_call() {
    let (listener, address) = listener().await;
    let server = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let (reader, mut writer) = stream.into_split();
        let mut frames = FrameReader::new(reader, 1 << 20);
        frames.next().await.unwrap();
        let called = parse_request(frames.next().await.unwrap().unwrap()).unwrap();
        writer.write_all(&answer_to(&called)).await.unwrap();
    });
    let peer = Peer::connect(&address, "test", TIMEOUT).await.unwrap();
    peer.tell(12, &asking("told")).unwrap();
    let answer = peer.call(12, &asking("called")).await.unwrap();
    assert_eq!(answer.cluster_id.unwrap().to_string(), "called");
    server.await.unwrap();
}
