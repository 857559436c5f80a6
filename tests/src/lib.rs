//! Runs Zürau's real binaries against a real or an in-process ZooKeeper and looks at them from outside: with Kafka
//! clients, with a raw connection, with a ZooKeeper client, with signals. Everything blocks; a test is a plain
//! function that reads from top to bottom.

pub mod checker;
pub mod clients;
pub mod cluster;
pub mod containers;
pub mod directory;
pub mod history;
pub mod host;
pub mod http;
pub mod input;
pub mod kafka;
pub mod machine;
pub mod metrics;
pub mod network;
pub mod place;
pub mod port;
pub mod process;
pub mod programs;
pub mod proxy;
pub mod records;
pub mod shared;
pub mod wait;
pub mod znodes;
pub mod zookeeper;

pub use cluster::{Cluster, ClusterBuilder};
pub use directory::{TestDirectory, scenario, skip};
pub use wait::eventually;
pub use zookeeper::{ZooKeeperKind, ZooKeeperServer};

/// Defines a scenario once and runs it on both ZooKeeper servers, as the tests `name::in_process` and `name::real`.
/// The body is a function of `(&TestDirectory, ZooKeeperKind) -> anyhow::Result<()>`. With `and_leaders_store_isr` it runs a
/// third time, as `name::leaders_store_isr`, where brokers have `isr.update.path=zookeeper`.
#[macro_export]
macro_rules! on_both_zookeepers {
    ($name:ident, and_leaders_store_isr) => {
        $crate::on_both_zookeepers!($name, {
            #[test]
            fn leaders_store_isr() {
                $crate::cluster::let_leaders_store_isr();
                $crate::scenario(concat!(stringify!($name), "-leaders-store-isr"), |directory| {
                    super::$name(directory, $crate::ZooKeeperKind::InProcess)
                });
            }
        });
    };
    ($name:ident) => {
        $crate::on_both_zookeepers!($name, {});
    };
    ($name:ident, { $($more:item)* }) => {
        mod $name {
            $($more)*

            #[test]
            fn in_process() {
                $crate::scenario(concat!(stringify!($name), "-in-process"), |directory| {
                    super::$name(directory, $crate::ZooKeeperKind::InProcess)
                });
            }

            #[test]
            fn real() {
                if let Some(why) = $crate::ZooKeeperKind::Real.missing() {
                    return $crate::skip(concat!(stringify!($name), "::real"), &why);
                }
                $crate::scenario(concat!(stringify!($name), "-real"), |directory| {
                    super::$name(directory, $crate::ZooKeeperKind::Real)
                });
            }
        }
    };
}
