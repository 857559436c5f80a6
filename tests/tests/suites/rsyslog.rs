//! rsyslog with its Kafka output from Debian: lines of a file become records, also while a leader is killed.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use zurau_tests::clients::{kcat, kcat_missing};
use zurau_tests::process::Process;
use zurau_tests::{Cluster, eventually, scenario, skip};

use crate::outcome::{Suite, Tally, judge};
use crate::workshop::file_missing;

const SUITE: Suite = Suite {
    name: "rsyslog",
    version: "8.2302.0",
    setting: "Debian's package with omkafka, lz4, a leader killed with -9; three brokers",
};
const PROGRAM: &str = "/usr/sbin/rsyslogd";
const LIMIT: Duration = Duration::from_secs(60);
const TOPIC: &str = "syslog";
const LINES: usize = 2000;

#[test]
fn rsyslog() {
    let module = format!("/usr/lib/{}-linux-gnu/rsyslog/omkafka.so", std::env::consts::ARCH);
    let missing = file_missing(PROGRAM, "rsyslog").or_else(|| file_missing(&module, "rsyslog-kafka"));
    if let Some(why) = missing.or_else(kcat_missing) {
        return skip("suites::rsyslog", &why);
    }
    scenario("rsyslog", |directory| {
        let mut cluster = Cluster::builder().start(directory)?;
        cluster.create_topic(TOPIC, &["[1,2,3]", "[2,3,1]", "[3,1,2]"])?;
        let (input, config) = (directory.join("input.txt"), directory.join("rsyslog.conf"));
        fs::write(&config, configuration(&cluster, directory.path(), &input))?;
        write_lines(&input, 0..LINES)?;
        let mut command = Command::new(PROGRAM);
        command.arg("-n").arg("-f").arg(&config).arg("-i").arg(directory.join("rsyslog.pid"));
        let mut rsyslog = Process::spawn("rsyslogd", &mut command, &directory.join("rsyslog-output.log"))?;
        let mut tally = Tally::default();
        tally.step("lines of a file become records", delivered(&cluster, LINES));
        write_lines(&input, LINES..2 * LINES)?;
        cluster.broker(1)?.kill()?;
        write_lines(&input, 2 * LINES..3 * LINES)?;
        tally.step("all of them, while a leader is killed", delivered(&cluster, 3 * LINES));
        rsyslog.check_running()?;
        tally.step("a clean end", rsyslog.stop(LIMIT).map(|_| ()));
        judge(&SUITE, &tally, &[])
    });
}

fn configuration(cluster: &Cluster, directory: &Path, input: &Path) -> String {
    let brokers: Vec<String> =
        cluster.bootstrap().split(',').map(|address| format!("\"{address}\"")).collect();
    format!(
        "global(workDirectory=\"{directory}\")\n\
         module(load=\"imfile\")\nmodule(load=\"omkafka\")\n\
         template(name=\"line\" type=\"string\" string=\"%msg%\")\n\
         input(type=\"imfile\" file=\"{input}\" tag=\"lines\" ruleset=\"kafka\")\n\
         ruleset(name=\"kafka\") {{\n  action(type=\"omkafka\" broker=[{brokers}] topic=\"{TOPIC}\" template=\"line\"\n    \
         partitions.auto=\"on\" resubmitOnFailure=\"on\" action.resumeRetryCount=\"-1\"\n    \
         confParam=[\"compression.codec=lz4\", \"acks=all\"])\n}}\n",
        directory = directory.display(),
        input = input.display(),
        brokers = brokers.join(","),
    )
}

fn write_lines(path: &Path, numbers: std::ops::Range<usize>) -> Result<()> {
    let text: String = numbers.map(|number| format!("line {number}\n")).collect();
    File::options().append(true).create(true).open(path)?.write_all(text.as_bytes())?;
    Ok(())
}

/// Waits until the first `count` lines are in the topic. They may be there twice: rsyslog sends again what may be lost.
fn delivered(cluster: &Cluster, count: usize) -> Result<()> {
    let bootstrap = cluster.bootstrap();
    let wanted: BTreeSet<String> = (0..count).map(|number| format!("line {number}")).collect();
    eventually("every line is a record", LIMIT, || {
        let read = kcat(&["-b", &bootstrap, "-C", "-e", "-q", "-o", "beginning", "-t", TOPIC], None)?;
        let text = String::from_utf8(read)?;
        let found: BTreeSet<String> = text.lines().map(|line| line.trim().to_owned()).collect();
        ensure!(
            found.is_subset(&wanted),
            "records that nobody wrote: {:?}",
            found.difference(&wanted).next()
        );
        ensure!(found.len() == count, "{} of {count} lines", found.len());
        Ok(Some(()))
    })
}
