//! Log capture of a test: every event of Pilotlight on the test's thread, which is where Pilotlight
//! runs under paused time.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    sync::{Arc, LazyLock, Mutex},
};

use tokio::time::Instant;
use tracing::{
    Dispatch, Event, Level, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
    subscriber::{DefaultGuard, NoSubscriber},
};
use tracing_subscriber::{
    Layer, Registry,
    layer::{Context, SubscriberExt},
    registry::LookupSpan,
};

/// Second dispatcher, interested in nothing.
///
/// With a single dispatcher, tracing caches the interest in a call site as the first thread finds
/// it. A thread of another test has no subscriber, and would disable the call site for all.
static ANOTHER: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(NoSubscriber::new()));

/// Log event.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) at: Instant,
    pub(crate) level: Level,
    pub(crate) message: String,
    /// Fields of the event and of its spans.
    pub(crate) fields: BTreeMap<&'static str, String>,
}

impl Line {
    /// Returns whether the level is `warn` or `error`.
    pub(crate) fn is_trouble(&self) -> bool {
        self.level <= Level::WARN
    }

    pub(crate) fn field(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", String::as_str)
    }
}

/// Log events at `info` and above since its creation.
pub(crate) struct Logs {
    lines: Arc<Mutex<Vec<Line>>>,
    // Restores the previous subscriber on drop.
    _default: DefaultGuard,
}

impl Logs {
    /// Captures the log of this thread, which in a single-threaded runtime is the test's.
    pub(crate) fn capture() -> Self {
        LazyLock::force(&ANOTHER);
        let lines = Arc::<Mutex<Vec<_>>>::default();
        let capture = Capture { lines: Arc::clone(&lines) };
        let subscriber = Registry::default().with(capture);
        Self { lines, _default: tracing::subscriber::set_default(subscriber) }
    }

    pub(crate) fn lines(&self) -> Vec<Line> {
        self.lines.lock().unwrap().clone()
    }

    /// Warnings and errors.
    pub(crate) fn troubles(&self) -> Vec<Line> {
        self.lines().into_iter().filter(Line::is_trouble).collect()
    }
}

struct Capture {
    lines: Arc<Mutex<Vec<Line>>>,
}

#[derive(Default)]
struct Fields(BTreeMap<&'static str, String>);

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}

impl<S> Layer<S> for Capture
where
    S: Subscriber + for<'lookup> LookupSpan<'lookup>,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        span.extensions_mut().insert(fields);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        if let Some(fields) = span.extensions_mut().get_mut::<Fields>() {
            values.record(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let metadata = event.metadata();
        if !metadata.target().starts_with("pilotlight") || *metadata.level() > Level::INFO {
            return;
        }
        let mut all = Fields::default();
        for span in context.event_scope(event).into_iter().flatten() {
            if let Some(Fields(fields)) = span.extensions().get::<Fields>() {
                // Events and inner spans come first, so that their fields win.
                for (name, value) in fields {
                    all.0.entry(name).or_insert_with(|| value.clone());
                }
            }
        }
        event.record(&mut all);
        let message = all.0.remove("message").unwrap_or_default();
        let line = Line { at: Instant::now(), level: *metadata.level(), message, fields: all.0 };
        self.lines.lock().unwrap().push(line);
    }
}

#[test]
fn a_line_that_another_thread_logged_first_is_captured() {
    let line = || tracing::warn!(target: "pilotlight::nothing", "first message of its target");
    let logs = Logs::capture();

    std::thread::spawn(line).join().unwrap();
    line();

    assert_eq!(logs.troubles().len(), 1);
}
