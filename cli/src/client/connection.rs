//! One connection to one broker, and which versions it speaks.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Result, bail};
use kafka_protocol::messages::{ApiKey, ApiVersionsRequest};
use kafka_protocol::protocol::{Request, StrBytes};
use zurau_common::wire::peer::Peer;

use super::refusal::Refused;

const CLIENT_ID: &str = "zurau-cli";
/// The first version whose answer lists everything, and that names the client.
const API_VERSIONS_VERSION: i16 = 3;

/// A connection whose broker has said what it serves.
pub(crate) struct Connection {
    peer: Peer,
    /// Smallest and largest version by API key.
    versions: HashMap<i16, (i16, i16)>,
}

impl Connection {
    /// `timeout` bounds connecting and each call.
    pub(super) async fn open(address: &str, timeout: Duration) -> Result<Self> {
        let peer = Peer::connect(address, CLIENT_ID, timeout).await?;
        let request = ApiVersionsRequest::default()
            .with_client_software_name(StrBytes::from_static_str("zurau"))
            .with_client_software_version(StrBytes::from_static_str(env!("CARGO_PKG_VERSION")));
        let answer = peer.call(API_VERSIONS_VERSION, &request).await?;
        Refused::check(answer.error_code, None, || format!("ApiVersions at {address}"))?;
        let versions = answer.api_keys.iter().map(|api| (api.api_key, (api.min_version, api.max_version)));
        Ok(Self { peer, versions: versions.collect() })
    }

    pub(super) fn is_closed(&self) -> bool {
        self.peer.is_closed()
    }

    /// Calls in the newest version that both sides speak; `newest` is the newest that the caller has filled.
    ///
    /// # Errors
    /// The broker does not serve it, or does not answer.
    pub(crate) async fn call<R: Request>(&self, newest: i16, request: &R) -> Result<R::Response> {
        Ok(self.peer.call(self.version::<R>(newest)?, request).await?)
    }

    /// As [`Connection::call`], for a request that the broker may hold back for longer than usual.
    ///
    /// # Errors
    /// See [`Connection::call`].
    pub(crate) async fn call_within<R: Request>(
        &self,
        timeout: Duration,
        newest: i16,
        request: &R,
    ) -> Result<R::Response> {
        Ok(self.peer.call_within(timeout, self.version::<R>(newest)?, request).await?)
    }

    /// Sends a request that is not answered.
    ///
    /// # Errors
    /// The broker does not serve it, or the connection is closed.
    pub(crate) fn tell<R: Request>(&self, newest: i16, request: &R) -> Result<()> {
        Ok(self.peer.tell(self.version::<R>(newest)?, request)?)
    }

    /// Whether the broker lists the API at all.
    pub(crate) fn serves(&self, api: ApiKey) -> bool {
        self.versions.contains_key(&(api as i16))
    }

    fn version<R: Request>(&self, newest: i16) -> Result<i16> {
        let name = ApiKey::try_from(R::KEY).map_or_else(|_| R::KEY.to_string(), |key| format!("{key:?}"));
        match self.versions.get(&R::KEY) {
            Some((min, max)) if *min <= newest => Ok(newest.min(*max)),
            Some((min, max)) => {
                bail!(
                    "{} serves {name} in versions {min} to {max} only; this program knows {newest}",
                    self.peer.address()
                )
            }
            None => bail!("{} does not serve {name}", self.peer.address()),
        }
    }
}
