//! `listeners`, `advertised.listeners`, `listener.security.protocol.map` and `zookeeper.connect`.

use std::collections::BTreeMap;
use std::fmt;

use super::keys::split_list;
use super::settings::{Problems, Settings};

/// How a listener's connections are secured; the code is that of UpdateMetadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SecurityProtocol {
    Plaintext = 0,
    Ssl = 1,
    SaslPlaintext = 2,
    SaslSsl = 3,
}

impl SecurityProtocol {
    pub fn wire_code(self) -> i16 {
        self as i16
    }

    /// Kafka's name, as in configurations and in `/brokers/endpoints/[id]`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Plaintext => "PLAINTEXT",
            Self::Ssl => "SSL",
            Self::SaslPlaintext => "SASL_PLAINTEXT",
            Self::SaslSsl => "SASL_SSL",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        match text {
            "PLAINTEXT" => Some(Self::Plaintext),
            "SSL" => Some(Self::Ssl),
            "SASL_PLAINTEXT" => Some(Self::SaslPlaintext),
            "SASL_SSL" => Some(Self::SaslSsl),
            _ => None,
        }
    }
}

/// One address to listen on, or one to tell others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listener {
    /// In capitals, as Kafka writes it.
    pub name: String,
    /// Without brackets. Empty in `listeners`: all interfaces; in `advertised.listeners`: this machine's name.
    pub host: String,
    /// 0 lets the system choose; the one chosen must then be advertised.
    pub port: u16,
    pub protocol: SecurityProtocol,
}

impl Listener {
    /// `host:port`, an IPv6 address in brackets.
    pub fn address(&self) -> String {
        host_and_port(&self.host, self.port)
    }
}

fn host_and_port(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

impl fmt::Display for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.name, self.address())
    }
}

/// Where to answer HTTP: `http.listener`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpListener {
    /// Without brackets; empty: all interfaces.
    pub host: String,
    /// 0 lets the system choose.
    pub port: u16,
}

impl fmt::Display for HttpListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&host_and_port(&self.host, self.port))
    }
}

/// Reads `http.listener`; `None` when it is unset or empty, or not sound.
pub(super) fn read_http_listener(settings: &Settings, problems: &mut Problems) -> Option<HttpListener> {
    const KEY: &str = "http.listener";
    let text = settings.text(KEY).trim();
    if text.is_empty() {
        return None;
    }
    let parsed = split_host_port(text).map(|(host, port)| HttpListener { host, port });
    if parsed.is_none() {
        let allowed = "host:port, or :port for all interfaces; an IPv6 host in brackets";
        problems.add(KEY, text, settings.origin(KEY), allowed);
    }
    parsed
}

const LISTENERS_FORM: &str =
    "NAME://host:port, separated by commas, each name once; an IPv6 host in brackets";

type ProtocolMap = BTreeMap<String, SecurityProtocol>;

/// Reads `listeners` and `advertised.listeners`; problems are noted and what is sound is returned.
pub(super) fn read_listeners(
    settings: &Settings,
    default: Option<&str>,
    problems: &mut Problems,
) -> (Vec<Listener>, Vec<Listener>) {
    let map = read_protocol_map(settings, problems);
    let text = match default {
        Some(default) if !settings.is_set("listeners") => default,
        _ => settings.text("listeners"),
    };
    let listeners = parse_listeners("listeners", text, &map, settings, problems);
    let mut addresses: Vec<_> = listeners.iter().filter(|one| one.port != 0).map(Listener::address).collect();
    addresses.sort();
    if listeners.is_empty() || addresses.windows(2).any(|pair| pair[0] == pair[1]) {
        problems.add(
            "listeners",
            text,
            settings.origin("listeners"),
            "at least one listener, each with its own address",
        );
    }
    if let Some(secured) = listeners.iter().find(|listener| listener.protocol != SecurityProtocol::Plaintext)
    {
        let allowed = format!("listeners of protocol PLAINTEXT; {} asks for another", secured.name);
        problems.add("listeners", text, settings.origin("listeners"), allowed);
    }

    let advertised_text = settings.text("advertised.listeners");
    if advertised_text.trim().is_empty() {
        let advertised = listeners.iter().cloned().map(without_wildcard_host).collect();
        return (listeners, advertised);
    }
    let advertised = parse_listeners("advertised.listeners", advertised_text, &map, settings, problems);
    for one in &advertised {
        let allowed = if !listeners.iter().any(|listener| listener.name == one.name) {
            "names that listeners has too"
        } else if matches!(one.host.as_str(), "0.0.0.0" | "::") {
            "addresses that others can connect to, not 0.0.0.0"
        } else {
            continue;
        };
        problems.add(
            "advertised.listeners",
            advertised_text,
            settings.origin("advertised.listeners"),
            allowed,
        );
    }
    (listeners, advertised)
}

fn without_wildcard_host(mut listener: Listener) -> Listener {
    if matches!(listener.host.as_str(), "0.0.0.0" | "::") {
        listener.host.clear();
    }
    listener
}

fn read_protocol_map(settings: &Settings, problems: &mut Problems) -> ProtocolMap {
    const KEY: &str = "listener.security.protocol.map";
    let mut map = ProtocolMap::new();
    for pair in split_list(settings.text(KEY)) {
        let parsed = pair.split_once(':').and_then(|(name, protocol)| {
            Some((name.trim().to_ascii_uppercase(), SecurityProtocol::parse(protocol.trim())?))
        });
        match parsed {
            Some((name, protocol)) if !name.is_empty() => {
                map.insert(name, protocol);
            }
            _ => problems.add(
                KEY,
                pair,
                settings.origin(KEY),
                "NAME:PROTOCOL, separated by commas, with PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL",
            ),
        }
    }
    map
}

fn parse_listeners(
    key: &str,
    text: &str,
    map: &ProtocolMap,
    settings: &Settings,
    problems: &mut Problems,
) -> Vec<Listener> {
    let mut listeners: Vec<Listener> = Vec::new();
    for item in split_list(text) {
        let Some((name, host, port)) = parse_listener(item) else {
            problems.add(key, item, settings.origin(key), LISTENERS_FORM);
            continue;
        };
        let Some(protocol) = map.get(&name).copied() else {
            let allowed = "names that listener.security.protocol.map gives a protocol";
            problems.add(key, item, settings.origin(key), allowed);
            continue;
        };
        if listeners.iter().any(|listener| listener.name == name) {
            problems.add(key, item, settings.origin(key), LISTENERS_FORM);
            continue;
        }
        listeners.push(Listener { name, host, port, protocol });
    }
    listeners
}

fn parse_listener(item: &str) -> Option<(String, String, u16)> {
    let (name, address) = item.split_once("://")?;
    let (host, port) = split_host_port(address)?;
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    if name.is_empty() || !name.chars().all(legal) {
        return None;
    }
    Some((name.to_ascii_uppercase(), host, port))
}

/// Takes `host:port` apart, `[::1]:9092` included. The host may be empty.
pub fn split_host_port(address: &str) -> Option<(String, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    let host = match host.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']').filter(|inner| inner.contains(':'))?,
        None if host.contains([':', '/', ' ']) => return None,
        None => host,
    };
    Some((host.to_owned(), port.parse().ok().filter(|_| !port.starts_with('+'))?))
}

/// Where ZooKeeper is, and below which path the tree begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZookeeperConnect {
    /// `host:port,host:port`; a host without port has ZooKeeper's own, 2181.
    pub servers: String,
    /// Empty, or a path that begins with `/` and does not end with it.
    pub chroot: String,
}

impl fmt::Display for ZookeeperConnect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.servers, self.chroot)
    }
}

impl ZookeeperConnect {
    /// Takes `host:port,host:port/path` apart; `None` when it is malformed.
    pub fn parse(text: &str) -> Option<Self> {
        let (servers, path) = match text.find('/') {
            Some(at) => text.split_at(at),
            None => (text, ""),
        };
        let mut all = Vec::new();
        for server in servers.split(',').map(str::trim) {
            let with_port = match split_host_port(server) {
                Some((host, port)) if !host.is_empty() && port != 0 => server.to_owned(),
                None if !server.is_empty() && !server.contains([':', ' ', '[', ']']) => {
                    format!("{server}:2181")
                }
                _ => return None,
            };
            all.push(with_port);
        }
        let chroot = if path == "/" { "" } else { path };
        let sound =
            |part: &str| !part.is_empty() && part != "." && part != ".." && !part.contains([' ', ',', '\0']);
        if !chroot.is_empty() && !chroot[1..].split('/').all(sound) {
            return None;
        }
        Some(Self { servers: all.join(","), chroot: chroot.to_owned() })
    }
}

pub(super) fn read_zookeeper_connect(settings: &Settings, problems: &mut Problems) -> ZookeeperConnect {
    const KEY: &str = "zookeeper.connect";
    let text = settings.text(KEY);
    ZookeeperConnect::parse(text).unwrap_or_else(|| {
        problems.add(
            KEY,
            text,
            settings.origin(KEY),
            "host:port,host:port with at most one /path behind the last",
        );
        ZookeeperConnect { servers: String::new(), chroot: String::new() }
    })
}

#[cfg(test)]
#[path = "listener_tests.rs"]
mod tests;
