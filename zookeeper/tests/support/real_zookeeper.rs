//! Debian's ZooKeeper as a child process: own port, own directory, stopped with the test.
//!
//! The JVM runs under a shell that kills it when its input closes, so that it ends with the test
//! process even when that is killed.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const JAR: &str = "/usr/share/java/zookeeper.jar";
const START_PATIENCE: Duration = Duration::from_secs(60);

const GUARD: &str = r#"
log="$1"; shift
java "$@" </dev/null >>"$log" 2>&1 &
pid=$!
echo $pid
read _
kill -9 $pid
wait $pid 2>/dev/null
"#;

/// What this machine lacks to run it, if anything.
pub fn missing() -> Option<String> {
    if !Path::new(JAR).exists() {
        return Some(format!("{JAR} is absent"));
    }
    let java = Command::new("java").arg("-version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    match java {
        Ok(status) if status.success() => None,
        _ => Some("java does not run".to_owned()),
    }
}

/// A standalone ZooKeeper. Its data survives `stop` and `start`, not the value itself.
pub struct RealZookeeper {
    directory: tempfile::TempDir,
    port: u16,
    guard: Option<Child>,
    pid: u32,
}

impl RealZookeeper {
    /// Starts one with ticks of 100 ms and waits until it answers.
    pub fn launch(min_session_timeout: Duration, max_session_timeout: Duration) -> std::io::Result<Self> {
        let directory = tempfile::tempdir()?;
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let configuration = format!(
            "dataDir={}\nclientPort={port}\nclientPortAddress=127.0.0.1\ntickTime=100\n\
             minSessionTimeout={}\nmaxSessionTimeout={}\nmaxClientCnxns=0\n4lw.commands.whitelist=*\n\
             admin.enableServer=false\n",
            directory.path().join("data").display(),
            min_session_timeout.as_millis(),
            max_session_timeout.as_millis(),
        );
        std::fs::write(directory.path().join("zoo.cfg"), configuration)?;
        let mut zookeeper = Self { directory, port, guard: None, pid: 0 };
        zookeeper.start()?;
        Ok(zookeeper)
    }

    pub fn connect_string(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Process id of the JVM, to send it signals.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    pub fn start(&mut self) -> std::io::Result<()> {
        let mut guard = Command::new("sh")
            .arg("-c")
            .arg(GUARD)
            .arg("zookeeper-guard")
            .arg(self.log())
            .args(["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"])
            .args(["-Dzookeeper.extendedTypesEnabled=true", "-Dznode.container.checkIntervalMs=200"])
            .args(["-Dzookeeper.admin.enableServer=false", "-cp", JAR])
            .arg("org.apache.zookeeper.server.quorum.QuorumPeerMain")
            .arg(self.directory.path().join("zoo.cfg"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        BufReader::new(guard.stdout.take().expect("piped above")).read_line(&mut line)?;
        self.guard = Some(guard);
        self.pid = line.trim().parse().map_err(std::io::Error::other)?;
        let deadline = Instant::now() + START_PATIENCE;
        while !self.is_ready() {
            if Instant::now() > deadline {
                let log = std::fs::read_to_string(self.log()).unwrap_or_default();
                return Err(std::io::Error::other(format!("ZooKeeper did not start:\n{log}")));
            }
            std::thread::park_timeout(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Kills the process as a crash would, and waits for its end.
    pub fn stop(&mut self) {
        if let Some(mut guard) = self.guard.take() {
            drop(guard.stdin.take());
            let _ = guard.wait();
        }
    }

    fn log(&self) -> PathBuf {
        self.directory.path().join("log")
    }

    /// It serves requests, and it is ours: another process may have taken the port meanwhile.
    fn is_ready(&self) -> bool {
        let ask = || -> std::io::Result<String> {
            let address = SocketAddr::from(([127, 0, 0, 1], self.port));
            let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
            stream.set_read_timeout(Some(Duration::from_secs(5)))?;
            stream.write_all(b"srvr")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        };
        ask().is_ok_and(|answer| answer.contains("Mode: standalone"))
    }
}

impl Drop for RealZookeeper {
    fn drop(&mut self) {
        self.stop();
    }
}
