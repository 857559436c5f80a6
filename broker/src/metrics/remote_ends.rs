//! The ends of partitions that have no replica here and that groups coordinated here read: asked of their leaders in
//! the background, and only while somebody looks at `/metrics`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use futures::future::join_all;
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::{ListOffsetsRequest, ListOffsetsResponse};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::sleep;
use tracing::debug;
use zurau_common::id::{BrokerId, TopicPartition};
use zurau_common::wire::control::to_wire_topic;
use zurau_common::wire::peer::Peer;

use crate::context::BrokerContext;

/// Partitions that are asked about; the lags of more are left out.
const PARTITIONS_MAX: usize = 50_000;
/// Partitions in one request.
const ASKED_AT_ONCE: usize = 1_000;
/// Pause between two rounds of questions.
const PAUSE: Duration = Duration::from_secs(10);
/// Questions end when nobody has looked for so long, and what was answered before that is not told any more.
const INTEREST: Duration = Duration::from_secs(60);
/// What is older is not told: its leader does not answer.
const AGE_MAX: Duration = Duration::from_secs(30);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
const VERSION: i16 = 7;
/// In a request: by a client, the high watermark, in whatever leader epoch.
const CLIENT: i32 = -1;
const LATEST: i64 = -1;

/// Of one broker.
#[derive(Debug, Default)]
pub(super) struct RemoteEnds {
    state: Mutex<State>,
    wanted: Notify,
}

#[derive(Debug, Default)]
struct State {
    wanted: BTreeSet<TopicPartition>,
    /// When somebody last looked.
    looked: Option<Instant>,
    known: HashMap<TopicPartition, (i64, Instant)>,
}

impl RemoteEnds {
    /// The high watermark as its leader lately told it.
    pub(super) fn get(&self, id: &TopicPartition) -> Option<i64> {
        let state = self.state.lock();
        state.known.get(id).filter(|(_, told)| told.elapsed() < AGE_MAX).map(|(end, _)| *end)
    }

    /// Somebody looks, and would see the lags in these partitions.
    pub(super) fn want(&self, mut partitions: BTreeSet<TopicPartition>) {
        while PARTITIONS_MAX < partitions.len() {
            partitions.pop_last();
        }
        let is_wanted = !partitions.is_empty();
        let mut state = self.state.lock();
        state.known.retain(|id, _| partitions.contains(id));
        state.wanted = partitions;
        state.looked = Some(Instant::now());
        drop(state);
        if is_wanted {
            self.wanted.notify_one();
        }
    }

    fn to_ask(&self) -> BTreeSet<TopicPartition> {
        let mut state = self.state.lock();
        if state.looked.is_none_or(|looked| INTEREST <= looked.elapsed()) {
            *state = State::default();
        }
        state.wanted.clone()
    }

    fn note(&self, answer: &ListOffsetsResponse) {
        let now = Instant::now();
        let mut state = self.state.lock();
        for topic in &answer.topics {
            for partition in topic.partitions.iter().filter(|one| one.error_code == 0 && 0 <= one.offset) {
                let id = TopicPartition::new(topic.name.0.as_str(), partition.partition_index);
                if state.wanted.contains(&id) {
                    state.known.insert(id, (partition.offset, now));
                }
            }
        }
    }
}

type Peers = HashMap<BrokerId, Peer>;

/// Asks as long as somebody looks. Never ends.
pub(crate) async fn run(context: &BrokerContext) {
    let ends = &context.shared.metrics.remote_ends;
    let mut peers = Peers::new();
    loop {
        let wanted = ends.to_ask();
        if wanted.is_empty() {
            peers.clear();
            ends.wanted.notified().await;
        } else {
            ask_leaders(context, &mut peers, wanted).await;
            sleep(PAUSE).await;
        }
    }
}

async fn ask_leaders(context: &BrokerContext, peers: &mut Peers, wanted: BTreeSet<TopicPartition>) {
    let image = context.metadata.image();
    let mut by_leader: BTreeMap<BrokerId, Vec<TopicPartition>> = BTreeMap::new();
    for id in wanted {
        let leader = image.partition(&id.topic, id.partition).and_then(|known| known.leader);
        if let Some(leader) = leader.filter(|leader| *leader != context.shared.own) {
            by_leader.entry(leader).or_default().push(id);
        }
    }
    let mut before = std::mem::take(peers);
    let asking = by_leader.into_iter().map(|(leader, partitions)| {
        let peer = before.remove(&leader).filter(|peer| !peer.is_closed());
        async move { (leader, ask(context, leader, peer, &partitions).await) }
    });
    for (leader, outcome) in join_all(asking).await {
        match outcome {
            Ok(peer) => {
                peers.insert(leader, peer);
            }
            Err(reason) => debug!(broker = %leader, "the ends of its partitions are not known: {reason:#}"),
        }
    }
}

/// Gives the connection back.
async fn ask(
    context: &BrokerContext,
    leader: BrokerId,
    peer: Option<Peer>,
    partitions: &[TopicPartition],
) -> anyhow::Result<Peer> {
    let peer = match peer {
        Some(peer) => peer,
        None => {
            let client = format!("zurau-metrics-{}", context.shared.own);
            context.connect(leader, &client, CONNECT_TIMEOUT).await?
        }
    };
    for part in partitions.chunks(ASKED_AT_ONCE) {
        let answer = peer.call_within(CALL_TIMEOUT, VERSION, &request(part)).await?;
        context.shared.metrics.remote_ends.note(&answer);
    }
    Ok(peer)
}

/// `partitions`: those of a topic stand together.
fn request(partitions: &[TopicPartition]) -> ListOffsetsRequest {
    let topics = partitions.chunk_by(|one, next| one.topic == next.topic).map(|of_topic| {
        let partition = |id: &TopicPartition| {
            ListOffsetsPartition::default().with_partition_index(id.partition).with_timestamp(LATEST)
        };
        ListOffsetsTopic::default()
            .with_name(to_wire_topic(&of_topic[0].topic))
            .with_partitions(of_topic.iter().map(partition).collect())
    });
    ListOffsetsRequest::default().with_replica_id(CLIENT.into()).with_topics(topics.collect())
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::list_offsets_response::{
        ListOffsetsPartitionResponse, ListOffsetsTopicResponse,
    };

    use super::*;

    fn answer(partition: i32, error_code: i16, offset: i64) -> ListOffsetsResponse {
        let partition = ListOffsetsPartitionResponse::default()
            .with_partition_index(partition)
            .with_error_code(error_code)
            .with_offset(offset);
        let topic = ListOffsetsTopicResponse::default()
            .with_name(to_wire_topic("t"))
            .with_partitions(vec![partition]);
        ListOffsetsResponse::default().with_topics(vec![topic])
    }

    #[test]
    fn only_what_a_leader_said_and_somebody_wants_is_known() {
        let ends = RemoteEnds::default();
        assert!(ends.to_ask().is_empty());
        let ids: BTreeSet<_> = (0..3).map(|number| TopicPartition::new("t", number)).collect();
        ends.want(ids.clone());
        assert_eq!(ends.to_ask(), ids);
        for told in [answer(0, 0, 7), answer(1, 6, 7), answer(2, 0, -1), answer(3, 0, 7)] {
            ends.note(&told);
        }
        let known = |number| ends.get(&TopicPartition::new("t", number));
        assert_eq!([known(0), known(1), known(2), known(3)], [Some(7), None, None, None]);
        ends.want(BTreeSet::new());
        assert_eq!(known(0), None, "nobody wants it any more");
    }

    #[test]
    fn a_request_names_each_topic_once() {
        let ids = [("a", 0), ("a", 2), ("b", 0)].map(|(topic, number)| TopicPartition::new(topic, number));
        let request = request(&ids);
        let shape: Vec<_> =
            request.topics.iter().map(|topic| (topic.name.as_str(), topic.partitions.len())).collect();
        assert_eq!((shape, request.replica_id.0), (vec![("a", 2), ("b", 1)], -1));
    }
}
