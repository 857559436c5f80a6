//! Where a process of a cluster runs: on this machine's loopback at a free port, or on a host of a private network.

use std::path::Path;
use std::process::Command;

use crate::network::Host;
use crate::port::free_port;

#[derive(Debug, Clone)]
pub enum Place {
    Loopback,
    Host(Host),
}

impl Place {
    pub fn ip(&self) -> String {
        match self {
            Self::Loopback => "127.0.0.1".to_owned(),
            Self::Host(host) => host.address().to_string(),
        }
    }

    /// A port that is free there: the usual one where nobody else listens.
    pub fn port(&self, usual: u16) -> u16 {
        match self {
            Self::Loopback => free_port(),
            Self::Host(_) => usual,
        }
    }

    pub fn command(&self, program: &Path) -> Command {
        match self {
            Self::Loopback => Command::new(program),
            Self::Host(host) => host.command(program),
        }
    }

    /// For the programs of other people, whose clock is not moved.
    pub fn plain_command(&self, program: &Path) -> Command {
        match self {
            Self::Loopback => Command::new(program),
            Self::Host(host) => host.plain_command(program),
        }
    }

    pub fn host(&self) -> Option<&Host> {
        match self {
            Self::Loopback => None,
            Self::Host(host) => Some(host),
        }
    }
}
