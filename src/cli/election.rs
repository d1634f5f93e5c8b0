//! Flags of the leader election.

use std::time::Duration;

use clap::{ArgAction, Args};
use kube::Config;
use pilotlight::{
    duration,
    manager::{Election, ElectionOptions, ElectionTimes},
    transport::{Transport, TransportMetrics, TransportOptions},
};
use tracing::warn;

use super::flag;

/// The only lock, as in client-go.
const LEASES: &str = "leases";

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Leader election")]
pub(super) struct ElectionArgs {
    /// Elect a leader among the replicas that share the lease. The others keep their caches warm,
    /// and call no hook and write nothing. Default: off, as in Metacontroller.
    #[arg(
        long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_value = "false", default_missing_value = "true", value_parser = flag::go_bool,
        action = ArgAction::Set
    )]
    leader_election: bool,
    /// Kind of the lock. Only leases exist, as in client-go; any other value is logged and ignored.
    #[arg(long, value_name = "LOCK", default_value = LEASES, allow_hyphen_values = true)]
    leader_election_resource_lock: String,
    /// Namespace of the lease. Default: that of the pod, or of the context of the kubeconfig.
    #[arg(long, value_name = "NAME", allow_hyphen_values = true)]
    leader_election_namespace: Option<String>,
    /// Name of the lease. Metacontroller has the same default: one of the two runs at a time, if
    /// both use the same namespace.
    #[arg(long, value_name = "NAME", default_value = "metacontroller", allow_hyphen_values = true)]
    leader_election_id: String,
    /// Time after which another replica takes over from a dead leader. A duration such as 15s. The
    /// API server has four fifths of the difference between this and the renew deadline for each
    /// write of the leader: raise this if admission webhooks are slow.
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = duration::parse)]
    leader_election_lease_duration: Duration,
    /// Time without a renewal after which the leader sends no more writes. Must be shorter than the
    /// lease duration.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration::parse)]
    leader_election_renew_deadline: Duration,
    /// Time between renewals, and between attempts to acquire the lease. 1.2 times this must be
    /// shorter than the renew deadline.
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = duration::parse)]
    leader_election_retry_period: Duration,
}

impl ElectionArgs {
    /// Returns the election, if it is on; its connections are apart from those of `requests`, and
    /// counted with them.
    ///
    /// # Errors
    ///
    /// If the durations contradict each other, or a name is empty.
    pub(super) fn election(
        &self,
        config: &Config,
        requests: &TransportMetrics,
    ) -> anyhow::Result<Option<Election>> {
        if !self.leader_election {
            return Ok(None);
        }
        if self.leader_election_resource_lock != LEASES {
            let given = &self.leader_election_resource_lock;
            warn!(given, used = LEASES, "--leader-election-resource-lock has one value");
        }
        let named = self.leader_election_namespace.as_deref().filter(|name| !name.is_empty());
        let options = ElectionOptions {
            times: ElectionTimes {
                lease_duration: self.leader_election_lease_duration,
                renew_deadline: self.leader_election_renew_deadline,
                retry_period: self.leader_election_retry_period,
            },
            ..ElectionOptions::new(
                named.unwrap_or(&config.default_namespace),
                self.leader_election_id.as_str(),
            )
        };
        let (config, requests) = (config.clone(), requests.clone());
        let request_timeout = self.leader_election_renew_deadline / 2;
        let election = Election::new(options, move || {
            let options = TransportOptions {
                lease_timeout: request_timeout,
                connect_timeout: request_timeout.min(TransportOptions::default().connect_timeout),
                metrics: requests,
                ..TransportOptions::default()
            };
            Ok(Transport::new(config, options)?.client()?)
        })?;
        Ok(Some(election))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Flags {
        #[command(flatten)]
        election: ElectionArgs,
    }

    fn election(arguments: &[&str]) -> anyhow::Result<Option<Election>> {
        let flags = Flags::try_parse_from([&["test"], arguments].concat())?;
        let mut config = Config::new("http://127.0.0.1:1".parse()?);
        config.default_namespace = "of-pod".to_owned();
        flags.election.election(&config, &TransportMetrics::default())
    }

    #[track_caller]
    fn check(arguments: &[&str], expected: Option<&str>) {
        let election = election(arguments).unwrap();
        let lease = election.map(|election| election.status().borrow().lease.to_string());

        assert_eq!(lease.as_deref(), expected, "{arguments:?}");
    }

    #[test]
    fn flags_of_metacontroller_name_the_lease() {
        check(&[], None);
        check(&["--leader-election=false", "--leader-election-id=a"], None);
        check(&["--leader-election"], Some("of-pod/metacontroller"));
        check(
            &["--leader-election=true", "--leader-election-namespace="],
            Some("of-pod/metacontroller"),
        );
        check(
            &["--leader-election", "--leader-election-namespace=ns", "--leader-election-id=a"],
            Some("ns/a"),
        );
        check(
            &["--leader-election", "--leader-election-resource-lock=endpointsleases"],
            Some("of-pod/metacontroller"),
        );
    }

    #[test]
    fn durations_that_contradict_each_other_are_refused_with_a_sentence() {
        let error = election(&["--leader-election", "--leader-election-lease-duration=10s"]);

        let error = error.unwrap_err().to_string();
        assert!(error.contains("must be longer than the renew deadline"), "{error}");
    }
}
