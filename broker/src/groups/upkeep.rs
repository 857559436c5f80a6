//! What the coordinators need besides requests: to begin when this broker becomes leader, so that sessions and
//! retention run though nobody asks, and to forget offsets of topics that are deleted (GRP-07).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tracing::info;
use zurau_common::id::{TopicId, TopicName};
use zurau_common::zk::znode::Znode;

use crate::context::BrokerContext;
use crate::metadata::MetadataImage;

/// How often leaderships are looked at. A request does not wait for it: it looks itself.
const LOOK: Duration = Duration::from_millis(250);
/// How often topics are looked at though the metadata has not changed: a coordinator may have loaded offsets of a topic
/// that was deleted before.
const TOPICS_LOOK: Duration = Duration::from_secs(60);

/// Runs until the broker stops.
pub(crate) async fn run(context: Arc<BrokerContext>, stopping: CancellationToken) {
    let mut ticks = interval(LOOK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut topics = Topics { seen: context.metadata.image(), ids: HashMap::new(), looked: Instant::now() };
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = stopping.cancelled() => return,
        }
        context.groups.offices.keep_up(&context);
        let image = context.metadata.image();
        if !Arc::ptr_eq(&image, &topics.seen) || TOPICS_LOOK <= topics.looked.elapsed() {
            topics.look(&context, image).await;
        }
    }
}

struct Topics {
    /// The image at the last look: what offsets were committed for since then.
    seen: Arc<MetadataImage>,
    /// The incarnations that offsets were last seen of.
    ids: HashMap<TopicName, TopicId>,
    looked: Instant,
}

impl Topics {
    async fn look(&mut self, context: &BrokerContext, image: Arc<MetadataImage>) {
        self.looked = Instant::now();
        let before = std::mem::replace(&mut self.seen, image);
        let mut gone = Vec::new();
        let mut ids = HashMap::new();
        for topic in context.groups.topics().await {
            let known = self.ids.get(&topic).copied();
            let known = known.or_else(|| before.topic(&topic).map(|image| image.topic_id));
            match self.seen.topic(&topic).map(|image| image.topic_id) {
                Some(id) if known.is_none_or(|known| known == id) => {
                    ids.insert(topic, id);
                }
                Some(id) => {
                    ids.insert(Arc::clone(&topic), id);
                    gone.push(topic);
                }
                // The metadata may be incomplete; what ZooKeeper has decides.
                None if is_gone(context, &topic).await => gone.push(topic),
                None => {
                    ids.extend(known.map(|known| (topic, known)));
                }
            }
        }
        self.ids = ids;
        if !gone.is_empty() {
            info!(topics = ?gone, "committed offsets of deleted topics are removed");
            context.groups.forget_topics(&gone).await;
        }
    }
}

async fn is_gone(context: &BrokerContext, topic: &TopicName) -> bool {
    let Some(zookeeper) = context.zookeeper.current() else { return false };
    let path = Znode::Topic(Arc::clone(topic)).path();
    matches!(zookeeper.exists(&path).await, Ok(false))
}
