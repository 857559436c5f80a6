//! A real ZooKeeper of the machine's package, on a free port and in its own directory. It can be killed and started
//! again on the same port with the same data.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

const CLASS_PATH: &str = "/usr/share/java/*";
const JAR: &str = "/usr/share/java/zookeeper.jar";
/// The shortest session that such a server grants is twice this.
const TICK_MILLIS: u32 = 250;

pub(crate) struct RealZooKeeper {
    directory: TempDir,
    pub(crate) port: u16,
    process: Option<Child>,
}

impl RealZooKeeper {
    /// `None`, with a loud line, where the machine has no ZooKeeper.
    pub(crate) async fn start() -> Option<Self> {
        let java = Command::new("java").arg("-version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        if java.is_err() || !Path::new(JAR).exists() {
            eprintln!("SKIP: this test needs java and {JAR} (package zookeeper); nothing was tested");
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let data = directory.path().join("data");
        let config = format!(
            "tickTime={TICK_MILLIS}\ndataDir={}\nclientPort={port}\nclientPortAddress=127.0.0.1\n\
             admin.enableServer=false\n",
            data.display()
        );
        std::fs::write(directory.path().join("zoo.cfg"), config).unwrap();
        let mut server = Self { directory, port, process: None };
        server.run().await;
        Some(server)
    }

    /// Starts the process and waits until it answers.
    pub(crate) async fn run(&mut self) {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.directory.path().join("log"))
            .unwrap();
        let process = Command::new("java")
            .args(["-Xmx128m", "-Dzookeeper.jmx.log4j.disable=true", "-cp", CLASS_PATH])
            .arg("org.apache.zookeeper.server.quorum.QuorumPeerMain")
            .arg(self.directory.path().join("zoo.cfg"))
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        self.process = Some(process);
        let deadline = Instant::now() + Duration::from_secs(60);
        while tokio::net::TcpStream::connect(("127.0.0.1", self.port)).await.is_err() {
            assert!(Instant::now() < deadline, "ZooKeeper does not answer; see its log: {}", self.log());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Kills the process: sessions live on in the data directory.
    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }
}

impl Drop for RealZooKeeper {
    fn drop(&mut self) {
        self.kill();
    }
}
