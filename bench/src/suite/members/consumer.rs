//! A member as KIP-848 has it: one request that says what it owns and hears what it shall own. It gives up at once what
//! is taken from it, and says so with its next heartbeat without waiting.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::Instant;

use anyhow::{Result, bail, ensure};
use kafka_protocol::messages::ConsumerGroupHeartbeatRequest;
use kafka_protocol::messages::consumer_group_heartbeat_request::TopicPartitions;
use kafka_protocol::protocol::StrBytes;
use zurau_tests::kafka::{Connection, topic_name};

use super::{HEARTBEAT, LOADING, LOOK, Member, Place, TIMEOUT_MS, UNKNOWN_MEMBER};
use crate::system::PATIENCE;

const FENCED: i16 = 110;
const JOINS: i32 = 0;
const LEAVES: i32 = -1;

struct Link<'a> {
    connection: Connection,
    place: &'a Place,
    id: StrBytes,
    epoch: i32,
    owned: Vec<TopicPartitions>,
}

pub(super) fn take_part(place: &Place, member: &Member) -> Result<()> {
    let connection = Connection::open(&place.address)?;
    connection.set_read_limit(PATIENCE)?;
    let mut link = Link { connection, place, id: StrBytes::default(), epoch: JOINS, owned: Vec::new() };
    loop {
        let next = Instant::now() + HEARTBEAT;
        let is_changed = link.beat()?;
        {
            let mut view = member.view.lock();
            view.generation = (link.epoch > JOINS).then_some(link.epoch);
            view.assigned = link.owned.iter().map(|topic| topic.partitions.len()).sum();
        }
        while !is_changed && Instant::now() < next && !member.shall_leave.load(Ordering::Relaxed) {
            thread::sleep(LOOK);
        }
        if member.shall_leave.load(Ordering::Relaxed) {
            return link.leave();
        }
    }
}

impl Link<'_> {
    fn request(&self) -> ConsumerGroupHeartbeatRequest {
        ConsumerGroupHeartbeatRequest::default()
            .with_group_id(self.place.group.clone())
            .with_member_id(self.id.clone())
            .with_member_epoch(self.epoch)
    }

    /// Whether the next heartbeat shall follow at once.
    fn beat(&mut self) -> Result<bool> {
        let request = self
            .request()
            .with_rebalance_timeout_ms(TIMEOUT_MS)
            .with_subscribed_topic_names(Some(vec![topic_name(&self.place.topic)]))
            .with_topic_partitions(Some(self.owned.clone()));
        let answer = self.connection.call(0, &request)?;
        match answer.error_code {
            0 => {}
            UNKNOWN_MEMBER | FENCED => {
                self.epoch = JOINS;
                self.owned.clear();
                return Ok(true);
            }
            error if LOADING.contains(&error) => return Ok(false),
            error => bail!("ConsumerGroupHeartbeat: error {error} {:?}", answer.error_message),
        }
        self.id = answer.member_id.unwrap_or_default();
        self.epoch = answer.member_epoch;
        let Some(assignment) = answer.assignment else { return Ok(false) };
        let owned = |topic: kafka_protocol::messages::consumer_group_heartbeat_response::TopicPartitions| {
            TopicPartitions::default().with_topic_id(topic.topic_id).with_partitions(topic.partitions)
        };
        let owned: Vec<TopicPartitions> = assignment.topic_partitions.into_iter().map(owned).collect();
        let is_changed = owned != self.owned;
        self.owned = owned;
        Ok(is_changed)
    }

    fn leave(&mut self) -> Result<()> {
        self.epoch = LEAVES;
        let error = self.connection.call(0, &self.request())?.error_code;
        ensure!(error == 0, "ConsumerGroupHeartbeat of one that leaves: error {error}");
        Ok(())
    }
}
