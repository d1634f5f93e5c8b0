//! Several want the same objects.

scenarios! {
    41 one_of_two_that_share_a_watch_stops pending("being written"): "being written";
    42 one_joins_while_the_last_user_leaves pending("being written"): "being written";
    43 a_late_joiner_gets_a_snapshot_and_then_events pending("being written"): "being written";
    44 a_slow_controller_on_a_shared_type pending("being written"): "being written";
    45 different_keys_on_one_type_do_not_share pending("being written"): "being written";
    46 one_controller_panics pending("being written"): "being written";
}
