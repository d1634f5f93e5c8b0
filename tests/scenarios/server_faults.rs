//! The server, or what stands behind it, fails.

scenarios! {
    29 conversion_webhook_down_before_start pending("being written"): "being written";
    30 conversion_webhook_goes_down_while_running pending("being written"): "being written";
    31 aggregated_apiservice_down pending("being written"): "being written";
    32 discovery_fails_in_part_or_returns_nothing pending("being written"): "being written";
    33 a_transient_404_on_a_live_crd pending("being written"): "being written";
    34 the_api_server_restarts pending("being written"): "being written";
    35 a_storm_of_410_on_500_types pending("being written"): "being written";
    36 a_streaming_list_never_sends_its_bookmark pending("being written"): "being written";
    37 every_token_expires pending("being written"): "being written";
    38 the_server_asks_for_patience_with_429 pending("being written"): "being written";
    39 rights_to_a_type_are_removed_while_running pending("being written"): "being written";
    40 one_object_cannot_be_decoded pending("being written"): "being written";
}
