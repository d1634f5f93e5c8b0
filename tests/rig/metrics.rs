//! Series of metrics, by name and labels.

use std::collections::BTreeSet;

use prometheus_client::encoding::text::encode;

use super::Rig;

impl Rig<'_> {
    /// Every series there is, without its value.
    pub(crate) fn series(&self) -> BTreeSet<String> {
        let mut text = String::new();
        encode(&mut text, &self.metrics).unwrap();
        text.lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| line.rsplit_once(' ').map(|(series, _)| series.to_owned()))
            .collect()
    }
}
