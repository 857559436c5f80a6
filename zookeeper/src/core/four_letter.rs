//! The four-letter words: plain text answers for monitoring, without a session.

use std::fmt::Write;

use super::Core;

/// The protocol level we claim. Clients compare the numbers; the rest says who really answers.
const VERSION: &str = "3.8.0-zurau";

/// A word that gets an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FourLetterWord {
    Ruok,
    Stat,
    Srvr,
    Mntr,
    Envi,
    Conf,
    Isro,
}

/// What the shell knows and `conf` tells.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) port: u16,
    pub(crate) data_dir: String,
    pub(crate) tick_time_ms: u128,
}

impl FourLetterWord {
    /// None of them can be a frame's length: as one, each is above the largest frame.
    pub(crate) fn parse(bytes: [u8; 4]) -> Option<Self> {
        Some(match &bytes {
            b"ruok" => Self::Ruok,
            b"stat" => Self::Stat,
            b"srvr" => Self::Srvr,
            b"mntr" => Self::Mntr,
            b"envi" => Self::Envi,
            b"conf" => Self::Conf,
            b"isro" => Self::Isro,
            _ => return None,
        })
    }
}

impl Core {
    pub(crate) fn answer(&self, word: FourLetterWord, settings: &Settings) -> String {
        let mut text = String::new();
        let written = match word {
            FourLetterWord::Ruok => write!(text, "imok"),
            FourLetterWord::Isro => write!(text, "rw"),
            FourLetterWord::Stat => self.write_stat(&mut text, true),
            FourLetterWord::Srvr => self.write_stat(&mut text, false),
            FourLetterWord::Mntr => self.write_monitor(&mut text),
            FourLetterWord::Envi => write_environment(&mut text),
            FourLetterWord::Conf => self.write_settings(&mut text, settings),
        };
        written.expect("writing to a string cannot fail");
        text
    }

    fn write_stat(&self, text: &mut String, with_clients: bool) -> std::fmt::Result {
        writeln!(text, "Zookeeper version: {VERSION}, built on -")?;
        if with_clients {
            writeln!(text, "Clients:")?;
            let mut clients: Vec<_> = self.connections.iter().collect();
            clients.sort_unstable_by_key(|(id, _)| **id);
            for (_, client) in clients {
                writeln!(text, " /{}[1](queued=0,recved={},sent=0)", client.address, client.requests)?;
            }
            writeln!(text)?;
        }
        writeln!(text, "Latency min/avg/max: 0/0.0/0")?;
        writeln!(text, "Received: {}", self.requests)?;
        writeln!(text, "Sent: {}", self.replies)?;
        writeln!(text, "Connections: {}", self.connections.len())?;
        writeln!(text, "Outstanding: 0")?;
        writeln!(text, "Zxid: {:#x}", self.zxid)?;
        writeln!(text, "Mode: standalone")?;
        writeln!(text, "Node count: {}", self.tree.node_count())
    }

    fn write_monitor(&self, text: &mut String) -> std::fmt::Result {
        writeln!(text, "zk_version\t{VERSION}, built on -")?;
        writeln!(text, "zk_server_state\tstandalone")?;
        let watches = self.data_watches.count() + self.child_watches.count();
        for (name, value) in [
            ("num_alive_connections", self.connections.len()),
            ("outstanding_requests", 0),
            ("znode_count", self.tree.node_count()),
            ("watch_count", watches),
            ("ephemerals_count", self.tree.ephemeral_count()),
            ("approximate_data_size", self.tree.data_size()),
            ("global_sessions", self.sessions.len()),
        ] {
            writeln!(text, "zk_{name}\t{value}")?;
        }
        writeln!(text, "zk_packets_received\t{}", self.requests)?;
        writeln!(text, "zk_packets_sent\t{}", self.replies)
    }

    fn write_settings(&self, text: &mut String, settings: &Settings) -> std::fmt::Result {
        writeln!(text, "clientPort={}", settings.port)?;
        writeln!(text, "dataDir={}", settings.data_dir)?;
        writeln!(text, "tickTime={}", settings.tick_time_ms)?;
        writeln!(text, "minSessionTimeout={}", self.limits.min_session_timeout_ms)?;
        writeln!(text, "maxSessionTimeout={}", self.limits.max_session_timeout_ms)?;
        writeln!(text, "serverId=0")
    }
}

fn write_environment(text: &mut String) -> std::fmt::Result {
    writeln!(text, "Environment:")?;
    writeln!(text, "zookeeper.version={VERSION}, built on -")?;
    writeln!(text, "server.name=zurau-zookeeper (development and tests only)")?;
    writeln!(text, "os.name={}", std::env::consts::OS)?;
    writeln!(text, "os.arch={}", std::env::consts::ARCH)
}
