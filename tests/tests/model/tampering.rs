//! What people do to znodes by hand.

use zurau_common::id::TopicId;
use zurau_common::zk::topic::TopicIdEntry;
use zurau_common::zk::znode::{TOPIC_IDS, Znode};

use crate::world::{World, partition};

/// What people do to znodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Tampering {
    /// The tree is copied to another ensemble, without the controller epoch.
    CopyTree,
    DeleteIsr,
    EmptyTopic,
    GarbleState,
    GarbleReplicas,
    LowerControllerEpoch,
    RecreateTopic,
    /// An old copy of the topic id's entry, and no ISR.
    RestoreOldEntry,
}

impl World {
    pub(crate) fn tamper(&mut self, what: Tampering) {
        let tp = partition();
        self.tamperings.retain(|other| *other != what);
        match what {
            Tampering::RestoreOldEntry => {
                let meta = crate::referee::Meta::read(&self.zookeeper);
                if let Some(id) = meta.topic_id {
                    let entry = TopicIdEntry::new(tp.topic.clone()).encode();
                    self.zookeeper.put(&Znode::TopicIdEntry(id).path(), &entry);
                    self.zookeeper.remove(&Znode::Isr(tp).path());
                }
            }
            Tampering::CopyTree => {
                self.zookeeper.remove(&Znode::ControllerEpoch.path());
                self.zookeeper.begin_anew();
                self.referee.begin_anew();
            }
            Tampering::DeleteIsr => self.zookeeper.remove(&Znode::Isr(tp).path()),
            Tampering::EmptyTopic => self.zookeeper.put(&Znode::Topic(tp.topic).path(), b""),
            Tampering::GarbleState => self.zookeeper.put(&Znode::State(tp).path(), b"{"),
            Tampering::GarbleReplicas => self.zookeeper.put(&Znode::Replicas(tp).path(), b"[1,"),
            Tampering::LowerControllerEpoch => {
                self.zookeeper.remove(&Znode::ControllerEpoch.path());
                self.zookeeper.remove(&Znode::Controller.path());
            }
            Tampering::RecreateTopic => {
                self.zookeeper.remove(&Znode::Topic(tp.topic).path());
                self.create_topic();
                let entries = self.zookeeper.below(TOPIC_IDS);
                let ids = entries.iter().filter_map(|path| TopicId::parse(path.rsplit_once('/')?.1));
                self.referee.forget_records(ids);
            }
        }
    }
}
