//! How a consumed record looks: a line of text with what was asked for, or a JSON object. Pure.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use serde_json::{Map, Value, json};
use zurau_broker::log::inspect::InspectedRecord;
use zurau_common::id::TopicPartition;

/// What stands before the value in a line. Fields are separated by tabs, except the key.
#[derive(Args, Debug, Clone)]
pub(super) struct Fields {
    /// Milliseconds since 1970.
    #[arg(long)]
    print_timestamp: bool,
    #[arg(long)]
    print_partition: bool,
    #[arg(long)]
    print_offset: bool,
    /// As name=value,name=value.
    #[arg(long)]
    print_headers: bool,
    #[arg(long)]
    print_key: bool,
    /// What stands between key and value.
    #[arg(long, value_name = "TEXT", default_value = "\t")]
    key_separator: String,
}

/// The record as a line of text, with its end.
pub(super) fn text(id: &TopicPartition, record: &InspectedRecord, fields: &Fields) -> Vec<u8> {
    let mut line = Vec::new();
    let mut field = |text: String| {
        line.extend_from_slice(text.as_bytes());
        line.push(b'\t');
    };
    if fields.print_timestamp {
        field(record.timestamp.to_string());
    }
    if fields.print_partition {
        field(id.partition.to_string());
    }
    if fields.print_offset {
        field(record.offset.to_string());
    }
    if fields.print_headers {
        let header = |(name, value): &(Vec<u8>, Option<Vec<u8>>)| {
            let value = value.as_deref().map_or_else(|| "null".into(), String::from_utf8_lossy);
            format!("{}={value}", String::from_utf8_lossy(name))
        };
        field(record.headers.iter().map(header).collect::<Vec<_>>().join(","));
    }
    if fields.print_key {
        line.extend_from_slice(record.key.as_deref().unwrap_or(b"null"));
        line.extend_from_slice(fields.key_separator.as_bytes());
    }
    line.extend_from_slice(record.value.as_deref().unwrap_or(b"null"));
    line.push(b'\n');
    line
}

/// The record as one line of JSON. What is no text stands as `…_base64`, and `…` is `null`.
pub(super) fn json_line(id: &TopicPartition, record: &InspectedRecord) -> Vec<u8> {
    let mut object = Map::new();
    object.insert("topic".to_owned(), json!(&*id.topic));
    object.insert("partition".to_owned(), json!(id.partition));
    object.insert("offset".to_owned(), json!(record.offset));
    object.insert("timestamp".to_owned(), json!(record.timestamp));
    put(&mut object, "key", record.key.as_deref());
    put(&mut object, "value", record.value.as_deref());
    let headers = record.headers.iter().map(|(name, value)| {
        let mut header = Map::new();
        put(&mut header, "name", Some(name));
        put(&mut header, "value", value.as_deref());
        Value::Object(header)
    });
    object.insert("headers".to_owned(), headers.collect());
    let mut line = Value::Object(object).to_string().into_bytes();
    line.push(b'\n');
    line
}

fn put(object: &mut Map<String, Value>, name: &str, bytes: Option<&[u8]>) {
    let text = bytes.map(std::str::from_utf8);
    object.insert(name.to_owned(), json!(text.and_then(Result::ok)));
    if let (Some(bytes), Some(Err(_))) = (bytes, text) {
        object.insert(format!("{name}_base64"), json!(STANDARD.encode(bytes)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(key: Option<&[u8]>, value: Option<&[u8]>) -> InspectedRecord {
        InspectedRecord {
            offset: 7,
            timestamp: 5,
            key: key.map(<[u8]>::to_vec),
            value: value.map(<[u8]>::to_vec),
            headers: vec![(b"h".to_vec(), Some(b"1".to_vec())), (b"n".to_vec(), None)],
        }
    }

    fn fields(all: bool) -> Fields {
        Fields {
            print_timestamp: all,
            print_partition: all,
            print_offset: all,
            print_headers: all,
            print_key: all,
            key_separator: ":".to_owned(),
        }
    }

    #[test]
    fn a_line_shows_what_was_asked_for() {
        let id = TopicPartition::new("t", 3);
        assert_eq!(text(&id, &record(Some(b"k"), Some(b"v")), &fields(false)), b"v\n");
        let all = text(&id, &record(Some(b"k"), Some(b"v")), &fields(true));
        assert_eq!(String::from_utf8(all).unwrap(), "5\t3\t7\th=1,n=null\tk:v\n");
        assert_eq!(text(&id, &record(None, None), &fields(false)), b"null\n");
    }

    #[test]
    fn json_keeps_bytes_that_are_no_text() {
        let id = TopicPartition::new("t", 3);
        let line = json_line(&id, &record(Some(b"k"), Some(&[0xff, 0])));
        let value: Value = serde_json::from_slice(&line).unwrap();
        assert_eq!(
            value,
            json!({
                "topic": "t", "partition": 3, "offset": 7, "timestamp": 5, "key": "k", "value": null,
                "value_base64": "/wA=", "headers": [{"name": "h", "value": "1"}, {"name": "n", "value": null}],
            })
        );
    }
}
