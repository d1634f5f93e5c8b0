//! Subcommand `crds`: prints the CRDs, or compares them with files.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;

use super::output;

#[derive(Debug, Args)]
pub(super) struct CrdsArgs {
    /// Compare with the files of a directory instead of printing; each file is named after its CRD.
    /// Fail if a file differs, is missing, or belongs to no CRD. Without a value: crds.
    #[arg(long, value_name = "DIRECTORY", num_args = 0..=1, default_missing_value = "crds")]
    check: Option<PathBuf>,
}

impl CrdsArgs {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let generated = generate()?;
        let Some(directory) = &self.check else {
            let documents: Vec<_> = generated.into_iter().map(|(_, yaml)| yaml).collect();
            return output::print(&documents.join("---\n"));
        };
        let wrong = differences(directory, &generated)?;
        if !wrong.is_empty() {
            bail!("{}", wrong.join("\n"));
        }
        Ok(())
    }
}

/// Returns file names and contents.
fn generate() -> anyhow::Result<Vec<(String, String)>> {
    pilotlight::meta::crds()
        .iter()
        .map(|crd| {
            let name = crd.metadata.name.clone().context("a CRD has a name")?;
            Ok((format!("{name}.yaml"), serde_saphyr::to_string(crd)?))
        })
        .collect()
}

fn differences(directory: &Path, wanted: &[(String, String)]) -> anyhow::Result<Vec<String>> {
    let mut wrong = Vec::new();
    for (name, yaml) in wanted {
        let path = directory.join(name);
        match std::fs::read_to_string(&path) {
            Ok(stored) if stored == *yaml => {}
            Ok(_) => wrong.push(format!("{} differs from the generated CRD", path.display())),
            Err(error) => wrong.push(format!("{}: {error}", path.display())),
        }
    }
    let entries =
        std::fs::read_dir(directory).with_context(|| format!("--check {}", directory.display()))?;
    for entry in entries {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.ends_with(".yaml")
            && name != "kustomization.yaml"
            && !wanted.iter().any(|(wanted, _)| *wanted == name)
        {
            wrong.push(format!("{} belongs to no CRD; delete it", directory.join(name).display()));
        }
    }
    Ok(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_differ_are_missing_or_too_many_are_named() {
        let directory = tempfile::tempdir().unwrap();
        let wanted = [("a.yaml", "a"), ("b.yaml", "b"), ("c.yaml", "c")]
            .map(|(name, yaml)| (name.to_owned(), yaml.to_owned()));
        std::fs::write(directory.path().join("a.yaml"), "a").unwrap();
        std::fs::write(directory.path().join("b.yaml"), "old").unwrap();
        std::fs::write(directory.path().join("d.yaml"), "d").unwrap();

        let wrong = differences(directory.path(), &wanted).unwrap();

        assert_eq!(wrong.len(), 3, "{wrong:?}");
        assert!(wrong[0].contains("b.yaml differs"));
        assert!(wrong[1].contains("c.yaml: "));
        assert!(wrong[2].contains("d.yaml belongs to no CRD; delete it"));
    }
}
