//! What the controller's requests do: LeaderAndIsr, StopReplica, UpdateMetadata. They are handled one at a time, and only
//! from the newest connection of the highest controller epoch (F9).

mod orders;

mod recording;

pub(crate) mod rules;

mod stop;

use std::collections::HashSet;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kafka_protocol::messages::{
    LeaderAndIsrRequest, LeaderAndIsrResponse, StopReplicaRequest, StopReplicaResponse,
    UpdateMetadataRequest, UpdateMetadataResponse,
};
use parking_lot::{Mutex, RwLock};
use tokio::runtime::Handle;
use tokio::sync::Mutex as AsyncMutex;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use zurau_common::id::{BrokerEpoch, BrokerId, ControllerEpoch, LeaderEpoch, PartitionEpoch, TopicId};
use zurau_common::rejection::Rejection;
use zurau_common::wire::server::Connection;

use crate::context::BrokerContext;
use crate::fetchers::{AddressBook, FetchSettings, Fetchers};
use crate::shared::Shared;

use rules::{Admission, Commander};

/// The connection that may give orders, and how to close it.
#[derive(Debug, Default)]
struct Command {
    commander: Commander,
    closer: Option<CancellationToken>,
}

/// The state of the control plane.
#[derive(Debug)]
pub(crate) struct ControlPlane {
    /// Held while a control request is carried out.
    lane: AsyncMutex<()>,
    /// The broker is stopping: no order is carried out any more.
    closed: AtomicBool,
    command: Mutex<Command>,
    /// Brokers that the controller calls alive; `None` before it has said so.
    live: RwLock<Option<HashSet<BrokerId>>>,
    pub(crate) addresses: Arc<AddressBook>,
    pub(crate) fetchers: Fetchers,
    runtime: Handle,
}

/// How a control request ends.
#[derive(Debug)]
pub(crate) enum Answered<T> {
    Answer(T),
    /// The connection is not the one that may give orders: it is closed.
    Close,
}

impl ControlPlane {
    /// `control` and `data`: the runtimes of orders and of fetchers.
    pub(crate) fn new(shared: Arc<Shared>, settings: FetchSettings, control: Handle, data: Handle) -> Self {
        let addresses = Arc::new(AddressBook::default());
        Self {
            lane: AsyncMutex::new(()),
            closed: AtomicBool::new(false),
            command: Mutex::default(),
            live: RwLock::new(None),
            fetchers: Fetchers::new(shared, settings, Arc::clone(&addresses), data),
            addresses,
            runtime: control,
        }
    }

    /// Whether the controller calls that broker alive; everybody counts as alive before it has spoken.
    pub(crate) fn is_live(&self, broker: BrokerId) -> bool {
        self.live.read().as_ref().is_none_or(|live| live.contains(&broker))
    }

    /// The broker is stopping: from here on no order is carried out.
    pub(crate) async fn close(&self) {
        let _lane = self.lane.lock().await;
        self.closed.store(true, Ordering::Release);
        self.fetchers.clear();
    }

    /// A new session: whoever gave orders has to say everything again (L11).
    pub(crate) async fn forget(&self) {
        let _lane = self.lane.lock().await;
        *self.command.lock() = Command::default();
        *self.live.write() = None;
        self.fetchers.clear();
    }

    fn admit(
        &self,
        connection: &Connection,
        epoch: ControllerEpoch,
        (named, own): (BrokerEpoch, BrokerEpoch),
    ) -> Admission {
        if self.closed.load(Ordering::Acquire) {
            return Admission::Close;
        }
        let mut command = self.command.lock();
        let (admission, replaces) = command.commander.admit((epoch, connection.id), (named, own));
        if replaces {
            info!(controller_epoch = %epoch, "the controller gives orders over another connection");
            if let Some(older) = &command.closer {
                older.cancel();
            }
        }
        if matches!(admission, Admission::Admitted | Admission::Refused(Rejection::StaleBrokerEpoch)) {
            command.closer = Some(connection.closer.clone());
        }
        admission
    }

    /// Runs work on the control runtime, in the lane; it goes on even if the connection that asked for it is closed.
    async fn in_lane<T, F>(
        context: &Arc<BrokerContext>,
        work: impl FnOnce(Arc<BrokerContext>) -> F,
    ) -> Option<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let work = work(Arc::clone(context));
        let for_lane = Arc::clone(context);
        let task = context.control.runtime.spawn(async move {
            let _lane = for_lane.control.lane.lock().await;
            work.await
        });
        task.await.ok()
    }
}

/// Carries out a LeaderAndIsr request.
pub(crate) async fn leader_and_isr(
    context: &Arc<BrokerContext>,
    connection: &Connection,
    request: LeaderAndIsrRequest,
) -> Answered<LeaderAndIsrResponse> {
    let connection = connection.clone();
    let answered = ControlPlane::in_lane(context, move |context| async move {
        let epochs = (BrokerEpoch(request.broker_epoch), context.broker_epoch());
        match context.control.admit(&connection, ControllerEpoch(request.controller_epoch), epochs) {
            Admission::Admitted => Answered::Answer(orders::carry_out(&context, request).await),
            Admission::Refused(rejection) => {
                warn!(controller_epoch = request.controller_epoch, %rejection, "LeaderAndIsr is refused");
                Answered::Answer(LeaderAndIsrResponse::default().with_error_code(rejection.code()))
            }
            Admission::Close => Answered::Close,
        }
    });
    answered.await.unwrap_or(Answered::Close)
}

/// Carries out a StopReplica request.
pub(crate) async fn stop_replica(
    context: &Arc<BrokerContext>,
    connection: &Connection,
    request: StopReplicaRequest,
) -> Answered<StopReplicaResponse> {
    let connection = connection.clone();
    let answered = ControlPlane::in_lane(context, move |context| async move {
        let epochs = (BrokerEpoch(request.broker_epoch), context.broker_epoch());
        match context.control.admit(&connection, ControllerEpoch(request.controller_epoch), epochs) {
            Admission::Admitted => Answered::Answer(stop::carry_out(&context, request).await),
            Admission::Refused(rejection) => {
                warn!(controller_epoch = request.controller_epoch, %rejection, "StopReplica is refused");
                Answered::Answer(StopReplicaResponse::default().with_error_code(rejection.code()))
            }
            Admission::Close => Answered::Close,
        }
    });
    answered.await.unwrap_or(Answered::Close)
}

/// Takes the controller's picture of the cluster: for clients, for fetchers, and for leaders whose followers may be
/// gone (D15).
pub(crate) async fn update_metadata(
    context: &Arc<BrokerContext>,
    connection: &Connection,
    request: UpdateMetadataRequest,
) -> Answered<UpdateMetadataResponse> {
    let connection = connection.clone();
    let answered = ControlPlane::in_lane(context, move |context| async move {
        let epochs = (BrokerEpoch(request.broker_epoch), context.broker_epoch());
        let outcome =
            match context.control.admit(&connection, ControllerEpoch(request.controller_epoch), epochs) {
                Admission::Admitted => context.metadata.apply(&request),
                Admission::Refused(rejection) => Err(rejection),
                Admission::Close => return Answered::Close,
            };
        match outcome {
            Ok(()) => {
                take_live_brokers(&context, &request);
                take_stored_isrs(&context, &request);
            }
            Err(rejection) => {
                warn!(controller_epoch = request.controller_epoch, %rejection, "UpdateMetadata is refused");
            }
        }
        let code = outcome.map_or_else(Rejection::code, |()| 0);
        Answered::Answer(UpdateMetadataResponse::default().with_error_code(code))
    });
    answered.await.unwrap_or(Answered::Close)
}

fn take_live_brokers(context: &Arc<BrokerContext>, request: &UpdateMetadataRequest) {
    let listener = &context.config.inter_broker_listener_name;
    for broker in &request.live_brokers {
        let named = broker.endpoints.iter().find(|endpoint| *endpoint.listener == **listener);
        if let Some(endpoint) = named.or(broker.endpoints.first()) {
            let address = format!("{}:{}", endpoint.host.as_str(), endpoint.port);
            context.control.addresses.set(BrokerId(broker.id.0), address);
        }
    }
    let live: HashSet<BrokerId> = request.live_brokers.iter().map(|broker| BrokerId(broker.id.0)).collect();
    let before = context.control.live.write().replace(live.clone());
    if before.as_ref() == Some(&live) {
        return;
    }
    let gone: Vec<BrokerId> = before.into_iter().flatten().filter(|id| !live.contains(id)).collect();
    info!(live = live.len(), ?gone, "the live brokers have changed");
    let context = Arc::clone(context);
    let runtime = context.control.runtime.clone();
    runtime.spawn(async move {
        let grace = Duration::from_millis(context.shared.replication.fetch_wait_max_ms);
        for_all_leaders(&context).await;
        if !gone.is_empty() {
            // A fetch of a broker that is gone may have been under way; by then it was not.
            tokio::time::sleep(grace + Duration::from_millis(1)).await;
            for_all_leaders(&context).await;
        }
    });
}

/// Tells leaders here which versions of their ISRs are stored. Nothing waits for it.
fn take_stored_isrs(context: &Arc<BrokerContext>, request: &UpdateMetadataRequest) {
    let own = context.shared.own;
    let mut told = Vec::new();
    for topic in &request.topic_states {
        let led = topic.partition_states.iter().filter(|state| state.leader.0 == own.0);
        told.extend(led.filter_map(|state| {
            let partition = context.partitions.get_by_id(TopicId(topic.topic_id), state.partition_index)?;
            Some((partition, LeaderEpoch(state.leader_epoch), PartitionEpoch(state.zk_version)))
        }));
    }
    if told.is_empty() {
        return;
    }
    context.control.runtime.spawn_blocking(move || {
        for (partition, leader_epoch, version) in told {
            partition.hear_of_isr(leader_epoch, version);
        }
    });
}

/// Partition locks may be held by a disk write, so they are not taken on the control plane's own threads.
async fn for_all_leaders(context: &Arc<BrokerContext>) {
    let context = Arc::clone(context);
    let done = tokio::task::spawn_blocking(move || {
        for partition in context.partitions.all() {
            partition.record_live_brokers(&|id| context.control.is_live(id));
        }
    });
    // It only fails if the process is stopping.
    let _ = done.await;
}
