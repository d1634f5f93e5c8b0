//! Directory in the temporary directory of the system that only its owner can enter.

use std::{
    env, fs,
    hash::{BuildHasher, Hasher, RandomState},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

/// Directory for files that hold credentials; removed with its content when dropped.
///
/// The directory has mode 0700 and a random name, and is created exclusively: no other user can
/// have put a link in its place.
#[derive(Debug)]
pub struct PrivateDirectory {
    path: PathBuf,
}

impl PrivateDirectory {
    /// Creates a directory whose name begins with `prefix`.
    ///
    /// # Errors
    ///
    /// When it cannot be created, or there is one of that name.
    pub fn create(prefix: &str) -> io::Result<Self> {
        let path = unpredictable(prefix);
        fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self { path })
    }

    /// Writes a new file with mode 0600.
    ///
    /// # Errors
    ///
    /// When it cannot be written, or there is one of that name.
    pub fn put(&self, name: &str, content: &str) -> io::Result<PathBuf> {
        put(&self.path, name, content)
    }

    /// Path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for PrivateDirectory {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.path).ok();
    }
}

/// Returns a path in the temporary directory that cannot be guessed.
pub(super) fn unpredictable(prefix: &str) -> PathBuf {
    // Keyed from the randomness of the system.
    let random = RandomState::new().build_hasher().finish();
    env::temp_dir().join(format!("{prefix}-{random:016x}"))
}

/// Writes a new file with mode 0600.
pub(super) fn put(directory: &Path, name: &str, content: &str) -> io::Result<PathBuf> {
    let path = directory.join(name);
    let mut file = fs::File::options().create_new(true).write(true).mode(0o600).open(&path)?;
    file.write_all(content.as_bytes())?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_file_is_for_its_owner_alone_and_follows_no_link() {
        let directory = PrivateDirectory::create("pilotlight-test").unwrap();
        let elsewhere = tempfile::NamedTempFile::new().unwrap();
        symlink(elsewhere.path(), directory.path().join("link")).unwrap();

        let file = directory.put("file", "text").unwrap();
        let linked = directory.put("link", "text").unwrap_err();

        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(directory.path()), mode(&file)), (0o700, 0o600));
        assert_eq!(fs::read_to_string(&file).unwrap(), "text");
        assert_eq!(linked.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(elsewhere.path()).unwrap(), "");
        let path = directory.path().to_owned();
        drop(directory);
        assert!(!path.exists());
    }

    #[test]
    fn names_differ() {
        assert_ne!(unpredictable("a"), unpredictable("a"));
    }
}
