//! `zurau configs`: what topics, brokers and groups are configured with, where each value comes from, and how it is
//! changed. Changes hold at once.

use std::collections::BTreeMap;
use std::fmt;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::{Args, Subcommand, ValueEnum};
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::describe_configs_response::DescribeConfigsResourceResult;
use kafka_protocol::messages::incremental_alter_configs_request::{AlterConfigsResource, AlterableConfig};
use kafka_protocol::messages::{DescribeConfigsRequest, IncrementalAlterConfigsRequest};
use kafka_protocol::protocol::StrBytes;
use serde::Serialize;

use crate::admin::{self, Common, exit_code, parse_pair};
use crate::client::{Client, Refused};
use crate::table::{Table, known};

/// Arguments of `zurau configs`.
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// What is set; with --all also what is a default.
    Describe {
        #[command(flatten)]
        entity: Entity,
        #[arg(long)]
        all: bool,
        /// Only these keys.
        #[arg(long, value_name = "KEY")]
        key: Vec<String>,
    },
    /// Set values.
    Set {
        #[command(flatten)]
        entity: Entity,
        #[arg(value_name = "KEY=VALUE", value_parser = parse_pair, required = true)]
        pairs: Vec<(String, String)>,
        /// Only say whether the values would be accepted.
        #[arg(long)]
        validate_only: bool,
    },
    /// Take values back to their default.
    Delete {
        #[command(flatten)]
        entity: Entity,
        #[arg(value_name = "KEY", required = true)]
        keys: Vec<String>,
    },
}

/// Whose configuration: one of the flags, or kafka-configs' pair of them.
#[derive(Args, Debug)]
struct Entity {
    #[arg(long)]
    topic: Option<String>,
    /// Id of one broker.
    #[arg(long)]
    broker: Option<i32>,
    /// What holds for every broker that has no value of its own.
    #[arg(long)]
    broker_default: bool,
    #[arg(long)]
    group: Option<String>,
    #[arg(long, value_enum)]
    entity_type: Option<EntityType>,
    #[arg(long, requires = "entity_type")]
    entity_name: Option<String>,
    #[arg(long, requires = "entity_type", conflicts_with = "entity_name")]
    entity_default: bool,
}

#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
enum EntityType {
    Topics,
    Brokers,
    Groups,
}

impl Entity {
    /// # Errors
    /// None is named, more than one is, or the name does not fit its type.
    fn resource(&self) -> Result<Resource> {
        let broker = |text: &String| {
            let id = text.parse().map_err(|_| admin::usage(format!("'{text}' is not a broker id")));
            id.map(|id| Resource::Broker(Some(id)))
        };
        let mut named = Vec::new();
        named.extend(self.topic.clone().map(Resource::Topic));
        named.extend(self.broker.map(|id| Resource::Broker(Some(id))));
        named.extend(self.broker_default.then_some(Resource::Broker(None)));
        named.extend(self.group.clone().map(Resource::Group));
        match (self.entity_type, &self.entity_name, self.entity_default) {
            (None, ..) => {}
            (Some(EntityType::Topics), Some(name), _) => named.push(Resource::Topic(name.clone())),
            (Some(EntityType::Groups), Some(name), _) => named.push(Resource::Group(name.clone())),
            (Some(EntityType::Brokers), Some(name), _) => named.push(broker(name)?),
            (Some(EntityType::Brokers), None, true) => named.push(Resource::Broker(None)),
            (Some(_), ..) => return Err(admin::usage("--entity-type needs --entity-name")),
        }
        match named.len() {
            1 => Ok(named.remove(0)),
            0 => Err(admin::usage("say whose: --topic NAME, --broker ID, --broker-default or --group NAME")),
            _ => Err(admin::usage("name one entity only")),
        }
    }
}

/// What has a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Resource {
    Topic(String),
    /// `None`: what holds for all brokers.
    Broker(Option<i32>),
    Group(String),
}

impl Resource {
    /// Kafka's number of the type.
    fn kind(&self) -> i8 {
        match self {
            Self::Topic(_) => 2,
            Self::Broker(_) => 4,
            Self::Group(_) => 32,
        }
    }

    fn name(&self) -> String {
        match self {
            Self::Topic(name) | Self::Group(name) => name.clone(),
            Self::Broker(id) => id.map(|id| id.to_string()).unwrap_or_default(),
        }
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Topic(name) => write!(f, "topic {name}"),
            Self::Broker(Some(id)) => write!(f, "broker {id}"),
            Self::Broker(None) => f.write_str("default of all brokers"),
            Self::Group(name) => write!(f, "group {name}"),
        }
    }
}

/// One key with its value and where that comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Entry {
    pub(crate) name: String,
    /// `null` when there is none, or when it is secret.
    pub(crate) value: Option<String>,
    pub(crate) source: &'static str,
    pub(crate) read_only: bool,
    pub(crate) sensitive: bool,
    /// Strongest first.
    pub(crate) synonyms: Vec<Synonym>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Synonym {
    pub(crate) name: String,
    pub(crate) value: Option<String>,
    pub(crate) source: &'static str,
}

impl Entry {
    /// Whether it is set for this very topic.
    pub(crate) fn is_own(&self) -> bool {
        self.source == source(1)
    }

    /// Whether somebody has set it, anywhere.
    fn is_set(&self) -> bool {
        self.source != source(5)
    }

    fn from_wire(found: DescribeConfigsResourceResult) -> Self {
        let text = |text: Option<StrBytes>| text.map(|text| text.to_string());
        let synonyms = found.synonyms.into_iter().map(|synonym| Synonym {
            name: synonym.name.to_string(),
            value: text(synonym.value),
            source: source(synonym.source),
        });
        Self {
            name: found.name.to_string(),
            value: text(found.value),
            source: source(found.config_source),
            read_only: found.read_only,
            sensitive: found.is_sensitive,
            synonyms: synonyms.collect(),
        }
    }
}

/// Kafka's name of the source of a value.
fn source(code: i8) -> &'static str {
    match code {
        1 => "DYNAMIC_TOPIC_CONFIG",
        2 => "DYNAMIC_BROKER_CONFIG",
        3 => "DYNAMIC_DEFAULT_BROKER_CONFIG",
        4 => "STATIC_BROKER_CONFIG",
        5 => "DEFAULT_CONFIG",
        8 => "DYNAMIC_GROUP_CONFIG",
        _ => "UNKNOWN",
    }
}

/// A key that is set or taken back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Change {
    key: String,
    /// `null` takes it back to its default.
    value: Option<String>,
}

impl Change {
    pub(crate) fn set(key: &str, value: &str) -> Self {
        Self { key: key.to_owned(), value: Some(value.to_owned()) }
    }

    pub(crate) fn delete(key: &str) -> Self {
        Self { key: key.to_owned(), value: None }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            Some(value) => write!(f, "{}={value}", self.key),
            None => write!(f, "{} is back to its default", self.key),
        }
    }
}

pub(crate) fn run(arguments: Arguments) -> ExitCode {
    admin::run("configs", work(arguments))
}

async fn work(arguments: Arguments) -> Result<ExitCode> {
    let Arguments { common, command } = arguments;
    let mut client = Client::new(&common);
    match command {
        Command::Describe { entity, all, key } => {
            let resource = entity.resource()?;
            let entries = describe_one(&mut client, &resource, &key).await?;
            let shown = |entry: &Entry| all || !key.is_empty() || entry.is_set();
            let entries: Vec<Entry> = entries.into_iter().filter(shown).collect();
            common.output.print(&entries, |entries| table(entries))?;
            Ok(exit_code(true))
        }
        Command::Set { entity, pairs, validate_only } => {
            let changes: Vec<Change> = pairs.iter().map(|(key, value)| Change::set(key, value)).collect();
            apply(&mut client, &common, &entity.resource()?, &changes, validate_only).await
        }
        Command::Delete { entity, keys } => {
            let changes: Vec<Change> = keys.iter().map(|key| Change::delete(key)).collect();
            apply(&mut client, &common, &entity.resource()?, &changes, false).await
        }
    }
}

fn table(entries: &[Entry]) -> Table {
    let mut table = Table::new(&["KEY", "VALUE", "SOURCE", "OVER"]);
    for entry in entries {
        let value = if entry.sensitive { "(hidden)".to_owned() } else { known(entry.value.as_ref()) };
        // The first synonym is the value in force itself.
        let weaker = entry.synonyms.iter().skip(1).map(|synonym| {
            format!("{}={} ({})", synonym.name, known(synonym.value.as_ref()), synonym.source)
        });
        table.row([
            entry.name.clone(),
            value,
            entry.source.to_owned(),
            weaker.collect::<Vec<_>>().join(", "),
        ]);
    }
    if entries.is_empty() {
        table = Table::default();
        table.note("nothing is set; --all shows the defaults");
    }
    table
}

async fn apply(
    client: &mut Client,
    common: &Common,
    resource: &Resource,
    changes: &[Change],
    validate_only: bool,
) -> Result<ExitCode> {
    change_configs(client, resource, changes, validate_only).await??;
    common.output.print(changes, |changes| {
        let mut table = Table::default();
        for change in changes {
            let would = if validate_only { " would be accepted" } else { "" };
            table.note(format!("{resource}: {change}{would}"));
        }
        table
    })?;
    Ok(exit_code(true))
}

/// A broker is asked about itself; anything else may be asked of any.
async fn describe_one(client: &mut Client, resource: &Resource, keys: &[String]) -> Result<Vec<Entry>> {
    let mut found = describe(client, std::slice::from_ref(resource), keys).await?;
    found.pop().context("the answer names no resource")?
}

type DescribedResource = Result<Vec<Entry>>;

async fn describe(
    client: &mut Client,
    resources: &[Resource],
    keys: &[String],
) -> Result<Vec<DescribedResource>> {
    let connection = match resources {
        [Resource::Broker(Some(id))] => client.broker(*id).await?,
        _ => client.any().await?,
    };
    let keys = || {
        let keys = keys.iter().map(|key| StrBytes::from_string(key.clone()));
        Some(keys.collect::<Vec<_>>()).filter(|keys| !keys.is_empty())
    };
    let asked = resources.iter().map(|resource| {
        DescribeConfigsResource::default()
            .with_resource_type(resource.kind())
            .with_resource_name(StrBytes::from_string(resource.name()))
            .with_configuration_keys(keys())
    });
    let request =
        DescribeConfigsRequest::default().with_resources(asked.collect()).with_include_synonyms(true);
    let answer = connection.call(4, &request).await?;
    let results = answer.results.into_iter().zip(resources).map(|(result, resource)| {
        Refused::check(result.error_code, result.error_message.as_deref(), || resource.to_string())?;
        let mut entries: Vec<Entry> = result.configs.into_iter().map(Entry::from_wire).collect();
        entries.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(entries)
    });
    Ok(results.collect())
}

/// Those of the keys that are set for this very resource.
///
/// # Errors
/// No broker answers, or the resource is refused.
pub(crate) async fn own_keys(client: &mut Client, resource: &Resource, keys: &[&str]) -> Result<Vec<String>> {
    let own = source(match resource {
        Resource::Topic(_) => 1,
        Resource::Broker(_) => 2,
        Resource::Group(_) => 8,
    });
    let keys: Vec<String> = keys.iter().map(|key| (*key).to_owned()).collect();
    let entries = describe_one(client, resource, &keys).await?;
    Ok(entries.into_iter().filter(|entry| entry.source == own).map(|entry| entry.name).collect())
}

/// The configurations of topics, by name. A topic that is gone by now is left out.
///
/// # Errors
/// No broker answers.
pub(crate) async fn topic_configs(
    client: &mut Client,
    names: &[String],
) -> Result<BTreeMap<String, Vec<Entry>>> {
    if names.is_empty() {
        return Ok(BTreeMap::new());
    }
    let resources: Vec<Resource> = names.iter().cloned().map(Resource::Topic).collect();
    let described = describe(client, &resources, &[]).await?;
    Ok(names.iter().cloned().zip(described).filter_map(|(name, found)| Some((name, found.ok()?))).collect())
}

/// Changes keys of one resource; all of them or none.
///
/// # Errors
/// No broker answers; the inner error is its refusal.
pub(crate) async fn change_configs(
    client: &mut Client,
    resource: &Resource,
    changes: &[Change],
    validate_only: bool,
) -> Result<Result<(), Refused>> {
    const SET: i8 = 0;
    const DELETE: i8 = 1;
    let configs = changes.iter().map(|change| {
        AlterableConfig::default()
            .with_name(StrBytes::from_string(change.key.clone()))
            .with_config_operation(if change.value.is_some() { SET } else { DELETE })
            .with_value(change.value.clone().map(StrBytes::from_string))
    });
    let asked = AlterConfigsResource::default()
        .with_resource_type(resource.kind())
        .with_resource_name(StrBytes::from_string(resource.name()))
        .with_configs(configs.collect());
    let request = IncrementalAlterConfigsRequest::default()
        .with_resources(vec![asked])
        .with_validate_only(validate_only);
    let connection = match resource {
        Resource::Broker(Some(id)) => client.broker(*id).await?,
        _ => client.any().await?,
    };
    let answer = connection.call(1, &request).await?;
    let result = answer.responses.first().context("the answer names no resource")?;
    Ok(Refused::check(result.error_code, result.error_message.as_deref(), || resource.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entity() -> Entity {
        Entity {
            topic: None,
            broker: None,
            broker_default: false,
            group: None,
            entity_type: None,
            entity_name: None,
            entity_default: false,
        }
    }

    #[test]
    fn one_entity_is_named_in_either_way() {
        let kafkas = |kind, name: Option<&str>, default| Entity {
            entity_type: Some(kind),
            entity_name: name.map(str::to_owned),
            entity_default: default,
            ..entity()
        };
        let rows = [
            (Entity { topic: Some("t".into()), ..entity() }, Resource::Topic("t".into())),
            (Entity { broker: Some(0), ..entity() }, Resource::Broker(Some(0))),
            (Entity { broker_default: true, ..entity() }, Resource::Broker(None)),
            (Entity { group: Some("g".into()), ..entity() }, Resource::Group("g".into())),
            (kafkas(EntityType::Topics, Some("t"), false), Resource::Topic("t".into())),
            (kafkas(EntityType::Brokers, Some("3"), false), Resource::Broker(Some(3))),
            (kafkas(EntityType::Brokers, None, true), Resource::Broker(None)),
            (kafkas(EntityType::Groups, Some("g"), false), Resource::Group("g".into())),
        ];
        for (entity, expected) in rows {
            assert_eq!(entity.resource().unwrap(), expected, "{entity:?}");
        }
        for wrong in [
            entity(),
            Entity { topic: Some("t".into()), broker: Some(1), ..entity() },
            kafkas(EntityType::Topics, None, true),
            kafkas(EntityType::Brokers, Some("x"), false),
        ] {
            assert!(wrong.resource().unwrap_err().is::<admin::Usage>(), "{wrong:?}");
        }
    }
}
