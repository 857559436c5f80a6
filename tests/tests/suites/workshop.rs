//! Where suites are unpacked, built and kept, and how they are run.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use zurau_tests::clients::python;
use zurau_tests::process::Process;
use zurau_tests::programs::project_root;

/// `target/suites/NAME`, made if it is not there.
pub(crate) fn workshop(name: &str) -> Result<PathBuf> {
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| project_root().join("target"), PathBuf::from);
    let path = target.join("suites").join(name);
    fs::create_dir_all(&path).with_context(|| format!("creating {}", path.display()))?;
    Ok(path)
}

/// Runs a command to its end within `limit`, its output in `log`; returns the output, whatever the command's status.
pub(crate) fn run(command: &mut Command, log: &Path, limit: Duration) -> Result<String> {
    if log.exists() {
        fs::remove_file(log)?;
    }
    let name = format!("{:?}", command.get_program());
    let mut process = Process::spawn(name, command, log)?;
    process.wait(limit).with_context(|| format!("see {}", log.display()))?;
    Ok(process.log_text())
}

/// Like [`run`], for a step without which nothing else makes sense.
pub(crate) fn must(command: &mut Command, log: &Path) -> Result<()> {
    let output = File::create(log).context("creating a log")?;
    let errors = output.try_clone()?;
    let status = command.stdin(Stdio::null()).stdout(output).stderr(errors).status();
    let status = status.with_context(|| format!("running {:?}", command.get_program()))?;
    ensure!(status.success(), "{command:?} ended with {status}; see {}", log.display());
    Ok(())
}

/// Why a suite cannot run that needs a program of a Debian package.
pub(crate) fn program_missing(program: &str, package: &str) -> Option<String> {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&paths).any(|path| path.join(program).exists());
    (!found).then(|| format!("there is no {program}; install Debian's package {package}"))
}

/// Why a suite cannot run that needs a file of a Debian package.
pub(crate) fn file_missing(path: &str, package: &str) -> Option<String> {
    (!Path::new(path).exists()).then(|| format!("{path} is absent; install Debian's package {package}"))
}

/// Packages of the Python registry for one suite, beside those that all scripts share: what PYTHONPATH has to name.
pub(crate) fn python_packages(suite: &str, wanted: &[&str]) -> Result<PathBuf> {
    let shop = workshop("python")?;
    let (packages, stamp) = (shop.join(suite), shop.join(format!("{suite}.installed")));
    if fs::read_to_string(&stamp).ok().as_deref() != Some(&*wanted.join("\n")) {
        let mut install = Command::new(python());
        install.args(["-m", "pip", "install", "-q", "--disable-pip-version-check", "--upgrade"]);
        // Most of it is never imported.
        install.args(["--no-compile", "--target"]);
        must(install.arg(&packages).args(wanted), &shop.join(format!("{suite}.log")))?;
        fs::write(&stamp, wanted.join("\n"))?;
    }
    Ok(packages)
}

/// The source of a published crate, unpacked by cargo and copied to where it may be changed and built.
pub(crate) fn crate_source(name: &str, version: &str) -> Result<PathBuf> {
    let copy = workshop("crates")?.join(format!("{name}-{version}"));
    if copy.exists() {
        return Ok(copy);
    }
    let fetch = workshop("fetch")?;
    let manifest = format!(
        "[package]\nname = \"fetch\"\nversion = \"0.0.0\"\nedition = \"2021\"\n[lib]\npath = \"lib.rs\"\n\
         [dependencies]\n{name} = \"={version}\"\n[workspace]\n"
    );
    fs::write(fetch.join("Cargo.toml"), manifest)?;
    fs::write(fetch.join("lib.rs"), "")?;
    let lock = fetch.join("Cargo.lock");
    if lock.exists() {
        fs::remove_file(lock)?;
    }
    must(cargo().arg("fetch").current_dir(&fetch), &fetch.join("fetch.log"))?;
    let source = unpacked(name, version)?;
    must(Command::new("cp").arg("-r").args([&source, &copy]), &fetch.join("copy.log"))?;
    // It lies below our workspace and is no part of it.
    let manifest = copy.join("Cargo.toml");
    let text = fs::read_to_string(&manifest)?;
    fs::write(&manifest, format!("{text}\n[workspace]\n"))?;
    Ok(copy)
}

/// Cargo of this machine, without the settings of the run that this test belongs to.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new("cargo");
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG") || text.starts_with("CARGO_MANIFEST") || text.starts_with("NEXTEST")
        {
            command.env_remove(&name);
        }
    }
    command.env_remove("CARGO_TARGET_DIR").env_remove("RUSTFLAGS");
    // Nobody debugs them, and they are built quicker.
    command.env("CARGO_PROFILE_DEV_DEBUG", "0");
    command
}

fn unpacked(name: &str, version: &str) -> Result<PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cargo")));
    let registries = home.context("neither CARGO_HOME nor HOME is set")?.join("registry/src");
    for registry in fs::read_dir(&registries).with_context(|| format!("listing {}", registries.display()))? {
        for entry in fs::read_dir(registry?.path())? {
            let path = entry?.path();
            let folder = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            // The version may be followed by that of what the crate wraps.
            let wanted = format!("{name}-{version}");
            if folder == wanted || folder.starts_with(&format!("{wanted}+")) {
                return Ok(path);
            }
        }
    }
    anyhow::bail!("cargo did not unpack {name} {version} below {}", registries.display())
}
