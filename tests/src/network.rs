//! Hosts of their own on one machine: network namespaces on a bridge, whose links can be cut in one or both directions,
//! slowed down or made lossy. Each host has its own boot id, and its clock can be moved.
//!
//! The bridge lives in a namespace too: firewall rules of the machine (a container engine's, say) do not reach it.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

/// Networks are `10.231.n.0/24`; so many can exist on the machine at once.
const NETWORKS_MAX: u8 = 200;
const NAME_PREFIX: &str = "zurau";
/// Debian's package `libfaketime`.
const FAKE_TIME_LIBRARIES: [&str; 2] = [
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1",
];

/// A private network; it and its hosts vanish when this is dropped. Processes in it must have ended before.
pub struct Network {
    name: String,
    number: u8,
    next_host: u8,
    directory: PathBuf,
    hosts: Vec<Host>,
}

/// One host: a place to run programs at an address of its own.
#[derive(Debug, Clone)]
pub struct Host {
    name: String,
    namespace: String,
    address: Ipv4Addr,
    boot_id: PathBuf,
    clock: PathBuf,
}

impl Network {
    /// Why no network can be made here.
    pub fn missing() -> Option<String> {
        for (program, argument) in [("ip", "-V"), ("iptables", "-V"), ("tc", "-V")] {
            if Command::new(program).arg(argument).output().is_err() {
                return Some(format!(
                    "there is no {program}; install Debian's packages iproute2 and iptables"
                ));
            }
        }
        let name = format!("{NAME_PREFIX}-probe-{}", std::process::id());
        if let Err(error) = run("ip", &["netns", "add", &name]) {
            return Some(format!("no network namespace can be made (not root?): {error:#}"));
        }
        run("ip", &["netns", "del", &name]).err().map(|error| format!("{error:#}"))
    }

    /// A network without hosts, which the caller reaches too. Files of the hosts go below `directory`.
    ///
    /// # Errors
    /// See [`Self::missing`]; or all networks are taken.
    pub fn start(directory: &Path) -> Result<Self> {
        remove_abandoned()?;
        for number in 0..NETWORKS_MAX {
            let name = format!("{NAME_PREFIX}{number}");
            // Making the namespace claims the number: only one caller can.
            if run("ip", &["netns", "add", &name]).is_err() {
                continue;
            }
            let hosts = Vec::new();
            let network = Self { name, number, next_host: 2, directory: directory.to_owned(), hosts };
            network.build()?;
            return Ok(network);
        }
        bail!("none of {NETWORKS_MAX} networks is free; is `ip netns` allowed here?")
    }

    fn build(&self) -> Result<()> {
        let switch = &self.name;
        let outside = format!("{switch}-out");
        run("ip", &["-n", switch, "link", "add", "bridge", "type", "bridge"])?;
        run("ip", &["-n", switch, "link", "set", "bridge", "up"])?;
        run("ip", &["link", "add", &outside, "type", "veth", "peer", "name", "out", "netns", switch])?;
        // So that a later run can see whether the owner of this network is still there.
        run("ip", &["link", "set", &outside, "alias", &format!("pid {}", std::process::id())])?;
        run("ip", &["-n", switch, "link", "set", "out", "master", "bridge", "up"])?;
        run("ip", &["address", "add", &format!("{}/24", self.address(1)), "dev", &outside])?;
        run("ip", &["link", "set", &outside, "up"])
    }

    fn address(&self, host: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 231, self.number, host)
    }

    /// Adds a host.
    ///
    /// # Errors
    /// The system refuses.
    pub fn add(&mut self, name: &str) -> Result<Host> {
        let number = self.next_host;
        self.next_host += 1;
        let host = Host {
            name: name.to_owned(),
            namespace: format!("{}-{name}", self.name),
            address: self.address(number),
            boot_id: self.directory.join(format!("{name}.boot-id")),
            clock: self.directory.join(format!("{name}.clock")),
        };
        let (namespace, port) = (&host.namespace, format!("h{number}"));
        run("ip", &["netns", "add", namespace])?;
        let peer = ["type", "veth", "peer", "name", "eth0", "netns", namespace];
        run("ip", &[&["-n", &self.name, "link", "add", &port], &peer[..]].concat())?;
        run("ip", &["-n", &self.name, "link", "set", &port, "master", "bridge", "up"])?;
        run("ip", &["-n", namespace, "address", "add", &format!("{}/24", host.address), "dev", "eth0"])?;
        run("ip", &["-n", namespace, "link", "set", "eth0", "up"])?;
        run("ip", &["-n", namespace, "link", "set", "lo", "up"])?;
        host.reboot()?;
        host.set_clock(0)?;
        self.hosts.push(host.clone());
        Ok(host)
    }

    /// Ends every cut, loss and delay. Clocks stay as they are.
    ///
    /// # Errors
    /// The system refuses.
    pub fn heal(&self) -> Result<()> {
        self.hosts.iter().try_for_each(Host::heal)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for host in &self.hosts {
            report(run("ip", &["netns", "del", &host.namespace]));
        }
        report(run("ip", &["netns", "del", &self.name]));
    }
}

fn report(outcome: Result<()>) {
    if let Err(error) = outcome {
        eprintln!("a network was not removed: {error:#}");
    }
}

/// Removes networks whose owners were killed.
fn remove_abandoned() -> Result<()> {
    let listed = output("ip", &["netns", "list"])?;
    let names: Vec<&str> = listed.lines().filter_map(|line| line.split_whitespace().next()).collect();
    for number in 0..NETWORKS_MAX {
        let name = format!("{NAME_PREFIX}{number}");
        if !names.contains(&name.as_str()) {
            continue;
        }
        let alias = fs::read_to_string(format!("/sys/class/net/{name}-out/ifalias")).unwrap_or_default();
        // Without an alias it is being built just now, by somebody else.
        let Some(owner) = alias.trim().strip_prefix("pid ") else { continue };
        if Path::new("/proc").join(owner).exists() {
            continue;
        }
        let own = format!("{name}-");
        for namespace in names.iter().filter(|other| **other == name || other.starts_with(&own)) {
            report(run("ip", &["netns", "del", namespace]));
        }
    }
    Ok(())
}

impl Host {
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// A command that runs `program` on this host, with its boot id and its clock.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("ip");
        let script = "mount --bind \"$0\" /proc/sys/kernel/random/boot_id && exec env \"$@\"";
        command.args(["netns", "exec", &self.namespace, "sh", "-c", script]).arg(&self.boot_id);
        if let Some(library) = fake_time_library() {
            command.arg(format!("LD_PRELOAD={library}"));
            command.arg(format!("FAKETIME_TIMESTAMP_FILE={}", self.clock.display()));
            // Timers go by the monotonic clock, which no administrator can set.
            command.args(["FAKETIME_DONT_FAKE_MONOTONIC=1", "FAKETIME_CACHE_DURATION=1"]);
        }
        command.arg(program);
        command
    }

    /// A command without the host's clock, for programs that bring a run time of their own.
    pub fn plain_command(&self, program: &Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace]).arg(program);
        command
    }

    /// From now on programs see another boot id, as after a crash of the machine.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn reboot(&self) -> Result<()> {
        fs::write(&self.boot_id, format!("{}\n", uuid::Uuid::new_v4())).context("writing a boot id")
    }

    /// Sets the wall clock of programs on this host to `seconds` from the true time.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn set_clock(&self, seconds: i64) -> Result<()> {
        fs::write(&self.clock, format!("{seconds:+}\n")).context("writing a clock")
    }

    /// Drops whatever arrives here from the other host; the other direction goes on.
    ///
    /// # Errors
    /// The system refuses.
    pub fn refuse_from(&self, other: &Self) -> Result<()> {
        self.filter(&["-A", "INPUT", "-s", &other.address.to_string(), "-j", "DROP"])
    }

    /// Cuts both directions.
    ///
    /// # Errors
    /// The system refuses.
    pub fn cut(&self, other: &Self) -> Result<()> {
        self.refuse_from(other)?;
        other.refuse_from(self)
    }

    /// Loses a part of the packets that arrive, `0.0..=1.0`.
    ///
    /// # Errors
    /// The system refuses.
    pub fn lose(&self, part: f64) -> Result<()> {
        let probability = part.to_string();
        let random = ["-m", "statistic", "--mode", "random", "--probability", &probability];
        self.filter(&[&["-A", "INPUT"], &random[..], &["-j", "DROP"]].concat())
    }

    /// Sends at most so many bits a second; what waits longer than half a second is lost.
    ///
    /// # Errors
    /// The system refuses.
    pub fn slow_down(&self, kilobits_per_second: u32) -> Result<()> {
        let rate = format!("{kilobits_per_second}kbit");
        let shape = ["root", "tbf", "rate", &rate, "burst", "32kbit", "latency", "500ms"];
        run("tc", &[&["-n", &self.namespace, "qdisc", "replace", "dev", "eth0"], &shape[..]].concat())
    }

    fn heal(&self) -> Result<()> {
        self.filter(&["-F", "INPUT"])?;
        let shaped = output("tc", &["-n", &self.namespace, "qdisc", "show", "dev", "eth0"])?;
        if shaped.contains("tbf") {
            run("tc", &["-n", &self.namespace, "qdisc", "del", "dev", "eth0", "root"])?;
        }
        Ok(())
    }

    fn filter(&self, arguments: &[&str]) -> Result<()> {
        let prefix = ["netns", "exec", &self.namespace, "iptables", "-w", "10"];
        run("ip", &[&prefix[..], arguments].concat())
    }
}

/// The library that moves a program's clock, if it is installed.
pub fn fake_time_library() -> Option<&'static str> {
    FAKE_TIME_LIBRARIES.into_iter().find(|path| Path::new(path).exists())
}

fn run(program: &str, arguments: &[&str]) -> Result<()> {
    output(program, arguments).map(|_| ())
}

fn output(program: &str, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program).args(arguments).output();
    let output = output.with_context(|| format!("running {program}"))?;
    ensure!(
        output.status.success(),
        "{program} {} ended with {}: {}",
        arguments.join(" "),
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
