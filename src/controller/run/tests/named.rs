//! Inputs by name: added, replaced and removed while the controller runs or waits.

use futures::poll;

use super::*;
use crate::controller::{InputError, InputHandle, InputState};

impl Harness {
    fn add(&self, name: &str, source: &Fake) -> Result<InputHandle, InputError> {
        self.controller.inputs().add(name, |input| input.source(source.clone()).optional())
    }
}

/// Run of one source, whose reconciles are logged.
fn run(log: &Log) -> Harness {
    let (notes, start) = (log.clone(), Instant::now());
    let base = Fake::new("base", &[]);
    make().input(InputMode::Required, base).run(move |request, context| {
        notes.note(&request, &context, start);
        async { ok() }
    })
}

#[tokio::test(start_paused = true)]
async fn added_input_has_started_when_its_objects_are_in_the_queue() {
    let (log, late) = (Log::default(), Fake::new("late", &["a"]).unsynced());
    let mut harness = run(&log);
    harness.running().await;

    let added = harness.add("late", &late).unwrap();
    let mut started = Box::pin(added.started());
    run_until_idle().await;
    assert!(poll!(&mut started).is_pending());
    assert_eq!(added.state(), InputState::Pending("late is syncing".to_owned()));
    late.shared.synced.send_replace(true);

    started.await.unwrap();
    run_until_idle().await;
    assert_eq!(log.names(), ["ns/a"]);
    harness.stop(StopReason::Cancelled).await.unwrap();
    assert_eq!(late.running(), 0);
}

#[tokio::test(start_paused = true)]
async fn nothing_of_a_removed_input_runs() {
    let (log, late) = (Log::default(), Fake::new("late", &["a"]));
    let mut harness = run(&log);
    harness.add("late", &late).unwrap().started().await.unwrap();
    assert_eq!(late.running(), 1);

    assert!(harness.controller.inputs().remove("late").await);

    assert_eq!((late.running(), late.starts()), (0, 1));
    assert!(!harness.controller.inputs().remove("late").await);
    assert!(harness.controller.inputs().states().is_empty());
    assert!(harness.report().watches.is_empty());
    harness.stop(StopReason::Cancelled).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn input_added_and_removed_before_the_start_never_runs() {
    let (kept, gone) = (Fake::new("kept", &[]), Fake::new("gone", &[]));
    let controller =
        make().input(InputMode::Plain, Fake::new("base", &[])).controller(async |_, _| ok());
    let inputs = controller.inputs();
    inputs.add("kept", |input| input.source(kept.clone())).unwrap();
    let added = inputs.add("gone", |input| input.source(gone.clone())).unwrap();
    assert!(inputs.remove("gone").await);
    assert!(matches!(added.started().await, Err(InputError::Ended)));

    let epoch = Epoch::new("widgets", 1, GRACE);
    let mut runs = JoinSet::new();
    runs.spawn(controller.start(epoch.clone()));
    run_until_idle().await;

    assert_eq!((kept.running(), gone.starts()), (1, 0));
    epoch.stop(StopReason::Cancelled);
    runs.join_next().await.unwrap().unwrap().unwrap();
    assert_eq!((kept.running(), gone.starts()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn conditional_input_added_late_comes_and_goes_within_the_epoch() {
    let (log, late) = (Log::default(), Fake::new("late", &["a"]).missing());
    let mut harness = run(&log);
    harness.running().await;
    let inputs = harness.controller.inputs();
    let added = inputs.add("late", |input| input.source(late.clone()).conditional()).unwrap();
    run_until_idle().await;
    assert_eq!(added.state(), InputState::Pending("late is not installed".to_owned()));

    for round in 1..=2 {
        late.comes();
        added.started().await.unwrap();
        run_until_idle().await;
        assert_eq!((late.running(), log.names().len()), (1, round));
        late.goes();
        run_until_idle().await;
        assert_eq!(late.running(), 0);
        assert!(matches!(added.state(), InputState::Pending(_)), "{:?}", added.state());
    }

    assert!(harness.epoch.stop_reason().is_none() && harness.report().running);
    harness.stop(StopReason::Cancelled).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn replaced_input_continues_until_its_replacement_has_started() {
    let (log, old) = (Log::default(), Fake::new("old", &[]));
    let mut harness = run(&log);
    harness.add("late", &old).unwrap().started().await.unwrap();
    let taken = harness.add("late", &old).unwrap_err();
    assert_eq!(
        taken.to_string(),
        "widgets already has an input named late; remove it first, or replace it"
    );

    let new = Fake::new("new", &["b"]).unsynced();
    let inputs = harness.controller.inputs();
    let replaced = inputs.replace("late", |input| input.source(new.clone())).unwrap();
    run_until_idle().await;
    assert_eq!((old.running(), new.running()), (1, 1));
    new.shared.synced.send_replace(true);
    replaced.started().await.unwrap();

    assert_eq!((old.running(), new.running()), (0, 1));
    run_until_idle().await;
    assert_eq!(log.names(), ["ns/b"]);
    harness.stop(StopReason::Cancelled).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn input_of_the_controller_starts_in_each_epoch_and_one_of_a_context_ends_with_it() {
    let (stays, ends) = (Fake::new("stays", &["a"]), Fake::new("ends", &[]));
    let (own, contexts) = (ends.clone(), Arc::new(Mutex::new(Vec::new())));
    let kept = Arc::clone(&contexts);
    let base = Fake::new("base", &[]);
    let mut harness = make().input(InputMode::Required, base).run(move |_, context: Context| {
        let (own, kept) = (own.clone(), Arc::clone(&kept));
        async move {
            let inputs = context.inputs().unwrap();
            inputs.add("ends", |input| input.source(own)).unwrap().started().await.unwrap();
            kept.lock().unwrap().push(context);
            ok()
        }
    });
    harness.add("stays", &stays).unwrap();

    for epoch in 1..=2 {
        harness.running().await;
        run_until_idle().await;
        assert_eq!((stays.starts(), ends.starts()), (epoch, epoch));
        assert_eq!((stays.running(), ends.running()), (1, 1));
        harness.stop(StopReason::Cancelled).await.unwrap();
        assert_eq!((stays.running(), ends.running()), (0, 0));
        let names: Vec<_> =
            harness.controller.inputs().states().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["stays"]);
        let inputs = contexts.lock().unwrap().pop().unwrap().inputs().unwrap();
        let late = inputs.add("late", |input| input.source(ends.clone())).unwrap_err();
        assert!(matches!(late, InputError::EpochOver(..)), "{late}");
        if epoch == 1 {
            harness.start();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn removals_of_one_input_at_once_all_wait_for_its_end() {
    let late = Fake::new("late", &["a"]);
    let mut harness = run(&Log::default());
    harness.add("late", &late).unwrap().started().await.unwrap();
    let inputs = harness.controller.inputs();

    let mut first = Box::pin(inputs.remove("late"));
    let mut second = Box::pin(inputs.remove("late"));
    assert!(poll!(&mut first).is_pending() && poll!(&mut second).is_pending());
    assert_eq!(late.running(), 1);

    assert!(second.await);
    assert_eq!(late.running(), 0);
    assert!(poll!(first).is_ready());
    harness.stop(StopReason::Cancelled).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn removed_input_does_not_wait_for_one_of_its_name_that_was_added_since() {
    let (old, new) = (Fake::new("old", &[]), Fake::new("new", &[]).missing());
    let mut harness = run(&Log::default());
    harness.add("late", &old).unwrap().started().await.unwrap();

    let inputs = harness.controller.inputs();
    let mut removed = Box::pin(inputs.remove("late"));
    assert!(poll!(&mut removed).is_pending());
    let added = harness.add("late", &new).unwrap();

    assert!(removed.await);
    assert_eq!((old.running(), new.starts()), (0, 0));
    new.comes();
    added.started().await.unwrap();
    harness.stop(StopReason::Cancelled).await.unwrap();
}

/// Source that ignores its stop.
struct IgnoresStop(watch::Sender<usize>);

impl ConditionalSource for IgnoresStop {
    fn ready(&self) -> Readiness {
        crate::manager::always()
    }

    fn start_notify_done(&self, _context: SourceContext) -> SourceStart {
        let running = self.0.clone();
        running.send_modify(|running| *running += 1);
        let guard = scopeguard(move || running.send_modify(|running| *running -= 1));
        let done = async move {
            let _guard = guard;
            pending().await
        };
        SourceStart { synced: async { Ok(()) }.boxed(), done: done.boxed() }
    }
}

/// Calls a function when it is dropped.
fn scopeguard(end: impl FnMut() + Send + 'static) -> impl Send {
    struct Guard<F: FnMut()>(F);
    impl<F: FnMut()> Drop for Guard<F> {
        fn drop(&mut self) {
            (self.0)();
        }
    }
    Guard(end)
}

#[tokio::test(start_paused = true)]
async fn source_that_ignores_its_removal_is_dropped_after_the_grace() {
    let mut harness = run(&Log::default());
    let running = watch::Sender::new(0);
    let inputs = harness.controller.inputs();
    let deaf = IgnoresStop(running.clone());
    inputs.add("deaf", |input| input.source(deaf)).unwrap().started().await.unwrap();
    let before = Instant::now();

    assert!(inputs.remove("deaf").await);

    assert_eq!((*running.borrow(), before.elapsed()), (0, GRACE));
    harness.stop(StopReason::Cancelled).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn description_of_an_input_by_name_is_checked() {
    let controller = make().controller(async |_, _| ok());
    let inputs = controller.inputs();
    let type_ref = || crate::kind::TypeRef::kind("example.com", "v1", "Widget");
    let error = |it: Result<InputHandle, InputError>| it.unwrap_err().to_string();

    assert_eq!(
        error(inputs.add("x", |input| input)),
        "widgets: the description of input x adds 0 inputs; it must add exactly one"
    );
    assert_eq!(
        error(inputs.add("x", |input| input.for_type(type_ref()))),
        "widgets: input x cannot be the primary type; call `for_` on the builder"
    );
    assert_eq!(
        error(inputs.add("x", |input| input.owns_type(type_ref()))),
        "widgets owns Widget.example.com/v1 but has no primary type; call for_ first"
    );
    assert!(inputs.states().is_empty());
}

#[tokio::test(start_paused = true)]
async fn two_hundred_adds_that_race_start_and_stop_succeed_or_are_refused_and_leave_nothing() {
    let mut random = fastrand::Rng::with_seed(7);
    let mut harness = run(&Log::default());
    let (inputs, sources) = (harness.controller.inputs(), Arc::new(Fake::new("many", &["a"])));
    let mut tasks = JoinSet::new();
    for number in 0..200_u64 {
        let (inputs, source) = (inputs.clone(), Fake::clone(&sources));
        let (before, between) = (random.u64(..300), random.u64(..300));
        tasks.spawn(async move {
            let name = format!("input {}", number % 50);
            sleep(Duration::from_millis(before)).await;
            let added = match number % 3 {
                0 => inputs.replace(&name, |input| input.source(source).optional()),
                _ => inputs.add(&name, |input| input.source(source)),
            };
            match added {
                Ok(added) => drop(timeout(Duration::from_millis(between), added.started()).await),
                Err(error) => assert!(matches!(error, InputError::NameTaken(..)), "{error}"),
            }
            inputs.remove(&name).await;
        });
    }
    for _ in 0..4 {
        sleep(Duration::from_millis(random.u64(50..150))).await;
        harness.stop(StopReason::Cancelled).await.unwrap();
        assert_eq!(sources.running(), 0, "nothing outlives the epoch");
        sleep(Duration::from_millis(random.u64(..50))).await;
        harness.start();
    }
    while let Some(end) = tasks.join_next().await {
        end.unwrap();
    }

    assert!(inputs.states().is_empty());
    assert_eq!(sources.running(), 0);
    assert!(sources.starts() > 50, "{}", sources.starts());
    harness.running().await;
    assert!(harness.report().watches.is_empty());
    harness.stop(StopReason::Cancelled).await.unwrap();
}
