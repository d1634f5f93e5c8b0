//! A type changes while it is in use.

scenarios! {
    23 a_schema_edit_is_no_lifecycle_event pending("being written"): "being written";
    24 a_version_that_is_served_no_more_stops_its_controller pending("being written"): "being written";
    25 a_switch_of_the_stored_version_is_no_lifecycle_event pending("being written"): "being written";
    26 a_status_subresource_that_comes_is_used_by_the_next_write pending("being written"): "being written";
    27 churn_of_metadata_on_a_crd_causes_no_work pending("being written"): "being written";
    28 printer_columns_cause_no_work pending("being written"): "being written";
}
