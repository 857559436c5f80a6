//! A ZooKeeper server as a separate process: Apache's (Debian's package) or our own in-process server's binary. Both
//! keep their data over a stop, a kill and a restart.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::port::free_port;
use crate::process::Process;
use crate::programs;
use crate::wait::eventually;

const JAR: &str = "/usr/share/java/zookeeper.jar";
/// Makes the server's own log readable; harmless when absent.
const LOGGER_JAR: &str = "/usr/share/java/slf4j-simple.jar";
const START_LIMIT: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ZooKeeperKind {
    /// The binary `zurau-zookeeper`: the server that `zurau dev` runs in its own process.
    InProcess,
    /// Apache ZooKeeper from Debian's package `zookeeper`.
    Real,
}

impl ZooKeeperKind {
    /// Why this kind cannot run here, or `None` if it can.
    pub fn missing(self) -> Option<String> {
        if self == Self::InProcess {
            return None;
        }
        if !Path::new(JAR).exists() {
            return Some(format!("{JAR} is absent; install Debian's package zookeeper"));
        }
        let java = Command::new("java").arg("-version").output();
        java.is_err().then(|| "there is no java to run Apache ZooKeeper with".to_owned())
    }
}

pub struct ZooKeeperServer {
    kind: ZooKeeperKind,
    port: u16,
    directory: PathBuf,
    process: Option<Process>,
}

impl ZooKeeperServer {
    /// Starts a server with an empty tree below `directory` and waits until it answers.
    ///
    /// # Errors
    /// It did not start.
    pub fn start(kind: ZooKeeperKind, directory: &Path) -> Result<Self> {
        let mut server = Self { kind, port: free_port(), directory: directory.to_owned(), process: None };
        server.restart()?;
        Ok(server)
    }

    pub fn kind(&self) -> ZooKeeperKind {
        self.kind
    }

    /// `host:port` of the server.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Starts it (again) on the same port with the same data.
    ///
    /// # Errors
    /// It did not start.
    pub fn restart(&mut self) -> Result<()> {
        let log = self.directory.join("zookeeper.log");
        let mut command = match self.kind {
            ZooKeeperKind::InProcess => self.own_command()?,
            ZooKeeperKind::Real => self.apache_command()?,
        };
        let mut process = Process::spawn("ZooKeeper", &mut command, &log)?;
        let address = self.address();
        eventually("ZooKeeper answers ruok", START_LIMIT, || {
            process.check_running()?;
            Ok((four_letters(&address, "ruok")? == "imok").then_some(()))
        })?;
        self.process = Some(process);
        Ok(())
    }

    fn own_command(&self) -> Result<Command> {
        let mut command = Command::new(programs::binary("zurau-zookeeper")?);
        command.args(["--listen", &self.address(), "--tick-time-ms", "500"]);
        command.args(["--max-session-timeout-ms", "60000"]);
        command.arg("--data").arg(self.directory.join("zookeeper-data"));
        Ok(command)
    }

    fn apache_command(&self) -> Result<Command> {
        let data = self.directory.join("zookeeper-data");
        let config = self.directory.join("zoo.cfg");
        let text = format!(
            "tickTime=500\nminSessionTimeout=1000\nmaxSessionTimeout=60000\ndataDir={}\n\
             clientPort={}\nclientPortAddress=127.0.0.1\nadmin.enableServer=false\n\
             4lw.commands.whitelist=*\nmaxClientCnxns=0\n",
            data.display(),
            self.port
        );
        fs::write(&config, text).context("writing zoo.cfg")?;
        let mut command = Command::new("java");
        command.args(["-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp"]);
        command.arg(format!("{JAR}:{LOGGER_JAR}"));
        command.arg("org.apache.zookeeper.server.ZooKeeperServerMain").arg(config);
        Ok(command)
    }

    /// Ends it with SIGKILL; the data stays.
    ///
    /// # Errors
    /// It is not running.
    pub fn kill(&mut self) -> Result<()> {
        self.process.take().context("ZooKeeper is not running")?.kill()
    }

    /// # Errors
    /// It is not running.
    pub fn process(&mut self) -> Result<&mut Process> {
        self.process.as_mut().context("ZooKeeper is not running")
    }
}

/// Sends one of ZooKeeper's four-letter words and returns the answer.
///
/// # Errors
/// The server cannot be reached or does not answer within two seconds.
pub fn four_letters(address: &str, word: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    stream.write_all(word.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}
