//! RequestMetrics: how many requests of each API and version, and where their time went.
//!
//! Kafka's RequestQueueTimeMs and RequestQueueSize have no counterpart: a request is started by the task that has read
//! it, so there is no queue before it.

use std::any::Any;
use std::collections::BTreeMap;
use std::time::Duration;

use kafka_protocol::messages::ApiKey;
use parking_lot::Mutex;
use zurau_common::http::exposition::{Exposition, Kind};
use zurau_common::http::instruments::{Counter, Sizes, Timer};
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
    request_bytes: Sizes,
    total: Timer,
    local: Timer,
    remote: Timer,
    /// Of answers that were there at once; of the others it is not known.
    response_queue: Timer,
    send: Timer,
    /// Only of the API that is throttled.
    throttle: Timer,
    successes: Counter,
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
            request_bytes: Sizes::default(),
            total: Timer::default(),
            local: Timer::default(),
            remote: Timer::default(),
            response_queue: Timer::default(),
            send: Timer::default(),
            throttle: Timer::default(),
            successes: Counter::default(),
            errors: Mutex::default(),
        });
        Self { apis: apis.collect(), unsupported: Counter::default() }
    }
}

impl ApiMetrics {
    fn count(&self, code: i16) {
        if code == 0 {
            self.successes.add(1);
        } else {
            *self.errors.lock().entry(code).or_default() += 1;
        }
    }
}

impl RequestMetrics {
    pub(crate) fn record(&self, answered: &Answered) {
        let counter = self.api(answered.api_key).and_then(|api| {
            let version = usize::try_from(answered.api_version.checked_sub(api.version_min)?).ok()?;
            Some((api, api.requests.get(version)?))
        });
        let Some((api, requests)) = counter else {
            self.unsupported.add(1);
            return;
        };
        requests.add(1);
        api.request_bytes.record(answered.request_bytes);
        let queued = answered.queued.unwrap_or_default();
        api.total.record(answered.started + answered.waited + queued + answered.sent);
        api.local.record(answered.started);
        api.remote.record(answered.waited);
        if let Some(queued) = answered.queued {
            api.response_queue.record(queued);
        }
        api.send.record(answered.sent);
    }

    /// Counts the error codes in an answer.
    pub(crate) fn record_errors(&self, api_key: i16, answer: &dyn Any) {
        let api = self.api(api_key);
        let known = errors::each_code(answer, |code| api.into_iter().for_each(|api| api.count(code)));
        debug_assert!(known, "the errors of API {api_key} are not counted");
    }

    pub(crate) fn record_error(&self, api_key: i16, code: i16) {
        if let Some(api) = self.api(api_key) {
            api.count(code);
        }
    }

    /// As [`RequestMetrics::record_error`] for so many codes of 0.
    pub(crate) fn record_successes(&self, api_key: i16, count: usize) {
        if let Some(api) = self.api(api_key) {
            api.successes.add(count as u64);
        }
    }

    /// For how long a request's answer was held back, 0 included. Called for the API that is ever held back, and for no
    /// other.
    pub(crate) fn record_throttle(&self, api_key: ApiKey, held_back: Duration) {
        if let Some(api) = self.api(api_key as i16) {
            api.throttle.record(held_back);
        }
    }

    fn api(&self, key: i16) -> Option<&ApiMetrics> {
        let index = self.apis.binary_search_by_key(&key, |api| api.key as i16).ok()?;
        self.apis.get(index)
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
        let help = "Codes in answers, by API, NONE for success; one answer may hold many.";
        let mut family = page.family("kafka_network_requestmetrics_errors_total", Kind::Counter, help);
        for api in asked() {
            if api.successes.get() != 0 {
                let labels = [("request", &*format!("{:?}", api.key)), ("error", "NONE")];
                family.sample(&labels, api.successes.get());
            }
            for (code, count) in &*api.errors.lock() {
                let labels = [("request", &*format!("{:?}", api.key)), ("error", &*errors::name(*code))];
                family.sample(&labels, *count);
            }
        }
        let help = "Bytes of requests, by API. Quantiles of the last one or two minutes.";
        let mut family = page.family("kafka_network_requestmetrics_requestbytes", Kind::Summary, help);
        for api in asked() {
            api.request_bytes.expose(&mut family, &[("request", &format!("{:?}", api.key))]);
        }
        type Part = fn(&ApiMetrics) -> &Timer;
        let parts: [(&str, &str, Part); 6] = [
            ("totaltimems", "From a request's last byte to its answer's last.", |api| &api.total),
            ("localtimems", "Until the request was started: decoded, and appended or read.", |api| {
                &api.local
            }),
            ("remotetimems", "Waiting for replicas or for data, and meanwhile for earlier answers.", |api| {
                &api.remote
            }),
            (
                "responsequeuetimems",
                "Waiting of answers that were there at once for earlier answers of their connection.",
                |api| &api.response_queue,
            ),
            (
                "throttletimems",
                "Held back because little space is left in a log directory; only produces ever are.",
                |api| &api.throttle,
            ),
            ("responsesendtimems", "Writing the answer to the socket.", |api| &api.send),
        ];
        for (part, help, timer) in parts {
            let name = format!("kafka_network_requestmetrics_{part}");
            let help = format!("{help} Milliseconds; quantiles of the last one or two minutes.");
            let mut family = page.family(&name, Kind::Summary, &help);
            for api in asked().filter(|api| timer(api).count() != 0) {
                timer(api).expose(&mut family, &[("request", &format!("{:?}", api.key))]);
            }
        }
        let help = "Requests of an API or a version that is not served.";
        page.counter("zurau_unsupported_requests_total", help, self.unsupported.get());
    }
}

#[cfg(test)]
mod tests {
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
            queued: (api_key == 18).then_some(Duration::from_millis(4)),
            sent: Duration::from_millis(3),
        };
        for (key, version) in [(0, 9), (0, 9), (0, 3), (18, 4), (0, 99), (999, 0), (-1, -1), (0, i16::MIN)] {
            metrics.record(&answered(key, version));
        }
        let partitions = [0, 6, 6].map(|code| PartitionProduceResponse::default().with_error_code(code));
        let topic = TopicProduceResponse::default().with_partition_responses(partitions.to_vec());
        metrics.record_errors(0, &ProduceResponse::default().with_responses(vec![topic]));
        metrics.record_throttle(ApiKey::Produce, Duration::from_millis(250));
        metrics.record_throttle(ApiKey::Produce, Duration::ZERO);
        let mut page = Exposition::default();
        metrics.write(&mut page);
        let text = page.into_text();
        for line in [
            "kafka_network_requestmetrics_requests_total{request=\"Produce\",version=\"9\"} 2",
            "kafka_network_requestmetrics_requests_total{request=\"Produce\",version=\"3\"} 1",
            "kafka_network_requestmetrics_requests_total{request=\"ApiVersions\",version=\"4\"} 1",
            "kafka_network_requestmetrics_errors_total{request=\"Produce\",error=\"NOT_LEADER_OR_FOLLOWER\"} 2",
            "kafka_network_requestmetrics_errors_total{request=\"Produce\",error=\"NONE\"} 1",
            "kafka_network_requestmetrics_requestbytes_sum{request=\"Produce\"} 30",
            "kafka_network_requestmetrics_requestbytes{request=\"Produce\",quantile=\"0.99\"} 10",
            "kafka_network_requestmetrics_totaltimems_sum{request=\"ApiVersions\"} 10",
            "kafka_network_requestmetrics_responsequeuetimems_sum{request=\"ApiVersions\"} 4",
            "kafka_network_requestmetrics_throttletimems_sum{request=\"Produce\"} 250",
            "kafka_network_requestmetrics_throttletimems_count{request=\"Produce\"} 2",
            "kafka_network_requestmetrics_totaltimems_sum{request=\"Produce\"} 18",
            "kafka_network_requestmetrics_remotetimems_count{request=\"Produce\"} 3",
            "zurau_unsupported_requests_total 4",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in {text}");
        }
        for absent in [
            "request=\"Fetch\"",
            "responsequeuetimems_sum{request=\"Produce\"",
            "throttletimems_sum{request=\"ApiVersions\"",
        ] {
            assert!(!text.contains(absent), "{absent} in {text}");
        }
    }
}
