//! DescribeConfigs (32), versions 0-4: what topics, brokers and groups are configured with, and where each value comes from.
//!
//! - v0 only says whether a value is the default; v1 names the source and, if asked, everything it shadows; v3 adds
//!   the type and, if asked, the documentation.
//! - A broker is described by itself; without a name only what is set for all brokers is listed.
//! - A group need not exist to have a configuration (KIP-1043 knows it as resource type 32).
//! - A null or empty list of keys means all.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::describe_configs_response::{
    DescribeConfigsResourceResult, DescribeConfigsResult, DescribeConfigsSynonym,
};
use kafka_protocol::messages::{DescribeConfigsRequest, DescribeConfigsResponse};
use kafka_protocol::protocol::StrBytes;
use zurau_common::config::{ConfigEntry, ConfigSource, describe_broker, describe_group, describe_topic};
use zurau_common::id::TopicName;
use zurau_common::rejection::Rejection;
use zurau_common::zk::config::decode_config;
use zurau_common::zk::znode::Znode;

use super::{Call, Starting};
use crate::config_changes::Resource;
use crate::context::BrokerContext;
use crate::groups::GroupId;
use crate::topic_plan::Refusal;

pub(super) fn start(call: Call) -> Starting {
    call.later(|call, request: DescribeConfigsRequest| async move {
        let shown = Shown {
            version: call.version(),
            synonyms: request.include_synonyms,
            documentation: request.include_documentation,
        };
        let mut results = Vec::new();
        for resource in &request.resources {
            results.push(result(resource, describe(&call.context, resource).await, &shown));
        }
        DescribeConfigsResponse::default().with_results(results)
    })
}

/// How much of an entry is shown.
struct Shown {
    version: i16,
    synonyms: bool,
    documentation: bool,
}

async fn describe(
    context: &BrokerContext,
    asked: &DescribeConfigsResource,
) -> Result<Vec<ConfigEntry>, Refusal> {
    let resource = Resource::parse(asked.resource_type, &asked.resource_name, context.config.broker_id)?;
    let config = context.topic_configs.broker_config();
    match resource {
        Resource::Topic(topic) => {
            let overrides = topic_overrides(context, &topic).await?;
            Ok(describe_topic(&config, &overrides))
        }
        Resource::Group(group) => Ok(describe_group(&config, &group_overrides(context, &group).await)),
        Resource::Broker(Some(_)) => Ok(describe_broker(&config)),
        Resource::Broker(None) => {
            let (all_brokers, _) = context.topic_configs.broker_overrides();
            let set =
                describe_broker(&config).into_iter().filter(|entry| all_brokers.contains_key(entry.name));
            let entries = set.filter_map(|mut entry| {
                // Another layer of this broker may be stronger; here only the one for all counts.
                entry.synonyms.retain(|synonym| synonym.source == ConfigSource::DynamicDefaultBroker);
                let default = entry.synonyms.first()?;
                (entry.value, entry.source) = (default.value.clone(), default.source);
                Some(entry)
            });
            Ok(entries.collect())
        }
    }
}

/// What ZooKeeper has now: a change made through another broker a moment ago is seen. Without ZooKeeper, what was
/// last heard of it.
async fn topic_overrides(
    context: &BrokerContext,
    topic: &TopicName,
) -> Result<BTreeMap<String, String>, Refusal> {
    let known = context.metadata.image().topic(topic).is_some();
    let unknown =
        || Refusal::new(Rejection::UnknownTopicOrPartition, format!("topic '{topic}' does not exist"));
    if let Some(zookeeper) = context.zookeeper.current() {
        let paths = [Znode::Topic(topic.clone()).path(), Znode::TopicConfig(topic.clone()).path()];
        if let Ok(nodes) = zookeeper.get_many(&paths).await
            && let [topic_node, config] = nodes.as_slice()
        {
            if topic_node.is_none() {
                return Err(unknown());
            }
            return match config.as_ref().map(|node| decode_config(&node.data)) {
                Some(Ok(entries)) => Ok(entries),
                Some(Err(_)) => Ok((*context.topic_configs.overrides(topic)).clone()),
                None => Ok(BTreeMap::new()),
            };
        }
    }
    if known { Ok((*context.topic_configs.overrides(topic)).clone()) } else { Err(unknown()) }
}

/// As `topic_overrides`.
async fn group_overrides(context: &BrokerContext, group: &GroupId) -> BTreeMap<String, String> {
    if let Some(zookeeper) = context.zookeeper.current()
        && let Ok(node) = zookeeper.get(&Znode::GroupConfig(Arc::clone(group)).path()).await
    {
        match node.map(|node| decode_config(&node.data)) {
            Some(Ok(entries)) => return entries,
            Some(Err(_)) => {}
            None => return BTreeMap::new(),
        }
    }
    (*context.topic_configs.groups.overrides(group)).clone()
}

fn result(
    asked: &DescribeConfigsResource,
    described: Result<Vec<ConfigEntry>, Refusal>,
    shown: &Shown,
) -> DescribeConfigsResult {
    let result = DescribeConfigsResult::default()
        .with_resource_type(asked.resource_type)
        .with_resource_name(asked.resource_name.clone());
    let entries = match described {
        Ok(entries) => entries,
        Err(refusal) => {
            return result
                .with_error_code(refusal.rejection.code())
                .with_error_message(Some(StrBytes::from_string(refusal.message)));
        }
    };
    let keys: BTreeSet<&str> = asked.configuration_keys.iter().flatten().map(|key| key.as_str()).collect();
    let wanted = entries.into_iter().filter(|entry| keys.is_empty() || keys.contains(entry.name));
    result.with_configs(wanted.map(|entry| config(entry, shown)).collect())
}

fn config(entry: ConfigEntry, shown: &Shown) -> DescribeConfigsResourceResult {
    let mut config = DescribeConfigsResourceResult::default()
        .with_name(StrBytes::from_static_str(entry.name))
        .with_value(entry.value.map(StrBytes::from_string))
        .with_read_only(entry.read_only)
        .with_is_sensitive(entry.sensitive);
    if shown.version == 0 {
        return config.with_is_default(entry.source == ConfigSource::Default);
    }
    config = config.with_config_source(entry.source.wire_code());
    if shown.synonyms {
        let synonyms = entry.synonyms.into_iter().map(|synonym| {
            DescribeConfigsSynonym::default()
                .with_name(StrBytes::from_static_str(synonym.name))
                .with_value(synonym.value.map(StrBytes::from_string))
                .with_source(synonym.source.wire_code())
        });
        config = config.with_synonyms(synonyms.collect());
    }
    if 3 <= shown.version {
        config = config.with_config_type(entry.type_code);
        if shown.documentation {
            config = config.with_documentation(Some(StrBytes::from_static_str(entry.doc)));
        }
    }
    config
}

#[cfg(test)]
mod tests {
    use zurau_common::config::BrokerConfig;

    use super::*;
    use crate::handlers::tests::assert_every_version_encodes;

    fn entries() -> Vec<ConfigEntry> {
        let config = BrokerConfig::from_pairs([("broker.id", "1"), ("log.retention.ms", "9")]).unwrap();
        let overrides = BTreeMap::from([("segment.ms".to_owned(), "5".to_owned())]);
        describe_topic(&config, &overrides)
    }

    fn shown(version: i16) -> Shown {
        Shown { version, synonyms: true, documentation: true }
    }

    #[test]
    fn every_version_encodes() {
        let asked = DescribeConfigsResource::default();
        assert_every_version_encodes::<DescribeConfigsRequest>(|version| {
            let refusal = Refusal::new(Rejection::InvalidRequest, "why");
            let results = vec![
                result(&asked, Ok(entries()), &shown(version)),
                result(&asked, Err(refusal), &shown(version)),
            ];
            DescribeConfigsResponse::default().with_results(results)
        });
    }

    #[test]
    fn sources_and_synonyms_are_told() {
        let asked = DescribeConfigsResource::default()
            .with_configuration_keys(Some(vec!["segment.ms".into(), "retention.ms".into()]));
        let described = result(&asked, Ok(entries()), &shown(4)).configs;
        let rows: Vec<(&str, i8, usize)> = described
            .iter()
            .map(|config| (config.name.as_str(), config.config_source, config.synonyms.len()))
            .collect();
        assert_eq!(rows.len(), 2, "only what was asked for");
        let source = |name: &str| rows.iter().find(|row| row.0 == name).unwrap().1;
        assert_eq!((source("segment.ms"), source("retention.ms")), (1, 4));
        assert!(described.iter().all(|config| config.documentation.is_some() && config.config_type == 5));
        let oldest = result(&asked, Ok(entries()), &shown(0)).configs;
        assert!(oldest.iter().all(|config| !config.is_default));
    }
}
