//! `/controller`, `/controller_epoch`, `/cluster/id` and `/latest_producer_id_block`.

use serde::{Deserialize, Serialize};

use super::{EPOCH_MAX, InvalidZnode};
use crate::id::{BrokerId, ControllerEpoch};

/// Value of `/controller`: who is active and where its requests are answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActiveController {
    version: i32,
    pub controller_id: i32,
    pub host: String,
    pub port: u16,
    /// Milliseconds since 1970 at the election.
    pub timestamp: i64,
}

impl ActiveController {
    pub fn new(controller_id: i32, host: String, port: u16, timestamp: i64) -> Self {
        Self { version: 1, controller_id, host, port, timestamp }
    }

    /// # Errors
    /// Not JSON of the documented shape.
    pub fn decode(value: &[u8]) -> Result<Self, InvalidZnode> {
        serde_json::from_slice(value).map_err(|error| InvalidZnode::new("/controller", error))
    }

    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a record of plain fields")
    }
}

/// # Errors
/// Not a whole number ≥ 0, or one so large that it could not be raised for ever.
pub fn decode_controller_epoch(value: &[u8]) -> Result<ControllerEpoch, InvalidZnode> {
    let text = String::from_utf8_lossy(value);
    let number: Option<i32> = text.trim().parse().ok().filter(|epoch| (0..=EPOCH_MAX).contains(epoch));
    number.map(ControllerEpoch).ok_or_else(|| {
        InvalidZnode::new(
            "/controller_epoch",
            format!("'{text}' is not a whole number between 0 and {EPOCH_MAX}"),
        )
    })
}

pub fn encode_controller_epoch(epoch: ControllerEpoch) -> Vec<u8> {
    epoch.to_string().into_bytes()
}

#[derive(Serialize, Deserialize)]
struct ClusterIdJson {
    version: String,
    id: String,
}

/// # Errors
/// Not `{"version":"1","id":…}` as Kafka writes it (the version is a string there).
pub fn decode_cluster_id(value: &[u8]) -> Result<String, InvalidZnode> {
    let json: ClusterIdJson =
        serde_json::from_slice(value).map_err(|error| InvalidZnode::new("/cluster/id", error))?;
    Ok(json.id)
}

pub fn encode_cluster_id(id: &str) -> Vec<u8> {
    serde_json::to_vec(&ClusterIdJson { version: "1".to_owned(), id: id.to_owned() }).expect("two strings")
}

/// Value of `/latest_producer_id_block`: the ids from `start` to `end`, both inclusive, belong to `broker`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProducerIdBlock {
    pub broker: BrokerId,
    pub start: i64,
    pub end: i64,
}

/// Kafka writes the ends as strings.
#[derive(Serialize, Deserialize)]
struct ProducerIdBlockJson {
    version: i32,
    broker: BrokerId,
    block_start: String,
    block_end: String,
}

impl ProducerIdBlock {
    /// # Errors
    /// Not Kafka's JSON, or a block that ends before it starts.
    pub fn decode(value: &[u8]) -> Result<Self, InvalidZnode> {
        const WHAT: &str = "/latest_producer_id_block";
        let json: ProducerIdBlockJson =
            serde_json::from_slice(value).map_err(|error| InvalidZnode::new(WHAT, error))?;
        let end = |text: &str| text.parse::<i64>().ok().filter(|id| *id >= 0);
        match (end(&json.block_start), end(&json.block_end)) {
            (Some(start), Some(end)) if start <= end => Ok(Self { broker: json.broker, start, end }),
            _ => Err(InvalidZnode::new(
                WHAT,
                format!("{} to {} is not a block of ids", json.block_start, json.block_end),
            )),
        }
    }

    pub fn encode(&self) -> Vec<u8> {
        let json = ProducerIdBlockJson {
            version: 1,
            broker: self.broker,
            block_start: self.start.to_string(),
            block_end: self.end.to_string(),
        };
        serde_json::to_vec(&json).expect("a record of plain fields")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_golden_forms() {
        let controller = ActiveController::new(1, "h".into(), 9093, 5);
        let golden = r#"{"version":1,"controller_id":1,"host":"h","port":9093,"timestamp":5}"#;
        assert_eq!(String::from_utf8(controller.encode()).unwrap(), golden);
        assert_eq!(ActiveController::decode(golden.as_bytes()), Ok(controller));

        assert_eq!(encode_controller_epoch(ControllerEpoch(12)), b"12");
        assert_eq!(decode_controller_epoch(b"12\n"), Ok(ControllerEpoch(12)));
        assert!(decode_controller_epoch(b"-1").is_err());
        assert!(decode_controller_epoch(b"2147483647").is_err());

        let golden = r#"{"version":"1","id":"abc"}"#;
        assert_eq!(String::from_utf8(encode_cluster_id("abc")).unwrap(), golden);
        assert_eq!(decode_cluster_id(golden.as_bytes()).as_deref(), Ok("abc"));

        let block = ProducerIdBlock { broker: BrokerId(2), start: 1000, end: 1999 };
        let golden = r#"{"version":1,"broker":2,"block_start":"1000","block_end":"1999"}"#;
        assert_eq!(String::from_utf8(block.encode()).unwrap(), golden);
        assert_eq!(ProducerIdBlock::decode(golden.as_bytes()), Ok(block));
        assert!(ProducerIdBlock::decode(golden.replace("1999", "9").as_bytes()).is_err());
    }
}
