//! Produce requests as pieces around a batch that is not copied, and their answers.

use std::io::{self, IoSlice, Write as _};
use std::net::TcpStream;

use anyhow::{Context as _, Result, ensure};
use bytes::{BufMut as _, Bytes, BytesMut};
use kafka_protocol::messages::{ProduceRequest, RequestHeader, TransactionalId};
use kafka_protocol::protocol::{Encodable as _, HeaderVersion as _, Request as _, StrBytes};
use zurau_tests::kafka::{PRODUCE_VERSION, decode_answer, produce_request};

/// Where a produce request goes, and what it asks for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Envelope<'a> {
    pub(crate) topic: &'a str,
    pub(crate) partition: i32,
    pub(crate) acks: i16,
    pub(crate) transactional_id: Option<&'a str>,
}

/// Everything of a produce request before and after its one batch.
#[derive(Debug, Default)]
pub(crate) struct RequestFrame {
    before: Bytes,
    after: Bytes,
}

impl RequestFrame {
    /// # Errors
    /// The codec refuses the request.
    pub(crate) fn new(envelope: &Envelope<'_>, correlation_id: i32, batch_bytes: usize) -> Result<Self> {
        let header = RequestHeader::default()
            .with_request_api_key(ProduceRequest::KEY)
            .with_request_api_version(PRODUCE_VERSION)
            .with_correlation_id(correlation_id)
            .with_client_id(Some(StrBytes::from_static_str("zurau-bench")));
        let mut frame = BytesMut::with_capacity(128 + envelope.topic.len());
        frame.put_u32(0);
        header.encode(&mut frame, ProduceRequest::header_version(PRODUCE_VERSION))?;
        // The batch's place is found by an empty one: its compact length, 1, becomes the real length.
        let id = envelope.transactional_id.map(|id| TransactionalId(StrBytes::from_string(id.to_owned())));
        produce_request(envelope.topic, envelope.partition, Bytes::new(), envelope.acks)
            .with_transactional_id(id)
            .encode(&mut frame, PRODUCE_VERSION)?;
        // Behind the records stand three empty tag sections: of the partition, the topic and the request.
        let after = frame.split_off(frame.len() - 3).freeze();
        let length_at = frame.len() - 1;
        ensure!(frame[length_at] == 1, "an empty batch is written in another way than expected");
        frame.truncate(length_at);
        put_unsigned(&mut frame, batch_bytes as u64 + 1);
        let total = frame.len() - 4 + batch_bytes + after.len();
        frame[..4].copy_from_slice(&u32::try_from(total)?.to_be_bytes());
        Ok(Self { before: frame.freeze(), after })
    }

    /// Writes what the socket takes of the request from its byte `from` on. Returns the number of bytes, 0 if the
    /// socket takes none now.
    ///
    /// # Errors
    /// The connection is lost.
    pub(crate) fn write(&self, stream: &mut TcpStream, batch: &[u8], from: usize) -> Result<usize> {
        let mut slices = [IoSlice::new(&self.before), IoSlice::new(batch), IoSlice::new(&self.after)];
        let mut slices = slices.as_mut_slice();
        IoSlice::advance_slices(&mut slices, from);
        match stream.write_vectored(slices) {
            Ok(0) => Err(io::Error::from(io::ErrorKind::WriteZero)).context("sending a batch"),
            Ok(written) => Ok(written),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
            Err(error) => Err(error).context("sending a batch"),
        }
    }

    /// Length on the wire around a batch of so many bytes.
    pub(crate) fn bytes(&self, batch_bytes: usize) -> usize {
        self.before.len() + batch_bytes + self.after.len()
    }
}

fn put_unsigned(buffer: &mut BytesMut, mut value: u64) {
    while value >= 0x80 {
        buffer.put_u8((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    buffer.put_u8(value as u8);
}

/// Error code and first offset of an answer without its length.
///
/// # Errors
/// It is not the answer to this request.
pub(crate) fn read_answer(frame: Bytes, correlation_id: i32) -> Result<(i16, i64)> {
    let answer = decode_answer::<ProduceRequest>(PRODUCE_VERSION, correlation_id, frame)?;
    let partition = answer.responses.first().and_then(|topic| topic.partition_responses.first());
    let partition = partition.context("the answer names no partition")?;
    Ok((partition.error_code, partition.base_offset))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafka_protocol::protocol::Decodable as _;

    #[test]
    fn a_split_request_is_the_one_that_the_codec_writes() {
        for transactional_id in [None, Some("bench")] {
            let batch = Bytes::from(vec![9; 300]);
            let envelope = Envelope { topic: "topic", partition: 3, acks: -1, transactional_id };
            let frame = RequestFrame::new(&envelope, 77, batch.len()).unwrap();
            let whole = [&frame.before[..], &batch, &frame.after].concat();
            assert_eq!(whole.len(), frame.bytes(batch.len()));
            let mut bytes = Bytes::from(whole).split_off(4);
            let version = ProduceRequest::header_version(PRODUCE_VERSION);
            assert_eq!(RequestHeader::decode(&mut bytes, version).unwrap().correlation_id, 77);
            let request = ProduceRequest::decode(&mut bytes, PRODUCE_VERSION).unwrap();
            assert!(bytes.is_empty());
            let id = transactional_id.map(|id| TransactionalId(StrBytes::from_static_str(id)));
            assert_eq!(request, produce_request("topic", 3, batch, -1).with_transactional_id(id));
        }
    }

    #[test]
    fn a_request_written_in_pieces_arrives_whole() {
        use std::io::Read as _;
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        stream.set_nonblocking(true).unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        let batch = vec![9; 20 << 20];
        let envelope = Envelope { topic: "topic", partition: 3, acks: -1, transactional_id: None };
        let frame = RequestFrame::new(&envelope, 77, batch.len()).unwrap();
        let reader = std::thread::spawn(move || {
            let mut all = Vec::new();
            peer.read_to_end(&mut all).unwrap();
            all
        });
        let mut at = 0;
        while at < frame.bytes(batch.len()) {
            at += frame.write(&mut stream, &batch, at).unwrap();
        }
        drop(stream);
        assert_eq!(reader.join().unwrap(), [&frame.before[..], &batch, &frame.after].concat());
    }
}
