//! Names of CRDs, accepted as the naming and the establishing controller accept them.

use serde_json::Value;

use super::{
    cluster::SimulatedCluster,
    custom::{condition, is_true},
    history::ObjectChange,
    job::Job,
    object,
    resource::CRDS,
};

impl SimulatedCluster {
    /// Decides the names of the other CRDs of the group again, since a change or deletion may have
    /// released some.
    pub(super) fn recheck_other_names(&mut self, entry: &ObjectChange) {
        for other in self.crds_of_group(&entry.last["spec"]["group"]) {
            if other != entry.key.1 {
                self.schedule(self.delays.names_accepted, Job::AcceptNames(other));
            }
        }
    }

    fn crds_of_group(&self, group: &Value) -> Vec<String> {
        let of_group = self.history.all(CRDS).filter(|(_, crd)| crd["spec"]["group"] == *group);
        of_group.map(|(key, _)| key.1.clone()).collect()
    }

    /// Accepts the names that no other CRD of the group holds.
    pub(super) fn accept_names(&mut self, name: &str) {
        let Some(mut crd) = self.crd(name) else { return };
        if crd["spec"]["names"] == crd["status"]["acceptedNames"] {
            return;
        }
        let before = crd.clone();
        let (accepted, conflict) = self.decide_names(&crd);
        crd["status"]["acceptedNames"] = accepted;
        let is_accepted = conflict.is_none();
        let (status, reason, message) = match conflict {
            None => ("True", "NoConflicts", "no conflicts found".to_owned()),
            Some((reason, message)) => ("False", reason, message),
        };
        self.set_condition(&mut crd, "NamesAccepted", status, reason, &message);
        if !is_true(&crd, "Established") {
            let (reason, message) = if is_accepted {
                ("Installing", "the initial names have been accepted")
            } else {
                ("NotAccepted", "not all names are accepted")
            };
            if is_accepted || condition(&crd, "Established").is_none() {
                self.set_condition(&mut crd, "Established", "False", reason, message);
            }
            if is_accepted {
                self.schedule(self.delays.established, Job::Establish(name.to_owned()));
            }
        }
        if crd != before {
            self.commit(&CRDS.into(), crd);
        }
    }

    /// Returns the accepted names, and the reason for a name that is refused.
    fn decide_names(&self, crd: &Value) -> (Value, Option<(&'static str, String)>) {
        let (mut resources, mut kinds) = (Vec::new(), Vec::new());
        for other in self.crds_of_group(&crd["spec"]["group"]) {
            let Some(other) = self.crd(&other) else { continue };
            let names = &other["status"]["acceptedNames"];
            resources.extend([names["plural"].clone(), names["singular"].clone()]);
            resources.extend(names["shortNames"].as_array().cloned().unwrap_or_default());
            kinds.extend([names["kind"].clone(), names["listKind"].clone()]);
        }
        let wanted = &crd["spec"]["names"];
        let mut accepted = crd["status"]["acceptedNames"].clone();
        let mut conflict = None;
        for (field, reason, taken) in [
            ("plural", "PluralConflict", &resources),
            ("singular", "SingularConflict", &resources),
            ("shortNames", "ShortNamesConflict", &resources),
            ("kind", "KindConflict", &kinds),
            ("listKind", "ListKindConflict", &kinds),
        ] {
            let mine = accepted[field].as_array().cloned().unwrap_or_default();
            let requested: Vec<&Value> = match wanted[field].as_array() {
                Some(names) => names.iter().filter(|it| !mine.contains(it)).collect(),
                None if wanted[field] == accepted[field] => Vec::new(),
                None => vec![&wanted[field]],
            };
            let refused = requested.into_iter().filter(|it| taken.contains(it));
            let refused: Vec<_> = refused.map(|it| format!("{it} is already in use")).collect();
            match refused.as_slice() {
                [] => take(&mut accepted, wanted, field),
                [one] => conflict = Some((reason, one.clone())),
                many => conflict = Some((reason, format!("[{}]", many.join(", ")))),
            }
        }
        take(&mut accepted, wanted, "categories");
        (accepted, conflict)
    }

    pub(super) fn establish(&mut self, name: &str) {
        let Some(mut crd) = self.crd(name) else { return };
        if !is_true(&crd, "NamesAccepted") || is_true(&crd, "Established") {
            return;
        }
        let message = "the initial names have been accepted";
        self.set_condition(&mut crd, "Established", "True", "InitialNamesAccepted", message);
        self.commit(&CRDS.into(), crd);
    }
}

fn take(accepted: &mut Value, wanted: &Value, field: &str) {
    match wanted.get(field).filter(|name| !name.is_null()) {
        None => drop(object::fields(accepted).remove(field)),
        Some(name) => accepted[field] = name.clone(),
    }
}
