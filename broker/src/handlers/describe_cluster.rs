//! DescribeCluster (60), versions 0-1: brokers, cluster id and the shown controller.
//!
//! - v1 adds the endpoint type: 1 brokers, 2 controllers. Controllers are never shown to clients, so 2 is refused as
//!   Kafka refuses it in ZooKeeper mode.

use kafka_protocol::messages::describe_cluster_response::DescribeClusterBroker;
use kafka_protocol::messages::{DescribeClusterRequest, DescribeClusterResponse};
use kafka_protocol::protocol::StrBytes;
use zurau_common::rejection::Rejection;

use super::metadata::CLUSTER_OPERATIONS;
use super::{Call, Starting};
use crate::metadata::MetadataImage;

const ENDPOINT_TYPE_BROKERS: i8 = 1;
const ENDPOINT_TYPE_CONTROLLERS: i8 = 2;

pub(super) fn start(call: Call) -> Starting {
    call.now(|call, request: DescribeClusterRequest| {
        let image = call.context.metadata.image();
        answer(&image, &request, call.context.cluster_id(), &call.connection.listener.0)
    })
}

fn answer(
    image: &MetadataImage,
    request: &DescribeClusterRequest,
    cluster_id: &str,
    listener: &str,
) -> DescribeClusterResponse {
    let response = DescribeClusterResponse::default().with_endpoint_type(request.endpoint_type);
    match request.endpoint_type {
        ENDPOINT_TYPE_BROKERS => {}
        ENDPOINT_TYPE_CONTROLLERS => {
            return response
                .with_error_code(MISMATCHED_ENDPOINT_TYPE)
                .with_error_message(Some("this is a broker; controllers are not shown to clients".into()));
        }
        other => {
            return response
                .with_error_code(UNSUPPORTED_ENDPOINT_TYPE)
                .with_error_message(Some(format!("unknown endpoint type {other}").into()));
        }
    }
    let brokers = image.brokers.iter().filter_map(|(id, broker)| {
        let address = broker.address(listener)?;
        Some(
            DescribeClusterBroker::default()
                .with_broker_id(id.0.into())
                .with_host(address.host.clone().into())
                .with_port(i32::from(address.port))
                .with_rack(broker.rack.clone().map(StrBytes::from_string)),
        )
    });
    let operations =
        if request.include_cluster_authorized_operations { CLUSTER_OPERATIONS } else { i32::MIN };
    response
        .with_brokers(brokers.collect())
        .with_cluster_id(StrBytes::from_string(cluster_id.to_owned()))
        .with_controller_id(image.shown_controller().map_or(-1, |id| id.0).into())
        .with_cluster_authorized_operations(operations)
}

const MISMATCHED_ENDPOINT_TYPE: i16 = Rejection::MismatchedEndpointType.code();
const UNSUPPORTED_ENDPOINT_TYPE: i16 = Rejection::UnsupportedEndpointType.code();

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handlers::tests::assert_every_version_encodes;
    use crate::metadata::tests::image;

    #[test]
    fn brokers_are_shown_with_the_addresses_of_the_askers_listener() {
        let image = image(vec![]);
        let request = DescribeClusterRequest::default();
        assert_every_version_encodes::<DescribeClusterRequest>(|_| {
            answer(&image, &request, "id", "PLAINTEXT")
        });
        let response = answer(&image, &request, "id", "INTERNAL");
        let ports: Vec<i32> = response.brokers.iter().map(|broker| broker.port).collect();
        assert_eq!(ports, [9001, 9001]);
        assert_eq!(response.controller_id.0, 1);
        assert_eq!(response.cluster_authorized_operations, i32::MIN);
        assert!(answer(&image, &request, "id", "UNKNOWN").brokers.is_empty());
    }

    #[test]
    fn controllers_are_not_shown() {
        for (endpoint_type, code) in [(1, 0), (2, 114), (3, 115)] {
            let request = DescribeClusterRequest::default().with_endpoint_type(endpoint_type);
            assert_eq!(answer(&image(vec![]), &request, "id", "PLAINTEXT").error_code, code);
        }
    }
}
