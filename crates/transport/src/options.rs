//! Options of the connection to the API server.

use std::time::Duration;

use super::TransportMetrics;

/// Upper bound of all time options, 10 years. A longer time has the same effect and would overflow
/// a clock.
const FOREVER: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

/// Times and limits of a [`Transport`](super::Transport).
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use pilotlight_transport::TransportOptions;
///
/// let options = TransportOptions {
///     product: Some("myoperator/1.0".to_owned()), // In the User-Agent.
///     ..TransportOptions::default()
/// };
/// let client = pilotlight_transport::client(kube::Config::infer().await?, options)?;
/// # drop(client);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct TransportOptions {
    /// Longest time to open a connection, including its TLS session; 5 s.
    pub connect_timeout: Duration,
    /// Longest time for a request that is not a watch until its body is complete, and for a watch
    /// until its head arrives; 30 s. Also the longest pause within the body of a read. A followed
    /// log has no such limit.
    pub request_timeout: Duration,
    /// Longest time for a read whose body keeps arriving; 5 min.
    pub read_timeout: Duration,
    /// Same as `request_timeout`, for requests about leases; 5 s.
    pub lease_timeout: Duration,
    /// Streams on one connection; 80, or fewer if the server allows fewer.
    ///
    /// Below the 100 of kube-apiserver on purpose: the server may still be ending a stream that we
    /// have already reset.
    pub max_streams: usize,
    /// Interval between HTTP/2 pings, also on idle connections; 30 s. Connections for leases are
    /// pinged twice within `lease_timeout`.
    pub keep_alive_interval: Duration,
    /// Longest wait for the response to a ping; 10 s.
    pub keep_alive_timeout: Duration,
    /// Time for which a connection without a stream stays open; 90 s.
    pub idle_timeout: Duration,
    /// Longest run of an exec plugin of the kubeconfig, after which it is killed; 60 s.
    pub exec_timeout: Duration,
    /// The embedder's own product for `User-Agent`, such as `myoperator/1.0`; none by default. The
    /// library's product follows it: `myoperator/1.0 pilotlight/0.1.0 (linux/amd64)`.
    pub product: Option<String>,
    /// Metrics of the requests.
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
    /// Caps all times, so that adding them to a clock cannot overflow.
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
