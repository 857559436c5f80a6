//! The whole cluster at one moment: ZooKeeper, controllers, brokers, messages, clients and what must hold among them.
//! What can happen next is a list of actions; taking one is a function of the world alone.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use zurau_broker::cores::leader::LeaderRules;
use zurau_common::config::TruncationPath;
use zurau_common::id::{BrokerId, TopicPartition};
use zurau_common::zk::znode::Znode;
use zurau_controller::machine::MachineConfig;

use crate::actions::Action;
use crate::broker::Broker;
use crate::controller::Controller;
use crate::messages::Message;
use crate::part::Part;
use crate::referee::Referee;
use crate::tampering::Tampering;
use crate::zookeeper::ZooKeeper;

pub(crate) const SESSION_MS: u64 = 6_000;
pub(crate) const LAG_MS: u64 = 10_000;
pub(crate) const FETCH_WAIT_MS: u64 = 500;
/// Records in one answer to a follower: fewer than a log may hold, so that followers are caught half way.
pub(crate) const RECORDS_PER_FETCH: usize = 2;

pub(crate) fn partition() -> TopicPartition {
    TopicPartition::new("t", 0)
}

#[derive(Debug, Clone)]
pub(crate) struct Config {
    pub(crate) min_insync: usize,
    pub(crate) replicas: Vec<BrokerId>,
    pub(crate) unclean: bool,
    /// `isr.update.path=zookeeper`.
    pub(crate) own_isr_path: bool,
    /// `replica.truncation.path`.
    pub(crate) truncation: TruncationPath,
    /// Reading and hearing of outcomes take no time of their own: fewer interleavings.
    pub(crate) coarse: bool,
    /// The controller's messages carry no ELR, as those of a release that knows none (N15).
    pub(crate) drops_elr: bool,
    /// A second machine tries to register the first broker's id.
    pub(crate) twin: bool,
    /// Once killed while the others heal, it does not come back.
    pub(crate) never_back: Option<usize>,
    /// Assignments that an admin may ask for.
    pub(crate) wishes: Vec<&'static str>,
}

impl Config {
    pub(crate) fn new(min_insync: usize) -> Self {
        Self {
            min_insync,
            replicas: [1, 2, 3].map(BrokerId).to_vec(),
            unclean: false,
            own_isr_path: false,
            truncation: TruncationPath::Fetch,
            coarse: false,
            drops_elr: false,
            twin: false,
            never_back: None,
            wishes: Vec::new(),
        }
    }

    pub(crate) fn rules(&self, min_insync: usize) -> LeaderRules {
        LeaderRules {
            min_insync_replicas: min_insync,
            unclean_election: self.unclean,
            lag_max_ms: LAG_MS,
            fetch_wait_max_ms: FETCH_WAIT_MS,
        }
    }

    pub(crate) fn machine(&self, seed: u128) -> MachineConfig {
        MachineConfig {
            session_timeout: SESSION_MS,
            leader_election_wait: 30_000,
            unclean_election: self.unclean,
            delete_topics: true,
            auto_rebalance: false,
            imbalance_check_interval: 300_000,
            imbalance_percentage: 10,
            seed,
        }
    }
}

/// How often each fault may still happen. Healing is free.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Budgets {
    pub(crate) produce: u8,
    pub(crate) consume: u8,
    pub(crate) kill: u8,
    pub(crate) power_loss: u8,
    pub(crate) stop: u8,
    pub(crate) cut_off: u8,
    pub(crate) controller_cut_off: u8,
    pub(crate) depose: u8,
    pub(crate) deafen: u8,
    pub(crate) lose_answer: u8,
    pub(crate) give_up: u8,
    pub(crate) duplicate: u8,
    pub(crate) stale_read: u8,
    pub(crate) wish: u8,
    pub(crate) tamper: u8,
    /// A disk fails.
    pub(crate) fail_log: u8,
    /// The controller and a broker do not hear each other any more.
    pub(crate) part: u8,
    pub(crate) recreate: u8,
    pub(crate) lower_minimum: u8,
    /// Times that a long time passes: a follower lags, a session ends, a deadline comes.
    pub(crate) long_time: u8,
}

impl Budgets {
    /// Nothing is troubled, and nobody writes.
    pub(crate) const NONE: Self = Self {
        produce: 0,
        consume: 0,
        kill: 0,
        power_loss: 0,
        stop: 0,
        cut_off: 0,
        controller_cut_off: 0,
        depose: 0,
        deafen: 0,
        lose_answer: 0,
        give_up: 0,
        duplicate: 0,
        stale_read: 0,
        wish: 0,
        tamper: 0,
        fail_log: 0,
        part: 0,
        recreate: 0,
        lower_minimum: 0,
        long_time: 0,
    };

    /// Everything may happen as often as it likes.
    pub(crate) fn unlimited() -> Self {
        let all = 250;
        Self {
            produce: all,
            consume: all,
            kill: all,
            power_loss: all,
            stop: all,
            cut_off: all,
            controller_cut_off: all,
            depose: all,
            deafen: all,
            lose_answer: all,
            give_up: all,
            duplicate: all,
            stale_read: all,
            wish: all,
            long_time: all,
            ..Self::NONE
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct World {
    pub(crate) config: Arc<Config>,
    pub(crate) budgets: Budgets,
    pub(crate) now: u64,
    /// `min.insync.replicas` as it stands.
    pub(crate) min_insync: usize,
    pub(crate) zookeeper: ZooKeeper,
    pub(crate) controllers: Vec<Part<Controller>>,
    pub(crate) brokers: Vec<Part<Broker>>,
    pub(crate) network: BTreeMap<u64, Part<Message>>,
    pub(crate) referee: Referee,
    /// What an admin may still do to znodes.
    pub(crate) tamperings: Vec<Tampering>,
    /// Sessions of processes that are gone, and since when.
    pub(crate) orphans: Vec<(i64, u64)>,
    /// Draws numbers that never come twice: processes, offices, registrations.
    next_number: u64,
    /// Numbers messages. Which number a message has means nothing.
    next_message: u64,
}

impl World {
    pub(crate) fn new(config: Config) -> Self {
        let mut zookeeper = ZooKeeper::new(2);
        let controllers = (0..2)
            .map(|_| {
                Controller { session: zookeeper.open_session(), office: None, cut_off_since: None }.into()
            })
            .collect();
        let mut brokers = [1, 2, 3].map(|id| Part::from(Broker::new(BrokerId(id)))).to_vec();
        if config.twin {
            brokers.push(Broker { is_twin: true, ..Broker::new(BrokerId(1)) }.into());
        }
        let min_insync = config.min_insync;
        let mut world = Self {
            config: Arc::new(config),
            budgets: Budgets::default(),
            now: 0,
            min_insync,
            zookeeper,
            controllers,
            brokers,
            network: BTreeMap::new(),
            referee: Referee::default(),
            orphans: Vec::new(),
            tamperings: Vec::new(),
            next_number: 0,
            next_message: 0,
        };
        world.create_topic();
        for broker in 0..world.brokers.len() {
            world.start_process(broker);
        }
        world
    }

    /// As an admin creates it.
    pub(crate) fn create_topic(&mut self) {
        let tp = partition();
        self.zookeeper.put(&Znode::Topic(tp.topic.clone()).path(), b"");
        let replicas = zurau_common::assignment::format_ids(&self.config.replicas);
        self.zookeeper.put(&Znode::Replicas(tp).path(), replicas.as_bytes());
    }

    /// What stands where, for whoever has to understand a failure.
    pub(crate) fn summary(&self) -> String {
        let mut lines = Vec::new();
        for (path, node) in self.zookeeper.nodes() {
            let data = String::from_utf8_lossy(&node.data);
            if !data.is_empty() {
                lines.push(format!("{path} v{} c{} m{} {data}", node.version, node.czxid, node.mzxid));
            }
        }
        for broker in &self.brokers {
            let log = broker.disk.log.as_ref();
            lines.push(format!("broker {}: {log:?} lost {}", broker.id, broker.disk.lost));
            if let Some(process) = &broker.process {
                lines.push(format!(
                    "  epoch {} {:?} lane {:?} {:?} {:?}",
                    process.broker_epoch, process.stage, process.lane, process.proposer, process.replica
                ));
            }
        }
        for (index, controller) in self.controllers.iter().enumerate() {
            let Some(active) = &controller.office else { continue };
            lines.push(format!(
                "controller {index}: epoch {} writes {:?} deadline {:?} now {}",
                active.epoch(),
                active.writes,
                active.machine.next_deadline(),
                self.now
            ));
        }
        lines.extend(self.network.iter().map(|(number, message)| format!("message {number}: {message:?}")));
        lines.join("\n")
    }

    /// The message that an action is about.
    pub(crate) fn told_by(&self, action: Action) -> String {
        match action {
            Action::Deliver(number) | Action::Duplicate(number) => format!("{:?}", self.network.get(&number)),
            Action::Store(c) | Action::LoseOutcome(c) => {
                let active = self.controllers[c].office.as_ref();
                format!("{:?}", active.and_then(|active| active.writes.front()))
            }
            _ => String::new(),
        }
    }

    pub(crate) fn draw(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    pub(crate) fn send(&mut self, message: Message) {
        self.next_message += 1;
        self.network.insert(self.next_message, message.into());
    }

    /// Equal worlds have equal fingerprints. The order in which messages were sent is not part of a world.
    pub(crate) fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.now, self.min_insync, self.budgets, &self.tamperings, &self.orphans).hash(&mut hasher);
        self.referee.hash(&mut hasher);
        let hears = |controller: usize| self.controllers[controller].office.is_some();
        self.zookeeper.hash(&mut hasher, self.budgets.stale_read > 0, hears);
        self.controllers.iter().for_each(|controller| controller.fingerprint().hash(&mut hasher));
        self.brokers.iter().for_each(|broker| broker.fingerprint().hash(&mut hasher));
        let messages = self.network.values().map(|message| message.fingerprint());
        messages.fold(0_u64, u64::wrapping_add).hash(&mut hasher);
        hasher.finish()
    }

    pub(crate) fn index_of(&self, broker: BrokerId) -> usize {
        let found = self.brokers.iter().position(|known| known.id == broker);
        found.unwrap_or_else(|| panic!("no broker {broker}"))
    }

    pub(crate) fn is_connected(&self, broker: usize) -> bool {
        self.brokers[broker].cut_off_since.is_none()
    }
}
