//! Random schedules of faults, equal for equal seeds.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

use super::{Action, Faults, Reply, Rule, RuleId, Verb, random::Sequence};

/// Parameters of a random schedule.
#[derive(Clone, Debug)]
pub struct Profile {
    /// Number of rules; 10.
    pub rules: usize,
    /// Each rule acts on one of its first `within` matches; 20.
    pub within: usize,
    /// Kinds of faults.
    pub faults: Vec<Fault>,
    /// Disturbed verbs; all that the API server knows.
    pub verbs: Vec<Verb>,
    /// Disturbed types, as group and plural; any when empty.
    pub types: Vec<(String, String)>,
    /// Longest delay; 200 ms.
    pub longest: Duration,
    /// Longest time for which a request hangs, a response is withheld, a body stalls or the events
    /// of a type are held; 10 s.
    pub hold: Duration,
    /// Largest number of bytes before a cut; 4096.
    pub bytes: usize,
}

impl Default for Profile {
    fn default() -> Self {
        Self {
            rules: 10,
            within: 20,
            faults: Fault::PASSING.to_vec(),
            verbs: vec![
                Verb::Get,
                Verb::List,
                Verb::Watch,
                Verb::Create,
                Verb::Update,
                Verb::Patch,
                Verb::Delete,
            ],
            types: Vec::new(),
            longest: Duration::from_millis(200),
            hold: Duration::from_secs(10),
            bytes: 4096,
        }
    }
}

/// Kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Fault {
    /// Delay before the request is sent.
    Delay,
    /// Answer 429 with `Retry-After`, 500, 503 or 504, without sending the request.
    Refuse,
    /// Refused connection.
    Fail,
    /// Request that is carried out, with its response lost.
    Lose,
    /// Broken connection within the body.
    Cut,
    /// Early end of the body.
    End,
    /// Body in small parts.
    Drip,
    /// Repeated event of a watch.
    Repeat,
    /// Invalid event of a watch. For other verbs: an invalid body.
    Garbage,
    /// 410 in a watch, for an expired history. Omitted for other verbs.
    Expire,
    /// Stall within the body, followed by a broken connection.
    Stall,
    /// Request that is sent only after the hold: longer than a [`Delay`](Self::Delay), and perhaps
    /// than its sender's timeout.
    Hang,
    /// Request that is carried out at once, with its response withheld for the hold.
    Withhold,
    /// Old response to a list or a get, as from a server that lags behind. Omitted for other verbs,
    /// which no server answers so.
    Stale,
    /// Events of a watch that are held until those of another of the [types](Profile::types), or
    /// for the hold. Omitted for other verbs.
    Behind,
    /// Discovery that omits the group of one of the [types](Profile::types), or marks it as stale.
    Partial,
}

impl Fault {
    /// Faults that end by themselves.
    pub const PASSING: [Self; 16] = [
        Self::Delay,
        Self::Refuse,
        Self::Fail,
        Self::Lose,
        Self::Cut,
        Self::End,
        Self::Drip,
        Self::Repeat,
        Self::Garbage,
        Self::Expire,
        Self::Stall,
        Self::Hang,
        Self::Withhold,
        Self::Stale,
        Self::Behind,
        Self::Partial,
    ];

    fn action(self, verb: Verb, profile: &Profile, draw: &mut Sequence) -> Action {
        let watches = verb == Verb::Watch;
        let millis = |most: Duration, draw: &mut Sequence| {
            let most = usize::try_from(most.as_millis()).unwrap_or(usize::MAX);
            Duration::from_millis(draw.below(most.saturating_add(1)) as u64)
        };
        match self {
            Self::Delay => Action::Delay(millis(profile.longest, draw)),
            Self::Refuse => Action::Reply(match draw.below(4) {
                0 => Reply::status(429, "TooManyRequests", "by a fault").retry_after(1),
                1 => Reply::status(500, "InternalError", "by a fault"),
                2 => Reply::text(503, "by a fault"),
                _ => Reply::status(504, "Timeout", "by a fault"),
            }),
            Self::Fail => Action::Fail("refused by a fault".to_owned()),
            Self::Lose => Action::Lose,
            Self::Cut => Action::Cut { after_bytes: draw.below(profile.bytes) },
            Self::End => Action::End { after_bytes: draw.below(profile.bytes) },
            Self::Drip => Action::Drip {
                bytes: 1 + draw.below(profile.bytes),
                every: millis(profile.longest / 20, draw),
            },
            Self::Repeat => {
                let event = 1 + draw.below(5);
                Action::Repeat { event, after: event + draw.below(3) }
            }
            Self::Garbage => Action::Garbage {
                line: watches.then(|| 1 + draw.below(5)),
                bytes: draw.one_of(&["{", "null", "<html>", "\u{fffd}"]).map_or("", |it| it).into(),
            },
            Self::Expire if watches => Action::Reply(Reply::status(410, "Expired", "by a fault")),
            Self::Expire => Action::Delay(Duration::ZERO),
            Self::Stall => Action::Stall { after_bytes: draw.below(profile.bytes) },
            Self::Hang => Action::Hang,
            Self::Withhold => Action::Withhold,
            Self::Stale if matches!(verb, Verb::List | Verb::Get) => Action::Stale,
            Self::Behind if watches => {
                let other = draw.one_of(&profile.types).cloned();
                let (group, resource) = other.unwrap_or_else(|| ("".into(), "configmaps".into()));
                Action::Behind { group, resource, at_most: millis(profile.hold, draw) }
            }
            Self::Stale | Self::Behind => Action::Delay(Duration::ZERO),
            Self::Partial => {
                let group = draw.one_of(&profile.types).map_or("apps", |(group, _)| group);
                let group = vec![group.to_owned()];
                match draw.below(2) {
                    0 => Action::Partial { missing: group, stale: Vec::new() },
                    _ => Action::Partial { missing: Vec::new(), stale: group },
                }
            }
        }
    }

    /// Limit of the time for which its rule holds anything.
    fn at_most(self, profile: &Profile, draw: &mut Sequence) -> Option<Duration> {
        let most = usize::try_from(profile.hold.as_millis()).unwrap_or(usize::MAX);
        match self {
            Self::Hang | Self::Withhold | Self::Stall => {
                Some(Duration::from_millis(draw.below(most.saturating_add(1)) as u64))
            }
            Self::Delay
            | Self::Refuse
            | Self::Fail
            | Self::Lose
            | Self::Cut
            | Self::End
            | Self::Drip
            | Self::Repeat
            | Self::Garbage
            | Self::Expire
            | Self::Stale
            | Self::Behind
            | Self::Partial => None,
        }
    }
}

/// Schedule of random rules.
///
/// A schedule depends on its seed and its profile alone, and each rule acts on the request of one
/// number. The outcome for the third patch of a type does not depend on the clock.
///
/// ```
/// # use pilotlight_testing::{Faults, Profile, Schedule};
/// let schedule = Schedule::random(42, &Profile::default());
/// assert_eq!(schedule, Schedule::random(42, &Profile::default()));
///
/// let faults = Faults::default();
/// let playing = faults.play(&schedule);
/// // … a test that panics here prints the seed, and which faults have happened …
/// drop(playing);
/// assert!(faults.fired().is_empty());
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Schedule {
    /// Seed.
    pub seed: u64,
    /// Rules.
    pub rules: Vec<Rule>,
}

impl Schedule {
    /// Creates the schedule of a seed.
    pub fn random(seed: u64, profile: &Profile) -> Self {
        let mut draw = Sequence::new(seed);
        let rules = (0..profile.rules)
            .filter_map(|_| {
                let verb = *draw.one_of(&profile.verbs)?;
                let fault = *draw.one_of(&profile.faults)?;
                let mut rule = Rule::new(fault.action(verb, profile, &mut draw));
                if let Some(long) = fault.at_most(profile, &mut draw) {
                    rule = rule.at_most(long);
                }
                let number = 1 + draw.below(profile.within);
                if fault == Fault::Partial {
                    // Discovery is requested rarely.
                    let rule = rule.path_is("/apis").nth(1 + number % 3);
                    return Some(rule);
                }
                // The first response cannot be an old one.
                let first = usize::from(fault == Fault::Stale);
                let rule = rule.verb(verb).nth(first + number);
                Some(match draw.one_of(&profile.types) {
                    Some((group, resource)) => rule.resource(group, resource),
                    None => rule,
                })
            })
            .collect();
        Self { seed, rules }
    }
}

/// Rules are compared by their data.
impl PartialEq for Schedule {
    fn eq(&self, other: &Self) -> bool {
        self.seed == other.seed && format!("{:?}", self.rules) == format!("{:?}", other.rules)
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}:", self.seed)?;
        for rule in &self.rules {
            match serde_json::to_string(rule) {
                Ok(data) => writeln!(f, "  {data}")?,
                Err(_) => writeln!(f, "  {rule:?}")?,
            }
        }
        Ok(())
    }
}

/// Handle of a schedule whose rules apply until it is dropped. If a panic drops it, the seed and
/// the faults that have happened are printed.
#[derive(Debug)]
#[must_use = "its rules are removed when it is dropped"]
pub struct ScheduleGuard {
    faults: Faults,
    schedule: Schedule,
    ids: Vec<RuleId>,
}

impl ScheduleGuard {
    pub(super) fn new(faults: Faults, schedule: Schedule) -> Self {
        let ids = schedule.rules.iter().map(|rule| faults.add(rule.clone())).collect();
        Self { faults, schedule, ids }
    }

    /// Returns the number of its faults that have happened.
    pub fn fired(&self) -> usize {
        self.faults.fired().iter().filter(|fired| self.ids.contains(&fired.rule)).count()
    }
}

impl Drop for ScheduleGuard {
    #[expect(clippy::print_stderr, reason = "the reader of a failed test needs the seed")]
    fn drop(&mut self) {
        for id in &self.ids {
            self.faults.remove(*id);
        }
        if std::thread::panicking() {
            eprint!("faults were drawn from {}", self.schedule);
            for fired in self.faults.fired() {
                eprintln!("  happened: {fired}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_seed_is_a_schedule() {
        let profile = Profile { rules: 50, ..Profile::default() };

        let schedule = Schedule::random(7, &profile);

        assert_eq!(schedule, Schedule::random(7, &profile));
        assert_ne!(schedule.rules.len(), 0);
        assert_ne!(schedule.to_string(), Schedule::random(8, &profile).to_string());
        let written = serde_json::to_string(&schedule).unwrap();
        assert_eq!(serde_json::from_str::<Schedule>(&written).unwrap(), schedule);
        assert!(schedule.to_string().starts_with("seed 7:\n"));
    }

    #[test]
    fn every_sort_of_fault_is_drawn() {
        let profile = Profile { rules: 500, ..Profile::default() };

        let schedule = Schedule::random(1, &profile);

        let words: BTreeSet<_> = schedule.rules.iter().map(|rule| rule.action().word()).collect();
        let all = [
            "behind", "cut", "delay", "drip", "end", "fail", "garbage", "hang", "lose", "partial",
            "repeat", "reply", "stale", "stall", "withhold",
        ];
        assert_eq!(words, BTreeSet::from(all));
    }

    #[test]
    fn every_hold_has_a_limit() {
        let hold = Duration::from_millis(40);
        let profile = Profile { rules: 500, hold, ..Profile::default() };

        let mut held = BTreeSet::new();
        for rule in Schedule::random(2, &profile).rules {
            let longest = match (rule.action(), rule.action().word()) {
                (Action::Behind { at_most, .. }, _) => Some(*at_most),
                (_, "hang" | "withhold" | "stall") => rule.at_most,
                (_, _) => continue,
            };
            assert!(longest.is_some_and(|long| long <= hold), "{rule:?}");
            held.insert(longest);
        }
        assert!(held.len() > 20, "drawn, too: {held:?}");
    }

    #[test]
    fn an_empty_profile_draws_no_fault() {
        let profile = Profile { verbs: Vec::new(), ..Profile::default() };

        assert!(Schedule::random(1, &profile).rules.is_empty());
    }

    /// Seed for a test in a separate process, which fails on purpose.
    const FAILS: &str = "PILOTLIGHT_FAILS_WITH_SEED";

    /// Returns the output of a failed test: its schedule, and the faults that have happened.
    fn printed_by_a_failure(seed: u64) -> String {
        let name = module_path!().split_once("::").map_or("", |(_, path)| path).to_owned();
        let test = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &(name + "::a_test_that_fails_prints_its_seed_which_replays_it")])
            .env(FAILS, seed.to_string())
            .output()
            .unwrap();
        assert!(!test.status.success(), "the test fails on purpose");
        // Output of a failed test, as the harness prints it.
        let shown = String::from_utf8([test.stdout, test.stderr].concat()).unwrap();
        let begin = shown.find("faults were drawn from").unwrap_or_else(|| panic!("{shown}"));
        let lines = shown[begin..].lines();
        let rest = lines.clone().skip(1).take_while(|line| line.starts_with("  "));
        lines.take(1).chain(rest).map(|line| format!("{line}\n")).collect()
    }

    #[test]
    fn a_test_that_fails_prints_its_seed_which_replays_it() {
        let profile = Profile { rules: 40, within: 2, ..Profile::default() };
        if let Ok(seed) = std::env::var(FAILS) {
            return fail_with(&Schedule::random(seed.parse().unwrap(), &profile));
        }

        let printed = printed_by_a_failure(4711);

        let seed = printed.strip_prefix("faults were drawn from seed ").unwrap();
        let seed = seed.split(':').next().unwrap().parse().unwrap();
        let schedule = Schedule::random(seed, &profile).to_string();
        assert!(printed.contains(&schedule), "the schedule of that seed:\n{printed}");
        assert!(printed.contains("\n  happened: "), "{printed}");
        assert_eq!(printed_by_a_failure(seed), printed, "the seed replays all of it");
        assert_ne!(printed_by_a_failure(seed + 1), printed);
    }

    /// Sends requests until faults have happened, and fails.
    fn fail_with(schedule: &Schedule) {
        use bytes::Bytes;
        use http_body_util::{BodyExt, Full};
        use kube::client::Body;
        use tower::{Layer, Service};
        let server = tower::service_fn(async |_: http::Request<Body>| {
            let body = Full::new(Bytes::from_static(b"{}\n{}\n{}\n"));
            Ok::<_, std::convert::Infallible>(http::Response::new(body))
        });
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let faults = Faults::default();
            let _playing = faults.play(schedule);
            let mut service = faults.layer().layer(server);
            for number in 0..40 {
                let uri = match number % 3 {
                    0 => "/api/v1/pods",
                    1 => "/api/v1/pods?watch=1",
                    _ => "/api/v1/namespaces/a/pods/p",
                };
                let request = http::Request::get(uri).body(Body::empty()).unwrap();
                if let Ok(response) = service.call(request).await {
                    drop(response.into_body().collect().await);
                }
            }
            panic!("expected by this test");
        });
    }

    #[test]
    fn a_schedule_ends_with_its_handle() {
        let faults = Faults::default();
        let playing = faults.play(&Schedule::random(1, &Profile::default()));
        assert_eq!(playing.fired(), 0);
        assert!(format!("{faults:?}").contains("rules: 10"));

        drop(playing);

        assert!(format!("{faults:?}").contains("rules: 0"));
    }
}
