//! Metrics of the process, with the standard names of Prometheus clients (`process_*`). They are
//! read from `/proc` at each scrape. A system without `/proc` has no such metrics.

use std::{fmt, fs, time::Duration};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
    registry::Registry,
};

/// Unit of times in `/proc` in milliseconds, a hundredth of a second on every architecture.
const TICK_MILLIS: u64 = 10;

/// Adds the metrics to a registry. For those of a manager:
/// `handle.add_metrics("process", process::register)`.
pub fn register(registry: &mut Registry) {
    registry.register_collector(Box::new(ProcessCollector));
}

/// Returns the CPU time that the process has used; `None` without `/proc`.
pub fn cpu_time() -> Option<Duration> {
    cpu_time_in(&fs::read_to_string("/proc/self/stat").ok()?)
}

/// Returns the CPU time in the text of `/proc/self/stat`.
fn cpu_time_in(stat: &str) -> Option<Duration> {
    Some(ticks(stat, 11)? + ticks(stat, 12)?)
}

/// Returns a time in the text of `/proc/self/stat`: the field at this position after the name of
/// the program, which is in parentheses and may contain any character.
fn ticks(stat: &str, at: usize) -> Option<Duration> {
    let (_, fields) = stat.rsplit_once(')')?;
    let ticks: u64 = fields.split_ascii_whitespace().nth(at)?.parse().ok()?;
    Some(Duration::from_millis(ticks.saturating_mul(TICK_MILLIS)))
}

#[derive(Debug)]
struct ProcessCollector;

/// Metrics at one scrape.
#[derive(Debug, Default, PartialEq)]
struct Sample {
    cpu_seconds: Option<f64>,
    start_seconds: Option<f64>,
    resident_bytes: Option<f64>,
    virtual_bytes: Option<f64>,
    open_files: Option<f64>,
    most_files: Option<f64>,
}

impl Sample {
    fn take() -> Self {
        let read = |file: &str| fs::read_to_string(file).unwrap_or_default();
        let files = fs::read_dir("/proc/self/fd").ok();
        Self {
            open_files: files.map(|files| files.count() as f64),
            ..Self::parse(
                &read("/proc/self/stat"),
                &read("/proc/self/status"),
                &read("/proc/self/limits"),
                &read("/proc/stat"),
            )
        }
    }

    fn parse(stat: &str, status: &str, limits: &str, system: &str) -> Self {
        let named = |text: &str, name: &str, at: usize| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_ascii_whitespace().nth(at)?.parse::<f64>().ok()
        };
        let kibibytes = |name: &str| named(status, name, 0).map(|size| size * 1024.0);
        let start = ticks(stat, 19).zip(named(system, "btime ", 0));
        Self {
            cpu_seconds: cpu_time_in(stat).map(|used| used.as_secs_f64()),
            start_seconds: start.map(|(since, boot)| boot + since.as_secs_f64()),
            resident_bytes: kibibytes("VmRSS:"),
            virtual_bytes: kibibytes("VmSize:"),
            open_files: None,
            most_files: named(limits, "Max open files", 0),
        }
    }
}

impl Collector for ProcessCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let sample = Sample::take();
        if let Some(seconds) = sample.cpu_seconds {
            let (name, help) = ("process_cpu_seconds", "CPU time of the process");
            let family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            ConstCounter::new(seconds).encode(family)?;
        }
        for (name, help, value) in [
            ("process_start_time_seconds", "Start of the process since 1970", sample.start_seconds),
            ("process_resident_memory_bytes", "Resident memory", sample.resident_bytes),
            ("process_virtual_memory_bytes", "Virtual memory", sample.virtual_bytes),
            ("process_open_fds", "Open file descriptors", sample.open_files),
            ("process_max_fds", "Largest number of open file descriptors", sample.most_files),
        ] {
            let Some(value) = value else { continue };
            let family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            ConstGauge::new(value).encode(family)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sample_is_read_from_proc() {
        let sample = Sample::parse(
            "7 (a) 1 (b)) S 1 7 7 0 -1 4194560 1402 0 3 0 57 13 0 0 20 0 9 0 250 1 2",
            "Name:\tpilotlight\nVmSize:\t    2048 kB\nVmRSS:\t     3 kB\n",
            "Limit  Soft Limit  Hard Limit  Units\nMax open files            1024   4096   files\n",
            "cpu 1 2\nbtime 1000\n",
        );

        assert_eq!(
            sample,
            Sample {
                cpu_seconds: Some(0.7),
                start_seconds: Some(1002.5),
                resident_bytes: Some(3072.0),
                virtual_bytes: Some(2_097_152.0),
                open_files: None,
                most_files: Some(1024.0),
            }
        );
        assert_eq!(Sample::parse("", "", "", ""), Sample::default());
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn series_have_the_names_of_prometheus() {
        let mut registry = Registry::default();
        register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();

        for series in [
            "process_cpu_seconds_total",
            "process_start_time_seconds",
            "process_resident_memory_bytes",
            "process_virtual_memory_bytes",
            "process_open_fds",
            "process_max_fds",
        ] {
            assert!(text.contains(&format!("\n{series} ")), "{series}: {text}");
        }
        assert!(!text.contains("go_"), "there is no Go runtime: {text}");
    }
}
