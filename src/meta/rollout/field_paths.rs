//! Fields of a parent that make its revision.

use serde_json::{Map, Value};

/// Returns the values of these fields; a field that the parent lacks is left out.
///
/// # Errors
///
/// Names a field inside a value that is no object.
pub(crate) fn patch_of(parent: &Value, field_paths: &[String]) -> Result<Value, String> {
    let mut patch = Value::Object(Map::new());
    for path in field_paths {
        if let Some(value) = get(parent, path)? {
            set(&mut patch, path, value.clone())?;
        }
    }
    Ok(patch)
}

/// Gives these fields of a parent the values of a patch. A field that the patch lacks is removed: the
/// parent had no such field when the revision was made.
///
/// # Errors
///
/// Names a field inside a value that is no object.
pub(crate) fn apply_patch(
    parent: &mut Value,
    patch: &Value,
    field_paths: &[String],
) -> Result<(), String> {
    for path in field_paths {
        match get(patch, path)? {
            Some(value) => set(parent, path, value.clone())?,
            None => remove(parent, path),
        }
    }
    Ok(())
}

fn get<'a>(object: &'a Value, path: &str) -> Result<Option<&'a Value>, String> {
    let mut value = object;
    for field in path.split('.') {
        if value.is_null() {
            return Ok(None);
        }
        let Some(fields) = value.as_object() else { return Err(no_object(path)) };
        let Some(found) = fields.get(field) else { return Ok(None) };
        value = found;
    }
    Ok(Some(value))
}

fn set(object: &mut Value, path: &str, new: Value) -> Result<(), String> {
    let mut value = object;
    for field in path.split('.') {
        if value.is_null() {
            *value = Value::Object(Map::new());
        }
        let Some(fields) = value.as_object_mut() else { return Err(no_object(path)) };
        value = fields.entry(field).or_insert(Value::Null);
    }
    *value = new;
    Ok(())
}

fn remove(object: &mut Value, path: &str) {
    let (parent, last) =
        path.rsplit_once('.').map_or((None, path), |(head, last)| (Some(head), last));
    let mut value = object;
    for field in parent.into_iter().flat_map(|head| head.split('.')) {
        let Some(found) = value.get_mut(field) else { return };
        value = found;
    }
    if let Some(fields) = value.as_object_mut() {
        fields.remove(last);
    }
}

fn no_object(path: &str) -> String {
    format!("revisionHistory.fieldPaths: {path:?} leads through a value that is no object")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn paths(paths: &[&str]) -> Vec<String> {
        paths.iter().map(|path| (*path).to_owned()).collect()
    }

    #[test]
    fn revision_has_the_named_fields_of_the_parent_alone() {
        let parent = json!({"metadata": {"name": "p"}, "spec": {"a": {"b": 1, "c": null}, "n": 2}});
        for (named, expected) in [
            (&["spec"][..], json!({"spec": {"a": {"b": 1, "c": null}, "n": 2}})),
            (&["spec.a"], json!({"spec": {"a": {"b": 1, "c": null}}})),
            (&["spec.a.c", "spec.n"], json!({"spec": {"a": {"c": null}, "n": 2}})),
            (&["spec.none", "status.x"], json!({})),
        ] {
            assert_eq!(patch_of(&parent, &paths(named)), Ok(expected), "{named:?}");
        }
        let error = patch_of(&parent, &paths(&["spec.n.x"])).unwrap_err();
        assert!(error.contains("spec.n.x"), "{error}");
    }

    #[test]
    fn parent_of_a_revision_has_its_fields_and_no_later_ones() {
        let mut parent = json!({"spec": {"template": {"v": 2}, "replicas": 5, "added": true}});
        let patch = json!({"spec": {"template": {"v": 1}}});

        apply_patch(&mut parent, &patch, &paths(&["spec.template", "spec.added", "x.y"])).unwrap();

        assert_eq!(parent, json!({"spec": {"template": {"v": 1}, "replicas": 5}}));
    }

    #[test]
    fn patch_gives_back_the_parent_that_it_was_made_of() {
        let old = json!({"spec": {"a": 1, "b": {"c": []}}});
        let mut new = json!({"spec": {"a": 2, "d": 3}});
        let fields = paths(&["spec"]);

        let patch = patch_of(&old, &fields).unwrap();
        apply_patch(&mut new, &patch, &fields).unwrap();

        assert_eq!(new, old);
    }
}
