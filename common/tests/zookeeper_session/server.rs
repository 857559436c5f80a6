//! The servers that every scenario runs against: the in-process one, and a real ZooKeeper of the machine's package.
//! Each has its own directory and port, and can be stopped and started again with the same data.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use zurau_zookeeper::{Server, ServerConfig};

const CLASS_PATH: &str = "/usr/share/java/*";
const JAR: &str = "/usr/share/java/zookeeper.jar";
/// The shortest session that such a server grants is twice this.
const TICK_MILLIS: u32 = 250;

pub(crate) struct TestServer {
    directory: TempDir,
    pub(crate) port: u16,
    running: Running,
}

enum Running {
    Process(Child),
    InProcess(Server),
    Nothing { in_process: bool },
}

impl TestServer {
    pub(crate) async fn in_process() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut server = Self { directory, port: 0, running: Running::Nothing { in_process: true } };
        server.run().await;
        server
    }

    /// `None`, with a loud line, where the machine has no ZooKeeper.
    pub(crate) async fn apache() -> Option<Self> {
        if !apache_is_here() {
            return None;
        }
        let mut server = Self::prepared("");
        server.run().await;
        Some(server)
    }

    /// Three servers that elect a leader among them.
    pub(crate) async fn ensemble() -> Option<Vec<Self>> {
        if !apache_is_here() {
            return None;
        }
        let members: String =
            (1..=3).map(|id| format!("server.{id}=127.0.0.1:{}:{}\n", free_port(), free_port())).collect();
        let config = format!("initLimit=20\nsyncLimit=20\n{members}");
        let mut servers: Vec<Self> = (0..3).map(|_| Self::prepared(&config)).collect();
        for (id, server) in (1..).zip(&mut servers) {
            let data = server.directory.path().join("data");
            std::fs::create_dir(&data).unwrap();
            std::fs::write(data.join("myid"), format!("{id}\n")).unwrap();
            server.run().await;
        }
        Some(servers)
    }

    fn prepared(more: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let port = free_port();
        let config = format!(
            "tickTime={TICK_MILLIS}\ndataDir={}\nclientPort={port}\nclientPortAddress=127.0.0.1\n\
             admin.enableServer=false\nmaxSessionTimeout=120000\n{more}",
            directory.path().join("data").display()
        );
        std::fs::write(directory.path().join("zoo.cfg"), config).unwrap();
        Self { directory, port, running: Running::Nothing { in_process: false } }
    }

    /// Starts the server, after `stop` with the data it had, and waits until it answers.
    pub(crate) async fn run(&mut self) {
        let Running::Nothing { in_process } = self.running else { panic!("the server runs already") };
        self.running = if in_process { self.run_in_process().await } else { Running::Process(self.spawn()) };
        let deadline = Instant::now() + Duration::from_secs(60);
        while tokio::net::TcpStream::connect(("127.0.0.1", self.port)).await.is_err() {
            assert!(Instant::now() < deadline, "ZooKeeper does not answer; see its log: {}", self.log());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn run_in_process(&mut self) -> Running {
        let tick_time = Duration::from_millis(TICK_MILLIS.into());
        let config = ServerConfig {
            listen: SocketAddr::from(([127, 0, 0, 1], self.port)),
            data_dir: Some(self.directory.path().join("data")),
            tick_time,
            min_session_timeout: tick_time * 2,
            max_session_timeout: tick_time * 200,
        };
        let server = Server::start(config).await.unwrap();
        self.port = server.local_addr().port();
        Running::InProcess(server)
    }

    fn spawn(&self) -> Child {
        let log = self.directory.path().join("log");
        let log = std::fs::File::options().create(true).append(true).open(log).unwrap();
        Command::new("java")
            .args(["-Xmx128m", "-Dzookeeper.jmx.log4j.disable=true", "-cp", CLASS_PATH])
            .arg("org.apache.zookeeper.server.quorum.QuorumPeerMain")
            .arg(self.directory.path().join("zoo.cfg"))
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap()
    }

    /// Stops the server: its sessions live on in the data directory.
    pub(crate) async fn stop(&mut self) {
        let in_process = matches!(self.running, Running::InProcess(_));
        match std::mem::replace(&mut self.running, Running::Nothing { in_process }) {
            Running::InProcess(server) => server.shutdown().await.unwrap(),
            Running::Process(process) => kill(process),
            Running::Nothing { .. } => {}
        }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        if let Running::Process(process) =
            std::mem::replace(&mut self.running, Running::Nothing { in_process: false })
        {
            kill(process);
        }
    }
}

fn apache_is_here() -> bool {
    let java = Command::new("java").arg("-version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    let here = java.is_ok() && Path::new(JAR).exists();
    if !here {
        // The test runner counts such lines; the thread of a test bears its name.
        let thread = std::thread::current();
        let test = thread.name().unwrap_or("zookeeper_session");
        eprintln!("SKIPPED {test}: it needs java and {JAR} (package zookeeper)");
    }
    here
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn kill(mut process: Child) {
    process.kill().unwrap();
    process.wait().unwrap();
}
