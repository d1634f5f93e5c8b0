//! Metrics of the process, by the names that clients of Prometheus give them. Read from `/proc` at each
//! scrape; without it there are none.

use std::{fmt, fs};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
    registry::Registry,
};

/// CPU times and times since the boot in `/proc` count hundredths of a second on every architecture.
const TICKS_PER_SECOND: f64 = 100.0;

/// Adds the metrics to a registry.
pub(super) fn register(registry: &mut Registry) {
    registry.register_collector(Box::new(Process));
}

#[derive(Debug)]
struct Process;

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
        // The name of the program is in parentheses, and may contain any character.
        let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
        let field = |at: usize| fields.split_ascii_whitespace().nth(at)?.parse::<f64>().ok();
        let named = |text: &str, name: &str, at: usize| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_ascii_whitespace().nth(at)?.parse::<f64>().ok()
        };
        let kibibytes = |name: &str| named(status, name, 0).map(|size| size * 1024.0);
        let cpu = field(11).zip(field(12)).map(|(user, system)| user + system);
        let start = field(19).zip(named(system, "btime ", 0));
        Self {
            cpu_seconds: cpu.map(|ticks| ticks / TICKS_PER_SECOND),
            start_seconds: start.map(|(ticks, boot)| boot + ticks / TICKS_PER_SECOND),
            resident_bytes: kibibytes("VmRSS:"),
            virtual_bytes: kibibytes("VmSize:"),
            open_files: None,
            most_files: named(limits, "Max open files", 0),
        }
    }
}

impl Collector for Process {
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
    }
}
