//! Reads a process's configuration from its file, its environment and its command line.

use std::path::Path;

use super::broker::BrokerConfig;
use super::controller::ControllerConfig;
use super::settings::{ConfigError, ConfigProblem, Origin, Settings, Sources};

/// The largest file that is read: a server.properties has some kilobytes.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// All settings of this process. `overrides`: `key=value` each. The settings' warnings wait for the log to work.
///
/// # Errors
/// An unreadable file, and every wrong value at once. The process exits with code 2.
pub fn load_settings(file: Option<&Path>, overrides: &[String]) -> Result<Settings, ConfigError> {
    let text = file.map(|path| read_file(path).map(|text| (path.display().to_string(), text))).transpose()?;
    // A variable that is no UTF-8 is none of ours.
    let environment = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    Settings::read(&Sources {
        file: text.as_ref().map(|(name, text)| (name.as_str(), text.as_str())),
        environment,
        overrides: overrides.to_vec(),
    })
}

/// # Errors
/// As [`load_settings`], and what contradicts itself.
pub fn load_broker(file: Option<&Path>, overrides: &[String]) -> Result<BrokerConfig, ConfigError> {
    BrokerConfig::from_settings(load_settings(file, overrides)?)
}

/// # Errors
/// As [`load_settings`], and what contradicts itself.
pub fn load_controller(file: Option<&Path>, overrides: &[String]) -> Result<ControllerConfig, ConfigError> {
    ControllerConfig::from_settings(load_settings(file, overrides)?)
}

fn read_file(path: &Path) -> Result<String, ConfigError> {
    let unreadable = |reason: String| ConfigError {
        problems: vec![ConfigProblem {
            key: "--config".to_owned(),
            value: path.display().to_string(),
            origin: Origin::Override,
            allowed: format!("a readable properties file, but {reason}"),
        }],
    };
    let size = std::fs::metadata(path).map_err(|error| unreadable(error.to_string()))?.len();
    if FILE_BYTES_MAX < size {
        return Err(unreadable(format!("it has {size} bytes")));
    }
    let bytes = std::fs::read(path).map_err(|error| unreadable(error.to_string()))?;
    // Java reads these files as Latin-1. UTF-8 is what people write today; what is neither breaks no key.
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn a_file_and_overrides() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        writeln!(file, "# my broker\nbroker.id=3\nnum.partitions=4").unwrap();
        let config = load_broker(Some(file.path()), &["num.partitions=5".to_owned()]).unwrap();
        assert_eq!((config.broker_id.0, config.num_partitions), (3, 5));
        let controller = load_controller(Some(file.path()), &["controller.id=9".to_owned()]).unwrap();
        assert_eq!(controller.controller_id, 9);
        let name = file.path().display().to_string();
        writeln!(file, "num.partitions=x").unwrap();
        let error = load_settings(Some(file.path()), &[]).unwrap_err().to_string();
        assert!(error.starts_with(&format!("num.partitions=x ({name}, line 4)")), "{error}");
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = load_broker(Some(Path::new("/no/such/file")), &[]).unwrap_err().to_string();
        assert!(error.contains("/no/such/file") && error.contains("No such file"), "{error}");
    }
}
