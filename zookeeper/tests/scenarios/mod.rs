//! What a ZooKeeper server must do, said once for both servers.

pub(crate) mod multi;
pub(crate) mod nodes;
pub(crate) mod restart;
pub(crate) mod sessions;
pub(crate) mod watches;
pub(crate) mod wire;
