//! Nothing is sent, and nothing is left, once an epoch is done.

use super::*;

#[tokio::test(start_paused = true)]
async fn nothing_passes_the_fence_of_an_epoch_that_is_done() {
    let sent = Arc::new(AtomicUsize::new(0));
    let count = sent.clone();
    let service = tower::service_fn(move |_: http::Request<kube::client::Body>| {
        count.fetch_add(1, Ordering::Relaxed);
        async { Ok::<_, BoxError>(http::Response::new(kube::client::Body::empty())) }
    });
    let epoch = Epoch::new("widgets", 1, Duration::from_secs(5));
    let client = epoch.client(&kube::Client::new(service, "default"));
    let request = || http::Request::get("/version").body(kube::client::Body::empty()).unwrap();
    client.send(request()).await.unwrap();

    run::drive(epoch.clone(), Box::pin(async { Ok(()) }), run::Overrun::Dropped).await;

    let refused = client.send(request()).await.unwrap_err();
    assert!(refused.to_string().contains("the epoch is over"), "{refused}");
    assert_eq!(sent.load(Ordering::Relaxed), 1);
    assert_eq!(epoch.fence().under_way(), 0);
}

#[test]
fn a_request_that_nobody_waited_for_is_counted_as_unknown() {
    let fence = Fence::new();

    fence.pass().unwrap().answered();
    drop(fence.pass().unwrap());

    assert_eq!((fence.under_way(), fence.unknown()), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn the_tasks_of_an_epochs_clients_have_ended_when_it_is_done() {
    let service = tower::service_fn(|_: http::Request<kube::client::Body>| async {
        Ok::<_, BoxError>(http::Response::new(kube::client::Body::empty()))
    });
    let client = kube::Client::new(service, "default");
    let alive = || Handle::current().metrics().num_alive_tasks();
    let before = alive();
    let epoch = Epoch::new("widgets", 1, Duration::from_secs(5));

    let (inside, outside) = (epoch.clone(), client.clone());
    let work = async move {
        for _ in 0..3 {
            let client = inside.client(&outside);
            let request = http::Request::get("/version").body(kube::client::Body::empty()).unwrap();
            client.send(request).await.unwrap();
        }
        Ok(())
    };
    run::drive(epoch.clone(), Box::pin(work), run::Overrun::Dropped).await;

    assert_eq!(alive(), before);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_is_kept_beyond_the_run_delays_done_by_no_more_than_a_moment() {
    let service = tower::service_fn(|_: http::Request<kube::client::Body>| async {
        Ok::<_, BoxError>(http::Response::new(kube::client::Body::empty()))
    });
    let epoch = Epoch::new("widgets", 1, Duration::from_secs(5));
    let kept = epoch.client(&kube::Client::new(service, "default"));
    let begin = tokio::time::Instant::now();

    run::drive(epoch.clone(), Box::pin(async { Ok(()) }), run::Overrun::Dropped).await;

    assert!(begin.elapsed() < Duration::from_millis(200));
    drop(kept);
}
