//! Scenarios on whole clusters of real processes. One binary, because linking costs more than running; under
//! nextest they share a test group that bounds how many clusters run at once.

mod bad_input;
mod cases;
mod compaction;
mod consumer_groups;
mod containers;
mod controller_loss;
mod dev;
mod fetchers;
mod frames;
mod groups;
mod harness;
mod health;
mod lab;
mod leader_loss;
mod log_files;
mod monitoring;
mod pauses;
mod racks;
mod real_input;
mod reassignment;
mod recovery;
mod replay;
mod restarts;
mod throttle;
mod topics;
mod traffic;
mod transactions;
mod transactions_2;
mod tree;
mod verbs;
mod zookeeper_outage;
