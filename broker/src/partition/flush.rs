//! Group fsync: appends that must be durable before they are acknowledged (`flush.messages`, `flush.ms`) share one sync.
//! It runs outside of the partition's lock, so that others append and read meanwhile; those that came during a sync wait
//! for the next one. At most one is under way for each partition.

use std::sync::Arc;
use std::time::Instant;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use zurau_common::rejection::Rejection;

use super::{CommitWait, CommitWaiter, Inner, Partition, Wakes};
use crate::log::{FlushPlan, StorageError};
use crate::shared::wall_clock_ms;
use crate::waiters::OffsetWaiters;

/// Appends that wait for a sync, and whether one is under way.
#[derive(Default)]
pub(super) struct Flushing {
    pub(super) waiting: OffsetWaiters<CommitWaiter>,
    running: bool,
}

impl Partition {
    /// Waits until every record below `end` is durable. Starts a sync if none is under way.
    pub(super) fn wait_for_flush(
        self: &Arc<Self>,
        inner: &mut Inner,
        wakes: &mut Wakes,
        end: i64,
    ) -> oneshot::Receiver<Result<(), Rejection>> {
        let (sender, receiver) = oneshot::channel();
        inner.flushing.waiting.wait(end, sender);
        if !inner.flushing.running {
            inner.flushing.running = true;
            wakes.flush = Some(Arc::clone(self));
        }
        receiver
    }

    /// For a follower, after it appended: waits for the sync that `flush.messages` or `flush.ms` ask for, if they do. What
    /// it fetches next tells the leader that it has everything before, as durably as the topic wants.
    pub(crate) fn wait_for_due_flush(self: &Arc<Self>, now_ms: i64) -> Option<CommitWait> {
        self.step(|inner, wakes| {
            let log = inner.log.as_ref().filter(|log| log.flush_due(now_ms))?;
            let end = log.log_end_offset();
            Some(CommitWait::of_sync(self.wait_for_flush(inner, wakes, end)))
        })
    }

    /// Syncs until nobody waits any more: on a thread that may wait for the disk, if there is a runtime.
    pub(super) fn start_flushing(self: Arc<Self>) {
        match Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(move || self.flush_while_waited_for(None))),
            Err(_) => self.flush_while_waited_for(None),
        }
    }

    /// Syncs what `flush.messages` and `flush.ms` ask for, and segments that take no more appends. Waits for the disk.
    pub(crate) fn flush_what_is_due(self: &Arc<Self>, now_ms: i64) {
        let plan = self.step(|inner, wakes| {
            if inner.flushing.running {
                return None;
            }
            let log = inner.log.as_mut()?;
            let plan = if log.flush_due(now_ms) { log.flush_plan() } else { log.sealed_flush_plan() };
            match plan {
                Ok(plan) => {
                    inner.flushing.running = plan.is_some();
                    plan
                }
                Err(error) => {
                    self.fail_by(inner, wakes, error);
                    None
                }
            }
        });
        if plan.is_some() {
            self.flush_while_waited_for(plan);
        }
    }

    fn flush_while_waited_for(self: &Arc<Self>, mut plan: Option<FlushPlan>) {
        let mut done = None;
        loop {
            if let Some(plan) = plan.take() {
                let started = Instant::now();
                let result = plan.run();
                self.shared.metrics.log_flushes.record(started.elapsed());
                done = Some((plan, result));
            }
            plan = self.step(|inner, wakes| {
                if let Some((plan, result)) = done.take() {
                    self.finish_flush(inner, wakes, &plan, result);
                }
                self.next_flush(inner, wakes)
            });
            if plan.is_none() {
                return;
            }
        }
    }

    fn finish_flush(
        self: &Arc<Self>,
        inner: &mut Inner,
        wakes: &mut Wakes,
        plan: &FlushPlan,
        result: Result<(), StorageError>,
    ) {
        let Some(log) = inner.log.as_mut() else { return };
        match log.finish_flush(plan, result, wall_clock_ms()) {
            Ok(()) => {
                let durable = inner.flushing.waiting.release(log.recovery_point());
                wakes.commits.extend(durable.into_iter().map(|waiter| (waiter, Ok(()))));
            }
            Err(error) => self.fail_by(inner, wakes, error),
        }
    }

    /// The next sync, if somebody waits for it.
    fn next_flush(self: &Arc<Self>, inner: &mut Inner, wakes: &mut Wakes) -> Option<FlushPlan> {
        let planned = match inner.log.as_mut() {
            Some(log) if !inner.flushing.waiting.is_empty() => log.flush_plan(),
            _ => Ok(None),
        };
        match planned {
            Ok(Some(plan)) => return Some(plan),
            Ok(None) => {
                // Something else has synced everything.
                let durable = inner.flushing.waiting.drain();
                wakes.commits.extend(durable.into_iter().map(|waiter| (waiter, Ok(()))));
            }
            Err(error) => self.fail_by(inner, wakes, error),
        }
        inner.flushing.running = false;
        None
    }
}
