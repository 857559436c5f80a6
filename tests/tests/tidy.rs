//! The rules of the source that neither rustc nor clippy checks.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use zurau_tests::programs::project_root;
use zurau_tests::skip;

const LINES_MAX: usize = 600;

/// Files and folders that must stay pure: no clock, randomness, disk, network, ZooKeeper client or runtime.
/// A folder stands for every file below it.
const PURE: &[&str] = &[
    "broker/src/control/rules.rs",
    "broker/src/coordinator",
    "broker/src/fetchers/session.rs",
    "broker/src/groups",
    "broker/src/first_leaders.rs",
    "broker/src/metadata.rs",
    "broker/src/placement.rs",
    "broker/src/registration/rules.rs",
    "broker/src/replica",
    "broker/src/throttle.rs",
    "broker/src/topic_plan.rs",
    "broker/src/transactions",
    "broker/src/waiters.rs",
    "cli/src/consume/assign.rs",
    "cli/src/consume/print.rs",
    "cli/src/explain/diagnosis.rs",
    "cli/src/groups/goal.rs",
    "cli/src/produce/partitioner.rs",
    "cli/src/reassign/plan.rs",
    "cli/src/recover_metadata/copies.rs",
    "cli/src/recover_metadata/plan.rs",
    "common/src/assignment.rs",
    "common/src/id.rs",
    "common/src/leader_and_isr.rs",
    "common/src/rejection.rs",
    "common/src/rule.rs",
    "common/src/wire/control.rs",
    "common/src/wire/frame.rs",
    "common/src/wire/guard.rs",
    "common/src/zk",
    "controller/src",
    "zookeeper/src/core",
];

/// Files inside pure folders that are the shell there.
const SHELL: &[&str] = &[
    "broker/src/coordinator/load.rs",
    "broker/src/coordinator/offices.rs",
    "broker/src/coordinator/replies.rs",
    "broker/src/coordinator/topic.rs",
    "broker/src/coordinator/writer.rs",
    "broker/src/groups/coordinator.rs",
    "broker/src/groups/upkeep.rs",
    "broker/src/groups/worker.rs",
    "broker/src/transactions/coordinator.rs",
    "broker/src/transactions/marker_sender.rs",
    "broker/src/transactions/worker.rs",
    "common/src/zk/lease.rs",
    "common/src/zk/read.rs",
    "common/src/zk/session.rs",
    "common/src/zk/session_metrics.rs",
    "common/src/zk/watch.rs",
    "common/src/zk/write.rs",
    "controller/src/api.rs",
    "controller/src/health.rs",
    "controller/src/inbox.rs",
    "controller/src/leadership.rs",
    "controller/src/main.rs",
    "controller/src/outbox.rs",
    "controller/src/process.rs",
    "controller/src/runtime.rs",
    "controller/src/standby.rs",
    "controller/src/story.rs",
    "controller/src/watches.rs",
];

/// What a pure file must not name outside its tests.
const IMPURE: [&str; 11] = [
    "tokio::",
    "std::fs",
    "std::net::Tcp",
    "std::process",
    "Instant::now",
    "SystemTime::now",
    "rand::",
    "Uuid::new_v4",
    "zookeeper_client",
    "rustix::",
    "tracing::",
];

fn rust_files() -> Vec<PathBuf> {
    let root = project_root();
    let mut open: Vec<PathBuf> = ["common", "controller", "broker", "zookeeper", "cli", "tests", "bench"]
        .map(|name| root.join(name))
        .into();
    let mut files = Vec::new();
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of the project can be read") {
            let path = entry.expect("an entry can be read").path();
            if path.is_dir() && !path.ends_with("target") {
                open.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    assert!(files.len() > 20, "only {} Rust files were found", files.len());
    files
}

fn shown(path: &Path) -> String {
    path.strip_prefix(project_root()).unwrap_or(path).display().to_string()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The file without its unit tests, which stand at its foot.
fn without_tests(text: &str) -> &str {
    text.find("#[cfg(test)]").map_or(text, |at| &text[..at])
}

/// Unit tests that outgrew the foot of their file.
fn is_unit_tests(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name == "tests.rs" || name.ends_with("_tests.rs") || path.iter().any(|part| part == "tests")
}

fn fail_on(problems: &[String]) {
    assert!(problems.is_empty(), "\n{}\n", problems.join("\n"));
}

#[test]
fn every_module_says_why_it_exists_in_at_most_15_lines() {
    let mut problems = Vec::new();
    for path in rust_files() {
        let text = read(&path);
        let lines = text.lines().take_while(|line| line.starts_with("//!")).count();
        if lines == 0 && is_unit_tests(&path) {
            continue; // it carries the name of what it tests
        }
        if !(1..=15).contains(&lines) {
            problems.push(format!("{}: {lines} lines of //! at the top, 1 to 15 wanted", shown(&path)));
        }
    }
    fail_on(&problems);
}

#[test]
fn no_file_is_longer_than_600_lines() {
    let mut problems = Vec::new();
    for path in rust_files() {
        let lines = read(&path).lines().count();
        if lines > LINES_MAX {
            problems.push(format!("{}: {lines} lines, {LINES_MAX} allowed", shown(&path)));
        }
    }
    fail_on(&problems);
}

#[test]
fn pure_files_touch_nothing_outside() {
    let mut problems = Vec::new();
    for path in rust_files() {
        let name = shown(&path);
        let pure = PURE.iter().any(|pure| name == *pure || name.starts_with(&format!("{pure}/")));
        if !pure || SHELL.contains(&name.as_str()) || is_unit_tests(&path) {
            continue;
        }
        let text = read(&path);
        for (number, line) in without_tests(&text).lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            for word in IMPURE.iter().filter(|word| code.contains(**word)) {
                problems.push(format!("{name}:{}: a pure file names {word}", number + 1));
            }
        }
    }
    fail_on(&problems);
}

#[test]
fn every_pure_path_exists() {
    let root = project_root();
    let missing = PURE.iter().chain(SHELL).filter(|path| !root.join(path).exists());
    fail_on(
        &missing
            .map(|path| format!("{path} is listed as pure or shell, but is not there"))
            .collect::<Vec<_>>(),
    );
}

#[test]
fn nothing_is_left_undone() {
    // Written apart, so that this file passes its own test.
    let marks = [concat!("FIX", "ME"), concat!("to", "do!("), concat!("unimple", "mented!(")];
    let mut problems = Vec::new();
    for path in rust_files() {
        for (number, line) in read(&path).lines().enumerate() {
            for mark in marks.iter().filter(|mark| line.contains(**mark)) {
                problems.push(format!("{}:{}: {mark}", shown(&path), number + 1));
            }
        }
    }
    fail_on(&problems);
}

/// The layout has one home: outside of it a path would be a second opinion. Tests and the ZooKeeper server, which
/// knows no layout, may spell what they like.
#[test]
fn only_the_layout_spells_znode_paths() {
    let mut problems = Vec::new();
    for path in rust_files() {
        let name = shown(&path);
        let exempt = ["common/src/zk/", "common/tests/", "zookeeper/", "tests/", "bench/"];
        if exempt.iter().any(|prefix| name.starts_with(prefix)) || is_unit_tests(&path) {
            continue;
        }
        for (number, line) in without_tests(&read(&path)).lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            for root in ["\"/brokers", "\"/config/", "\"/controller", "\"/admin/", "\"/leases"] {
                if code.contains(root) {
                    problems.push(format!("{name}:{}: spells a znode path", number + 1));
                }
            }
        }
    }
    fail_on(&problems);
}

/// Words in backquotes that are paths of this repository: whole ones; below a line that begins with a folder in bold,
/// those of that folder; and in an item that begins with a subfolder, those of the subfolder.
fn named_paths(text: &str, exists: impl Fn(&str) -> bool) -> BTreeSet<String> {
    const TOPS: [&str; 8] =
        ["common/", "controller/", "broker/", "zookeeper/", "cli/", "tests/", "bench/", ".ci/"];
    let is_whole = |word: &str| TOPS.iter().any(|top| word.starts_with(top));
    let mut paths = BTreeSet::new();
    let mut folder = None;
    let mut subfolder = None;
    for line in text.lines() {
        if line.starts_with('#') {
            folder = None;
        }
        if let Some((name, _)) = line.strip_prefix("**`").and_then(|rest| rest.split_once("`**")) {
            folder = Some(name);
            subfolder = None;
        }
        if let Some(item) = line.strip_prefix("- ") {
            subfolder = item.strip_prefix('`').and_then(|item| item.split_once("/`")).map(|(name, _)| name);
        }
        for word in line.split('`').skip(1).step_by(2) {
            let path = word.trim_end_matches('/');
            let is_plain = path.chars().all(|one| one.is_ascii_alphanumeric() || "/._-".contains(one));
            let is_below = path.ends_with(".rs") || word.ends_with('/');
            if !is_plain || path.is_empty() {
                continue;
            }
            if is_whole(word) {
                paths.insert(path.to_owned());
            } else if let Some(folder) = folder.filter(|_| is_below && !word.starts_with('/')) {
                let inner = subfolder.map(|subfolder| format!("{folder}/{subfolder}/{path}"));
                paths.insert(
                    inner.filter(|inner| exists(inner)).unwrap_or_else(|| format!("{folder}/{path}")),
                );
            }
        }
    }
    paths
}

#[test]
fn every_path_that_the_architecture_names_exists() {
    let root = project_root();
    let mut problems = Vec::new();
    for document in ["ARCHITECTURE.md", "README.md"] {
        let paths = named_paths(&read(&root.join(document)), |path| root.join(path).exists());
        if document == "ARCHITECTURE.md" {
            assert!(paths.len() >= 20, "{document} names only {paths:?}");
        }
        let missing = paths.iter().filter(|path| !root.join(path).exists());
        problems.extend(missing.map(|path| format!("{document} names {path}, which is not there")));
    }
    fail_on(&problems);
}

/// Names of metrics in a text: words that begin as ours do.
fn metrics_named(text: &str) -> BTreeSet<&str> {
    let words = text.split(|character: char| !character.is_ascii_alphanumeric() && character != '_');
    words.filter(|word| word.starts_with("kafka_") || word.starts_with("zurau_")).collect()
}

#[test]
fn the_dashboard_and_the_alerts_name_only_metrics_that_there_are() {
    let root = project_root();
    let lists = ["broker_metrics.txt", "controller_metrics.txt"];
    let lists = lists.map(|list| read(&root.join("tests/tests/scenarios").join(list)));
    let known: BTreeSet<&str> = lists.iter().flat_map(|list| metrics_named(list)).collect();
    let mut problems = Vec::new();
    for (file, least) in [("deploy/grafana/dashboards/zurau.json", 20), ("deploy/alerts.yml", 10)] {
        let text = read(&root.join(file));
        let named = metrics_named(&text);
        assert!(named.len() >= least, "{file} names only {named:?}");
        let unknown = named.difference(&known);
        problems.extend(unknown.map(|name| format!("{file} names {name}, which is not there")));
    }
    fail_on(&problems);
}

/// Every published failure is named where it is tested, as `HW-05` or in a test's name as `hw_05`. The list of cases is no
/// part of the project: it is looked for in `$ZURAU_SHARED` or `../shared` beside it.
#[test]
fn every_published_case_is_named_by_a_test() {
    let beside = || project_root().join("../shared");
    let shared = std::env::var_os("ZURAU_SHARED").map_or_else(beside, PathBuf::from);
    let Ok(cases) = fs::read_to_string(shared.join("cases/cases.md")) else {
        return skip("tidy: published cases", "there is no cases/cases.md (set ZURAU_SHARED)");
    };
    let ids: Vec<&str> = cases
        .lines()
        .filter_map(|line| line.strip_prefix("### ")?.split_whitespace().next())
        .filter(|id| id.split_once('-').is_some_and(|(_, number)| number.parse::<u32>().is_ok()))
        .collect();
    assert!(ids.len() > 100, "only {} cases were found", ids.len());
    let mut tests = String::new();
    for path in rust_files() {
        let text = read(&path);
        let a_cluster = path.iter().any(|part| part == "cluster_tests");
        let in_tests = is_unit_tests(&path) || a_cluster || path.starts_with(project_root().join("tests"));
        tests.push_str(if in_tests { &text } else { &text[without_tests(&text).len()..] });
    }
    for entry in fs::read_dir(project_root().join("controller/tests/scenarios")).expect("scenarios").flatten()
    {
        tests.push_str(&entry.file_name().to_string_lossy());
        tests.push_str(&read(&entry.path()));
    }
    let tests = tests.to_lowercase().replace('_', "-");
    let named = |id: &str| {
        tests
            .match_indices(&id.to_lowercase())
            .any(|(at, found)| !tests[at + found.len()..].starts_with(|next: char| next.is_ascii_digit()))
    };
    let missing: Vec<String> =
        ids.into_iter().filter(|id| !named(id)).map(|id| format!("no test names case {id}")).collect();
    fail_on(&missing);
}
