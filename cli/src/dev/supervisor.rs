//! One child process of the development cluster: started, watched, started again when it dies, stopped by pid.

use std::fs::{self, File};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::plan::{Member, Role};

/// How long a process may take to stop when asked, before it is killed. `zurau dev` as a whole stops within 5 s:
/// first the brokers, all at once, then the controller.
fn stop_within(role: Role) -> Duration {
    match role {
        Role::Broker => Duration::from_millis(3_500),
        Role::Controller => Duration::from_millis(1_000),
    }
}

/// Starts a member; its output goes to its log file, which is appended to.
///
/// # Errors
/// The files cannot be written, or the program cannot be started.
pub(crate) fn start(member: &Member) -> Result<Child> {
    let write = || -> std::io::Result<File> {
        for file in [&member.properties_file, &member.log_file] {
            fs::create_dir_all(file.parent().expect("both lie in a folder of the data directory"))?;
        }
        fs::write(&member.properties_file, &member.properties)?;
        File::options().create(true).append(true).open(&member.log_file)
    };
    let log = write().with_context(|| format!("cannot write the files of {}", member.name))?;
    let program = std::env::current_exe().context("cannot find the path of this program")?;
    let mut command = Command::new(program);
    // These would reach every process alike and give all brokers one id.
    let configuring = std::env::vars_os().map(|(name, _)| name);
    for name in configuring.filter(|name| name.to_string_lossy().starts_with("KAFKA_")) {
        command.env_remove(name);
    }
    command
        .arg(member.role.subcommand())
        .arg("--config")
        .arg(&member.properties_file)
        .stdin(Stdio::null())
        .stdout(log.try_clone().context("cannot share the log file")?)
        .stderr(log)
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("cannot start {}", member.name))
}

/// Watches a started member until `stop`: a death is reported and answered by a new start after
/// `restart_after`. Then asks it to end, and kills it if it does not.
pub(crate) async fn supervise(
    member: Member,
    mut child: Child,
    restart_after: Duration,
    stop: CancellationToken,
) {
    loop {
        let status = tokio::select! {
            status = child.wait() => status,
            () = stop.cancelled() => return end(&member, child).await,
        };
        println!(
            "{} {}; its log is {}; starting it again in {} s",
            member.name,
            describe(status),
            member.log_file.display(),
            restart_after.as_secs()
        );
        tokio::select! {
            () = sleep(restart_after) => {}
            () = stop.cancelled() => return,
        }
        child = match start(&member) {
            Ok(child) => child,
            Err(error) => {
                println!("{} is not started again: {error:#}", member.name);
                return;
            }
        };
        println!("{} runs again (pid {})", member.name, child.id().unwrap_or_default());
    }
}

async fn end(member: &Member, mut child: Child) {
    if let Some(pid) = child.id().and_then(|pid| Pid::from_raw(pid.cast_signed())) {
        // It may have ended by itself just now; then there is nobody to tell.
        let _ = kill_process(pid, Signal::TERM);
    }
    let limit = stop_within(member.role);
    if timeout(limit, child.wait()).await.is_err() {
        println!("{} did not stop within {limit:?} and is killed", member.name);
        let _ = child.kill().await;
    }
}

fn describe(status: std::io::Result<ExitStatus>) -> String {
    match status {
        Ok(status) => format!("ended ({status})"),
        Err(error) => format!("cannot be watched any more ({error})"),
    }
}
