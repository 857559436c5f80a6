//! The shipped monitoring, as it is: Prometheus of the compose file's profile finds every process, understands every
//! alert, and has an answer to what each panel of the dashboard asks.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use zurau_tests::clients::{kcat, kcat_missing};
use zurau_tests::containers::{Compose, containers_missing};
use zurau_tests::programs::project_root;
use zurau_tests::{TestDirectory, eventually, http, scenario, skip};

use crate::containers::{TOPIC, create_topic, up};

const PROCESSES: usize = 5;
/// Some scrapes, which are 15 s apart, and the evaluation of rules after them.
const SCRAPED_LIMIT: Duration = Duration::from_secs(150);
/// Alerts on what is not so in a cluster at rest.
const ALERTS_MIN: usize = 14;

#[test]
fn prometheus_sees_the_cluster() {
    const NAME: &str = "prometheus_sees_the_cluster";
    if let Some(why) = containers_missing().or_else(kcat_missing) {
        return skip(NAME, &why);
    }
    scenario("monitoring", monitored);
}

fn monitored(directory: &TestDirectory) -> Result<()> {
    let compose = Compose::new(&["docker-compose.yml"]);
    up(&compose)?;
    compose.run(&["up", "-d", "--no-build", "prometheus"])?;
    create_topic(&compose)?;
    write_and_read(&compose, directory)?;
    let prometheus = compose.prometheus();
    eventually("Prometheus reads the metrics of every process", SCRAPED_LIMIT, || {
        let targets = answer(&prometheus, "/api/v1/targets?state=active")?;
        let targets = list(&targets, "/activeTargets")?;
        let is_up = |target: &&Value| target["health"] == "up";
        let down = targets.iter().find(|target| !is_up(target));
        ensure!(targets.len() == PROCESSES, "{} targets", targets.len());
        ensure!(down.is_none(), "{down:?}");
        Ok(Some(()))
    })?;
    for (panel, query) in dashboard()? {
        let path = format!("/api/v1/query?query={}", encoded(&query));
        eventually(&format!("an answer for {panel}: {query}"), SCRAPED_LIMIT, || {
            Ok((!list(&answer(&prometheus, &path)?, "/result")?.is_empty()).then_some(()))
        })?;
    }
    eventually("every alert is evaluated, and none is raised", SCRAPED_LIMIT, || {
        let groups = answer(&prometheus, "/api/v1/rules?type=alert")?;
        let mut alerts = 0;
        for rule in list(&groups, "/groups")?.iter().filter_map(|group| group["rules"].as_array()).flatten() {
            ensure!(rule["health"] == "ok" && rule["state"] == "inactive", "{rule}");
            alerts += 1;
        }
        ensure!(alerts >= ALERTS_MIN, "{alerts} alerts");
        Ok(Some(()))
    })?;
    Ok(())
}

/// So that there is a topic with traffic, a group with offsets, and a request that failed.
fn write_and_read(compose: &Compose, directory: &TestDirectory) -> Result<()> {
    let bootstrap = compose.bootstrap(3);
    let file = directory.join("input");
    std::fs::write(&file, "a\nb\nc\n")?;
    kcat(&["-P", "-b", &bootstrap, "-t", TOPIC, "-X", "acks=all"], Some(&file))?;
    kcat(&["-b", &bootstrap, "-G", "readers", "-X", "auto.offset.reset=earliest", "-e", TOPIC], None)?;
    // Beyond the end of the log.
    kcat(&["-C", "-b", &bootstrap, "-t", TOPIC, "-o", "1000", "-e"], None).map(|_| ())
}

/// What the shipped dashboard asks: titles of panels and queries.
fn dashboard() -> Result<Vec<(String, String)>> {
    let file = project_root().join("deploy/grafana/dashboards/zurau.json");
    let dashboard: Value = serde_json::from_str(&std::fs::read_to_string(file)?)?;
    let mut asked = Vec::new();
    for panel in list(&dashboard, "/panels")? {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let query = target["expr"].as_str().with_context(|| format!("no expr in {target}"))?.to_owned();
            asked.push((panel["title"].to_string(), query));
        }
    }
    Ok(asked)
}

/// What Prometheus answers: the `data` of a success.
fn answer(prometheus: &str, path: &str) -> Result<Value> {
    let page = http::get(prometheus, path)?;
    ensure!(page.status == 200, "{}: {}", page.status, page.body);
    let mut answer: Value = serde_json::from_str(&page.body).with_context(|| page.body.clone())?;
    Ok(answer["data"].take())
}

fn list<'a>(value: &'a Value, pointer: &str) -> Result<&'a Vec<Value>> {
    value.pointer(pointer).and_then(Value::as_array).with_context(|| format!("no {pointer} in {value}"))
}

/// As a part of an address.
fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}
