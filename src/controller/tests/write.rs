//! Helpers of writes, as a reconciler uses them.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, CustomResource,
    api::{DynamicObject, Patch, PatchParams},
};

use serde::{Deserialize, Serialize};

use super::{
    super::write::{CreateOrPatchError, OperationResult, create_or_patch, create_or_update},
    *,
};

fn map(name: &str, text: &str) -> ConfigMap {
    let mut map = ConfigMap::default();
    map.metadata.name = Some(name.to_owned());
    map.metadata.namespace = Some("ns".to_owned());
    map.data = Some(BTreeMap::from([("text".to_owned(), text.to_owned())]));
    map
}

fn context(server: &Server) -> Context {
    Context::new(Epoch::new("writer", 1, Duration::ZERO), &server.client())
}

#[tokio::test(start_paused = true)]
async fn applied_object_is_the_controllers_and_keeps_its_version_while_nothing_changes() {
    let server = Server::new();
    let context = context(&server);

    let first = context.apply(&map("a", "one")).await.unwrap();
    let second = context.apply(&first).await.unwrap();
    let third = context.apply(&map("a", "two")).await.unwrap();

    assert_eq!(second.metadata.resource_version, first.metadata.resource_version);
    assert_eq!(third.metadata.uid, first.metadata.uid);
    assert_eq!(third.data.unwrap()["text"], "two");
    let managers = third.metadata.managed_fields.unwrap();
    assert!(managers.iter().all(|it| it.manager.as_deref() == Some("writer")), "{managers:?}");
    let error = context.apply(&ConfigMap::default()).await.unwrap_err();
    assert_eq!(error.to_string(), "metadata.name must be set");
}

#[tokio::test(start_paused = true)]
async fn apply_takes_fields_of_other_managers_and_removes_those_that_it_no_longer_sets() {
    let server = Server::new();
    let context = context(&server);
    let api = Api::<ConfigMap>::namespaced(context.client().clone(), "ns");
    let managers = |map: &ConfigMap| -> Vec<(String, Vec<String>)> {
        let entries = map.metadata.managed_fields.iter().flatten();
        let of = entries.map(|entry| {
            let fields = &entry.fields_v1.as_ref().unwrap().0["f:data"];
            let fields = fields.as_object().into_iter().flat_map(|fields| fields.keys());
            let fields = fields.filter(|field| *field != ".").cloned().collect();
            (entry.manager.clone().unwrap(), fields)
        });
        let mut managers: Vec<_> = of.collect();
        managers.sort();
        managers
    };
    let with = |fields: &[(&str, &str)]| {
        let data = fields.iter().map(|&(field, value)| (field.to_owned(), value.to_owned()));
        ConfigMap { data: Some(data.collect()), ..map("a", "") }
    };
    let other = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "a" },
        "data": { "text": "of another", "kept": "of another" },
    });
    let of_other = PatchParams::apply("other");
    api.patch("a", &of_other, &Patch::Apply(&other)).await.unwrap();

    let applied = context.apply(&with(&[("text", "own"), ("more", "own")])).await.unwrap();
    let expected = with(&[("text", "own"), ("more", "own"), ("kept", "of another")]);
    assert_eq!(applied.data, expected.data);
    let owned = |manager: &str, fields: &[&str]| {
        (manager.to_owned(), fields.iter().map(|field| format!("f:{field}")).collect::<Vec<_>>())
    };
    let expected = [owned("other", &["kept"]), owned("writer", &["more", "text"])];
    assert_eq!(managers(&applied), expected, "the conflict is forced");

    let applied = context.apply(&with(&[("more", "own")])).await.unwrap();
    assert_eq!(applied.data, with(&[("more", "own"), ("kept", "of another")]).data);
    assert_eq!(managers(&applied), [owned("other", &["kept"]), owned("writer", &["more"])]);
}

#[tokio::test(start_paused = true)]
async fn object_of_a_type_known_at_run_time_is_applied_with_its_status() {
    let server = Server::new();
    server.install(crd("Widget"), &["v1"]);
    let (context, resource) = (context(&server), crd("Widget").api_resource("v1"));
    let mut widget = DynamicObject::new("a", &resource).within("ns");
    widget.data = json!({ "spec": { "size": 1 }, "status": { "ready": 1 } });

    let first = context.apply_with(&widget, &resource).await.unwrap();
    let second = context.apply_status_with(&widget, &resource).await.unwrap();

    assert_eq!(first.data, json!({ "spec": { "size": 1 } }));
    assert_eq!(second.data, widget.data);
    let managers = second.metadata.managed_fields.unwrap();
    assert!(managers.iter().all(|it| it.manager.as_deref() == Some("writer")), "{managers:?}");
}

#[tokio::test(start_paused = true)]
async fn object_is_created_patched_by_its_difference_or_left_alone() {
    let server = Server::new();
    let context = context(&server);
    let api = Api::<ConfigMap>::namespaced(context.client().clone(), "ns");
    let text = |text: &'static str| {
        move |map: &mut ConfigMap| {
            map.data.get_or_insert_default().insert("text".to_owned(), text.to_owned());
            Ok(())
        }
    };

    let (_, written) = create_or_patch(&api, map("a", ""), text("one")).await.unwrap();
    assert_eq!(written, OperationResult::Created);
    // Another client adds a field between the calls.
    let other = Patch::Merge(json!({ "data": { "other": "kept" } }));
    api.patch("a", &PatchParams::default(), &other).await.unwrap();
    let (patched, written) = create_or_patch(&api, map("a", ""), text("two")).await.unwrap();
    assert_eq!(written, OperationResult::Patched);
    let data = patched.data.unwrap();
    assert_eq!((data["text"].as_str(), data["other"].as_str()), ("two", "kept"));
    let (same, written) = create_or_patch(&api, map("a", ""), text("two")).await.unwrap();
    assert_eq!(written, OperationResult::Unchanged);
    assert_eq!(same.metadata.resource_version, patched.metadata.resource_version);
}

/// Specification of a widget by a client that knows the size alone.
#[derive(CustomResource, Clone, Debug, Serialize, Deserialize)]
#[kube(group = "example.com", version = "v1", kind = "Widget", root = "SizedWidget")]
#[kube(namespaced, schema = "disabled")]
struct SizeSpec {
    size: u32,
}

#[tokio::test(start_paused = true)]
async fn fields_unknown_to_the_rust_type_stay_with_a_patch_and_go_with_an_update() {
    let server = Server::new();
    server.install(crd("Widget"), &["v1"]);
    let context = context(&server);
    let api = Api::<SizedWidget>::namespaced(context.client().clone(), "ns");
    let resource = crd("Widget").api_resource("v1");
    let whole = Api::<DynamicObject>::namespaced_with(context.client().clone(), "ns", &resource);
    let new = || SizedWidget::new("a", SizeSpec { size: 0 });
    let mut widget = widget("a", "a");
    widget["spec"] = json!({ "size": 1, "color": "red" });
    widget["other"] = json!("kept");
    server.apply(widget);
    let resize = |size: u32| {
        move |widget: &mut SizedWidget| {
            widget.spec.size = size;
            Ok(())
        }
    };

    let (patched, written) = create_or_patch(&api, new(), resize(2)).await.unwrap();
    assert_eq!((patched.spec.size, written), (2, OperationResult::Patched));
    let data = whole.get("a").await.unwrap().data;
    assert_eq!(data, json!({ "spec": { "size": 2, "color": "red" }, "other": "kept" }));

    let (updated, written) = create_or_update(&api, new(), resize(3)).await.unwrap();
    assert_eq!((updated.spec.size, written), (3, OperationResult::Updated));
    let data = whole.get("a").await.unwrap().data;
    assert_eq!(data, json!({ "spec": { "size": 3 } }));
}

#[tokio::test(start_paused = true)]
async fn object_is_created_updated_whole_or_left_alone_and_a_change_since_the_read_is_a_conflict() {
    let server = Server::new();
    let context = context(&server);
    let api = Api::<ConfigMap>::namespaced(context.client().clone(), "ns");
    let text = |text: &'static str| {
        move |map: &mut ConfigMap| {
            map.data = Some(BTreeMap::from([("text".to_owned(), text.to_owned())]));
            Ok(())
        }
    };

    let (_, written) = create_or_update(&api, map("a", ""), text("one")).await.unwrap();
    assert_eq!(written, OperationResult::Created);
    let (updated, written) = create_or_update(&api, map("a", ""), text("two")).await.unwrap();
    assert_eq!(written, OperationResult::Updated);
    assert_eq!(updated.data.unwrap()["text"], "two");
    let (same, written) = create_or_update(&api, map("a", ""), text("two")).await.unwrap();
    assert_eq!(written, OperationResult::Unchanged);
    assert_eq!(same.metadata.resource_version, updated.metadata.resource_version);

    let (_, written) = create_or_update(&api, map("a", ""), |map| {
        map.metadata.resource_version = None;
        Ok(())
    })
    .await
    .unwrap();
    assert_eq!(written, OperationResult::Unchanged);

    let late = create_or_update(&api, map("a", ""), |map| {
        server.apply(json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "a" },
            "data": { "text": "of another" },
        }));
        map.data = None;
        map.metadata.resource_version = None;
        Ok(())
    });
    let error = late.await.unwrap_err();
    let CreateOrPatchError::Server(kube::Error::Api(status)) = error else { panic!("{error}") };
    assert_eq!(status.reason, "Conflict");
    assert_eq!(api.get("a").await.unwrap().data.unwrap()["text"], "of another");
}

#[tokio::test(start_paused = true)]
async fn closure_that_fails_or_renames_writes_nothing() {
    let server = Server::new();
    let context = context(&server);
    let api = Api::<ConfigMap>::namespaced(context.client().clone(), "ns");

    let fails = create_or_patch(&api, map("a", ""), |_| Err("no".into())).await;
    assert_eq!(fails.unwrap_err().to_string(), "no");
    let renames = create_or_patch(&api, map("a", ""), |map| {
        map.metadata.name = Some("b".to_owned());
        Ok(())
    });
    let error = renames.await.unwrap_err().to_string();
    assert_eq!(error, "metadata.name must be set, and must not be changed by the closure");
    assert_eq!(api.list(&kube::api::ListParams::default()).await.unwrap().items.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn change_since_the_read_is_a_conflict() {
    let server = Server::new();
    let context = context(&server);
    let api = Api::<ConfigMap>::namespaced(context.client().clone(), "ns");
    create_or_patch(&api, map("a", ""), |_| Ok(())).await.unwrap();

    let result = create_or_patch(&api, map("a", ""), |map| {
        server.apply(json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "a" },
            "data": { "text": "of another" },
        }));
        map.data = None;
        Ok(())
    });
    let error = result.await.unwrap_err();

    let CreateOrPatchError::Server(kube::Error::Api(status)) = error else { panic!("{error}") };
    assert_eq!(status.reason, "Conflict");
    assert_eq!(api.get("a").await.unwrap().data.unwrap()["text"], "of another");
}

#[tokio::test(start_paused = true)]
async fn status_is_written_through_its_subresource_if_it_differs() {
    let server = Server::new();
    server.install(crd("Widget"), &["v1"]);
    let context = context(&server);
    let resource = crd("Widget").api_resource("v1");
    let api = Api::<DynamicObject>::namespaced_with(context.client().clone(), "ns", &resource);
    let ready = |ready: Value| {
        move |widget: &mut DynamicObject| {
            widget.data["status"] = json!({ "ready": ready });
            Ok(())
        }
    };
    let new = || DynamicObject::new("a", &resource).within("ns");

    let (_, written) = create_or_patch(&api, new(), ready(json!(1))).await.unwrap();
    assert_eq!(written, OperationResult::Created);
    assert_eq!(api.get("a").await.unwrap().data["status"], json!({ "ready": 1 }));
    let (_, written) = create_or_patch(&api, new(), ready(json!(2))).await.unwrap();
    assert_eq!(written, OperationResult::Patched);
    let (same, written) = create_or_patch(&api, new(), ready(json!(2))).await.unwrap();
    assert_eq!(written, OperationResult::Unchanged);
    assert_eq!(same.data["status"], json!({ "ready": 2 }));
    let (none, written) = create_or_patch(&api, new(), |widget| {
        widget.data.as_object_mut().unwrap().remove("status");
        Ok(())
    })
    .await
    .unwrap();
    assert_eq!((written, none.data.get("status")), (OperationResult::Patched, None));
}
