//! A type goes.

scenarios! {
    11 scenario_11 pending("being written"): "being written";
    12 scenario_12 pending("being written"): "being written";
    13 scenario_13 pending("being written"): "being written";
    14 scenario_14 pending("being written"): "being written";
    15 scenario_15 pending("being written"): "being written";
    16 scenario_16 pending("being written"): "being written";
    17 scenario_17 pending("being written"): "being written";
    18 scenario_18 pending("being written"): "being written";
    19 scenario_19 pending("being written"): "being written";
    20 scenario_20 pending("being written"): "being written";
    21 scenario_21 pending("being written"): "being written";
    22 scenario_22 pending("being written"): "being written";
}
