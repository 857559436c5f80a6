//! A standby controller: watches the tree and keeps the same memory as the active one, so that taking office costs
//! what changed lately instead of a reading of everything. What it knows is as safe as a full reading: the watches
//! were never lost since the last one, and every event that is older than the claim has been read before anything is
//! decided ([`Memory`]).

use std::time::Duration;

use futures::FutureExt as _;
use futures::future::{BoxFuture, Either, pending};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::info;
use zurau_common::zk::controller::ActiveController;
use zurau_common::zk::watch::{TreeEvent, TreeWatch};
use zurau_common::zk::znode::Znode;

use crate::claim::Office;
use crate::inbox::Queued;
use crate::leadership::claim;
use crate::mirror::{Mirror, Reading};
use crate::runtime::{Ended, Input, Runtime};

/// Pause between two readings of a standby: a znode that changes often is read once for all its changes. Bounds the
/// load of standbys, and what is left to read at an election.
const READ_EVERY: Duration = Duration::from_millis(500);

/// How much of the tree is in memory.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// Everything was read since the watches were last set.
    pub(crate) complete: bool,
    /// What had changed before the claim was stored has been read.
    caught_up: bool,
    /// The reading under way began after the claim: it takes everything that was known to have changed.
    pub(crate) reading_began_late: bool,
    /// The machine was told that it may decide.
    pub(crate) loaded: bool,
}

impl Memory {
    pub(crate) fn is_current(&self) -> bool {
        self.complete && self.caught_up
    }

    /// The claim is stored, and the events that are older than it are marked.
    pub(crate) fn elected(&mut self, mirror: &Mirror) {
        self.caught_up = mirror.is_idle();
        self.reading_began_late = !mirror.is_reading();
    }

    /// A reading succeeded.
    pub(crate) fn read(&mut self, reading: &Reading, mirror: &Mirror) {
        self.complete |= *reading == Reading::All;
        self.complete &= !mirror.must_read_everything();
        self.caught_up |= self.reading_began_late || mirror.is_idle();
        self.reading_began_late = true;
    }
}

/// Where news comes from.
pub(crate) struct Watched {
    pub(crate) watch: TreeWatch,
    pub(crate) incoming: mpsc::UnboundedReceiver<Queued<Input>>,
}

pub(crate) enum Elected {
    Office(Office),
    Not(Ended),
}

impl Runtime {
    /// Learns until this process is elected.
    ///
    /// # Errors
    /// See [`claim`].
    pub(crate) async fn until_elected(
        &mut self,
        watched: &mut Watched,
        identity: &ActiveController,
        stop: &CancellationToken,
    ) -> anyhow::Result<Elected> {
        let zookeeper = self.zookeeper.clone();
        let mut claiming: Option<BoxFuture<'_, anyhow::Result<Option<Office>>>> = None;
        let mut claim_again = false;
        let mut next_reading = Instant::now();
        loop {
            if claiming.is_none() && std::mem::take(&mut claim_again) {
                claiming = Some(claim(&zookeeper, identity).boxed());
            }
            let claimed = match &mut claiming {
                Some(claiming) => Either::Left(claiming),
                None => Either::Right(pending()),
            };
            tokio::select! {
                () = stop.cancelled() => return Ok(Elected::Not(Ended::Stopped)),
                office = claimed => {
                    claiming = None;
                    if let Some(office) = office? {
                        return Ok(Elected::Office(office));
                    }
                }
                event = watched.watch.next() => match event {
                    None => return Ok(Elected::Not(Ended::Session)),
                    Some(TreeEvent::Reset) => {
                        self.reset();
                        claim_again = true;
                    }
                    Some(TreeEvent::Dirty(paths)) => {
                        claim_again |= paths.contains(&Znode::Controller.path());
                        self.mirror.mark(paths);
                    }
                },
                Some(input) = watched.incoming.recv() => {
                    let was_complete = self.memory.complete;
                    self.input(input);
                    if self.memory.complete && !was_complete {
                        info!("standby: the tree is in memory");
                    }
                }
                () = sleep_until(next_reading), if !self.mirror.is_idle() && !self.mirror.is_reading() => {
                    self.read_next();
                    next_reading = Instant::now() + READ_EVERY;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: &str = "/brokers/topics/t/0/replicas";

    fn mark(mirror: &mut Mirror) {
        mirror.mark([PATH.to_owned()]);
    }

    /// Takes a reading, and what it found, out of the mirror.
    fn read(mirror: &mut Mirror, memory: &mut Memory, reading: &Reading) {
        mirror.told(reading, Vec::new());
        memory.read(reading, mirror);
    }

    fn warm() -> (Mirror, Memory) {
        let (mut mirror, mut memory) = (Mirror::default(), Memory::default());
        mirror.read_everything();
        let all = mirror.next_reading().unwrap();
        read(&mut mirror, &mut memory, &all);
        assert!(memory.complete);
        (mirror, memory)
    }

    #[test]
    fn with_nothing_left_to_read_a_standby_decides_at_once() {
        let (mirror, mut memory) = warm();
        memory.elected(&mirror);
        assert!(memory.is_current());
    }

    #[test]
    fn ctl_12_what_changed_before_the_claim_is_read_first() {
        let (mut mirror, mut memory) = warm();
        mark(&mut mirror);
        memory.elected(&mirror);
        assert!(!memory.is_current());
        let late = mirror.next_reading().unwrap();
        read(&mut mirror, &mut memory, &late);
        assert!(memory.is_current());
    }

    #[test]
    fn ctl_12_a_reading_that_began_before_the_claim_is_not_enough() {
        let (mut mirror, mut memory) = warm();
        mark(&mut mirror);
        let early = mirror.next_reading().unwrap();
        mark(&mut mirror);
        memory.elected(&mirror);
        read(&mut mirror, &mut memory, &early);
        assert!(!memory.is_current());
        let late = mirror.next_reading().unwrap();
        read(&mut mirror, &mut memory, &late);
        assert!(memory.is_current());
    }

    #[test]
    fn l1_a_standby_that_had_lost_its_watches_reads_everything() {
        let (mut mirror, mut memory) = warm();
        mirror.read_everything();
        memory.complete = false;
        memory.elected(&mirror);
        mark(&mut mirror);
        let all = mirror.next_reading().unwrap();
        assert_eq!(all, Reading::All);
        read(&mut mirror, &mut memory, &all);
        assert!(memory.is_current());
    }
}
