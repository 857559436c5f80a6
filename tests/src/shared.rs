//! The recorded material that lies beside the project, in `../shared` or where `ZURAU_SHARED` says.

use std::path::PathBuf;

use crate::directory::skip;
use crate::programs::project_root;

/// The path of a shared file, or `None` after saying loudly that it is absent.
pub fn shared_file(test: &str, name: &str) -> Option<PathBuf> {
    let folder =
        std::env::var_os("ZURAU_SHARED").map_or_else(|| project_root().join("../shared"), PathBuf::from);
    let path = folder.join(name);
    if path.exists() {
        return Some(path);
    }
    skip(test, &format!("{} is absent; set ZURAU_SHARED to the folder that has {name}", path.display()));
    None
}
