//! Sources of the control plane's binaries.

use std::{env, path::PathBuf};

use super::{
    Binary, Error, KUBERNETES_VERSION, Progress, binary::is_executable, toolchain::Toolchain,
};

/// Sources of binaries, searched in this order for each binary separately, since setup-envtest, for
/// example, provides no kube-controller-manager.
///
/// 1. `assets`: prebuilt binaries. A directory that does not exist, or that has none of the
///    requested binaries, is an error, since it was named on purpose.
/// 2. `cache`: earlier builds, in `controlplane/v1.36.3/`.
/// 3. A build with the Go toolchain into `cache`, from a pinned Go module that is part of this
///    crate: Kubernetes v1.36.3 and etcd v3.6.16, about 6 minutes on 2 cores, once. It needs `go`
///    and its module proxy, and no C compiler. An interrupted or concurrent build leaves no
///    incomplete binary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BinarySources {
    /// Directory of prebuilt binaries, as `setup-envtest use` prints it. They should have one
    /// version: Kubernetes does not support a controller manager newer than its API server.
    pub assets: Option<PathBuf>,
    /// Directory of built binaries.
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

    /// Returns the path of `binary`, if it need not be built.
    pub fn find(&self, binary: Binary) -> Option<PathBuf> {
        let cached = self.built();
        [self.assets.as_deref(), Some(&*cached)]
            .into_iter()
            .flatten()
            .map(|directory| directory.join(binary.file_name()))
            .find(|path| is_executable(path))
    }

    /// Returns the paths of `binaries`, in the same order; missing ones are built.
    ///
    /// # Errors
    ///
    /// [`Error::Assets`] when `assets` is unusable. [`Error::NoGo`] or [`Error::Build`] when a
    /// binary is missing and cannot be built.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: dropping the future kills the build and keeps the binaries that are finished.
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

    /// Checks that `assets` has any of the requested binaries.
    fn check_assets(&self, binaries: &[Binary]) -> Result<(), Error> {
        let Some(assets) = &self.assets else { return Ok(()) };
        let unusable = |problem| Err(Error::Assets { directory: assets.clone(), problem });
        if !assets.is_dir() {
            return unusable("is not a directory".to_owned());
        }
        let has = |binary: &Binary| is_executable(&assets.join(binary.file_name()));
        if binaries.is_empty() || binaries.iter().any(has) {
            return Ok(());
        }
        let names: Vec<_> = binaries.iter().map(|binary| binary.file_name()).collect();
        unusable(format!("has no executable file named {}", names.join(" or ")))
    }

    /// Returns the directory of built binaries.
    fn built(&self) -> PathBuf {
        self.cache.join("controlplane").join(KUBERNETES_VERSION)
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt, path::Path};

    use super::*;
    use crate::Silent;

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
        assert_eq!(sources.find(Binary::KubeApiserver), None, "the file is not executable");
        assert_eq!(
            sources.find(Binary::KubeControllerManager),
            Some(sources.built().join("kube-controller-manager"))
        );
    }

    #[tokio::test]
    async fn unusable_assets_directory_is_an_error_that_names_the_variable() {
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
        let unusable = error().await;
        put(&assets, "etcd", 0o755);
        let found = sources.find_or_build(&binaries, &Silent).await.unwrap();

        for text in [&absent, &unusable] {
            assert!(text.contains("KUBEBUILDER_ASSETS"), "{text}");
            assert!(text.contains(assets.to_str().unwrap()), "{text}");
        }
        assert!(unusable.contains("etcd or kube-apiserver"), "{unusable}");
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
