//! The verbs' look into ZooKeeper, for what Kafka's protocol does not tell. They only read.

use anyhow::{Context as _, Result};
use clap::Args;
use zurau_common::zk::session::{ZooKeeper, ZooKeeperConfig};

use crate::admin::Common;

/// Where ZooKeeper is.
#[derive(Args, Debug, Clone)]
pub(crate) struct Tree {
    /// ZooKeeper as in zookeeper.connect, HOST:PORT[,HOST:PORT…][/CHROOT]; without it, what only ZooKeeper knows is
    /// left out.
    #[arg(long, value_name = "HOST:PORT")]
    zookeeper: Option<String>,
}

impl Tree {
    /// A session, if ZooKeeper was named.
    ///
    /// # Errors
    /// It cannot be reached.
    pub(crate) async fn open(&self, common: &Common) -> Result<Option<ZooKeeper>> {
        let Some(connect) = self.zookeeper.clone() else { return Ok(None) };
        let timeout = common.timeout();
        let config = ZooKeeperConfig { connect, session_timeout: timeout, connection_timeout: timeout };
        Ok(Some(ZooKeeper::connect(config).await.context("--zookeeper")?))
    }
}
