//! The group coordinators of this broker: one for each partition of `__consumer_offsets` that it leads.

use std::collections::BTreeSet;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use zurau_common::config::Settings;
use zurau_common::http::instruments::SeldomTimer;
use zurau_common::id::TopicName;
use zurau_common::rejection::Rejection;

use super::consumer::Assignor;
use super::outbox::GroupSettings;
use super::records::GroupId;
use super::request::{Answer, Ask, Listing, Summary};
use super::shard::Shard;
use super::worker::{Command, Worker};
use crate::context::BrokerContext;
use crate::coordinator::{CoordinatorTopic, Kind, Office, Offices, Producer, WriteSettings, setting};
use crate::group_configs::GroupConfigs;
use crate::log::{Marker, Verification};
use crate::metrics::Metrics;
use crate::partition::Acks;
use crate::shared_metadata::SharedMetadata;

/// Coordinators of groups.
#[derive(Debug)]
pub(crate) struct Groups {
    settings: Arc<GroupSettings>,
    metadata: Arc<SharedMetadata>,
    configs: Arc<GroupConfigs>,
    write_settings: WriteSettings,
}

impl Kind for Groups {
    type Shard = Shard;
    type Command = Command;
    const NAME: &'static str = "group coordinator";

    fn loads(metrics: &Metrics) -> &SeldomTimer {
        &metrics.group_loads
    }

    fn empty_shard(&self) -> Shard {
        Shard::new(Arc::clone(&self.settings))
    }

    async fn serve(&self, office: Office, shard: Shard, mailbox: mpsc::Receiver<Command>) {
        let known = (Arc::clone(&self.metadata), Arc::clone(&self.configs));
        Worker::new(office, shard, known, self.write_settings).run(mailbox).await;
    }
}

/// All coordinators of this broker.
#[derive(Debug)]
pub(crate) struct GroupCoordinator {
    pub(crate) offices: Offices<Groups>,
    /// `offsets.commit.timeout.ms`.
    commit_timeout: Duration,
    /// `group.coordinator.rebalance.protocols` contains `consumer`.
    pub(crate) offers_consumer_protocol: bool,
}

impl GroupCoordinator {
    pub(crate) fn new(
        settings: &Settings,
        metadata: Arc<SharedMetadata>,
        configs: Arc<GroupConfigs>,
    ) -> Self {
        let minutes: i64 = setting(settings, "offsets.retention.minutes");
        let group_settings = GroupSettings {
            session_timeout_min_ms: setting(settings, "group.min.session.timeout.ms"),
            session_timeout_max_ms: setting(settings, "group.max.session.timeout.ms"),
            initial_rebalance_delay_ms: setting(settings, "group.initial.rebalance.delay.ms"),
            group_size_max: setting(settings, "group.max.size"),
            consumer_session_timeout_ms: setting(settings, "group.consumer.session.timeout.ms"),
            consumer_heartbeat_interval_ms: setting(settings, "group.consumer.heartbeat.interval.ms"),
            consumer_size_max: setting(settings, "group.consumer.max.size"),
            consumer_assignors: items(settings, "group.consumer.assignors")
                .filter_map(Assignor::from_setting)
                .collect(),
            // More than that no record can carry.
            offset_metadata_bytes_max: setting::<usize>(settings, "offset.metadata.max.bytes")
                .min(i16::MAX as usize),
            offsets_retention_ms: minutes.saturating_mul(60_000),
            retention_check_interval_ms: setting(settings, "offsets.retention.check.interval.ms"),
        };
        let topic = CoordinatorTopic::consumer_offsets(settings);
        let load_bytes = setting(settings, "offsets.load.buffer.size");
        let write_settings = WriteSettings {
            acks: match setting(settings, "offsets.commit.required.acks") {
                -1 => Acks::All,
                _ => Acks::Leader,
            },
            compression: setting(settings, "offsets.topic.compression.codec"),
        };
        let kind = Groups { settings: Arc::new(group_settings), metadata, configs, write_settings };
        Self {
            offers_consumer_protocol: items(settings, "group.coordinator.rebalance.protocols")
                .any(|protocol| protocol.trim() == "consumer"),
            offices: Offices::new(kind, topic, load_bytes),
            commit_timeout: Duration::from_millis(setting(settings, "offsets.commit.timeout.ms")),
        }
    }

    /// Hands a request to the group's coordinator, if it is here. Requests that are handed over one after the other are
    /// looked at in that order.
    pub(crate) async fn hand_over<A: Ask>(
        &self,
        context: &BrokerContext,
        group: &GroupId,
        request: A,
    ) -> HandedOver<A> {
        let number = self.offices.topic.partition_of(context, group);
        let answered = match self.offices.mailbox(context, number) {
            Ok(mailbox) => {
                let (answer, answered) = oneshot::channel();
                let command =
                    Command::Ask { group: Arc::clone(group), request: request.into_request(), answer };
                mailbox.send(command).await.map(|()| answered).map_err(|_| Rejection::NotCoordinator)
            }
            Err(rejection) => Err(rejection),
        };
        HandedOver { answered, write_timeout: self.commit_timeout, asked: PhantomData }
    }

    /// Asks the group's coordinator, and waits for its answer.
    ///
    /// # Errors
    /// As [`HandedOver::answer`].
    pub(crate) async fn ask<A: Ask>(
        &self,
        context: &BrokerContext,
        group: &GroupId,
        request: A,
    ) -> Result<A::Answer, Rejection> {
        self.hand_over(context, group, request).await.answer().await
    }

    /// As [`GroupCoordinator::ask`] for what is answered after a write.
    ///
    /// # Errors
    /// As [`HandedOver::answer_to_write`].
    pub(crate) async fn ask_to_write<A: Ask>(
        &self,
        context: &BrokerContext,
        group: &GroupId,
        request: A,
    ) -> Result<A::Answer, Rejection> {
        self.hand_over(context, group, request).await.answer_to_write().await
    }

    /// Writes the marker of a transaction into a partition of `__consumer_offsets`, and lets the offsets of it count, or
    /// not. Done when the marker is committed.
    ///
    /// # Errors
    /// `NotCoordinator`, `CoordinatorLoadInProgress`; what the log refuses, as clients of groups hear it.
    pub(crate) async fn end_transaction(
        &self,
        context: &BrokerContext,
        number: i32,
        producer: Producer,
        marker: (Marker, Verification),
    ) -> Result<(), Rejection> {
        let mailbox = self.offices.mailbox(context, number)?;
        let (answer, answered) = oneshot::channel();
        let command = Command::EndTransaction { producer, marker, answer };
        mailbox.send(command).await.map_err(|_| Rejection::NotCoordinator)?;
        match answered.await {
            Ok(Answer::EndTransaction(outcome)) => outcome,
            _ => Err(Rejection::NotCoordinator),
        }
    }

    /// The groups of all coordinators here, and whether some could not be asked because they load.
    pub(crate) async fn list(&self, context: &BrokerContext) -> (Vec<Listing>, Result<(), Rejection>) {
        let mut listings = Vec::new();
        let (mailboxes, outcome) = self.offices.mailboxes(context);
        for mailbox in mailboxes {
            let (answer, answered) = oneshot::channel();
            if mailbox.send(Command::List { answer }).await.is_ok()
                && let Ok(Answer::List(groups)) = answered.await
            {
                listings.extend(groups);
            }
        }
        (listings, outcome)
    }

    /// The topics that any coordinator here holds offsets of.
    pub(crate) async fn topics(&self) -> BTreeSet<TopicName> {
        let mut topics = BTreeSet::new();
        for mailbox in self.offices.serving() {
            let (answer, answered) = oneshot::channel();
            if mailbox.send(Command::Topics { answer }).await.is_ok() {
                topics.extend(answered.await.unwrap_or_default());
            }
        }
        topics
    }

    /// The groups of all coordinators that have loaded; `None` when one of them does not answer within `limit`.
    pub(crate) async fn observe(&self, context: &BrokerContext, limit: Duration) -> Option<Vec<Summary>> {
        let answers = self.offices.observe(context, limit, |answer| Command::Observe { answer }).await?;
        Some(answers.into_iter().flatten().collect())
    }

    /// Topics are gone: their offsets go too (GRP-07).
    pub(crate) async fn forget_topics(&self, topics: &[TopicName]) {
        for mailbox in self.offices.serving() {
            // A coordinator that ends meanwhile is followed by one that looks at its topics again.
            let _ = mailbox.send(Command::TopicsDeleted(topics.to_vec())).await;
        }
    }
}

/// The items of a list that the configuration's table has checked.
fn items<'a>(settings: &'a Settings, name: &str) -> impl Iterator<Item = &'a str> {
    settings.get(name).map(|(text, _)| text.split(',')).into_iter().flatten()
}

/// A request that a coordinator has, or will never have.
#[derive(Debug)]
pub(crate) struct HandedOver<A> {
    answered: Result<oneshot::Receiver<Answer>, Rejection>,
    write_timeout: Duration,
    asked: PhantomData<fn() -> A>,
}

impl<A: Ask> HandedOver<A> {
    /// # Errors
    /// `NotCoordinator`, `CoordinatorLoadInProgress`: nobody has looked at the request, or nobody can answer it now.
    pub(crate) async fn answer(self) -> Result<A::Answer, Rejection> {
        let answer = self.answered?.await.map_err(|_| Rejection::NotCoordinator)?;
        Ok(A::answer_from(answer).expect("a coordinator answers what it was asked"))
    }

    /// A write that takes longer than `offsets.commit.timeout.ms` may still succeed; the client is told to look again.
    ///
    /// # Errors
    /// As [`HandedOver::answer`], and `CoordinatorNotAvailable`.
    pub(crate) async fn answer_to_write(self) -> Result<A::Answer, Rejection> {
        let answered = tokio::time::timeout(self.write_timeout, self.answer()).await;
        answered.unwrap_or(Err(Rejection::CoordinatorNotAvailable))
    }
}
