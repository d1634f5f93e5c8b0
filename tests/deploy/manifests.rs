//! Contents of the shipped manifests: images, namespaces and rights.

use super::*;

fn top() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Files of this name in the folders of the examples.
fn of_examples(name: &str) -> Vec<PathBuf> {
    let folders = std::fs::read_dir(top().join("examples")).unwrap();
    let paths = folders.map(|entry| entry.unwrap().path().join(name));
    paths.filter(|path| path.exists()).collect()
}

/// Images of all containers in the files.
fn images(paths: Vec<PathBuf>) -> Vec<String> {
    let objects = paths.iter().flat_map(|path| read(path));
    let containers = objects.map(|object| object["spec"]["template"]["spec"]["containers"].clone());
    let containers = containers.filter_map(|all| all.as_array().cloned()).flatten();
    containers.map(|container| container["image"].as_str().unwrap().to_owned()).collect()
}

/// Component with the roles that Metacontroller's manifests add to those of users.
pub(super) fn component() -> Vec<PathBuf> {
    files(&top().join("deploy/components/metacontroller-user-roles"))
}

#[test]
fn image_of_the_base_is_a_placeholder_for_a_digest_that_the_readme_explains() {
    const PLACEHOLDER: &str = "REPLACE/pilotlight@sha256:REPLACE";

    let images = images(base());

    // No registry accepts upper case in a name: a pod with it is `InvalidImageName`.
    assert_eq!(images, [PLACEHOLDER]);
    for file in ["deploy/README.md", "README.md"] {
        let text = std::fs::read_to_string(top().join(file)).unwrap();
        let (name, _) = PLACEHOLDER.split_once('@').unwrap();
        let command = format!("kustomize edit set image {name}=REGISTRY/pilotlight@sha256:DIGEST");
        assert!(text.contains(&command), "{file} has no command that sets the image");
    }
    let readme = std::fs::read_to_string(top().join("deploy/README.md")).unwrap();
    assert!(readme.contains("`InvalidImageName`"), "a user finds the status of such a pod");
    let kustomization = std::fs::read_to_string(top().join("deploy/kustomization.yaml")).unwrap();
    assert!(!kustomization.contains("newTag"), "{kustomization}");
}

#[test]
fn image_of_an_example_has_a_digest_or_the_tag_of_a_release() {
    let images = images(of_examples("hook.yaml"));

    assert_eq!(images.len(), 7);
    for image in images {
        let tag = image.rsplit('/').next().unwrap().split_once(':').map(|(_, tag)| tag);
        assert!(tag.is_some_and(|tag| tag != "latest"), "{image}");
    }
}

#[test]
fn hook_of_an_example_runs_apart_from_the_manager_and_is_named_within_the_cluster() {
    let hooks = of_examples("hook.yaml");
    let declared = of_examples("controller.yaml");

    for object in hooks.iter().flat_map(|path| read(path)) {
        assert_eq!(object["metadata"]["namespace"], "hooks", "{object}");
    }
    let mut count = 0;
    for text in declared.iter().map(|path| std::fs::read_to_string(path).unwrap()) {
        for line in text.lines().filter(|line| line.trim_start().starts_with("url: ")) {
            count += 1;
            assert!(line.contains(".hooks.svc/") || line.contains("//localhost"), "{line}");
        }
    }
    assert!(count > 8, "{count}");
}

/// Rules of all roles in the files.
fn rules(paths: Vec<PathBuf>) -> Vec<Value> {
    let roles = paths.iter().flat_map(|path| read(path));
    let roles =
        roles.filter(|object| matches!(object["kind"].as_str(), Some("ClusterRole" | "Role")));
    roles.filter_map(|role| role["rules"].as_array().cloned()).flatten().collect()
}

#[test]
fn no_shipped_role_lets_its_holder_gain_further_rights() {
    let mut paths = base();
    paths.extend(component());
    paths.extend(of_examples("controller.yaml"));
    paths.push(top().join("deploy/grant-example.yaml"));

    let rules = rules(paths);

    let has = |rule: &Value, field: &str, names: &[&str]| {
        let all = rule[field].as_array().unwrap();
        all.iter().any(|one| names.contains(&one.as_str().unwrap()))
    };
    assert!(rules.len() > 20, "{}", rules.len());
    for rule in &rules {
        assert!(!has(rule, "verbs", &["*", "escalate", "bind", "impersonate"]), "{rule}");
        let carriers =
            ["*", "secrets", "serviceaccounts/token", "rolebindings", "clusterrolebindings"];
        assert!(!has(rule, "resources", &carriers), "{rule}");
        assert!(!has(rule, "apiGroups", &["*"]), "{rule}");
    }
}

#[tokio::test]
async fn namespace_of_the_hooks_admits_the_pods_of_each_example() {
    let client = ControlPlane::shared().client().unwrap();
    apply(&client, &top().join("examples/hooks.yaml")).await;
    let pods = Api::<Pod>::namespaced(client, "hooks");
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };

    let hooks = of_examples("hook.yaml");
    let deployments = hooks.iter().flat_map(|path| read(path));
    let deployments = deployments.filter(|object| object["kind"] == "Deployment");

    let mut count = 0;
    for deployment in deployments {
        count += 1;
        let mut pod = deployment["spec"]["template"].clone();
        pod["metadata"]["name"] = deployment["metadata"]["name"].clone();
        let pod: Pod = serde_json::from_value(pod).unwrap();
        pods.create(&dry_run, &pod).await.unwrap();
    }
    assert_eq!(count, 7);
}

#[tokio::test]
async fn manifests_that_are_applied_again_keep_the_granted_rules() {
    let plane = ControlPlane::start(ControlPlaneOptions::default()).await.unwrap();
    let client = plane.client().unwrap();
    let rbac = top().join("deploy/rbac.yaml");
    apply(&client, &top().join("deploy/namespace.yaml")).await;
    apply(&client, &rbac).await;
    apply(&client, &top().join("deploy/grant-example.yaml")).await;
    let roles = Api::<ClusterRole>::all(client);
    let has_rules = |role: &ClusterRole| role.rules.as_ref().is_some_and(|all| !all.is_empty());
    let filled = |role: Option<&ClusterRole>| role.is_some_and(has_rules);
    let granted = await_condition(roles.clone(), "pilotlight-granted", filled);
    timeout(DEADLINE, granted).await.expect("the rules are filled in").unwrap();
    let of_file = |object: &Value| {
        object["kind"] == "ClusterRole" && object["metadata"]["name"] == "pilotlight-granted"
    };
    let role = read(&rbac).into_iter().find(of_file).unwrap();

    let by = PatchParams::apply("deploy").force();
    let again = roles.patch("pilotlight-granted", &by, &Patch::Apply(&role)).await.unwrap();

    assert!(has_rules(&again), "the manager lost its grants");
    plane.stop().await;
}
