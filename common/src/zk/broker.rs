//! What a broker registers: its address, its endpoints, its registration id and its lease.

use serde::{Deserialize, Serialize};

use super::InvalidZnode;

/// Value of `/brokers/ids/[id]`: the address that brokers and the controller use, `host:port`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Address {
    pub host: String,
    pub port: u16,
}

impl Address {
    /// # Errors
    /// Anything but `host:port`. An IPv6 host stands in brackets, `[::1]:9092`.
    pub fn decode(value: &[u8]) -> Result<Self, InvalidZnode> {
        let invalid = || {
            InvalidZnode::new(
                "the broker's address",
                format!("'{}' is not host:port", String::from_utf8_lossy(value)),
            )
        };
        let text = std::str::from_utf8(value).map_err(|_| invalid())?.trim();
        let (host, port) = text.rsplit_once(':').ok_or_else(invalid)?;
        let host = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
        let port = port.parse().ok().filter(|port| *port != 0).ok_or_else(invalid)?;
        if host.is_empty() {
            return Err(invalid());
        }
        Ok(Self { host: host.to_owned(), port })
    }

    pub fn encode(&self) -> Vec<u8> {
        self.to_string().into_bytes()
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// Value of `/brokers/endpoints/[id]`. An id without endpoints is a live broker with one listener.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoints {
    version: i32,
    pub listeners: Vec<Endpoint>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rack: Option<String>,
    pub software: String,
}

/// One listener as clients reach it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    pub name: String,
    pub host: String,
    pub port: u16,
    /// `PLAINTEXT`, `SSL`, `SASL_PLAINTEXT` or `SASL_SSL`.
    pub protocol: String,
}

impl Endpoints {
    pub fn new(listeners: Vec<Endpoint>, rack: Option<String>, software: String) -> Self {
        Self { version: 1, listeners, rack, software }
    }

    /// # Errors
    /// Not JSON, or JSON of another shape.
    pub fn decode(value: &[u8]) -> Result<Self, InvalidZnode> {
        serde_json::from_slice(value).map_err(|error| InvalidZnode::new("the broker's endpoints", error))
    }

    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("endpoints have no map keys that are not strings")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_host_and_port() {
        for (text, host) in
            [("127.0.0.1:9092", "127.0.0.1"), ("kafka-1:9092", "kafka-1"), ("[::1]:9092", "::1")]
        {
            let address = Address::decode(text.as_bytes()).unwrap();
            assert_eq!((address.host.as_str(), address.port), (host, 9092));
            assert_eq!(address.encode(), text.as_bytes());
        }
        for bad in ["", "host", "host:", ":9092", "host:0", "host:70000", "host:x"] {
            assert!(Address::decode(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn endpoints_have_a_golden_form() {
        let listener =
            Endpoint { name: "PLAINTEXT".into(), host: "h".into(), port: 9092, protocol: "PLAINTEXT".into() };
        let endpoints = Endpoints::new(vec![listener], Some("a".into()), "zurau 0.1.0".into());
        let golden = r#"{"version":1,"listeners":[{"name":"PLAINTEXT","host":"h","port":9092,"protocol":"PLAINTEXT"}],"rack":"a","software":"zurau 0.1.0"}"#;
        assert_eq!(String::from_utf8(endpoints.encode()).unwrap(), golden);
        assert_eq!(Endpoints::decode(golden.as_bytes()), Ok(endpoints));
        assert!(Endpoints::decode(b"{").is_err());
    }
}
