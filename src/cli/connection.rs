//! Connection to the API server: its address and credentials.

use std::{
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
};

use anyhow::Context;
use clap::Args;
use kube::{
    Config,
    config::{KubeConfigOptions, Kubeconfig, KubeconfigError},
};
use pilotlight::transport::{Transport, TransportOptions, proxy_from_environment};

/// Heading in the help of a command; set for each flag, so that later flags do not inherit it.
const HEADING: &str = "API server";

#[derive(Debug, Args)]
pub(super) struct ConnectionArgs {
    /// Kubeconfig file. Default: $KUBECONFIG, else the service account of the pod, else
    /// ~/.kube/config. Empty values count as absent.
    #[arg(long, value_name = "FILE", help_heading = HEADING, allow_hyphen_values = true)]
    kubeconfig: Option<OsString>,
    /// Context of the kubeconfig. Default: its current context.
    #[arg(long, value_name = "NAME", help_heading = HEADING)]
    context: Option<String>,
}

impl ConnectionArgs {
    /// Reads the configuration, and the proxy from the environment.
    pub(super) async fn config(&self) -> anyhow::Result<Config> {
        let mut config = self.of_server().await?;
        proxy_from_environment(&mut config, |name| std::env::var(name).ok())?;
        Ok(config)
    }

    async fn of_server(&self) -> anyhow::Result<Config> {
        // An empty name is the default of Metacontroller's flag.
        let file = self.kubeconfig.as_deref().filter(|file| !file.is_empty());
        if let Some(file) = file.map(Path::new) {
            let kubeconfig = Kubeconfig::read_from(file)
                .with_context(|| format!("--kubeconfig {}", file.display()))?;
            return self
                .of_kubeconfig(kubeconfig)
                .await
                .with_context(|| format!("--kubeconfig {}", file.display()));
        }
        let found = || async { self.of_kubeconfig(Kubeconfig::read()?).await };
        let listed = std::env::var_os("KUBECONFIG").filter(|list| names_a_file(list));
        if self.context.is_some() || listed.is_some() {
            return found()
                .await
                .context("reading the kubeconfig that KUBECONFIG names, or ~/.kube/config");
        }
        match Config::incluster() {
            Ok(config) => Ok(config),
            Err(_) => found().await.context(
                "no API server is known: not in a pod, KUBECONFIG is not set, and \
                 ~/.kube/config cannot be used; pass --kubeconfig FILE",
            ),
        }
    }

    async fn of_kubeconfig(&self, kubeconfig: Kubeconfig) -> Result<Config, KubeconfigError> {
        let authority = authority_file(&kubeconfig, self.context.as_deref());
        let options =
            KubeConfigOptions { context: self.context.clone(), ..KubeConfigOptions::default() };
        let mut config = Config::from_custom_kubeconfig(kubeconfig, &options).await?;
        // Set so that the file is read again, like that of a pod.
        config.root_cert_file = authority;
        Ok(config)
    }

    /// Returns the connections to the server; none is opened yet.
    pub(super) async fn transport(&self, options: TransportOptions) -> anyhow::Result<Transport> {
        Ok(Transport::new(self.config().await?, options)?)
    }
}

/// Returns whether a list of files, as in `KUBECONFIG`, names one. As in client-go, empty elements do
/// not count.
fn names_a_file(list: &OsStr) -> bool {
    std::env::split_paths(list).any(|file| !file.as_os_str().is_empty())
}

/// Returns the file with the certificate authority of the API server, if the kubeconfig names one
/// and has no inline authority, which takes precedence.
fn authority_file(kubeconfig: &Kubeconfig, context: Option<&str>) -> Option<PathBuf> {
    let context = context.or(kubeconfig.current_context.as_deref())?;
    let context = kubeconfig.contexts.iter().find(|named| named.name == context)?;
    let cluster = &context.context.as_ref()?.cluster;
    let cluster = kubeconfig.clusters.iter().find(|named| named.name == *cluster)?;
    let cluster = cluster.cluster.as_ref()?;
    if cluster.certificate_authority_data.is_some() {
        return None;
    }
    cluster.certificate_authority.as_ref().map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[track_caller]
    fn check(cluster: &Value, context: Option<&str>, expected: Option<&str>) {
        let kubeconfig = json!({
            "clusters": [
                { "name": "a", "cluster": cluster },
                { "name": "b", "cluster": { "server": "https://b", "certificate-authority": "/b" } },
            ],
            "contexts": [
                { "name": "of-a", "context": { "cluster": "a", "user": "u" } },
                { "name": "of-b", "context": { "cluster": "b", "user": "u" } },
            ],
            "current-context": "of-a",
        });
        let kubeconfig = Kubeconfig::from_yaml(&kubeconfig.to_string()).unwrap();

        let file = authority_file(&kubeconfig, context);

        assert_eq!(file, expected.map(PathBuf::from), "{cluster} {context:?}");
    }

    #[test]
    fn the_file_of_an_authority_is_that_of_the_contexts_cluster_unless_the_kubeconfig_holds_it() {
        let by_file = json!({ "server": "https://a", "certificate-authority": "/a" });
        check(&by_file, None, Some("/a"));
        check(&by_file, Some("of-b"), Some("/b"));
        check(&by_file, Some("unknown"), None);
        let both = json!({
            "server": "https://a",
            "certificate-authority": "/a",
            "certificate-authority-data": "YQ==",
        });
        check(&both, None, None);
        check(&json!({ "server": "https://a" }), None, None);
    }

    #[test]
    fn list_of_kubeconfigs_names_a_file_unless_all_its_elements_are_empty() {
        for (list, expected) in
            [("", false), (":", false), ("::", false), ("a", true), (":a", true), ("a:", true)]
        {
            assert_eq!(names_a_file(list.as_ref()), expected, "{list:?}");
        }
    }

    #[tokio::test]
    async fn an_authority_in_a_file_of_its_own_is_read_from_there() {
        let folder = tempfile::tempdir().unwrap();
        let pem = rcgen::generate_simple_self_signed(["a".to_owned()]).unwrap().cert.pem();
        std::fs::write(folder.path().join("ca.pem"), pem).unwrap();
        let kubeconfig = json!({
            "clusters": [{ "name": "a", "cluster": {
                "server": "https://a", "certificate-authority": "ca.pem",
            }}],
            "users": [{ "name": "u", "user": {} }],
            "contexts": [{ "name": "of-a", "context": { "cluster": "a", "user": "u" } }],
            "current-context": "of-a",
        });
        let file = folder.path().join("kubeconfig");
        std::fs::write(&file, kubeconfig.to_string()).unwrap();
        let arguments = ConnectionArgs { kubeconfig: Some(file.into()), context: None };

        let config = arguments.config().await.unwrap();

        assert_eq!(config.root_cert_file, Some(folder.path().join("ca.pem")));
    }
}
