//! Subcommand `release`: removes the finalizer of a removed controller from its parents.

use anyhow::{anyhow, bail};
use clap::Args;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, Client, api::DynamicObject};
use pilotlight::{discovery::TypeReport, meta::ControllerKind, transport::TransportOptions};

use super::{
    connection::ConnectionArgs,
    declared::{self, DeclaredObject},
    finalizer_search::{self, FinalizerSearch, ParentWithFinalizer},
    flag, output,
    output::Format,
    table::{Table, or_dash},
};

#[derive(Debug, Args)]
pub(super) struct ReleaseArgs {
    #[command(flatten)]
    connection: ConnectionArgs,
    /// Name of a declared controller, usually of one that was deleted. Its finalizer is removed
    /// from every object that has it, and its finalize hook is not called. If the controller exists
    /// and is ready, only objects of types that it no longer declares are released. If it exists,
    /// is not ready and declares no finalize hook, all its objects are released.
    #[arg(value_name = "NAME")]
    name: String,
    /// Kind of the controller: CompositeController or DecoratorController.
    #[arg(long, default_value = "CompositeController", value_parser = flag::controller_kind)]
    kind: ControllerKind,
    /// Print the objects without a change.
    #[arg(long)]
    dry_run: bool,
    /// Output format.
    #[arg(long, short, value_name = "FORMAT", default_value = "table")]
    output: Format,
}

impl ReleaseArgs {
    pub(super) async fn run(&self) -> anyhow::Result<()> {
        let transport = self.connection.transport(TransportOptions::default()).await?;
        let FinalizerSearch { parents, errors } =
            release(&transport.client()?, self.kind, &self.name, self.dry_run).await?;
        match self.output {
            Format::Json => output::print_json(&parents)?,
            Format::Table => output::print(&render(&parents))?,
        }
        if let Some(first) = errors.first() {
            bail!(
                "{} types could not be listed or objects not patched; correct this and run the \
                 command again. The first: {first}",
                errors.len()
            );
        }
        Ok(())
    }
}

/// Frees the parents of a removed controller; with `dry_run`, only finds them.
async fn release(
    client: &Client,
    kind: ControllerKind,
    name: &str,
    dry_run: bool,
) -> anyhow::Result<FinalizerSearch> {
    let api = Api::<DynamicObject>::all_with(client.clone(), &declared::resource(kind));
    match api.get(name).await {
        Ok(object) => return release_abandoned(client, kind, &object, dry_run).await,
        Err(error) if names_missing(&error) => {}
        Err(kube::Error::Api(status))
            if status.code == 404 && crd_is_missing(client, kind).await => {}
        Err(error) => {
            return Err(anyhow!(error).context(format!(
                "reading the {kind} {name}: the response does not prove that it is gone"
            )));
        }
    }
    finalizer_search::search(client, |of, controller, _| (of, controller) == (kind, name), !dry_run)
        .await
}

/// Frees the objects that an existing controller does not free itself.
async fn release_abandoned(
    client: &Client,
    kind: ControllerKind,
    object: &DynamicObject,
    dry_run: bool,
) -> anyhow::Result<FinalizerSearch> {
    let declared = DeclaredObject::of(kind, object);
    let is_abandoned = |of: ControllerKind, controller: &str, report: &TypeReport| {
        (of, controller) == (kind, &*declared.name) && declared.abandons(report)
    };
    let search = finalizer_search::search(client, is_abandoned, !dry_run).await?;
    if search.parents.is_empty() && search.errors.is_empty() {
        let name = &declared.name;
        bail!(
            "the {kind} {name} exists, and frees its parents itself: by its finalize hook, or \
             without a call once hooks.finalize is removed and it is ready. While it is not ready, \
             remove hooks.finalize from it, and run this command again. Objects of types that it \
             no longer declares are released once it is ready with its newest specification"
        );
    }
    Ok(search)
}

/// Returns whether the server names the object that it did not find. Any other 404 proves nothing:
/// a server sends it while it starts, or while it does not serve the type.
fn names_missing(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else { return false };
    let names_it = status.details.as_ref().is_some_and(|details| !details.name.is_empty());
    status.code == 404 && status.reason == "NotFound" && names_it
}

/// Returns whether the CRD of a kind is proven to be missing, so that it has no controllers.
pub(super) async fn crd_is_missing(client: &Client, kind: ControllerKind) -> bool {
    let api = Api::<CustomResourceDefinition>::all(client.clone());
    api.get(&kind.crd_name()).await.is_err_and(|error| names_missing(&error))
}

/// Table of parents with a finalizer.
pub(super) fn render(parents: &[ParentWithFinalizer]) -> String {
    if parents.is_empty() {
        return "No objects with the finalizer found.\n".to_owned();
    }
    let mut table = Table::new(["KIND", "CONTROLLER", "TYPE", "NAMESPACE", "NAME", "TERMINATING"]);
    for parent in parents {
        table.row([
            parent.controller_kind.clone(),
            parent.controller.clone(),
            parent.r#type.clone(),
            or_dash(parent.namespace.as_deref()),
            parent.name.clone(),
            parent.terminating.to_string(),
        ]);
    }
    table.render()
}

#[cfg(test)]
#[cfg(feature = "testing")]
mod tests {
    use pilotlight::testing::{
        Action, CrdBuilder, Faults, Reply, Rule,
        simulated::{AccessRule, SimulatedServer},
    };
    use serde_json::{Value, json};

    use super::{super::status, *};

    const COMPOSITE: ControllerKind = ControllerKind::Composite;
    const OF_A: &str = "metacontroller.io/compositecontroller-a";
    const OF_B: &str = "metacontroller.io/compositecontroller-b";

    /// Server with an object of each finalizer, and the CRDs of controllers.
    async fn server() -> SimulatedServer {
        let server = SimulatedServer::new();
        server.install(&CrdBuilder::new("x.test", "Widget").version("v1").build()).unwrap();
        for crd in pilotlight::meta::crds() {
            server.install(&crd).unwrap();
        }
        // The types are established after some simulated time.
        tokio::time::sleep(std::time::Duration::from_secs(60)).await;
        for (name, finalizers) in [("one", json!([OF_A, OF_B])), ("two", json!([OF_B]))] {
            let metadata = json!({"name": name, "finalizers": finalizers});
            let widget = json!({"apiVersion": "x.test/v1", "kind": "Widget", "metadata": metadata});
            server.apply(widget).unwrap();
        }
        let metadata = json!({"name": "three", "finalizers": [OF_A]});
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata});
        server.apply(map).unwrap();
        server
    }

    fn finalizers(server: &SimulatedServer, name: &str) -> Value {
        let object = match name {
            "three" => server.get("v1", "ConfigMap", "default", name),
            _ => server.get("x.test/v1", "Widget", "default", name),
        };
        object.unwrap()["metadata"]["finalizers"].clone()
    }

    fn names(search: &FinalizerSearch) -> Vec<(&str, &str)> {
        let parents = search.parents.iter();
        parents.map(|parent| (parent.r#type.as_str(), parent.name.as_str())).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn objects_of_a_removed_controller_are_released_in_all_types() {
        let server = server().await;

        let found = release(&server.client(), COMPOSITE, "a", true).await.unwrap();
        assert_eq!(names(&found), [("configmaps", "three"), ("widgets.x.test", "one")]);
        assert_eq!(finalizers(&server, "one"), json!([OF_A, OF_B]), "a dry run changes nothing");
        let freed = release(&server.client(), COMPOSITE, "a", false).await.unwrap();

        assert_eq!((freed.parents, freed.errors), (found.parents, found.errors));
        assert_eq!(finalizers(&server, "one"), json!([OF_B]));
        assert_eq!(finalizers(&server, "two"), json!([OF_B]));
        assert_eq!(finalizers(&server, "three"), Value::Null);
        let again = release(&server.client(), COMPOSITE, "a", false).await.unwrap();
        assert!(again.parents.is_empty(), "{again:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn objects_of_a_decorator_and_of_a_composite_of_its_name_are_distinct() {
        let server = server().await;
        let of_decorator = "metacontroller.io/decoratorcontroller-a";
        let metadata = json!({"name": "one", "finalizers": [OF_A, of_decorator]});
        let widget = json!({"apiVersion": "x.test/v1", "kind": "Widget", "metadata": metadata});
        server.merge(&widget).unwrap();

        let freed = release(&server.client(), ControllerKind::Decorator, "a", false).await.unwrap();

        assert_eq!(names(&freed), [("widgets.x.test", "one")]);
        assert_eq!(freed.parents[0].controller_kind, "DecoratorController");
        assert_eq!(finalizers(&server, "one"), json!([OF_A]));
        assert_eq!(finalizers(&server, "three"), json!([OF_A]));
    }

    #[tokio::test(start_paused = true)]
    async fn controller_that_exists_is_not_released() {
        let server = server().await;
        let spec = json!({
            "parentResource": {"apiVersion": "x.test/v1", "resource": "widgets"},
            "hooks": {"finalize": {"webhook": {"url": "http://hook"}}},
        });
        let kind = "CompositeController";
        let controller = json!({
            "apiVersion": "metacontroller.k8s.io/v1alpha1", "kind": kind,
            "metadata": {"name": "a"}, "spec": spec,
        });
        server.apply(controller).unwrap();

        let refused =
            release(&server.client(), COMPOSITE, "a", false).await.unwrap_err().to_string();

        assert!(refused.contains("remove hooks.finalize"), "{refused}");
        assert_eq!(finalizers(&server, "one"), json!([OF_A, OF_B]));
    }

    #[tokio::test(start_paused = true)]
    async fn objects_of_a_controller_that_is_not_ready_are_released_once_it_has_no_finalize_hook() {
        let server = server().await;
        let client = server.client();
        declare(&server, "False", 1);
        assert!(release(&client, COMPOSITE, "a", false).await.is_err());
        assert!(!orphans(&client).await.iter().any(|(_, name)| name == "a"));

        let without = json!({
            "apiVersion": "metacontroller.k8s.io/v1alpha1", "kind": "CompositeController",
            "metadata": {"name": "a"}, "spec": {"hooks": {"finalize": null}},
        });
        server.merge(&without).unwrap();

        assert!(orphans(&client).await.iter().any(|(_, name)| name == "a"));
        let freed = release(&client, COMPOSITE, "a", false).await.unwrap();
        assert_eq!(names(&freed), [("configmaps", "three"), ("widgets.x.test", "one")]);
    }

    /// Declares the composite `a` of config maps, with this status.
    fn declare(server: &SimulatedServer, ready: &str, observed: i64) {
        let mut controller = json!({
            "apiVersion": "metacontroller.k8s.io/v1alpha1", "kind": "CompositeController",
            "metadata": {"name": "a"},
            "spec": {
                "parentResource": {"apiVersion": "v1", "resource": "configmaps"},
                "hooks": {"finalize": {"webhook": {"url": "http://hook"}}},
            },
        });
        let condition = json!({
            "type": "Ready", "status": ready, "reason": "R", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        controller["status"] = json!({"conditions": [condition], "observedGeneration": observed});
        server.apply(controller).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn objects_of_types_that_a_controller_no_longer_declares_are_named_and_released() {
        let server = server().await;
        let client = server.client();
        for (ready, observed) in [("False", 1), ("True", 0)] {
            declare(&server, ready, observed);
            assert!(release(&client, COMPOSITE, "a", false).await.is_err(), "{ready} {observed}");
            assert!(!orphans(&client).await.iter().any(|(_, name)| name == "a"));
        }

        declare(&server, "True", 1);

        assert!(orphans(&client).await.iter().any(|(_, name)| name == "a"));
        let freed = release(&client, COMPOSITE, "a", false).await.unwrap();
        assert_eq!(names(&freed), [("widgets.x.test", "one")]);
        assert_eq!(finalizers(&server, "three"), json!([OF_A]), "its type is declared");
        assert_eq!(finalizers(&server, "one"), json!([OF_B]));
    }

    #[tokio::test(start_paused = true)]
    async fn objects_that_wait_for_a_removed_controller_are_named_without_a_flag() {
        let server = server().await;
        let metadata = json!({"name": "four", "finalizers": [OF_B]});
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata});
        server.apply(account).unwrap();
        server.remove("v1", "ServiceAccount", "default", "four").unwrap();
        server.remove("x.test/v1", "Widget", "default", "two").unwrap();
        server.remove("v1", "ConfigMap", "default", "three").unwrap();
        server.forget_requests();

        let held = finalizer_search::quick_search(&server.client(), |_, name, _| name == "b").await;

        let names: Vec<_> =
            held.iter().map(|held| (held.name.as_str(), held.terminating)).collect();
        assert_eq!(names, [("four", true), ("two", true)]);
        let lists = server.requests();
        let lists = lists.iter().filter(|request| request.resource() == "widgets.x.test");
        assert_eq!(lists.count(), 1);
        assert!(!server.requests().iter().any(|request| request.resource() == "events"));
    }

    #[tokio::test(start_paused = true)]
    async fn type_that_may_not_be_listed_is_reported() {
        let server = server().await;
        server.set_rbac([AccessRule::deny().resources(["configmaps"])]);

        let search = release(&server.client(), COMPOSITE, "a", false).await.unwrap();

        assert_eq!(names(&search), [("widgets.x.test", "one")]);
        assert!(search.errors.iter().any(|error| error.starts_with("configmaps: ")), "{search:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn response_that_does_not_name_the_controller_releases_nothing() {
        let (faults, server) = (Faults::default(), server().await);
        let path = "/compositecontrollers/a";
        let message = "the server could not find the requested resource";
        let unnamed = Action::Reply(Reply::status(404, "NotFound", message));
        faults.add(Rule::new(unnamed).path_contains(path));
        let layers = tower::ServiceBuilder::new().layer(faults.layer());
        let client = Client::new(layers.service(server.service("user")), "default");

        let refused = release(&client, COMPOSITE, "a", false).await.unwrap_err();

        assert!(format!("{refused:#}").contains("does not prove"), "{refused:#}");
        assert_eq!(finalizers(&server, "one"), json!([OF_A, OF_B]));
    }

    #[tokio::test(start_paused = true)]
    async fn objects_are_released_after_the_crd_of_controllers_is_deleted() {
        let server = server().await;
        for crd in pilotlight::meta::crds() {
            server.uninstall(&crd.metadata.name.unwrap()).unwrap();
        }
        tokio::time::sleep(std::time::Duration::from_secs(60)).await;

        let freed = release(&server.client(), COMPOSITE, "a", false).await.unwrap();

        assert_eq!(names(&freed), [("configmaps", "three"), ("widgets.x.test", "one")]);
    }

    const DECORATORS: &str = "decoratorcontrollers.metacontroller.k8s.io";

    /// Kinds and names of the controllers whose finalizers are reported as orphaned.
    async fn orphans(client: &Client) -> Vec<(String, String)> {
        let listed = declared::list(client.clone()).await.unwrap();
        let unproven = status::unproven(client, &listed).await;
        let held = status::unowned(client, &listed, &unproven).await.unwrap();
        held.into_iter().map(|held| (held.controller_kind, held.controller)).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn kind_that_may_not_be_listed_is_named_and_the_other_is_read() {
        let server = server().await;
        let spec = json!({
            "parentResource": {"apiVersion": "x.test/v1", "resource": "widgets"},
            "hooks": {"finalize": {"webhook": {"url": "http://hook"}}},
        });
        let controller = json!({
            "apiVersion": "metacontroller.k8s.io/v1alpha1", "kind": "CompositeController",
            "metadata": {"name": "a"}, "spec": spec,
        });
        server.apply(controller).unwrap();
        let of_decorator = "metacontroller.io/decoratorcontroller-d";
        let metadata = json!({"name": "two", "finalizers": [of_decorator, OF_B]});
        let widget = json!({"apiVersion": "x.test/v1", "kind": "Widget", "metadata": metadata});
        server.merge(&widget).unwrap();
        let client = server.client();
        let names = |all: &[(&str, &str)]| {
            let own = |(kind, name): &(&str, &str)| ((*kind).to_owned(), (*name).to_owned());
            all.iter().map(own).collect::<Vec<_>>()
        };
        let (of_b, of_d) = (("CompositeController", "b"), ("DecoratorController", "d"));
        let mut both = orphans(&client).await;
        both.sort();
        both.dedup();
        assert_eq!(both, names(&[of_b, of_d]));

        server.set_rbac([AccessRule::deny().resources([DECORATORS])]);

        let listed = declared::list(client.clone()).await.unwrap();
        assert_eq!(listed.objects.len(), 1);
        assert_eq!(listed.unread.len(), 1, "{listed:?}");
        assert_eq!(listed.unread[0].0, ControllerKind::Decorator);
        let mut one = orphans(&client).await;
        one.dedup();
        assert_eq!(one, names(&[of_b]));
        let composites = "compositecontrollers.metacontroller.k8s.io";
        server.set_rbac([AccessRule::deny().resources([DECORATORS, composites])]);
        assert!(declared::list(client).await.is_err(), "no kind could be read");
    }

    #[tokio::test(start_paused = true)]
    async fn finalizers_of_a_kind_are_orphaned_only_if_its_crd_is_missing() {
        let (faults, server) = (Faults::default(), server().await);
        let of_decorator = "metacontroller.io/decoratorcontroller-d";
        let metadata = json!({"name": "two", "finalizers": [of_decorator]});
        let widget = json!({"apiVersion": "x.test/v1", "kind": "Widget", "metadata": metadata});
        server.merge(&widget).unwrap();
        let message = "the server could not find the requested resource";
        let unnamed = Action::Reply(Reply::status(404, "NotFound", message));
        faults.add(Rule::new(unnamed).path_contains("/v1alpha1/decoratorcontrollers"));
        let layers = tower::ServiceBuilder::new().layer(faults.layer());
        let client = Client::new(layers.service(server.service("user")), "default");
        let is_of_d = |(_, name): &(String, String)| name == "d";

        assert!(!orphans(&client).await.iter().any(is_of_d), "its CRD is there");
        server.uninstall(DECORATORS).unwrap();
        tokio::time::sleep(std::time::Duration::from_secs(60)).await;
        assert!(orphans(&client).await.iter().any(is_of_d));
    }
}
