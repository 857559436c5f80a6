//! What a pass needs to know of a log, taken under its owner's lock; the pass then works without it.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use super::choice::{Bounds, Dirtiness, SegmentFacts, cleanable_count};
use crate::log::config::LogConfig;
use crate::log::error::StorageError;
use crate::log::files::LogFile;
use crate::log::partition_log::PartitionLog;
use crate::log::transaction_index::TransactionIndex;

/// A segment that a pass may read. Which file it is says whether it is still the same segment later.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    pub(crate) facts: SegmentFacts,
    pub(crate) log: Arc<LogFile>,
    pub(crate) last_append_ms: i64,
}

/// One log's cleanable segments and what goes with them.
#[derive(Debug)]
pub(crate) struct CleaningPlan {
    pub(crate) directory: PathBuf,
    pub(crate) config: LogConfig,
    pub(crate) first_dirty_offset: i64,
    /// Oldest first, at least one of them dirty.
    pub(crate) sources: Vec<Source>,
    /// Of all segments: a transaction may end behind the cleanable part.
    pub(crate) transactions: Vec<TransactionIndex>,
    /// See [`crate::log::producers::ProducerStates::last_batches`].
    pub(crate) last_batches: HashMap<i64, (i16, Option<i64>)>,
    pub(crate) truncations: u64,
}

impl CleaningPlan {
    pub(crate) fn facts(&self) -> Vec<SegmentFacts> {
        self.sources.iter().map(|source| source.facts).collect()
    }

    /// Exclusive end of what may be cleaned.
    pub(crate) fn cleanable_end(&self) -> i64 {
        self.sources.last().map_or(self.first_dirty_offset, |source| source.facts.end_offset)
    }
}

impl PartitionLog {
    /// How much the log needs compaction; `None` when its policy does not ask for it or nothing may be cleaned.
    pub(crate) fn dirtiness(&mut self, now_ms: i64) -> Result<Option<Dirtiness>, StorageError> {
        if !self.config.cleanup_policy.compact || self.stopped.is_some() || self.compaction_paused {
            return Ok(None);
        }
        let cleanable = self.cleanable(now_ms)?;
        let dirtiness = Dirtiness::of(&cleanable, self.first_dirty_offset(), &self.bounds(now_ms));
        Ok((dirtiness.dirty_bytes > 0).then_some(dirtiness))
    }

    /// `None` when nothing may be cleaned now.
    pub(crate) fn cleaning_plan(&mut self, now_ms: i64) -> Result<Option<CleaningPlan>, StorageError> {
        if self.compaction_paused {
            return Ok(None);
        }
        let facts = self.cleanable(now_ms)?;
        let first_dirty_offset = self.first_dirty_offset();
        if self.stopped.is_some() || facts.last().is_none_or(|last| last.end_offset <= first_dirty_offset) {
            return Ok(None);
        }
        let sources = facts.iter().zip(self.segments.values()).map(|(facts, segment)| Source {
            facts: *facts,
            log: Arc::clone(&segment.log),
            last_append_ms: segment.last_append_ms,
        });
        Ok(Some(CleaningPlan {
            directory: self.directory.clone(),
            config: self.config.clone(),
            first_dirty_offset,
            sources: sources.collect(),
            transactions: self.segments.values().map(|segment| segment.transactions.clone()).collect(),
            last_batches: self.producers.last_batches(),
            truncations: self.truncations,
        }))
    }

    fn bounds(&self, now_ms: i64) -> Bounds {
        Bounds {
            last_stable_offset: self.last_stable_offset(),
            min_lag_ms: self.config.min_compaction_lag_ms,
            max_lag_ms: self.config.max_compaction_lag_ms,
            now_ms,
        }
    }

    /// Facts of the segments that may be cleaned, oldest first; the active one never is.
    fn cleanable(&mut self, now_ms: i64) -> Result<Vec<SegmentFacts>, StorageError> {
        let bounds = self.bounds(now_ms);
        let first_dirty_offset = self.first_dirty_offset();
        let ends: Vec<i64> = self.segments.keys().skip(1).copied().collect();
        let mut facts = Vec::with_capacity(ends.len());
        for (segment, end_offset) in self.segments.values_mut().zip(ends) {
            let timestamps_matter = bounds.max_lag_ms < i64::MAX && end_offset > first_dirty_offset;
            let first_timestamp = if timestamps_matter { segment.first_timestamp()? } else { None };
            facts.push(SegmentFacts {
                base_offset: segment.base_offset,
                end_offset,
                size_bytes: segment.size_bytes,
                largest_timestamp: segment.largest_timestamp.0,
                first_timestamp: first_timestamp.unwrap_or(-1),
            });
        }
        facts.truncate(cleanable_count(&facts, first_dirty_offset, &bounds));
        Ok(facts)
    }

    /// Whether every one of `sources` is still a segment of this log, untouched since the plan was made.
    pub(crate) fn still_has(&self, sources: &[Source], truncations: u64) -> bool {
        let has = |source: &Source| {
            let segment = self.segments.get(&source.facts.base_offset);
            segment.is_some_and(|segment| Arc::ptr_eq(&segment.log, &source.log))
        };
        self.truncations == truncations && sources.iter().all(has)
    }
}
