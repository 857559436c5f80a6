//! `/config/…`: `{"version":1,"config":{"key":"value"}}`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::InvalidZnode;

#[derive(Serialize, Deserialize)]
struct ConfigJson {
    version: i32,
    config: BTreeMap<String, String>,
}

/// # Errors
/// Not empty and not JSON of the documented shape. An empty node is an empty configuration.
pub fn decode_config(value: &[u8]) -> Result<BTreeMap<String, String>, InvalidZnode> {
    if value.is_empty() {
        return Ok(BTreeMap::new());
    }
    let json: ConfigJson = serde_json::from_slice(value)
        .map_err(|error| InvalidZnode::new("the configuration", format!("{error}; values are strings")))?;
    Ok(json.config)
}

pub fn encode_config(config: &BTreeMap<String, String>) -> Vec<u8> {
    serde_json::to_vec(&ConfigJson { version: 1, config: config.clone() }).expect("a map of strings")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configurations_have_kafkas_form() {
        let config = BTreeMap::from([("retention.ms".to_owned(), "1000".to_owned())]);
        let golden = r#"{"version":1,"config":{"retention.ms":"1000"}}"#;
        assert_eq!(String::from_utf8(encode_config(&config)).unwrap(), golden);
        assert_eq!(decode_config(golden.as_bytes()), Ok(config));
        assert_eq!(decode_config(b""), Ok(BTreeMap::new()));
        assert!(decode_config(b"retention.ms=1000").is_err());
    }
}
