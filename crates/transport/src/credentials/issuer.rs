//! Issuer: keeps the current credential of one source and renews it, with one run of the source at
//! a time.

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;
use hyper::rt::Executor;
use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::credential::Credential;
use crate::{Error, tasks::PoolTasks};

/// Pause after a failed run, so that a thousand requests do not start a thousand plugins.
const RETRY_GAP: Duration = Duration::from_secs(5);

/// Pause between two renewals caused by a 401, so that a server that refuses every credential does
/// not cause a run for each request.
const REFUSED_GAP: Duration = Duration::from_secs(5);

/// Age of a due renewal after which a credential without an expiry is read again before it is sent:
/// no request was made meanwhile, and its file may have changed.
const UNSEEN: Duration = Duration::from_secs(30);

/// Source of credentials.
pub(super) trait CredentialSource: Send + Sync + 'static {
    /// Obtains credentials; may take long.
    fn issue(&self) -> BoxFuture<'_, Result<IssuedCredential, Error>>;
}

/// Result of one run of a source.
#[derive(Clone, Debug)]
pub(super) struct IssuedCredential {
    pub(super) credential: Credential,
    /// Time at which the credential expires.
    pub(super) expires: Option<Instant>,
    /// Time at which the source runs again, while the credential is still used.
    pub(super) renew: Option<Instant>,
}

/// Current credential of one source.
pub(super) struct Issuer {
    source: Box<dyn CredentialSource>,
    tasks: PoolTasks,
    state: Mutex<IssuerState>,
}

#[derive(Default)]
struct IssuerState {
    credential: Option<Arc<Credential>>,
    expires: Option<Instant>,
    renew: Option<Instant>,
    /// True if the server refused the credential: it is replaced before the next request.
    refused: bool,
    /// Time of the last refusal that caused a renewal.
    refused_at: Option<Instant>,
    /// Time and error of the last run, if it failed.
    failure: Option<(Instant, Error)>,
    /// Token of the run under way; cancelled at its end, whatever the result.
    run: Option<CancellationToken>,
}

/// Decision for one request.
enum IssuerDecision {
    Use(Arc<Credential>),
    Wait(CancellationToken),
    Failed(Error),
}

impl Issuer {
    /// Creates an issuer, with a credential if one has been issued already. Runs belong to `tasks`.
    pub(super) fn new(
        source: impl CredentialSource,
        issued: Option<IssuedCredential>,
        tasks: PoolTasks,
    ) -> Arc<Self> {
        let mut state = IssuerState::default();
        if let Some(issued) = issued {
            state.take(issued);
        }
        Arc::new(Self { source: Box::new(source), tasks, state: Mutex::new(state) })
    }

    /// Returns the credential for the next request. Waits only while there is no valid one, or the
    /// server has refused it.
    ///
    /// # Errors
    ///
    /// If there is no valid credential and the source failed.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the run continues for other waiters and for the next request.
    pub(super) async fn current(self: &Arc<Self>) -> Result<Arc<Credential>, Error> {
        while !self.tasks.are_cancelled() {
            match self.look() {
                IssuerDecision::Use(credential) => return Ok(credential),
                IssuerDecision::Failed(error) => return Err(error),
                IssuerDecision::Wait(run) => run.cancelled().await,
            }
        }
        Err(Error::Closed)
    }

    /// Records that the server answered 401 to a request with this credential.
    pub(super) fn refused(&self, credential: &Arc<Credential>) {
        let now = Instant::now();
        let mut state = self.state();
        let is_current =
            state.credential.as_ref().is_some_and(|current| Arc::ptr_eq(current, credential));
        let rested = state.refused_at.is_none_or(|at| now >= at + REFUSED_GAP);
        // A credential without a time to renew has no source that could issue another.
        if is_current && rested && state.renew.is_some() {
            debug!("the API server refused the credentials");
            state.refused = true;
            state.refused_at = Some(now);
        }
    }

    fn look(self: &Arc<Self>) -> IssuerDecision {
        let now = Instant::now();
        let mut state = self.state();
        let valid = state.valid(now);
        let due = valid.is_none() || state.refused || state.renew.is_some_and(|renew| renew <= now);
        let rested = state.failure.as_ref().is_none_or(|(at, _)| now >= *at + RETRY_GAP);
        let unseen = state.expires.is_none()
            && state.renew.is_some_and(|renew| now.saturating_duration_since(renew) >= UNSEEN);
        let mut run = state.run.clone().filter(|run| !run.is_cancelled());
        if due && rested && run.is_none() {
            run = Some(self.start(&mut state));
        }
        match (valid, run) {
            (Some(credential), _) if !state.refused && !unseen => IssuerDecision::Use(credential),
            (_, Some(run)) => IssuerDecision::Wait(run),
            (Some(credential), None) => IssuerDecision::Use(credential),
            (None, None) => IssuerDecision::Failed(
                state.failure.as_ref().map_or(Error::Closed, |(_, error)| error.clone()),
            ),
        }
    }

    fn start(self: &Arc<Self>, state: &mut IssuerState) -> CancellationToken {
        let run = CancellationToken::new();
        let (issuer, ended) = (self.clone(), run.clone().drop_guard());
        self.tasks.execute(async move {
            let issued = issuer.source.issue().await;
            issuer.state().end(issued);
            drop(ended);
        });
        state.run = Some(run.clone());
        run
    }

    fn state(&self) -> MutexGuard<'_, IssuerState> {
        self.state.lock()
    }
}

impl IssuerState {
    fn valid(&self, now: Instant) -> Option<Arc<Credential>> {
        let expired = self.expires.is_some_and(|expires| expires <= now);
        self.credential.clone().filter(|_| !expired)
    }

    fn take(&mut self, issued: IssuedCredential) {
        let same = self.credential.as_ref().is_some_and(|current| **current == issued.credential);
        if !same {
            self.credential = Some(Arc::new(issued.credential));
        }
        (self.expires, self.renew) = (issued.expires, issued.renew);
    }

    fn end(&mut self, issued: Result<IssuedCredential, Error>) {
        match issued {
            Ok(issued) => {
                self.take(issued);
                self.refused = false;
                self.failure = None;
            }
            Err(error) => {
                // Logged once, while there is a valid credential; without one, requests return the
                // error.
                if self.failure.is_none() && self.valid(Instant::now()).is_some() {
                    warn!(%error, "renewing credentials failed, keeping the current ones");
                }
                self.failure = Some((Instant::now(), error));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http::HeaderValue;
    use tokio::sync::Notify;

    use super::*;
    use crate::TransportMetrics;

    /// Source whose runs end when the test says so.
    #[derive(Clone, Default)]
    struct Script(Arc<Inner>);

    #[derive(Default)]
    struct Inner {
        runs: AtomicUsize,
        responses: Mutex<Option<Result<IssuedCredential, Error>>>,
        answered: Notify,
    }

    impl Script {
        fn answer(&self, response: Result<IssuedCredential, Error>) {
            *self.0.responses.lock() = Some(response);
            self.0.answered.notify_one();
        }

        fn runs(&self) -> usize {
            self.0.runs.load(Ordering::SeqCst)
        }
    }

    impl CredentialSource for Script {
        fn issue(&self) -> BoxFuture<'_, Result<IssuedCredential, Error>> {
            self.0.runs.fetch_add(1, Ordering::SeqCst);
            Box::pin(async {
                loop {
                    if let Some(response) = self.0.responses.lock().take() {
                        return response;
                    }
                    self.0.answered.notified().await;
                }
            })
        }
    }

    fn credential(token: &str) -> Credential {
        Credential { authorization: Some(HeaderValue::from_str(token).unwrap()), certificate: None }
    }

    /// Credential that is valid for 100 s and renewed after 80 s.
    fn issued(token: &str) -> IssuedCredential {
        let after = |seconds| Some(Instant::now() + Duration::from_secs(seconds));
        IssuedCredential { credential: credential(token), expires: after(100), renew: after(80) }
    }

    fn failure() -> Error {
        Error::Credentials { message: "the plugin failed".to_owned() }
    }

    fn issuer() -> (Script, Arc<Issuer>) {
        let script = Script::default();
        let tasks = PoolTasks::new(TransportMetrics::default().tasks(&"a".into()));
        (script.clone(), Issuer::new(script, None, tasks))
    }

    async fn run_until_idle() {
        for _ in 0..5 {
            tokio::task::yield_now().await;
        }
    }

    async fn pass(seconds: u64) {
        tokio::time::advance(Duration::from_secs(seconds)).await;
        run_until_idle().await;
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_requests_share_one_run_that_outlives_them() {
        let (script, issuer) = issuer();

        for _ in 0..3 {
            let wait = || tokio::time::timeout(Duration::from_secs(30), issuer.current());
            let (one, other) = tokio::join!(wait(), wait());
            assert!(one.is_err() && other.is_err(), "nothing is issued yet");
        }
        script.answer(Ok(issued("a")));

        assert_eq!(*issuer.current().await.unwrap(), credential("a"));
        assert_eq!(script.runs(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn credential_is_renewed_before_its_expiry_and_used_meanwhile() {
        let (script, issuer) = issuer();
        script.answer(Ok(issued("a")));
        issuer.current().await.unwrap();

        pass(79).await;
        assert_eq!(*issuer.current().await.unwrap(), credential("a"));
        assert_eq!(script.runs(), 1);
        pass(2).await;
        assert_eq!(*issuer.current().await.unwrap(), credential("a"), "it does not wait");
        run_until_idle().await;
        assert_eq!(script.runs(), 2);
        script.answer(Ok(issued("b")));
        run_until_idle().await;

        assert_eq!(*issuer.current().await.unwrap(), credential("b"));
    }

    #[tokio::test(start_paused = true)]
    async fn failed_renewal_is_retried_and_the_old_credential_is_used_until_its_expiry() {
        let (script, issuer) = issuer();
        script.answer(Ok(issued("a")));
        issuer.current().await.unwrap();

        pass(81).await;
        script.answer(Err(failure()));
        issuer.current().await.unwrap();
        run_until_idle().await;
        issuer.current().await.unwrap();
        assert_eq!(script.runs(), 2, "not at once");
        pass(6).await;
        script.answer(Err(failure()));
        issuer.current().await.unwrap();
        run_until_idle().await;
        assert_eq!(script.runs(), 3);
        pass(20).await;
        script.answer(Err(failure()));
        let error = issuer.current().await.unwrap_err().to_string();

        assert!(error.contains("the plugin failed"), "{error}");
        assert_eq!(script.runs(), 4);
        issuer.current().await.unwrap_err();
        assert_eq!(script.runs(), 4, "the next run is later");
    }

    #[tokio::test(start_paused = true)]
    async fn after_an_idle_hour_a_file_is_read_before_the_request() {
        let (script, issuer) = issuer();
        let file = |token: &str| {
            let renew = Some(Instant::now() + Duration::from_secs(5));
            IssuedCredential { credential: credential(token), expires: None, renew }
        };
        script.answer(Ok(file("a")));
        issuer.current().await.unwrap();
        pass(3600).await;
        script.answer(Ok(file("b")));
        assert_eq!(*issuer.current().await.unwrap(), credential("b"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_credential_is_replaced_once_and_not_with_every_refusal() {
        let (script, issuer) = issuer();
        script.answer(Ok(issued("a")));
        let old = issuer.current().await.unwrap();

        issuer.refused(&old);
        script.answer(Ok(issued("b")));
        let new = issuer.current().await.unwrap();
        assert_eq!(*new, credential("b"));
        issuer.refused(&old);
        issuer.current().await.unwrap();
        assert_eq!(script.runs(), 2, "a refusal of the old one says nothing of the new one");
        issuer.refused(&new);
        issuer.current().await.unwrap();
        assert_eq!(script.runs(), 2, "too soon");
        pass(5).await;
        issuer.refused(&new);
        script.answer(Ok(issued("c")));

        assert_eq!(*issuer.current().await.unwrap(), credential("c"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_credential_that_cannot_be_replaced_is_sent_again() {
        let (script, issuer) = issuer();
        script.answer(Ok(issued("a")));
        let old = issuer.current().await.unwrap();

        issuer.refused(&old);
        script.answer(Err(failure()));

        assert_eq!(*issuer.current().await.unwrap(), credential("a"));
        assert_eq!(*issuer.current().await.unwrap(), credential("a"));
        assert_eq!(script.runs(), 2);
    }
}
