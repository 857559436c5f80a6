//! The connect string of ZooKeeper, `host:port,host:port/chroot`, cut in two.

use super::InvalidZnode;

/// The library's pauses between attempts grow with the number of rounds through the list, beyond what a session
/// lasts. A list that names each host several times makes rounds long and pauses short (at most two seconds in the
/// first half minute).
const LIST_LENGTH: usize = 24;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConnectString {
    /// Comma separated, repeated up to [`LIST_LENGTH`].
    pub(crate) hosts: String,
    pub(crate) chroot: Option<String>,
}

impl ConnectString {
    pub(crate) fn parse(text: &str) -> Result<Self, InvalidZnode> {
        let invalid = |why: &str| InvalidZnode::new("the ZooKeeper connect string", why);
        let text = text.trim();
        let (hosts, chroot) = match text.find('/') {
            Some(slash) => (&text[..slash], &text[slash..]),
            None => (text, "/"),
        };
        let hosts: Vec<&str> = hosts.split(',').map(str::trim).collect();
        for host in &hosts {
            check_host(host).map_err(|why| invalid(&why))?;
        }
        let repeats = (LIST_LENGTH / hosts.len()).max(1);
        let list = hosts.iter().copied().cycle().take(hosts.len() * repeats).collect::<Vec<_>>().join(",");
        Ok(Self { hosts: list, chroot: check_chroot(chroot).map_err(|why| invalid(&why))? })
    }
}

fn check_host(host: &str) -> Result<(), String> {
    let (name, port) = match host.rfind(':') {
        // The last colon of a bare `[::1]` belongs to the address.
        Some(colon) if !host.ends_with(']') => (&host[..colon], Some(&host[colon + 1..])),
        _ => (host, None),
    };
    if name.is_empty() || name.contains(char::is_whitespace) {
        return Err(format!("{host:?} names no host; expected host:port,host:port/chroot"));
    }
    match port {
        Some(port) if !port.parse::<u16>().is_ok_and(|port| port > 0) => {
            Err(format!("{host:?} has no valid port; expected host:port,host:port/chroot"))
        }
        _ => Ok(()),
    }
}

fn check_chroot(chroot: &str) -> Result<Option<String>, String> {
    if chroot == "/" {
        return Ok(None);
    }
    for part in chroot.split('/').skip(1) {
        if part.is_empty() || part == "." || part == ".." || part.contains(|c: char| c.is_control()) {
            return Err(format!("{chroot:?} is not a znode path"));
        }
    }
    if chroot.starts_with("/zookeeper/") || chroot == "/zookeeper" {
        return Err(format!("{chroot:?} belongs to ZooKeeper itself"));
    }
    Ok(Some(chroot.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> (String, Option<String>) {
        let target = ConnectString::parse(text).unwrap();
        (target.hosts, target.chroot)
    }

    #[test]
    fn hosts_and_chroot_are_told_apart() {
        assert_eq!(parsed("a:1").1, None);
        assert_eq!(parsed("a:1/").1, None);
        assert_eq!(parsed("a:1, b:2/x/y").1.as_deref(), Some("/x/y"));
        assert!(parsed("a:1, b:2/x").0.starts_with("a:1,b:2,a:1,b:2"));
        assert_eq!(parsed("a:1,b:2").0.split(',').count(), 24);
        assert!(parsed("[::1]:2181,[::2]").0.starts_with("[::1]:2181,[::2],"));
    }

    #[test]
    fn nonsense_is_named() {
        for text in ["", "/x", "a:1,,b:2", "a:0", "a:x", "a:70000", "a:1//x", "a:1/x/", "a:1/../x", "a b:1"] {
            let error = ConnectString::parse(text).unwrap_err().to_string();
            assert!(error.contains("connect string"), "{text}: {error}");
        }
        assert!(ConnectString::parse("a:1/zookeeper/x").is_err());
    }
}
