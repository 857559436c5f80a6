//! The same assertions against our server and against the real ZooKeeper. Where the real one is
//! not installed, its half says SKIP. A scenario works below a root of its own name, because all
//! of them share one real server.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod scenarios;
mod support;

use support::{Restartable, ours::Ours};

macro_rules! on_both_servers {
    ($($module:ident: $($scenario:ident),+;)+) => {
        mod ours {
            $(mod $module {
                $(#[test]
                fn $scenario() {
                    let server = crate::Ours::in_memory();
                    crate::scenarios::$module::$scenario(&server.address());
                })+
            })+
        }
        mod real {
            $(mod $module {
                $(#[test]
                fn $scenario() {
                    if let Some(address) = crate::support::shared_real() {
                        crate::scenarios::$module::$scenario(&address);
                    }
                })+
            })+
        }
    };
}

macro_rules! with_restarts_on_both_servers {
    ($($scenario:ident),+) => {
        mod ours_restarted {
            $(#[test]
            fn $scenario() {
                crate::scenarios::restart::$scenario(&mut crate::Restartable::Ours(crate::Ours::durable()));
            })+
        }
        mod real_restarted {
            $(#[test]
            fn $scenario() {
                if let Some(server) = crate::support::real() {
                    crate::scenarios::restart::$scenario(&mut crate::Restartable::Real(server));
                }
            })+
        }
    };
}

on_both_servers! {
    nodes:
        versions_and_transactions_of_a_node,
        what_is_refused,
        paths_that_are_refused,
        sequence_numbers,
        ephemeral_nodes,
        null_and_empty_data,
        access_control,
        counts_of_descendants,
        containers_and_times_to_live;
    multi:
        all_operations_or_none,
        results_of_a_failed_multi,
        operations_see_the_ones_before,
        an_odd_operation_is_answered,
        reading_many;
    sessions:
        timeouts_are_negotiated,
        an_expired_session_takes_its_nodes_with_it,
        pings_keep_a_session,
        a_session_moves_to_the_next_connection,
        a_wrong_password_is_refused,
        the_newest_connection_wins,
        closing_a_session,
        a_client_that_has_seen_more_is_turned_away,
        clients_without_the_read_only_flag;
    watches:
        one_shot_watches,
        a_deleted_node_is_told_once,
        persistent_watches,
        recursive_watches,
        the_last_watch_on_a_path_replaces_the_others,
        watches_end_with_removal,
        a_failed_multi_tells_nobody,
        catching_up_after_a_reconnect,
        persistent_watches_after_a_reconnect,
        events_come_before_what_they_announce,
        an_ordinary_client_watches;
    wire:
        replies_come_in_order,
        transactions_are_numbered,
        a_frame_too_long_closes_the_connection,
        garbage_closes_the_connection,
        a_body_cut_short_is_answered,
        unknown_operations_close_the_connection,
        four_letter_words,
        who_am_i;
}

with_restarts_on_both_servers! {
    nodes_survive_a_restart,
    a_session_survives_a_restart_and_then_expires
}
