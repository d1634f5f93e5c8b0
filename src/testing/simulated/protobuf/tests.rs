use proptest::prelude::*;

use super::*;

/// A deployment as Go's client writes it, and as Go shows the same in JSON.
const DEPLOYMENT: [&str; 2] = [
    "azhzAAoVCgdhcHBzL3YxEgpEZXBsb3ltZW50Eo8CChsKAWQSABoAIgAqADIAOABCAEoICID3xNUGEAAS4QEIABIICgYKAWE\
     SAWIaygEKEAoAEgAaACIAKgAyADgAQgAStQEKCQoBdhIEEgIKABJ3CgFjEgAqADoRCgFlEgAaCiIICgMKAXMSAWtCDwoN\
     CgNjcHUSBgoENTAwbVIgChQSEgoAEgoIARAAGgRodHRwGgAiABAAGAAgBSgAMABaGAoMGgoKBggAEFAaABIAEAAYACAAKA\
     AwAGoAcgCAAQCIAQCQAQCiAQAaACj5//////////8BMgBCAEoAUgBYAGAAaAByBSABIKwCggEAigEAmgEAqAEAwgEAIgIK\
     ACgAOAAaDAgAEAAYACAAKAA4ABoAIgA=",
    r#"{"kind":"Deployment","apiVersion":"apps/v1","metadata":{"name":"d","deletionTimestamp":
    "2026-09-21T14:13:20Z"},"spec":{"replicas":0,"selector":{"matchLabels":{"a":"b"}},"template":{
    "metadata":{},"spec":{"volumes":[{"name":"v","emptyDir":{}}],"containers":[{"name":"c","env":[{
    "name":"e","valueFrom":{"secretKeyRef":{"name":"s","key":"k"}}}],"resources":{"limits":{"cpu":
    "500m"}},"livenessProbe":{"httpGet":{"port":"http"},"periodSeconds":5},"readinessProbe":{
    "tcpSocket":{"port":80}}}],"activeDeadlineSeconds":-7,"automountServiceAccountToken":false,
    "securityContext":{"supplementalGroups":[1,300]}}},"strategy":{}},"status":{}}"#,
];
const LEASE: [&str; 2] = [
    "azhzAAofChZjb29yZGluYXRpb24uazhzLmlvL3YxEgVMZWFzZRImChEKAWwSABoAIgAqADIAOABCABIRCgJtZSILCID3xN\
     UGEICU7zoaACIA",
    r#"{"kind":"Lease","apiVersion":"coordination.k8s.io/v1","metadata":{"name":"l"},"spec":{
    "holderIdentity":"me","renewTime":"2026-09-21T14:13:20.123456Z"}}"#,
];
const REVISION: [&str; 2] = [
    "azhzAAodCgdhcHBzL3YxEhJDb250cm9sbGVyUmV2aXNpb24SIgoRCgFyEgAaACIAKgAyADgAQgASCwoJeyJhIjpbMV19GA\
     AaACIA",
    r#"{"kind":"ControllerRevision","apiVersion":"apps/v1","metadata":{"name":"r"},"data":{"a":[1]},
    "revision":0}"#,
];

fn bytes(base64: &str) -> Vec<u8> {
    STANDARD.decode(base64).unwrap()
}

/// A field that has a length before it.
fn part(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut part = vec![number << 3 | 2];
    let mut length = bytes.len();
    while length > 127 {
        part.push(u8::try_from(length % 128).unwrap() | 0x80);
        length /= 128;
    }
    part.push(u8::try_from(length).unwrap());
    part.extend_from_slice(bytes);
    part
}

fn body(api_version: &str, kind: &str, message: &[u8]) -> Vec<u8> {
    let about = [part(1, api_version.as_bytes()), part(2, kind.as_bytes())].concat();
    [MAGIC.to_vec(), part(1, &about), part(2, message)].concat()
}

#[track_caller]
fn refused(body: &[u8], code: u16, said: &[&str]) {
    let refusal = read(body).unwrap_err();
    assert_eq!(refusal.code, code, "{}", refusal.message);
    for part in said {
        assert!(refusal.message.contains(part), "{}", refusal.message);
    }
}

#[test]
fn what_go_writes_is_read_as_what_go_shows() {
    for [written, shown] in [DEPLOYMENT, LEASE, REVISION] {
        let shown: Value = serde_json::from_str(shown).unwrap();
        assert_eq!(read(&bytes(written)).unwrap(), shown);
    }
}

#[test]
fn a_field_that_nobody_knows_is_refused_by_its_number_and_type() {
    let unknown = [part(1, &part(1, b"a")), part(9, b"x")].concat();
    refused(
        &body("v1", "ConfigMap", &unknown),
        501,
        &["field 9 of ConfigMap", "kubectl create -f"],
    );
    let inside = part(1, &part(15, b"x"));
    refused(&body("v1", "ConfigMap", &inside), 501, &["field 15 of meta.ObjectMeta"]);
}

#[test]
fn a_type_that_nobody_knows_is_refused_by_its_name() {
    let quota = body("v1", "ResourceQuota", &[]);
    refused(&quota, 501, &["\"ResourceQuota\" in version \"v1\"", "send JSON"]);
    let widget = body("x.test/v1", "Widget", &[]);
    refused(&widget, 501, &["\"Widget\" in version \"x.test/v1\""]);
    let options = read(&body("apps/v1", "DeleteOptions", &part(4, b"Orphan"))).unwrap();
    assert_eq!(options["propagationPolicy"], "Orphan", "they are of every group");
    // `items` of a schema: one, or many of them.
    let crd = part(2, &part(7, &part(4, &part(1, &[0xc2, 0x01, 0]))));
    refused(&body("apiextensions.k8s.io/v1", "CustomResourceDefinition", &crd), 501, &["schema"]);
}

#[test]
fn bytes_that_make_no_sense_are_a_bad_request() {
    let map = |fields: &[u8]| body("v1", "ConfigMap", fields);
    let cut = bytes(DEPLOYMENT[0]);
    let cut = &cut[..cut.len() - 40];
    refused(b"", 400, &["begin"]);
    refused(b"{}", 400, &["begin"]);
    refused(cut, 400, &["ends early"]);
    refused(&map(&[0x0a, 0xff, 0xff, 0xff, 0xff, 0x7f]), 400, &["ends early"]);
    refused(&map(&[0x0a]), 400, &["ends early"]);
    refused(&map(&[0x0b]), 400, &["form"]);
    refused(&map(&[0x00, 0x00]), 400, &["number that none can have"]);
    refused(
        &map(&[0x20, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01]),
        400,
        &[],
    );
    refused(&map(&[0x08, 0x01]), 400, &["another form"]);
    refused(&map(&part(1, &part(1, &[0xff]))), 400, &["UTF-8"]);
    let time = [0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f];
    refused(&map(&part(1, &part(8, &time))), 400, &["time"]);
    let encoded = [map(&[]), part(3, b"gzip")].concat();
    refused(&encoded, 501, &["encoded once more"]);
}

#[test]
fn what_is_too_deep_or_too_much_is_refused() {
    // `not` of a schema, again and again; its number takes two bytes.
    let mut deep = Vec::new();
    for _ in 0..MAX_DEPTH * 2 {
        deep = [vec![0xe2, 0x01], part(0, &deep)[1..].to_vec()].concat();
    }
    let crd = part(2, &part(7, &part(4, &part(1, &deep))));
    refused(&body("apiextensions.k8s.io/v1", "CustomResourceDefinition", &crd), 400, &["deep"]);
    let owners = part(13, &[]).repeat(MAX_VALUES / 5);
    let many = part(1, &owners);
    refused(&body("v1", "ConfigMap", &many), 400, &["too many"]);
}

proptest! {
    #[test]
    fn no_bytes_bring_it_down(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        drop(read(&bytes));
        for (version, kind) in [("apps/v1", "Deployment"), ("v1", "Pod"), ("v1", "DeleteOptions")] {
            drop(read(&body(version, kind, &bytes)));
        }
    }

    #[test]
    fn no_change_of_an_object_brings_it_down(
        which in 0..3_usize, at in any::<prop::sample::Index>(), to in any::<u8>(), cut in any::<bool>(),
    ) {
        let mut bytes = bytes([DEPLOYMENT, LEASE, REVISION][which][0]);
        let at = at.index(bytes.len());
        bytes[at] = to;
        if cut {
            bytes.truncate(at + 1);
        }
        if let Ok(object) = read(&bytes) {
            prop_assert!(object.is_object());
        }
    }
}
