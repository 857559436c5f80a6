//! Configuration: Kafka's keys with Kafka's defaults, from a file, the environment and `--override`, in this order of
//! strength. Only this folder knows a default.
//!
//! `table` lists the keys, `settings` keeps what each source says, `broker`, `controller` and `topic` are the typed
//! views, `describe` is what DescribeConfigs answers. `load` alone touches files and the process's environment.

mod broker;
mod controller;
mod create_topics;
mod describe;
mod environment;
mod group;
mod keys;
mod listener;
mod load;
mod properties;
mod settings;
mod table;
mod topic;
mod topic_keys;

pub use broker::{BrokerConfig, IsrUpdatePath, ReplicaSelector, TruncationPath};
pub use controller::ControllerConfig;
pub use create_topics::TopicToCreate;
pub use describe::{
    ConfigEntry, ConfigSource, ConfigSynonym, describe_broker, describe_group, describe_topic,
};
pub use environment::{Variable, classify_variable};
pub use group::{GROUP_KEYS, GroupConfig, GroupKey, validate_group_config};
pub use keys::{AppliesTo, ConfigKey, Dynamic, Kind, all_keys, find_key, is_known, nearest_key};
pub use listener::{HttpListener, Listener, SecurityProtocol, ZookeeperConnect, split_host_port};
pub use load::{load_broker, load_controller, load_settings};
pub use properties::{PropertiesError, Property, parse_properties};
pub use settings::{ConfigError, ConfigProblem, Layer, Origin, Settings, Sources};
pub use topic::{CleanupPolicy, CompressionType, TimestampType, TopicConfig, validate_topic_config};
pub use topic_keys::{Synonym, TOPIC_KEYS, TopicKey, find_topic_key, nearest_topic_key};
