//! Numbered scenarios: the behaviour of controllers and watches while their types are installed,
//! changed and removed.
//!
//! A scenario is written once, with the server as its parameter. It runs on the simulated server
//! under paused time, and on the control plane wherever that can produce it. `docs/scenarios.md` is
//! the table of all scenarios and their outcomes.

/// Declares scenarios: their tests and their rows of the table.
///
/// A row is `number name place: "outcome";`, where `name` is an `async fn` of a [`Server`]. The
/// place is one of:
///
/// - `both`: on the simulated server and on the control plane;
/// - `alone` or `alone("--flag")`: as `both`, but on a separate control plane whose API server gets
///   the flag, because the scenario disturbs other tests or needs another setup;
/// - `simulated("why not on the control plane")`.
///
/// [`Server`]: crate::support::Server
macro_rules! scenarios {
    ($($number:literal $name:ident $place:ident $(($why:literal))?: $outcome:literal;)*) => {
        /// Rows of this module.
        pub(super) const SCENARIOS: &[crate::scenarios::Scenario] = &[$(
            crate::scenarios::Scenario {
                number: $number,
                name: stringify!($name),
                outcome: $outcome,
                place: scenarios!(@place $place $($why)?),
            }
        ),*];
        $(scenarios!(@tests $place $name $($why)?);)*
    };
    (@place both) => { crate::scenarios::Place::Both };
    (@place alone $($flag:literal)?) => { crate::scenarios::Place::Alone };
    (@place simulated $why:literal) => { crate::scenarios::Place::Simulated($why) };
    (@tests both $name:ident) => {
        mod $name {
            scenarios!(@on_the_simulated_server $name);
            scenarios!(@on_the_real_server $name);
        }
    };
    (@tests alone $name:ident $($flag:literal)?) => {
        mod $name {
            scenarios!(@on_the_simulated_server $name);

            #[tokio::test]
            async fn on_the_real_server() {
                let scenario = async {
                    super::$name(crate::support::Server::own(&[$($flag)?]).await).await;
                };
                let name = concat!(module_path!(), "::on_the_real_server");
                let (_crate, name) = name.split_once("::").unwrap();
                crate::support::alone(name, scenario).await;
            }
        }
    };
    (@tests simulated $name:ident $why:literal) => {
        mod $name { scenarios!(@on_the_simulated_server $name); }
    };
    (@on_the_simulated_server $name:ident) => {
        #[tokio::test(start_paused = true)]
        async fn on_the_simulated_server() {
            super::$name(crate::support::Server::simulated()).await;
        }
    };
    (@on_the_real_server $name:ident) => {
        #[tokio::test]
        async fn on_the_real_server() {
            super::$name(crate::support::Server::real()).await;
        }
    };
}

mod appear;
mod backends;
mod change;
mod leadership;
mod leave;
mod many;
mod process;
mod replace;
mod server_faults;
mod sharing;
mod testbed;

use std::{collections::BTreeSet, env, fmt::Write as _, fs, path::Path};

use self::testbed::Testbed;

/// Row of the table.
#[derive(Clone, Copy, Debug)]
struct Scenario {
    number: u8,
    name: &'static str,
    outcome: &'static str,
    place: Place,
}

/// Servers on which a scenario runs, or the reason why it does not.
#[derive(Clone, Copy, Debug)]
enum Place {
    Both,
    Alone,
    Simulated(&'static str),
}

const LAST: u8 = 52;
/// Environment variable: if set, the test writes the table instead of comparing it.
const BLESS: &str = "PILOTLIGHT_BLESS";

fn all() -> Vec<Scenario> {
    let parts = [
        appear::SCENARIOS,
        leave::SCENARIOS,
        replace::SCENARIOS,
        change::SCENARIOS,
        backends::SCENARIOS,
        server_faults::SCENARIOS,
        many::SCENARIOS,
        sharing::SCENARIOS,
        process::SCENARIOS,
        leadership::SCENARIOS,
    ];
    let mut all = parts.concat();
    all.sort_by_key(|scenario| scenario.number);
    all
}

fn table(scenarios: &[Scenario]) -> String {
    let mut table = String::from(
        "# Scenarios\n\n\
         The behaviour of controllers and watches while their types are installed, changed and\n\
         removed. Each row is a test. The simulated server runs under paused time; the real server\n\
         is etcd and kube-apiserver. \"Its own\" marks a scenario that runs on a separate real\n\
         server, because it disturbs other tests or needs other flags. Each test ends with the leak\n\
         oracle: tasks (also by name), timers, requests, watches, informers, cached objects and\n\
         bytes, connections and metric series are back at their baseline.\n\n\
         Written by `PILOTLIGHT_BLESS=1 cargo test --all-features --test behaviour scenarios`.\n\n\
         | # | Scenario | Outcome | Simulated | Real |\n\
         |---|---|---|---|---|\n",
    );
    for Scenario { number, name, outcome, place } in scenarios {
        let (simulated, real) = match place {
            Place::Both => ("✓".to_owned(), "✓".to_owned()),
            Place::Alone => ("✓".to_owned(), "✓, its own".to_owned()),
            Place::Simulated(why) => ("✓".to_owned(), format!("no: {why}")),
        };
        let name = name.replace('_', " ");
        writeln!(table, "| {number} | {name} | {outcome} | {simulated} | {real} |").unwrap();
    }
    table
}

#[test]
fn every_scenario_is_in_the_table() {
    let numbers: BTreeSet<_> = all().iter().map(|scenario| scenario.number).collect();

    let missing: Vec<_> = (1..=LAST).filter(|number| !numbers.contains(number)).collect();
    assert!(missing.is_empty(), "scenarios without a row: {missing:?}");
    assert!(numbers.iter().all(|number| (1..=LAST).contains(number)), "{numbers:?}");
}

#[test]
fn the_table_in_the_documentation_is_the_tests_own() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/scenarios.md");
    let table = table(&all());

    if env::var_os(BLESS).is_some() {
        fs::write(&path, &table).unwrap();
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    assert!(written == table, "docs/scenarios.md is out of date: set {BLESS}=1 and test again");
}
