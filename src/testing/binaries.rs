//! Where the control plane's binaries come from.

use std::{
    env, fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use super::{Error, Progress, toolchain::Toolchain};

/// The Kubernetes version that is built when no binary is found.
pub const KUBERNETES_VERSION: &str = "v1.36.3";
/// The etcd version that is built when no binary is found.
pub const ETCD_VERSION: &str = "v3.6.16";

/// A program that belongs to the control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Binary {
    /// The store.
    Etcd,
    /// The API server.
    KubeApiserver,
    /// Garbage collection and namespaces.
    KubeControllerManager,
    /// For people; no control plane needs it.
    Kubectl,
}

impl Binary {
    /// The name of its file, in `$KUBEBUILDER_ASSETS` and in the cache.
    pub fn file_name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::KubeApiserver => "kube-apiserver",
            Self::KubeControllerManager => "kube-controller-manager",
            Self::Kubectl => "kubectl",
        }
    }
}

/// Where to look for binaries, in this order, each of them on its own: setup-envtest, for one, ships
/// no kube-controller-manager.
///
/// 1. `assets`: prebuilt ones. A directory that is not there, or that holds none of the binaries asked
///    for, is an error: who names it means it.
/// 2. `cache`: those built before, in `controlplane/v1.36.3/`.
/// 3. A build with the Go toolchain into `cache`, from a pinned Go module that is part of this crate:
///    Kubernetes v1.36.3 and etcd v3.6.16, about 6 minutes on 2 cores, once. It needs `go` and its
///    module proxy, and no C compiler. An interrupted or concurrent build leaves no half binary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BinarySources {
    /// A directory with prebuilt binaries, as `setup-envtest use` prints it. They should be of one
    /// version: a controller manager newer than its API server is not supported by Kubernetes.
    pub assets: Option<PathBuf>,
    /// Where built binaries are kept.
    pub cache: PathBuf,
}

impl BinarySources {
    /// Reads `$KUBEBUILDER_ASSETS`, and `$PILOTLIGHT_CACHE` or else `$XDG_CACHE_HOME/pilotlight` or
    /// else `$HOME/.cache/pilotlight`.
    ///
    /// # Errors
    ///
    /// [`Error::NoCacheDirectory`] when no variable names a cache directory.
    pub fn from_env() -> Result<Self, Error> {
        Self::from_variables(|name| {
            env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
        })
    }

    fn from_variables(get: impl Fn(&str) -> Option<PathBuf>) -> Result<Self, Error> {
        let cache = get("PILOTLIGHT_CACHE")
            .or_else(|| Some(get("XDG_CACHE_HOME")?.join("pilotlight")))
            .or_else(|| Some(get("HOME")?.join(".cache/pilotlight")))
            .ok_or(Error::NoCacheDirectory)?;
        Ok(Self { assets: get("KUBEBUILDER_ASSETS"), cache })
    }

    /// The path of `binary`, if it need not be built.
    pub fn find(&self, binary: Binary) -> Option<PathBuf> {
        let cached = self.built();
        [self.assets.as_deref(), Some(&*cached)]
            .into_iter()
            .flatten()
            .map(|directory| directory.join(binary.file_name()))
            .find(|path| is_executable(path))
    }

    /// The paths of `binaries`, in the same order; what is missing is built.
    ///
    /// # Errors
    ///
    /// [`Error::Assets`] when `assets` is of no use. [`Error::NoGo`] or [`Error::Build`] when a binary
    /// is missing and cannot be built.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a build that is dropped is killed, and leaves the binaries it had finished.
    pub async fn find_or_build(
        &self,
        binaries: &[Binary],
        progress: &dyn Progress,
    ) -> Result<Vec<PathBuf>, Error> {
        self.check_assets(binaries)?;
        let missing: Vec<_> =
            binaries.iter().copied().filter(|binary| self.find(*binary).is_none()).collect();
        if !missing.is_empty() {
            Toolchain::default().build(&self.built(), &missing, progress).await?;
        }
        let built = self.built();
        Ok(binaries
            .iter()
            .map(|binary| self.find(*binary).unwrap_or_else(|| built.join(binary.file_name())))
            .collect())
    }

    /// Whether `assets` has anything of what is asked for.
    fn check_assets(&self, binaries: &[Binary]) -> Result<(), Error> {
        let Some(assets) = &self.assets else { return Ok(()) };
        let useless = |problem| Err(Error::Assets { directory: assets.clone(), problem });
        if !assets.is_dir() {
            return useless("is no directory".to_owned());
        }
        let has = |binary: &Binary| is_executable(&assets.join(binary.file_name()));
        if binaries.is_empty() || binaries.iter().any(has) {
            return Ok(());
        }
        let names: Vec<_> = binaries.iter().map(|binary| binary.file_name()).collect();
        useless(format!("holds no executable file of the name {}", names.join(" or ")))
    }

    /// The directory of the binaries that were built.
    fn built(&self) -> PathBuf {
        self.cache.join("controlplane").join(KUBERNETES_VERSION)
    }
}

pub(super) fn is_executable(path: &Path) -> bool {
    fs::metadata(path)
        .is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Silent;

    fn put(directory: &Path, name: &str, mode: u32) {
        fs::create_dir_all(directory).unwrap();
        let path = directory.join(name);
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn each_binary_is_looked_up_on_its_own() {
        let directory = tempfile::tempdir().unwrap();
        let assets = directory.path().join("assets");
        let sources =
            BinarySources { assets: Some(assets.clone()), cache: directory.path().join("cache") };
        put(&assets, "etcd", 0o755);
        put(&assets, "kube-apiserver", 0o644);
        put(&sources.built(), "etcd", 0o755);
        put(&sources.built(), "kube-controller-manager", 0o755);

        assert_eq!(sources.find(Binary::Etcd), Some(assets.join("etcd")));
        assert_eq!(sources.find(Binary::KubeApiserver), None, "it is not executable");
        assert_eq!(
            sources.find(Binary::KubeControllerManager),
            Some(sources.built().join("kube-controller-manager"))
        );
    }

    #[tokio::test]
    async fn an_assets_directory_that_is_of_no_use_is_an_error_that_names_the_variable() {
        let directory = tempfile::tempdir().unwrap();
        let assets = directory.path().join("assets");
        let sources =
            BinarySources { assets: Some(assets.clone()), cache: directory.path().join("cache") };
        put(&sources.built(), "etcd", 0o755);
        put(&sources.built(), "kube-apiserver", 0o755);
        let binaries = [Binary::Etcd, Binary::KubeApiserver];
        let error = async || {
            let found = sources.find_or_build(&binaries, &Silent).await;
            found.unwrap_err().to_string()
        };

        let absent = error().await;
        put(&assets, "kube-apiserver", 0o644);
        let useless = error().await;
        put(&assets, "etcd", 0o755);
        let found = sources.find_or_build(&binaries, &Silent).await.unwrap();

        for text in [&absent, &useless] {
            assert!(text.contains("KUBEBUILDER_ASSETS"), "{text}");
            assert!(text.contains(assets.to_str().unwrap()), "{text}");
        }
        assert!(useless.contains("etcd or kube-apiserver"), "{useless}");
        assert_eq!(found, [assets.join("etcd"), sources.built().join("kube-apiserver")]);
    }

    #[track_caller]
    fn check_cache(variables: &[(&str, &str)], expected: &str) {
        let sources = BinarySources::from_variables(|name| {
            let (_, value) = variables.iter().find(|(variable, _)| *variable == name)?;
            Some(PathBuf::from(value))
        });
        assert_eq!(sources.unwrap().cache, Path::new(expected));
    }

    #[test]
    fn the_nearest_variable_names_the_cache() {
        check_cache(&[("PILOTLIGHT_CACHE", "/p"), ("XDG_CACHE_HOME", "/x"), ("HOME", "/h")], "/p");
        check_cache(&[("XDG_CACHE_HOME", "/x"), ("HOME", "/h")], "/x/pilotlight");
        check_cache(&[("HOME", "/h")], "/h/.cache/pilotlight");
    }

    #[test]
    fn no_cache_directory_is_an_error_that_names_the_variables() {
        let error = BinarySources::from_variables(|_| None).unwrap_err();

        assert!(error.to_string().contains("PILOTLIGHT_CACHE"));
    }
}
