//! Contents of the binary that runs in a cluster: its features and the crates that it links.

use std::{fs, path::Path, process::Command};

/// Features of this crate in the production binary.
const FEATURES: &str = "cli,meta,server,signals,tls";

/// Direct dependencies of the production binary. A new one makes the image larger and adds a
/// licence: list it here deliberately.
const DEPENDENCIES: [&str; 40] = [
    "anyhow",
    "aws-lc-rs",
    "axum",
    "base64",
    "bytes",
    "clap",
    "clap_complete",
    "dashmap",
    "fastrand",
    "foldhash",
    "futures",
    "h2",
    "hashbrown",
    "http",
    "http-body",
    "http-body-util",
    "hyper",
    "hyper-rustls",
    "hyper-util",
    "k8s-openapi",
    "kube",
    "lz4_flex",
    "parking_lot",
    "pilotlight-redaction",
    "pilotlight-transport",
    "prometheus-client",
    "rustls",
    "schemars",
    "serde",
    "serde-saphyr",
    "serde_json",
    "serde_path_to_error",
    "thiserror",
    "tikv-jemalloc-sys",
    "tikv-jemallocator",
    "tokio",
    "tokio-util",
    "tower",
    "tracing",
    "tracing-subscriber",
];

/// Crates of the test kit and of the tests. The production binary has none of them, not even as an
/// indirect dependency.
const ABSENT: [&str; 5] = ["json-patch", "kube-runtime", "proptest", "rcgen", "tempfile"];

/// Crates of a dependency tree, with their features.
fn tree(arguments: &[&str]) -> Vec<(String, String)> {
    let output = Command::new(env!("CARGO"))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args([
            "tree",
            "--locked",
            "--package=pilotlight",
            "--edges=normal",
            "--prefix=none",
            "--format={p}|{f}",
        ])
        .args(arguments)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let read = |line: &str| {
        let (package, features) = line.split_once('|').unwrap();
        let features = features.trim_end_matches(" (*)");
        (package.split(' ').next().unwrap().to_owned(), features.to_owned())
    };
    String::from_utf8(output.stdout).unwrap().lines().map(read).collect()
}

#[test]
fn the_production_binary_contains_what_a_cluster_needs() {
    let direct = tree(&["--no-default-features", "--features=cli", "--depth=1"]);

    let (this, dependencies) = direct.split_first().unwrap();
    assert_eq!(this, &("pilotlight".to_owned(), FEATURES.to_owned()));
    let mut names: Vec<_> = dependencies.iter().map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, DEPENDENCIES);
}

#[test]
fn the_production_binary_contains_nothing_of_the_test_kit() {
    let all = tree(&["--no-default-features", "--features=cli"]);

    let kit: Vec<_> = all.iter().filter(|(name, _)| ABSENT.contains(&name.as_str())).collect();
    assert!(kit.is_empty(), "{kit:?}");
    let (_, kube) = all.iter().find(|(name, _)| name == "kube").unwrap();
    assert!(!kube.split(',').any(|feature| feature == "runtime"), "{kube}");
    assert!(all.len() > 100, "the tree is read: {}", all.len());
}

#[test]
fn the_library_without_features_has_no_tls_no_http_server_and_no_command_line() {
    let all = tree(&["--no-default-features"]);

    let absent =
        ["aws-lc-rs", "axum", "clap", "hyper-rustls", "kube-runtime", "rustls", "schemars"];
    let found: Vec<_> = all.iter().filter(|(name, _)| absent.contains(&name.as_str())).collect();
    assert!(found.is_empty(), "{found:?}");
    // The client of kube has hyper.
    let (_, hyper) = all.iter().find(|(name, _)| name == "hyper").unwrap();
    assert!(!hyper.split(',').any(|feature| feature == "server"), "{hyper}");
}

#[test]
fn the_image_is_the_production_binary() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let dockerfile = fs::read_to_string(root.join("deploy/Dockerfile")).unwrap();

    let builds: Vec<_> =
        dockerfile.lines().filter(|line| line.contains("cargo build")).map(str::trim).collect();

    let expected = "RUN cargo build --locked --profile image --package pilotlight --no-default-features --features cli";
    assert_eq!(builds, [expected]);
    assert!(dockerfile.contains("/src/target/image/pilotlight"), "{dockerfile}");
    assert!(dockerfile.contains("\nUSER 65532:65532\n"), "{dockerfile}");
    let deployment = fs::read_to_string(root.join("deploy/deployment.yaml")).unwrap();
    let lines = [
        "  replicas: 2",
        "        runAsUser: 65532",
        "    type: RollingUpdate",
        "kind: PodDisruptionBudget",
        "          topologyKey: kubernetes.io/hostname",
        "            - --leader-election",
    ];
    for line in lines {
        assert!(deployment.lines().any(|it| it == line), "{line}: {deployment}");
    }
}

#[test]
fn guide_names_the_versions_of_the_interface() {
    let read = |path| fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap();
    let (manifest, guide) = (read("Cargo.toml"), read("docs/library.md"));
    // The version of a crate, or of the package itself: the first one in its line.
    let version = |begin: &str| {
        let line = manifest.lines().find(|line| line.starts_with(begin)).unwrap();
        let number = line.split('"').nth(1).unwrap();
        let parts: Vec<_> = number.split('.').collect();
        // Before 1.0 the minor version is the one that breaks.
        let kept = if parts[0] == "0" || begin == "rust-version" { 2 } else { 1 };
        parts[..kept].join(".")
    };

    let begins =
        ["version =", "kube =", "k8s-openapi =", "axum =", "prometheus-client =", "rust-version"];
    let row = format!("| {} |", begins.map(version).join(" | "));

    assert!(guide.lines().any(|line| line == row), "no row {row}");
    assert_eq!(version("kube ="), version("kube-runtime ="));
}
