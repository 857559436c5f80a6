//! Reads a page in Prometheus' text format, strictly: what is not as the format says is an error.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, bail, ensure};

use crate::http;

/// A page of metrics.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    /// `name type` of each family.
    pub families: BTreeSet<String>,
    /// By name and labels as they stand: `x_total{topic="t"}`.
    samples: BTreeMap<String, f64>,
}

impl Metrics {
    /// Asks a process at `address`.
    ///
    /// # Errors
    /// It does not answer, or not in the format.
    pub fn get(address: &str) -> Result<Self> {
        let page = http::get(address, "/metrics")?;
        ensure!(page.status == 200, "status {}: {}", page.status, page.body);
        Self::parse(&page.body)
    }

    /// # Errors
    /// The first line that is wrong.
    pub fn parse(text: &str) -> Result<Self> {
        ensure!(text.ends_with('\n'), "the page does not end with a line");
        let mut page = Self::default();
        let mut family = String::new();
        for line in text.lines() {
            let wrong = || format!("in {line:?}");
            if let Some(help) = line.strip_prefix("# HELP ") {
                family = help.split(' ').next().with_context(wrong)?.to_owned();
                ensure!(help.len() > family.len() + 1, "a family without help {}", wrong());
            } else if let Some(kind) = line.strip_prefix("# TYPE ") {
                let kind = kind.strip_prefix(family.as_str()).and_then(|kind| kind.strip_prefix(' '));
                let kind = kind.with_context(wrong)?;
                ensure!(["counter", "gauge", "summary"].contains(&kind), "an unknown type {}", wrong());
                // As JMX exporters name the counts of Kafka's own sensors.
                let counts = family.ends_with("_total") || family.ends_with("_count");
                ensure!(kind != "counter" || counts, "a counter without _total {}", wrong());
                ensure!(page.families.insert(format!("{family} {kind}")), "a family twice {}", wrong());
            } else {
                let (name, value) = line.rsplit_once(' ').with_context(wrong)?;
                let bare = name.split('{').next().unwrap_or(name);
                let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
                ensure!(bare.chars().all(legal), "an odd name {}", wrong());
                let suffix = bare.strip_prefix(family.as_str()).with_context(wrong)?;
                ensure!(["", "_sum", "_count"].contains(&suffix), "of another family {}", wrong());
                ensure!(name == bare || name.ends_with("\"}"), "odd labels {}", wrong());
                let value = if value == "NaN" { f64::NAN } else { value.parse().with_context(wrong)? };
                if page.samples.insert(name.to_owned(), value).is_some() {
                    bail!("a sample twice {}", wrong());
                }
            }
        }
        Ok(page)
    }

    /// The value of a sample, named with its labels.
    ///
    /// # Errors
    /// There is none.
    pub fn value(&self, sample: &str) -> Result<f64> {
        self.samples.get(sample).copied().with_context(|| format!("no sample {sample}"))
    }
}
