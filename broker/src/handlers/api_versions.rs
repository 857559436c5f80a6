//! ApiVersions (18), versions 0-4: which APIs and versions this broker serves. The first request of most clients.
//!
//! - The response header has no tagged fields in any version (KIP-511).
//! - v0 has no throttle time; v3 adds the client's software name and version, which must be plain words.
//! - From v3 on, features of the whole cluster (KIP-584): which levels of `transaction.version` this broker knows, and
//!   which is in force. A feature that may be off (level 0) is supported from v4 on only: clients of v3 cannot take that.
//! - A version above 4 is answered in the body of v0 with error 35 and the ranges, so that the client can step down.

use kafka_protocol::messages::api_versions_response::{ApiVersion, FinalizedFeatureKey, SupportedFeatureKey};
use kafka_protocol::messages::{ApiVersionsRequest, ApiVersionsResponse};
use kafka_protocol::protocol::StrBytes;
use zurau_common::rejection::Rejection;

use super::{APIS, Call, Starting};
use crate::features::{Finalized, TRANSACTION_VERSION, TRANSACTION_VERSION_MAX};

pub(super) fn start(call: Call) -> Starting {
    call.now(|call, request: ApiVersionsRequest| {
        let offers_consumer_protocol = call.context.groups.offers_consumer_protocol;
        answer(&request, call.version(), offers_consumer_protocol, call.context.features.finalized())
    })
}

fn answer(
    request: &ApiVersionsRequest,
    version: i16,
    offers_consumer_protocol: bool,
    finalized: Finalized,
) -> ApiVersionsResponse {
    let named = is_word(&request.client_software_name) && is_word(&request.client_software_version);
    if 3 <= version && !named {
        return ApiVersionsResponse::default().with_error_code(Rejection::InvalidRequest.code());
    }
    let response = ApiVersionsResponse::default().with_api_keys(ranges(offers_consumer_protocol));
    if version < 3 {
        return response;
    }
    let name = || StrBytes::from_static_str(TRANSACTION_VERSION);
    let supported =
        SupportedFeatureKey::default().with_name(name()).with_max_version(TRANSACTION_VERSION_MAX);
    let level = finalized.transaction_version;
    let in_force = FinalizedFeatureKey::default()
        .with_name(name())
        .with_max_version_level(level)
        .with_min_version_level(level);
    response
        .with_supported_features(if 4 <= version { vec![supported] } else { Vec::new() })
        .with_finalized_features_epoch(finalized.epoch)
        .with_finalized_features(if level == 0 { Vec::new() } else { vec![in_force] })
}

/// The answer to a version that is not served, to be written in the format of v0.
pub(super) fn step_down(offers_consumer_protocol: bool) -> ApiVersionsResponse {
    ApiVersionsResponse::default()
        .with_error_code(Rejection::UnsupportedVersion.code())
        .with_api_keys(ranges(offers_consumer_protocol))
}

fn ranges(offers_consumer_protocol: bool) -> Vec<ApiVersion> {
    let offered = APIS.iter().filter(|api| api.is_offered(offers_consumer_protocol));
    let ranges = offered.map(|api| {
        ApiVersion::default()
            .with_api_key(api.key as i16)
            .with_min_version(api.version_min)
            .with_max_version(api.version_max)
    });
    ranges.collect()
}

/// KIP-511: letters and digits, with dots and dashes inside.
fn is_word(text: &str) -> bool {
    let end = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    end(text.chars().next())
        && end(text.chars().last())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handlers::tests::assert_every_version_encodes;

    fn named(name: &'static str) -> ApiVersionsRequest {
        ApiVersionsRequest::default()
            .with_client_software_name(name.into())
            .with_client_software_version("1.2.3-rc1".into())
    }

    #[test]
    fn every_served_api_is_listed_in_every_version() {
        assert_every_version_encodes::<ApiVersionsRequest>(|version| {
            answer(&named("client"), version, true, Finalized::default())
        });
        let listed = answer(&ApiVersionsRequest::default(), 0, true, Finalized::default()).api_keys;
        assert_eq!(listed.len(), APIS.len());
        assert_eq!(listed, step_down(true).api_keys);
    }

    #[test]
    fn the_consumer_protocol_is_listed_only_where_it_is_offered() {
        let keys = |offers| -> Vec<i16> {
            let listed = answer(&ApiVersionsRequest::default(), 0, offers, Finalized::default()).api_keys;
            listed.iter().map(|api| api.api_key).filter(|key| (68..=69).contains(key)).collect()
        };
        assert_eq!((keys(true), keys(false)), (vec![68, 69], vec![]));
    }

    #[test]
    fn the_level_of_transactions_is_told_to_who_can_take_it() {
        let told = |version, transaction_version| {
            let finalized = Finalized { epoch: 7, transaction_version };
            let answer = answer(&named("client"), version, true, finalized);
            let supported: Vec<_> =
                answer.supported_features.iter().map(|one| (one.min_version, one.max_version)).collect();
            let levels: Vec<_> = answer.finalized_features.iter().map(|one| one.max_version_level).collect();
            (supported, answer.finalized_features_epoch, levels)
        };
        assert_eq!(told(4, 2), (vec![(0, 2)], 7, vec![2]));
        assert_eq!(told(4, 0), (vec![(0, 2)], 7, vec![]), "off");
        assert_eq!(told(3, 2), (vec![], 7, vec![2]));
        assert_eq!(told(2, 2), (vec![], -1, vec![]));
    }

    #[test]
    fn client_names_are_plain_words() {
        for (name, code) in [("librdkafka", 0), ("a.b-c", 0), ("", 42), ("-a", 42), ("a b", 42), ("ä", 42)] {
            assert_eq!(answer(&named(name), 3, true, Finalized::default()).error_code, code, "{name}");
        }
        assert_eq!(answer(&named(""), 2, true, Finalized::default()).error_code, 0);
    }
}
