//! `meta.properties`: the broker and cluster a log directory belongs to, in Java's properties format.
//!
//! Pure. Version 0 is that of clusters on ZooKeeper.

/// What the file says; old brokers left the cluster id out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MetaProperties {
    pub(crate) broker_id: Option<i32>,
    pub(crate) cluster_id: Option<String>,
}

impl MetaProperties {
    pub(crate) fn encode(&self) -> String {
        let mut text = String::from("#\nversion=0\n");
        if let Some(broker_id) = self.broker_id {
            text.push_str(&format!("broker.id={broker_id}\n"));
        }
        if let Some(cluster_id) = &self.cluster_id {
            text.push_str(&format!("cluster.id={cluster_id}\n"));
        }
        text
    }

    pub(crate) fn decode(text: &[u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(text).map_err(|_| "it is not text".to_owned())?;
        let mut version = None;
        let mut meta = Self { broker_id: None, cluster_id: None };
        for line in text.lines().map(str::trim_start) {
            if line.is_empty() || line.starts_with(['#', '!']) {
                continue;
            }
            let (key, value) = line.split_once(['=', ':']).unwrap_or((line, ""));
            let value = value.trim().replace('\\', "");
            match key.trim() {
                "version" => version = Some(value),
                "broker.id" => {
                    let id = value.parse::<i32>().ok().filter(|id| *id >= 0);
                    meta.broker_id =
                        Some(id.ok_or_else(|| format!("broker.id = {value:?} is not a broker id"))?);
                }
                "cluster.id" => meta.cluster_id = Some(value).filter(|value| !value.is_empty()),
                _ => {}
            }
        }
        match version.as_deref() {
            Some("0") => Ok(meta),
            Some("1") => Err("version 1 belongs to a KRaft cluster, which has no ZooKeeper".to_owned()),
            other => Err(format!("version {other:?} where 0 is expected")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_kafka_writes() {
        let text =
            "#\n#Wed Dec 14 22:03:01 TRT 2022\nbroker.id=0\nversion=0\ncluster.id=87nzSz6mTlCGccGSK7gjAg\n";
        let meta = MetaProperties::decode(text.as_bytes()).unwrap();
        assert_eq!(meta.broker_id, Some(0));
        assert_eq!(meta.cluster_id.as_deref(), Some("87nzSz6mTlCGccGSK7gjAg"));
        assert_eq!(MetaProperties::decode(meta.encode().as_bytes()), Ok(meta));
        for bad in ["", "version=1\nnode.id=1\n", "version=0\nbroker.id=x\n", "version=0\nbroker.id=-2\n"] {
            assert!(MetaProperties::decode(bad.as_bytes()).is_err(), "{bad:?}");
        }
    }
}
