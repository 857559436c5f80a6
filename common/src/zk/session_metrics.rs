//! What a process counts of its ZooKeeper sessions, one after the other: Kafka's SessionExpireListener and
//! ZooKeeperClientMetrics.

use std::time::Duration;

use tokio::sync::watch;

use super::session::SessionState;
use crate::http::exposition::{Exposition, Kind};
use crate::http::instruments::{Counter, Timer};

/// Of one process; see [`super::session::ZooKeeper::connect_counted`].
#[derive(Debug, Default)]
pub struct SessionMetrics {
    requests: Timer,
    disconnects: Counter,
    sync_connects: Counter,
    expires: Counter,
}

impl SessionMetrics {
    /// A request was answered, whatever the answer, or its answer was lost. Those that were never sent do not count.
    pub(super) fn answered(&self, took: Duration) {
        self.requests.record(took);
    }

    /// Counts what happens to a session until it is over. Keeps its state only, not the session.
    pub(super) async fn follow(&self, mut state: watch::Receiver<SessionState>) {
        let mut before = SessionState::Disconnected;
        loop {
            let now = *state.borrow_and_update();
            match (before, now) {
                (SessionState::Disconnected, SessionState::Connected) => self.sync_connects.add(1),
                (SessionState::Connected, SessionState::Disconnected) => self.disconnects.add(1),
                (SessionState::Connected, SessionState::Connected) => {
                    // A loss and return that went unseen.
                    self.disconnects.add(1);
                    self.sync_connects.add(1);
                }
                (_, SessionState::Ended) => {
                    self.expires.add(1);
                    return;
                }
                _ => {}
            }
            before = now;
            if state.changed().await.is_err() {
                return;
            }
        }
    }

    /// `state`: of the session of this moment, if there is one.
    pub fn write(&self, state: Option<SessionState>, page: &mut Exposition) {
        let help = "1 for the state of the session that this process uses.";
        let mut family = page.family("kafka_server_sessionexpirelistener_sessionstate", Kind::Gauge, help);
        for (name, is) in [
            ("CONNECTED", state == Some(SessionState::Connected)),
            ("CONNECTING", state == Some(SessionState::Disconnected)),
            ("CLOSED", matches!(state, None | Some(SessionState::Ended))),
        ] {
            family.sample(&[("state", name)], is);
        }
        for (name, help, counter) in [
            ("zookeeperdisconnects", "Losses of the connection.", &self.disconnects),
            ("zookeepersyncconnects", "Connections, the first included.", &self.sync_connects),
            ("zookeeperexpires", "Sessions that ZooKeeper ended.", &self.expires),
        ] {
            page.counter(&format!("kafka_server_sessionexpirelistener_{name}_total"), help, counter.get());
        }
        let help = "Requests to ZooKeeper, a multi as one, until their answer or its loss. Milliseconds; quantiles of the \
                    last one or two minutes.";
        let name = "kafka_server_zookeeperclientmetrics_zookeeperrequestlatencyms";
        self.requests.expose(&mut page.family(name, Kind::Summary, help), &[]);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn value(metrics: &SessionMetrics, state: Option<SessionState>, sample: &str) -> String {
        let mut page = Exposition::default();
        metrics.write(state, &mut page);
        let text = page.into_text();
        let found = text.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
        found.unwrap_or_else(|| panic!("no {sample} in {text}")).to_owned()
    }

    #[tokio::test]
    async fn changes_of_a_session_are_counted() {
        let metrics = Arc::new(SessionMetrics::default());
        let (sender, receiver) = watch::channel(SessionState::Connected);
        let counting = Arc::clone(&metrics);
        let following = tokio::spawn(async move { counting.follow(receiver).await });
        for (state, name, expected) in [
            (SessionState::Connected, "zookeepersyncconnects", "1"),
            (SessionState::Disconnected, "zookeeperdisconnects", "1"),
            (SessionState::Connected, "zookeepersyncconnects", "2"),
            (SessionState::Ended, "zookeeperexpires", "1"),
        ] {
            sender.send_if_modified(|now| std::mem::replace(now, state) != state);
            let sample = format!("kafka_server_sessionexpirelistener_{name}_total");
            while value(&metrics, None, &sample) != expected {
                tokio::task::yield_now().await;
            }
        }
        following.await.unwrap();
        assert_eq!(
            value(&metrics, None, "kafka_server_sessionexpirelistener_zookeeperdisconnects_total"),
            "1"
        );
        let closed = "kafka_server_sessionexpirelistener_sessionstate{state=\"CLOSED\"}";
        assert_eq!(value(&metrics, None, closed), "1");
        assert_eq!(value(&metrics, Some(SessionState::Connected), closed), "0");
    }
}
