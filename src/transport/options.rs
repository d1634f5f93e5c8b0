//! Options of the connection to the API server.

use std::time::Duration;

use super::TransportMetrics;

/// Longest time of an option that has an effect: what is longer is as good as for ever, and would
/// overflow a clock.
const FOREVER: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

/// Times and limits of a [`Transport`](super::Transport).
#[derive(Clone, Debug)]
pub struct TransportOptions {
    /// The longest a connection may take to be open, its TLS session included; 5 s.
    pub connect_timeout: Duration,
    /// The longest a request that is no watch may take until its body is complete, and a watch
    /// until its head arrives; 30 s. A read may pause for so long in the middle of its body. A log
    /// that is followed has no such limit.
    pub request_timeout: Duration,
    /// The longest a read may take while its body keeps arriving; 5 min. Time until its reader asks
    /// for more does not count.
    pub read_timeout: Duration,
    /// The same for requests about leases; 5 s.
    pub lease_timeout: Duration,
    /// Streams on one connection, or fewer where the server allows fewer; 80.
    ///
    /// Below the 100 of kube-apiserver on purpose: the server may still be ending a stream that
    /// we have reset already.
    pub max_streams: usize,
    /// How often a connection is asked whether it is still alive, also while it is idle; 30 s. The
    /// one for leases is asked twice within their timeout.
    pub keep_alive_interval: Duration,
    /// How long it may take to answer that; 10 s.
    pub keep_alive_timeout: Duration,
    /// How long a connection without a stream stays open; 90 s.
    pub idle_timeout: Duration,
    /// The longest that an exec plugin of the kubeconfig may run; 60 s. It is killed then.
    pub exec_timeout: Duration,
    /// The embedder's own product for `User-Agent`, such as `myoperator/1.0`; none. The library
    /// stands behind it: `myoperator/1.0 pilotlight/0.1.0 (linux/amd64)`.
    pub product: Option<String>,
    /// Where requests are counted.
    pub metrics: TransportMetrics,
}

impl Default for TransportOptions {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(30),
            read_timeout: Duration::from_secs(300),
            lease_timeout: Duration::from_secs(5),
            max_streams: 80,
            keep_alive_interval: Duration::from_secs(30),
            keep_alive_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(90),
            exec_timeout: Duration::from_secs(60),
            product: None,
            metrics: TransportMetrics::default(),
        }
    }
}

impl TransportOptions {
    /// Times that clocks can add.
    pub(super) fn limited(mut self) -> Self {
        for time in [
            &mut self.connect_timeout,
            &mut self.request_timeout,
            &mut self.read_timeout,
            &mut self.lease_timeout,
            &mut self.keep_alive_interval,
            &mut self.keep_alive_timeout,
            &mut self.idle_timeout,
            &mut self.exec_timeout,
        ] {
            *time = (*time).min(FOREVER);
        }
        self
    }
}
