//! System's counts for this process.

use std::fs;

/// Returns the number of open sockets; 0 without `/proc`.
pub(super) fn sockets() -> usize {
    let Ok(entries) = fs::read_dir("/proc/self/fd") else { return 0 };
    let targets = entries.flatten().filter_map(|entry| fs::read_link(entry.path()).ok());
    targets.filter(|target| target.to_string_lossy().starts_with("socket:")).count()
}

/// Returns the resident memory; 0 without `/proc`.
pub(super) fn resident_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_has_memory_and_a_listener_adds_a_socket() {
        assert!(resident_kib() > 0);
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();

        assert!(sockets() > 0);
        drop(listener);
    }
}
