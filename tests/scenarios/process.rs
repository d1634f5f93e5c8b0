//! The process, its own types and its leadership come and go.

scenarios! {
    47 the_leader_is_lost_in_mid_start pending("being written"): "being written";
    48 termination_with_500_controllers pending("being written"): "being written";
    49 the_managers_own_crds_are_deleted_and_created_again pending("being written"): "being written";
    50 no_right_to_read_crds pending("being written"): "being written";
    51 one_controllers_type_is_made_by_another pending("being written"): "being written";
    52 a_soak_of_ten_thousand_lifecycle_events pending("being written"): "being written";
}
