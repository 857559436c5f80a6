//! RequestMetrics: how many requests of each API and version, and where their time went.

use std::any::Any;
use std::collections::BTreeMap;

use kafka_protocol::messages::ApiKey;
use parking_lot::Mutex;
use zurau_common::http::exposition::{Exposition, Kind};
use zurau_common::http::instruments::{Counter, Timer};
use zurau_common::wire::server::Answered;

use super::errors;
use crate::handlers::APIS;

/// One API.
#[derive(Debug)]
struct ApiMetrics {
    key: ApiKey,
    version_min: i16,
    /// By version, from `version_min` on.
    requests: Vec<Counter>,
    request_bytes: Counter,
    total: Timer,
    local: Timer,
    remote: Timer,
    send: Timer,
    /// By code; without success.
    errors: Mutex<BTreeMap<i16, u64>>,
}

/// All served APIs.
#[derive(Debug)]
pub(crate) struct RequestMetrics {
    /// In the order of the table of APIs.
    apis: Vec<ApiMetrics>,
    /// Requests of APIs or versions that are not served.
    unsupported: Counter,
}

impl Default for RequestMetrics {
    fn default() -> Self {
        let apis = APIS.iter().map(|api| ApiMetrics {
            key: api.key,
            version_min: api.version_min,
            requests: (api.version_min..=api.version_max).map(|_| Counter::default()).collect(),
            request_bytes: Counter::default(),
            total: Timer::default(),
            local: Timer::default(),
            remote: Timer::default(),
            send: Timer::default(),
            errors: Mutex::default(),
        });
        Self { apis: apis.collect(), unsupported: Counter::default() }
    }
}

impl RequestMetrics {
    pub(crate) fn record(&self, answered: &Answered) {
        let found = self.apis.binary_search_by_key(&answered.api_key, |api| api.key as i16).ok();
        let api = found.and_then(|index| self.apis.get(index));
        let counter = api.and_then(|api| {
            let version = usize::try_from(answered.api_version.checked_sub(api.version_min)?).ok()?;
            Some((api, api.requests.get(version)?))
        });
        let Some((api, requests)) = counter else {
            self.unsupported.add(1);
            return;
        };
        requests.add(1);
        api.request_bytes.add(answered.request_bytes as u64);
        api.total.record(answered.started + answered.waited + answered.sent);
        api.local.record(answered.started);
        api.remote.record(answered.waited);
        api.send.record(answered.sent);
    }

    /// Counts the error codes in an answer.
    pub(crate) fn record_errors(&self, api_key: i16, answer: &dyn Any) {
        let known = errors::each_code(answer, |code| self.record_error(api_key, code));
        debug_assert!(known, "the errors of API {api_key} are not counted");
    }

    pub(crate) fn record_error(&self, api_key: i16, code: i16) {
        if code == 0 {
            return;
        }
        if let Ok(index) = self.apis.binary_search_by_key(&api_key, |api| api.key as i16) {
            *self.apis[index].errors.lock().entry(code).or_default() += 1;
        }
    }

    /// Requests of an API, of all versions.
    #[cfg(test)]
    pub(crate) fn count(&self, key: ApiKey) -> u64 {
        let found = self.apis.iter().find(|api| api.key == key);
        found.map_or(0, |api| api.requests.iter().map(Counter::get).sum())
    }

    /// APIs that were never asked have no series.
    pub(super) fn write(&self, page: &mut Exposition) {
        let asked = || self.apis.iter().filter(|api| api.total.count() != 0);
        let help = "Requests that were answered, by API and version.";
        let mut family = page.family("kafka_network_requestmetrics_requests_total", Kind::Counter, help);
        for api in asked() {
            let name = format!("{:?}", api.key);
            for (version, requests) in
                (api.version_min..).zip(&api.requests).filter(|(_, one)| one.get() != 0)
            {
                family.sample(&[("request", &name), ("version", &version.to_string())], requests.get());
            }
        }
        let help = "Error codes in answers, by API; one answer may hold many.";
        let mut family = page.family("kafka_network_requestmetrics_errors_total", Kind::Counter, help);
        for api in asked() {
            for (code, count) in &*api.errors.lock() {
                let labels = [("request", &*format!("{:?}", api.key)), ("error", &*errors::name(*code))];
                family.sample(&labels, *count);
            }
        }
        let help = "Bytes of requests, by API.";
        let mut family = page.family("kafka_network_requestmetrics_requestbytes_total", Kind::Counter, help);
        for api in asked() {
            family.sample(&[("request", &format!("{:?}", api.key))], api.request_bytes.get());
        }
        type Part = fn(&ApiMetrics) -> &Timer;
        let parts: [(&str, &str, Part); 4] = [
            ("totaltimems", "From a request's last byte to its answer's last.", |api| &api.total),
            ("localtimems", "Until the request was started: decoded, and appended or read.", |api| {
                &api.local
            }),
            ("remotetimems", "Waiting for replicas, for data, or for earlier answers.", |api| &api.remote),
            ("responsesendtimems", "Writing the answer to the socket.", |api| &api.send),
        ];
        for (part, help, timer) in parts {
            let name = format!("kafka_network_requestmetrics_{part}");
            let help = format!("{help} Milliseconds; quantiles of the last one or two minutes.");
            let mut family = page.family(&name, Kind::Summary, &help);
            for api in asked() {
                timer(api).expose(&mut family, &[("request", &format!("{:?}", api.key))]);
            }
        }
        let help = "Requests of an API or a version that is not served.";
        page.counter("zurau_unsupported_requests_total", help, self.unsupported.get());
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use kafka_protocol::messages::ProduceResponse;
    use kafka_protocol::messages::produce_response::{PartitionProduceResponse, TopicProduceResponse};

    use super::*;

    #[test]
    fn requests_are_counted_where_they_belong() {
        let metrics = RequestMetrics::default();
        let answered = |api_key, api_version| Answered {
            api_key,
            api_version,
            request_bytes: 10,
            started: Duration::from_millis(1),
            waited: Duration::from_millis(2),
            sent: Duration::from_millis(3),
        };
        for (key, version) in [(0, 9), (0, 9), (0, 3), (18, 4), (0, 99), (999, 0), (-1, -1), (0, i16::MIN)] {
            metrics.record(&answered(key, version));
        }
        let partitions = [0, 6, 6].map(|code| PartitionProduceResponse::default().with_error_code(code));
        let topic = TopicProduceResponse::default().with_partition_responses(partitions.to_vec());
        metrics.record_errors(0, &ProduceResponse::default().with_responses(vec![topic]));
        let mut page = Exposition::default();
        metrics.write(&mut page);
        let text = page.into_text();
        for line in [
            "kafka_network_requestmetrics_requests_total{request=\"Produce\",version=\"9\"} 2",
            "kafka_network_requestmetrics_requests_total{request=\"Produce\",version=\"3\"} 1",
            "kafka_network_requestmetrics_requests_total{request=\"ApiVersions\",version=\"4\"} 1",
            "kafka_network_requestmetrics_errors_total{request=\"Produce\",error=\"NOT_LEADER_OR_FOLLOWER\"} 2",
            "kafka_network_requestmetrics_requestbytes_total{request=\"Produce\"} 30",
            "kafka_network_requestmetrics_totaltimems_sum{request=\"Produce\"} 18",
            "kafka_network_requestmetrics_remotetimems_count{request=\"Produce\"} 3",
            "zurau_unsupported_requests_total 4",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in {text}");
        }
        assert!(!text.contains("request=\"Fetch\""), "{text}");
    }
}
