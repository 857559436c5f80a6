//! The shipped compose files, run unchanged as a project of their own: other ports, other names, removed at the end.

use std::collections::BTreeMap;
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use anyhow::{Context, Result, ensure};

use crate::port::free_port;
use crate::programs::project_root;

/// The image under test; `tests/run` builds it.
const IMAGE: &str = "zurau-test";

/// Why no containers can be run here.
pub fn containers_missing() -> Option<String> {
    let docker = |arguments: &[&str]| {
        let run = Command::new("docker").args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).status();
        run.is_ok_and(|status| status.success())
    };
    if !docker(&["info"]) {
        return Some("no Docker engine answers".to_owned());
    }
    if compose_command().is_none() {
        return Some("there is neither `docker compose` nor docker-compose".to_owned());
    }
    (!docker(&["image", "inspect", IMAGE])).then(|| format!("there is no image {IMAGE}; tests/run builds it"))
}

/// `docker compose`, or the older program of its own.
fn compose_command() -> Option<&'static [&'static str]> {
    const CANDIDATES: [&[&str]; 2] = [&["docker", "compose"], &["docker-compose"]];
    static FOUND: OnceLock<Option<&'static [&'static str]>> = OnceLock::new();
    *FOUND.get_or_init(|| {
        CANDIDATES.into_iter().find(|candidate| {
            let version = Command::new(candidate[0]).args(&candidate[1..]).arg("version").output();
            version.is_ok_and(|output| output.status.success())
        })
    })
}

/// What the engine says of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    pub id: String,
    pub status: String,
}

/// One project; its containers, networks and volumes are removed when it is dropped.
pub struct Compose {
    name: String,
    files: Vec<&'static str>,
    environment: Vec<(String, String)>,
}

impl Compose {
    /// Nothing is started yet.
    pub fn new(files: &[&'static str]) -> Self {
        let name = format!("zurau-test-{}", std::process::id());
        let mut environment = vec![("ZURAU_IMAGE".to_owned(), IMAGE.to_owned())];
        let ports = (1..=5).map(|broker| format!("ZURAU_PORT_{broker}"));
        let others = ["ZURAU_ZOOKEEPER_PORT", "ZURAU_PROMETHEUS_PORT"].map(str::to_owned);
        for variable in ports.chain(others) {
            environment.push((variable, free_port().to_string()));
        }
        Self { name, files: files.to_vec(), environment }
    }

    /// Sets a variable that the compose files read.
    pub fn set(&mut self, variable: &str, value: &str) {
        self.environment.push((variable.to_owned(), value.to_owned()));
    }

    /// `bootstrap.servers` of the first brokers, for clients on this machine.
    pub fn bootstrap(&self, brokers: usize) -> String {
        let port = |broker| self.value(&format!("ZURAU_PORT_{broker}"));
        (1..=brokers).map(|broker| format!("localhost:{}", port(broker))).collect::<Vec<_>>().join(",")
    }

    pub fn zookeeper(&self) -> String {
        format!("localhost:{}", self.value("ZURAU_ZOOKEEPER_PORT"))
    }

    /// Of the profile `monitoring`, for HTTP.
    pub fn prometheus(&self) -> String {
        format!("127.0.0.1:{}", self.value("ZURAU_PROMETHEUS_PORT"))
    }

    fn value(&self, variable: &str) -> &str {
        let found = self.environment.iter().find(|(name, _)| name == variable);
        found.map_or("", |(_, value)| value)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let program = compose_command().unwrap_or(&["docker-compose"]);
        let mut command = Command::new(program[0]);
        command.args(&program[1..]).args(["-p", &self.name]).current_dir(project_root());
        for file in &self.files {
            command.args(["-f", file]);
        }
        command.args(arguments).envs(self.environment.iter().cloned()).stdin(Stdio::null());
        command
    }

    /// Runs a command of compose and returns what it printed.
    ///
    /// # Errors
    /// It failed; its output is quoted.
    pub fn run(&self, arguments: &[&str]) -> Result<String> {
        succeeded(arguments, self.command(arguments).output()?)
    }

    /// The containers by service, with what the engine says of them, for instance `Up 5 seconds (healthy)`.
    ///
    /// # Errors
    /// The engine does not answer.
    pub fn containers(&self) -> Result<BTreeMap<String, Container>> {
        // Much faster than to ask compose.
        let filter = format!("label=com.docker.compose.project={}", self.name);
        let format = "{{.Label \"com.docker.compose.service\"}}|{{.ID}}|{{.Status}}";
        let shown = docker(&["ps", "-a", "--filter", &filter, "--format", format])?;
        let container = |line: &str| {
            let mut fields = line.split('|').map(str::to_owned);
            let service = fields.next()?;
            Some((service, Container { id: fields.next()?, status: fields.next()? }))
        };
        Ok(shown.lines().filter_map(container).collect())
    }

    /// The id of a service's container.
    ///
    /// # Errors
    /// There is none.
    pub fn container(&self, service: &str) -> Result<String> {
        let found = self.containers()?.remove(service);
        Ok(found.with_context(|| format!("service {service} has no container"))?.id)
    }

    /// Runs a program of this machine in a container on the project's network. Of the image only `/etc` is used.
    ///
    /// # Errors
    /// It failed; its output is quoted.
    pub fn run_inside(&self, program: &[&str], input: Option<&[u8]>) -> Result<String> {
        let network = format!("{}_default", self.name);
        let arguments =
            ["run", "--rm", "-i", "--network", &network, "-v", "/usr:/usr:ro", "debian:bookworm-slim"];
        let mut command = Command::new("docker");
        command.args(arguments).args(program);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().context("starting docker run")?;
        let mut pipe = child.stdin.take().context("no standard input")?;
        std::io::Write::write_all(&mut pipe, input.unwrap_or_default())?;
        drop(pipe);
        succeeded(program, child.wait_with_output()?)
    }

    /// Removes the volumes of ZooKeeper, as somebody does who takes them for rubbish.
    ///
    /// # Errors
    /// They are in use.
    pub fn remove_volumes(&self, names: &[&str]) -> Result<()> {
        let volumes: Vec<String> = names.iter().map(|volume| format!("{}_{volume}", self.name)).collect();
        let mut arguments = vec!["volume", "rm"];
        arguments.extend(volumes.iter().map(String::as_str));
        docker(&arguments).map(|_| ())
    }
}

impl Drop for Compose {
    fn drop(&mut self) {
        if std::thread::panicking() || std::env::var_os("ZURAU_KEEP").is_some() {
            eprintln!("{}", self.run(&["logs", "--tail", "15"]).unwrap_or_default());
        }
        if let Err(error) = self.run(&["down", "-v", "--remove-orphans", "-t", "1"]) {
            eprintln!("the containers of {} were not removed: {error:#}", self.name);
        }
    }
}

/// Runs a command of the Docker client and returns what it printed.
///
/// # Errors
/// It failed; its output is quoted.
pub fn docker(arguments: &[&str]) -> Result<String> {
    succeeded(arguments, Command::new("docker").args(arguments).output().context("running docker")?)
}

/// Bytes of the image under test beyond those of the image it stands on.
///
/// # Errors
/// One of them is missing.
pub fn image_bytes_beyond_base() -> Result<u64> {
    let size = |image: &str| -> Result<u64> {
        Ok(docker(&["image", "inspect", "-f", "{{.Size}}", image])?.trim().parse()?)
    };
    Ok(size(IMAGE)?.saturating_sub(size("debian:bookworm-slim")?))
}

fn succeeded(what: &[&str], output: Output) -> Result<String> {
    let shown = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    ensure!(
        output.status.success(),
        "{} ended with {}:\n{}{}",
        what.join(" "),
        output.status,
        shown(&output.stdout),
        shown(&output.stderr)
    );
    Ok(shown(&output.stdout))
}
