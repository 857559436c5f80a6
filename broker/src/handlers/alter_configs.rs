//! AlterConfigs (33), versions 0-2, and IncrementalAlterConfigs (44), versions 0-1: set what a topic, a group or
//! the brokers are configured with, by writing `/config`.
//!
//! - AlterConfigs replaces everything that was set; the incremental one changes the keys that it names.
//! - A resource that stands twice in a request is refused.
//! - The answer comes when this broker has taken the change over, so that it can be described at once.

use std::collections::BTreeMap;
use std::time::Duration;

use kafka_protocol::messages::{
    AlterConfigsRequest, AlterConfigsResponse, IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse, alter_configs_response, incremental_alter_configs_request,
    incremental_alter_configs_response,
};
use kafka_protocol::protocol::StrBytes;
use tracing::info;
use zurau_common::config::{describe_broker, describe_group, describe_topic};
use zurau_common::rejection::Rejection;
use zurau_common::zk::config::{decode_config, encode_config};
use zurau_common::zk::op::{Lifetime, MultiError, Node, Op, OpFailure};
use zurau_common::zk::znode::Znode;

use super::{Call, Starting};
use crate::config_changes::{Resource, Step, apply_steps, check, check_thread_counts};
use crate::context::BrokerContext;
use crate::topic_creation::{unreadable, unwritten, zookeeper};
use crate::topic_plan::Refusal;

/// How often a change is decided anew after another writer came between.
const ATTEMPTS_MAX: usize = 5;

/// How long an answer waits for the change to come back from ZooKeeper.
const EFFECT_WAIT: Duration = Duration::from_secs(1);

type Entries = BTreeMap<String, String>;

pub(super) fn start(call: Call) -> Starting {
    call.later(|call, request: AlterConfigsRequest| async move {
        let mut responses = Vec::new();
        for (index, resource) in request.resources.iter().enumerate() {
            let (kind, name) = (resource.resource_type, resource.resource_name.clone());
            let twice = request.resources.iter().enumerate().any(|(other, resource)| {
                other != index && (resource.resource_type, &resource.resource_name) == (kind, &name)
            });
            let steps = resource
                .configs
                .iter()
                .map(|config| {
                    Step::Set(config.name.to_string(), config.value.as_ref().map(ToString::to_string))
                })
                .collect();
            let change = Change { steps, replaces_all: true, validate_only: request.validate_only };
            let outcome =
                if twice { Err(stands_twice()) } else { alter(&call.context, kind, &name, &change).await };
            let (code, message) = told(outcome);
            responses.push(
                alter_configs_response::AlterConfigsResourceResponse::default()
                    .with_error_code(code)
                    .with_error_message(message)
                    .with_resource_type(kind)
                    .with_resource_name(name),
            );
        }
        AlterConfigsResponse::default().with_responses(responses)
    })
}

pub(super) fn start_incremental(call: Call) -> Starting {
    call.later(|call, request: IncrementalAlterConfigsRequest| async move {
        let mut responses = Vec::new();
        for (index, resource) in request.resources.iter().enumerate() {
            let (kind, name) = (resource.resource_type, resource.resource_name.clone());
            let twice = request.resources.iter().enumerate().any(|(other, resource)| {
                other != index && (resource.resource_type, &resource.resource_name) == (kind, &name)
            });
            let outcome = match resource.configs.iter().map(step).collect() {
                _ if twice => Err(stands_twice()),
                Ok(steps) => {
                    let change = Change { steps, replaces_all: false, validate_only: request.validate_only };
                    alter(&call.context, kind, &name, &change).await
                }
                Err(refusal) => Err(refusal),
            };
            let (code, message) = told(outcome);
            responses.push(
                incremental_alter_configs_response::AlterConfigsResourceResponse::default()
                    .with_error_code(code)
                    .with_error_message(message)
                    .with_resource_type(kind)
                    .with_resource_name(name),
            );
        }
        IncrementalAlterConfigsResponse::default().with_responses(responses)
    })
}

fn step(config: &incremental_alter_configs_request::AlterableConfig) -> Result<Step, Refusal> {
    let key = config.name.to_string();
    let value = config.value.as_ref().map(ToString::to_string);
    match config.config_operation {
        0 => Ok(Step::Set(key, value)),
        1 => Ok(Step::Delete(key)),
        2 => Ok(Step::Append(key, value)),
        3 => Ok(Step::Subtract(key, value)),
        other => {
            let message =
                format!("operation {other} on {key} is unknown; 0 set, 1 delete, 2 append, 3 subtract");
            Err(Refusal::new(Rejection::InvalidRequest, message))
        }
    }
}

fn stands_twice() -> Refusal {
    Refusal::new(Rejection::InvalidRequest, "the resource stands twice in the request")
}

fn told(outcome: Result<(), Refusal>) -> (i16, Option<StrBytes>) {
    match outcome {
        Ok(()) => (0, None),
        Err(refusal) => (refusal.rejection.code(), Some(StrBytes::from_string(refusal.message))),
    }
}

/// What one resource shall become.
struct Change {
    steps: Vec<Step>,
    replaces_all: bool,
    validate_only: bool,
}

async fn alter(context: &BrokerContext, kind: i8, name: &str, change: &Change) -> Result<(), Refusal> {
    let resource = Resource::parse(kind, name, context.config.broker_id)?;
    let zookeeper = zookeeper(context)?;
    let path = resource.znode().path();
    for _ in 0..ATTEMPTS_MAX {
        if let Resource::Topic(topic) = &resource {
            let exists = zookeeper.exists(&Znode::Topic(topic.clone()).path()).await.map_err(unreadable)?;
            if !exists {
                let message = format!("topic '{topic}' does not exist");
                return Err(Refusal::new(Rejection::UnknownTopicOrPartition, message));
            }
        }
        let node = zookeeper.get(&path).await.map_err(unreadable)?;
        let stored = stored(node.as_ref(), change)?;
        let base = if change.replaces_all { &Entries::new() } else { &stored };
        let wanted = apply_steps(base, &change.steps, |key| in_force(context, &resource, key))?;
        check(&resource, &wanted, &context.config)?;
        if let Resource::Broker(id) = &resource {
            let (all, own) = context.topic_configs.broker_overrides();
            let (all, own) = if id.is_some() { (&all, &wanted) } else { (&wanted, &own) };
            // What is stored for the other resource and cannot be used changes nothing here.
            if let Ok(changed) = context.config.with_dynamic(all, own) {
                check_thread_counts(&context.topic_configs.broker_config().settings, &changed.settings)?;
            }
        }
        if change.validate_only {
            return Ok(());
        }
        match zookeeper.multi(&[write(&path, node.as_ref(), &wanted)]).await {
            Ok(_) => {
                info!(znode = path, "configuration changed for a client");
                wait_for_effect(context, &resource, &wanted).await;
                return Ok(());
            }
            Err(MultiError::Failed {
                reason: OpFailure::BadVersion | OpFailure::NodeExists | OpFailure::NoNode,
                ..
            })
            | Err(MultiError::Unknown) => {}
            Err(error) => return Err(unwritten(&error)),
        }
    }
    Err(Refusal::new(Rejection::RequestTimedOut, "the configuration changes too fast; try again"))
}

fn stored(node: Option<&Node>, change: &Change) -> Result<Entries, Refusal> {
    match node.map(|node| decode_config(&node.data)).transpose() {
        Ok(entries) => Ok(entries.unwrap_or_default()),
        // Whoever replaces everything mends a damaged znode.
        Err(_) if change.replaces_all => Ok(Entries::new()),
        Err(error) => Err(Refusal::new(Rejection::InvalidConfig, error.to_string())),
    }
}

fn write(path: &str, node: Option<&Node>, entries: &Entries) -> Op {
    let (path, data) = (path.to_owned(), encode_config(entries));
    match node {
        None => Op::Create { path, data, lifetime: Lifetime::Persistent },
        Some(node) => Op::SetData { path, data, version: Some(node.version) },
    }
}

/// The value in force of a key that is not set, which append and subtract start from.
fn in_force(context: &BrokerContext, resource: &Resource, key: &str) -> String {
    let config = context.topic_configs.broker_config();
    let entries = match resource {
        Resource::Topic(_) => describe_topic(&config, &Entries::new()),
        Resource::Group(_) => describe_group(&config, &Entries::new()),
        Resource::Broker(_) => describe_broker(&config),
    };
    entries.into_iter().find(|entry| entry.name == key).and_then(|entry| entry.value).unwrap_or_default()
}

async fn wait_for_effect(context: &BrokerContext, resource: &Resource, wanted: &Entries) {
    let effective = context.topic_configs.wait_until(|| match resource {
        Resource::Topic(topic) => *context.topic_configs.overrides(topic) == *wanted,
        Resource::Group(group) => *context.topic_configs.groups.overrides(group) == *wanted,
        Resource::Broker(id) => {
            let (all, own) = context.topic_configs.broker_overrides();
            *wanted == if id.is_some() { own } else { all }
        }
    });
    // Too slow is no error: the change is stored.
    let _ = tokio::time::timeout(EFFECT_WAIT, effective).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handlers::tests::assert_every_version_encodes;

    #[test]
    fn every_version_encodes() {
        for outcome in [Ok(()), Err(stands_twice())] {
            let (code, message) = told(outcome);
            assert_every_version_encodes::<AlterConfigsRequest>(|_| {
                let response = alter_configs_response::AlterConfigsResourceResponse::default()
                    .with_error_code(code)
                    .with_error_message(message.clone());
                AlterConfigsResponse::default().with_responses(vec![response])
            });
            assert_every_version_encodes::<IncrementalAlterConfigsRequest>(|_| {
                let response = incremental_alter_configs_response::AlterConfigsResourceResponse::default()
                    .with_error_code(code)
                    .with_error_message(message.clone());
                IncrementalAlterConfigsResponse::default().with_responses(vec![response])
            });
        }
    }

    #[test]
    fn operations_have_numbers() {
        let config = |operation| {
            incremental_alter_configs_request::AlterableConfig::default()
                .with_name("k".into())
                .with_config_operation(operation)
                .with_value(Some("v".into()))
        };
        assert_eq!(step(&config(0)), Ok(Step::Set("k".to_owned(), Some("v".to_owned()))));
        assert_eq!(step(&config(1)), Ok(Step::Delete("k".to_owned())));
        assert_eq!(step(&config(4)).unwrap_err().rejection.code(), 42);
    }

    #[test]
    fn damaged_znodes_are_mended_by_replacing_only() {
        let node = Node { data: b"{".to_vec(), version: 3, czxid: 0, mzxid: 0, ephemeral_owner: 0 };
        let change = |replaces_all| Change { steps: Vec::new(), replaces_all, validate_only: false };
        assert_eq!(stored(Some(&node), &change(true)), Ok(Entries::new()));
        assert_eq!(stored(Some(&node), &change(false)).unwrap_err().rejection.code(), 40);
        assert!(matches!(write("/x", Some(&node), &Entries::new()), Op::SetData { version: Some(3), .. }));
        assert!(matches!(write("/x", None, &Entries::new()), Op::Create { .. }));
    }
}
