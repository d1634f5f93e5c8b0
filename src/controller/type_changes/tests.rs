//! Propagation of type changes to informers, and its wake-ups.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Wake, Waker},
};

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{
    discovery::{DiscoveryOptions, TypeState},
    informer::{InformerKey, InformerOptions},
    testing::{CrdBuilder, simulated::SimulatedServer},
};

struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[tokio::test(start_paused = true)]
async fn a_change_of_a_type_without_informers_wakes_no_task() {
    let server = SimulatedServer::new();
    let (types, discovery) = TypeRegistry::new(server.client(), DiscoveryOptions::default());
    let mut tasks = JoinSet::new();
    tasks.spawn(discovery.run(CancellationToken::new()));
    let crd = |kind: &str| CrdBuilder::new("example.com", kind).version("v1").build();
    let install = async |kind: &str, plural: &str| {
        let mut status = types.subscribe(&TypeRef::resource("example.com", "v1", plural));
        server.install(&crd(kind)).unwrap();
        status.wait_for(|status| status.state == TypeState::Served).await.unwrap();
    };
    install("Widget", "widgets").await;
    let served = types.served(&TypeRef::resource("example.com", "v1", "widgets")).unwrap();
    let informers = InformerSet::new(server.client(), InformerOptions::default());
    let _widgets = informers.subscribe(&served, InformerKey::new(served.identity.clone()));
    let mut propagate = Box::pin(propagate(types.clone(), informers.clone()));
    let woken = Arc::new(Woken(AtomicBool::new(true)));
    let waker = Waker::from(Arc::clone(&woken));
    while woken.0.swap(false, Ordering::SeqCst) {
        assert!(propagate.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    }

    install("Gadget", "gadgets").await;
    assert!(!woken.0.load(Ordering::SeqCst), "no informer watches this type");

    server.uninstall("widgets.example.com").unwrap();
    let mut status = types.subscribe(&at_its_version(&served.identity));
    status.wait_for(|status| status.state == TypeState::Absent).await.unwrap();
    while woken.0.swap(false, Ordering::SeqCst) {
        assert!(propagate.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    }
    assert!(informers.status().is_empty());
}
