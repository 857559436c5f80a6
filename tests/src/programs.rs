//! Where the binaries under test are: in the target directory that this test itself was built into.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, Result, bail};

const BINARIES: [(&str, &str); 4] = [
    ("zurau-broker", "zurau-broker"),
    ("zurau-controller", "zurau-controller"),
    ("zurau-zookeeper", "zurau-zookeeper"),
    ("zurau", "zurau"),
];

/// Path of a binary of the workspace, in the same profile as the running test. The binaries are brought up to date
/// once per process, unless `ZURAU_BINARIES_ARE_BUILT` is set (as `tests/run` does) or this is a release build (the
/// benchmark; its command line builds them).
///
/// # Errors
/// The build failed or the binary is not there.
pub fn binary(name: &str) -> Result<PathBuf> {
    static BUILT: OnceLock<Result<(), String>> = OnceLock::new();
    let directory = directory()?;
    let is_release = directory.ends_with("release");
    if std::env::var_os("ZURAU_BINARIES_ARE_BUILT").is_none() && !is_release {
        let built = BUILT.get_or_init(|| build(&directory).map_err(|error| format!("{error:?}")));
        if let Err(why) = built {
            bail!("the binaries under test could not be built: {why}");
        }
    }
    let path = directory.join(name);
    if !path.exists() {
        bail!("{} is not there; run `cargo build --workspace` first", path.display());
    }
    Ok(path)
}

/// `target/debug` or `target/release`.
fn directory() -> Result<PathBuf> {
    let own = std::env::current_exe().context("finding the running program")?;
    let parent = own.parent().context("the running program has a directory")?;
    let directory = if parent.ends_with("deps") { parent.parent() } else { Some(parent) };
    Ok(directory.context("deps has a parent")?.to_owned())
}

fn build(directory: &Path) -> Result<()> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.arg("build").arg("--quiet").current_dir(project_root());
    for (package, binary) in BINARIES {
        command.args(["-p", package, "--bin", binary]);
    }
    if let Some(target) = directory.parent() {
        command.arg("--target-dir").arg(target);
    }
    let status = command.status().context("running cargo")?;
    if !status.success() {
        bail!("cargo build ended with {status}");
    }
    Ok(())
}

/// The root of the repository.
pub fn project_root() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().unwrap_or(own).to_owned()
}
