//! Background work of a broker: the ISR check, checkpoints, flushes, retention, compaction. One interval each, not one per
//! partition.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tokio_util::sync::CancellationToken;

use crate::context::BrokerContext;
use crate::metrics::watch_remote_ends;
use crate::partitions::{run_cleaner, run_moves, space_marks};
use crate::topics_at_start::create_topics_at_start;

/// How often logs are looked at that are due for a sync; most are never.
const FLUSH_CHECK: Duration = Duration::from_secs(1);
/// How often the free space of the log directories is looked at.
const SPACE_CHECK: Duration = Duration::from_secs(1);

/// Starts all of it; it ends with `stopping`.
pub(super) fn spawn(context: &Arc<BrokerContext>, data: &Handle, stopping: &CancellationToken) {
    data.spawn(crate::groups::run(Arc::clone(context), stopping.clone()));
    let creating = create_topics_at_start(Arc::clone(context));
    let stop_creating = stopping.clone();
    data.spawn(async move { stop_creating.run_until_cancelled(creating).await });
    data.spawn(crate::transactions::run(Arc::clone(context), stopping.clone()));
    let (for_ends, stop_ends) = (Arc::clone(context), stopping.clone());
    data.spawn(async move { stop_ends.run_until_cancelled(watch_remote_ends(&for_ends)).await });
    let config = &context.config;
    let initial = config.log_initial_task_delay;
    let half_lag = (config.replica_lag_time_max / 2).max(Duration::from_millis(1));
    let checkpoints =
        config.log_flush_offset_checkpoint_interval.min(config.log_flush_start_offset_checkpoint_interval);
    let every = |first: Duration, period: Duration, work: fn(&Arc<BrokerContext>)| {
        let (context, stopping) = (Arc::clone(context), stopping.clone());
        data.spawn(async move {
            let period = period.max(Duration::from_millis(1));
            let mut ticks = interval_at(Instant::now() + first, period);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                tokio::select! {
                    _ = ticks.tick() => {}
                    () = stopping.cancelled() => return,
                }
                let context = Arc::clone(&context);
                // It only fails if the process is stopping.
                let _ = tokio::task::spawn_blocking(move || work(&context)).await;
            }
        });
    };
    every(half_lag, half_lag, |context| {
        for partition in context.partitions.all() {
            partition.check_isr();
        }
    });
    let high_watermarks = config.replica_high_watermark_checkpoint_interval;
    every(high_watermarks, high_watermarks, |context| context.partitions.checkpoint_high_watermarks());
    every(initial, checkpoints, |context| context.partitions.checkpoint_logs());
    every(initial, FLUSH_CHECK, |context| context.partitions.flush_due());
    every(SPACE_CHECK, SPACE_CHECK, |context| {
        context.partitions.check_space(space_marks(&context.config.settings));
    });
    every(initial, config.log_retention_check_interval, |context| {
        context.partitions.apply_retention();
        context.partitions.remove_old_strays(context.config.stray_retention);
    });
    data.spawn(run_cleaner(Arc::clone(context), stopping.clone()));
    data.spawn(run_moves(Arc::clone(context), stopping.clone()));
}
