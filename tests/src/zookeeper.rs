//! A ZooKeeper server as a separate process: Apache's (Debian's package) or our own in-process server's binary. Both
//! keep their data over a stop, a kill and a restart.

use std::fmt::Write as _;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::network::Host;
use crate::place::Place;
use crate::port::free_port;
use crate::process::Process;
use crate::programs;
use crate::wait::eventually;

const JAR: &str = "/usr/share/java/zookeeper.jar";
/// Makes the server's own log readable; harmless when absent.
const LOGGER_JAR: &str = "/usr/share/java/slf4j-simple.jar";
/// The usual ports, on hosts where nobody else listens.
const CLIENT_PORT: u16 = 2181;
const QUORUM_PORT: u16 = 2888;
const ELECTION_PORT: u16 = 3888;
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
    place: Place,
    port: u16,
    directory: PathBuf,
    /// Which member of an ensemble it is (from 1), and where all members are.
    member: Option<(usize, Vec<String>)>,
    process: Option<Process>,
}

impl ZooKeeperServer {
    /// Starts a server with an empty tree below `directory` and waits until it answers.
    ///
    /// # Errors
    /// It did not start.
    pub fn start(kind: ZooKeeperKind, directory: &Path) -> Result<Self> {
        let place = Place::Loopback;
        let port = free_port();
        let mut server =
            Self { kind, place, port, directory: directory.to_owned(), member: None, process: None };
        server.restart()?;
        Ok(server)
    }

    /// Starts an ensemble of Apache's servers, one on each host, and waits until each one serves.
    ///
    /// # Errors
    /// One did not start, or they find no leader.
    pub fn start_ensemble(hosts: &[Host], directory: &Path) -> Result<Vec<Self>> {
        let ips: Vec<String> = hosts.iter().map(|host| host.address().to_string()).collect();
        let mut servers = Vec::new();
        for (host, number) in hosts.iter().zip(1..) {
            let own = directory.join(host.name());
            fs::create_dir_all(own.join("zookeeper-data")).context("creating a directory of ZooKeeper")?;
            fs::write(own.join("zookeeper-data/myid"), number.to_string()).context("writing myid")?;
            let place = Place::Host(host.clone());
            let member = Some((number, ips.clone()));
            let kind = ZooKeeperKind::Real;
            let mut server = Self { kind, place, port: CLIENT_PORT, directory: own, member, process: None };
            server.spawn()?;
            servers.push(server);
        }
        for server in &mut servers {
            server.wait_until_it_serves()?;
        }
        Ok(servers)
    }

    pub fn kind(&self) -> ZooKeeperKind {
        self.kind
    }

    /// `host:port` of the server.
    pub fn address(&self) -> String {
        format!("{}:{}", self.place.ip(), self.port)
    }

    /// Starts it (again) on the same port with the same data.
    ///
    /// # Errors
    /// It did not start.
    pub fn restart(&mut self) -> Result<()> {
        self.spawn()?;
        self.wait_until_it_serves()
    }

    /// Starts it (again) without waiting: a member of an ensemble serves only once others are there.
    ///
    /// # Errors
    /// The program is missing.
    pub fn spawn(&mut self) -> Result<()> {
        let log = self.directory.join("zookeeper.log");
        let mut command = match self.kind {
            ZooKeeperKind::InProcess => self.own_command()?,
            ZooKeeperKind::Real => self.apache_command()?,
        };
        self.process = Some(Process::spawn("ZooKeeper", &mut command, &log)?);
        Ok(())
    }

    /// Waits until it answers, and as a member of an ensemble has found its leader.
    ///
    /// # Errors
    /// It has ended, or does not serve in time.
    pub fn wait_until_it_serves(&mut self) -> Result<()> {
        let address = self.address();
        let process = self.process.as_mut().context("ZooKeeper is not running")?;
        eventually("ZooKeeper serves", START_LIMIT, || {
            process.check_running()?;
            let serves = four_letters(&address, "ruok")? == "imok"
                && !four_letters(&address, "srvr")?.contains("not currently serving");
            Ok(serves.then_some(()))
        })
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
        let mut text = format!(
            "tickTime=500\nminSessionTimeout=1000\nmaxSessionTimeout=60000\ndataDir={}\n\
             clientPort={}\nclientPortAddress={}\nadmin.enableServer=false\n\
             4lw.commands.whitelist=*\nmaxClientCnxns=0\n",
            data.display(),
            self.port,
            self.place.ip()
        );
        let main = if let Some((_, ips)) = &self.member {
            text.push_str("initLimit=20\nsyncLimit=6\n");
            for (ip, number) in ips.iter().zip(1..) {
                let _ = writeln!(text, "server.{number}={ip}:{QUORUM_PORT}:{ELECTION_PORT}");
            }
            "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        } else {
            "org.apache.zookeeper.server.ZooKeeperServerMain"
        };
        fs::write(&config, text).context("writing zoo.cfg")?;
        let mut command = self.place.plain_command(Path::new("java"));
        command.args(["-Xmx512m", "-XX:TieredStopAtLevel=1", "-cp"]);
        command.arg(format!("{JAR}:{LOGGER_JAR}")).arg(main).arg(config);
        Ok(command)
    }

    /// Ends it with SIGKILL; the data stays.
    ///
    /// # Errors
    /// It is not running.
    pub fn kill(&mut self) -> Result<()> {
        self.process.take().context("ZooKeeper is not running")?.kill()
    }

    pub fn is_running(&self) -> bool {
        self.process.is_some()
    }

    pub fn host(&self) -> Option<&Host> {
        self.place.host()
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
