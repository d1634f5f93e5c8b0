//! Tables of endpoints: which rule applies, and what follows from the contents.

use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};

use super::*;

fn rule(webhook: &Value, configs: &Value) -> Result<EndpointRule, String> {
    let url = webhook.get("url").and_then(Value::as_str).unwrap_or("https://hook.test/").to_owned();
    let webhook = serde_json::from_value(webhook.clone()).unwrap();
    let configs: Vec<EndpointConfig> = serde_json::from_value(configs.clone()).unwrap();
    let mut problems = Problems::default();
    let url = url.parse().unwrap();
    let rule = EndpointRule::of("hook", &webhook, &configs, &url, &mut problems);
    match problems.rejection() {
        None => Ok(rule.unwrap()),
        Some(rejected) => {
            assert!(rule.is_none());
            Err(rejected.to_string())
        }
    }
}

fn secret(name: &str) -> ObjectReference {
    ObjectReference { kind: ReferenceKind::Secret, namespace: "ns".into(), name: name.into() }
}

fn reference(name: &str) -> Value {
    json!({"secretRef": {"name": name, "namespace": "ns"}})
}

#[test]
fn keys_have_their_defaults() {
    let webhook = json!({
        "caBundle": {"configMapRef": {"name": "ca", "namespace": "ns"}},
        "clientTLS": reference("client"),
        "basicAuth": reference("user"),
    });
    let map = ObjectReference { kind: ReferenceKind::ConfigMap, ..secret("ca") };
    assert_eq!(
        rule(&webhook, &json!([])),
        Ok(EndpointRule {
            ca_bundle: Some(CaRule::Key(map, "ca.crt".to_owned())),
            client_tls: Some(ClientTlsRule {
                secret: secret("client"),
                certificate: "tls.crt".to_owned(),
                private_key: "tls.key".to_owned(),
            }),
            authorization: Some(AuthorizationRule::Basic {
                secret: secret("user"),
                username: "username".to_owned(),
                password: "password".to_owned(),
            }),
        })
    );
    let token = json!({"secretRef": {"name": "a", "namespace": "ns", "key": "token"}});
    let read = rule(&json!({"authorization": token}), &json!([])).unwrap();
    assert_eq!(
        read.authorization,
        Some(AuthorizationRule::Scheme {
            scheme: "Bearer".to_owned(),
            secret: secret("a"),
            key: "token".to_owned(),
        })
    );
}

#[test]
fn unusable_rule_is_refused_by_its_field() {
    let secret = json!({"name": "a", "namespace": "ns"});
    for (webhook, expected) in [
        (
            json!({"caBundle": {}}),
            "hook.caBundle: needs exactly one of inline, secretRef and configMapRef",
        ),
        (
            json!({"caBundle": {"inline": "x", "secretRef": secret}}),
            "hook.caBundle: needs exactly one of inline, secretRef and configMapRef",
        ),
        (json!({"caBundle": {"inline": " "}}), "hook.caBundle.inline: must not be empty"),
        (
            json!({"caBundle": {"secretRef": {"name": "", "namespace": "ns"}}}),
            "hook.caBundle.secretRef.name: \"\" is not a name",
        ),
        (
            json!({"clientTLS": {"secretRef": {"name": "a", "namespace": "n,x=y"}}}),
            "hook.clientTLS.secretRef.namespace: \"n,x=y\" is not a name",
        ),
        (json!({"clientTLS": {}}), "hook.clientTLS.secretRef: is required"),
        (json!({"basicAuth": {}}), "hook.basicAuth.secretRef: is required"),
        (json!({"authorization": {}}), "hook.authorization.secretRef: is required"),
        (
            json!({"authorization": {"type": " bAsIc "}}),
            "hook.authorization.type: must not be Basic; use basicAuth",
        ),
        (
            json!({"authorization": {"type": "a\nb"}}),
            "hook.authorization.type: \"a\\nb\" has characters that a header cannot hold",
        ),
        (
            json!({"authorization": reference("a"), "basicAuth": reference("a")}),
            "hook.basicAuth: excludes authorization: both set the header Authorization",
        ),
    ] {
        // A reference to a Secret without a key is complete for the schema of basicAuth alone.
        let mut webhook = webhook;
        if let Some(reference) = webhook.pointer_mut("/authorization/secretRef") {
            reference["key"] = json!("token");
        }
        let refused = rule(&webhook, &json!([])).unwrap_err();
        assert!(refused.contains(expected), "{refused}");
    }
}

#[test]
fn first_configuration_with_the_host_applies_unless_the_hook_has_its_own() {
    let configs = json!([
        {"host": "Hook.Test:443", "caBundle": {"inline": "first"}},
        {"host": "hook.test", "caBundle": {"inline": "second"}},
        {"host": "other.test:8443", "caBundle": {"inline": "third"}},
        {"host": "svc.ns:80", "caBundle": {"inline": "fourth"}},
        {"host": "broken.test", "caBundle": {}},
    ]);
    for (webhook, expected) in [
        (json!({"url": "https://hook.test/a"}), Some("first")),
        (json!({"url": "https://HOOK.test:443/a"}), Some("first")),
        (json!({"url": "http://hook.test/a"}), Some("second")),
        (json!({"url": "http://hook.test:8080/a"}), None),
        (json!({"url": "https://other.test:8443/a"}), Some("third")),
        (json!({"url": "https://other.test/a"}), None),
        (json!({"url": "http://svc.ns:80/a"}), Some("fourth")),
        (json!({"url": "https://hook.test/", "caBundle": {"inline": "own"}}), Some("own")),
    ] {
        let read = rule(&webhook, &configs).unwrap().ca_bundle;
        let expected = expected.map(|pem| CaRule::Inline(pem.to_owned()));
        assert_eq!(read, expected, "{webhook}");
    }
    let own = json!({"url": "https://hook.test/", "basicAuth": reference("a")});
    assert_eq!(rule(&own, &configs).unwrap().ca_bundle, None, "rules are not merged");
    let broken = rule(&json!({"url": "https://broken.test"}), &configs).unwrap_err();
    assert!(broken.contains("spec.endpointConfigs[4].caBundle"), "{broken}");
}

fn resolve(webhook: &Value, contents: &[(&str, ObjectContent)]) -> Result<Endpoint, EndpointError> {
    let rule = rule(webhook, &json!([])).unwrap();
    rule.resolve(|object| {
        let content = contents.iter().find(|(name, _)| *name == &*object.name);
        content.map(|(_, content)| content).ok_or_else(|| EndpointError::Missing(object.clone()))
    })
}

fn content(values: &[(&str, &str)]) -> ObjectContent {
    values.iter().map(|(key, value)| ((*key).to_owned(), value.as_bytes().to_vec())).collect()
}

#[test]
fn authorization_follows_from_its_secret() {
    let bearer = json!({"authorization":
        {"secretRef": {"name": "a", "namespace": "ns", "key": "token"}}});
    let endpoint = resolve(&bearer, &[("a", content(&[("token", " hush\n")]))]).unwrap();
    let header = endpoint.authorization.unwrap();
    assert_eq!(header, "Bearer hush");
    assert!(header.is_sensitive());

    let basic = json!({"basicAuth": reference("a")});
    let user = content(&[("username", "me "), ("password", "a:b\n")]);
    let endpoint = resolve(&basic, &[("a", user)]).unwrap();
    assert_eq!(endpoint.authorization.unwrap(), "Basic bWU6YTpi");
}

#[test]
fn empty_token_user_name_or_password_is_sent_as_it_is() {
    let bearer = json!({"authorization":
        {"secretRef": {"name": "a", "namespace": "ns", "key": "token"}}});
    for token in ["", " \n"] {
        let endpoint = resolve(&bearer, &[("a", content(&[("token", token)]))]).unwrap();
        assert_eq!(endpoint.authorization.unwrap(), "Bearer", "{token:?}");
    }

    let basic = json!({"basicAuth": reference("a")});
    for (user, password, expected) in
        [("me", "", "Basic bWU6"), ("", "pw", "Basic OnB3"), ("", "", "Basic Og==")]
    {
        let user = content(&[("username", user), ("password", password)]);
        let endpoint = resolve(&basic, &[("a", user)]).unwrap();
        assert_eq!(endpoint.authorization.unwrap(), expected);
    }
    let user = ObjectContent::from([
        ("username".to_owned(), b"me".to_vec()),
        ("password".to_owned(), b"\xff".to_vec()),
    ]);
    let endpoint = resolve(&basic, &[("a", user)]).unwrap();
    assert_eq!(endpoint.authorization.unwrap(), "Basic bWU6/w==", "any bytes are a password");
}

#[test]
fn unusable_certificate_of_a_bundle_is_skipped() {
    let pem = |name: &str| {
        let key = KeyPair::generate().unwrap();
        CertificateParams::new(vec![name.to_owned()]).unwrap().self_signed(&key).unwrap().pem()
    };
    let not_base64 = "-----BEGIN CERTIFICATE-----\n!hush!\n-----END CERTIFICATE-----\n";
    let not_der = "-----BEGIN CERTIFICATE-----\naHVzaA==\n-----END CERTIFICATE-----\n";
    let endless = "-----BEGIN CERTIFICATE-----\naHVzaA==\n";
    let ca = json!({"caBundle": reference("a")});
    let resolve = |bundle: &str| resolve(&ca, &[("a", content(&[("ca.crt", bundle)]))]);

    for bad in [not_base64, not_der, endless] {
        for bundle in [format!("{bad}{}", pem("one")), format!("{}{bad}", pem("one"))] {
            let endpoint = resolve(&bundle);
            assert!(endpoint.is_ok_and(|endpoint| endpoint.tls.is_some()), "{bundle}");
        }
        let error = resolve(bad).unwrap_err().to_string();
        assert!(error.contains("Secret ns/a") && !error.contains("hush"), "{error}");
    }
}

#[test]
fn unusable_content_is_named_by_object_and_key_and_not_quoted() {
    let own = KeyPair::generate().unwrap();
    let other = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec!["me".to_owned()]).unwrap();
    let certificate = certificate.self_signed(&own).unwrap().pem();
    let token = json!({"authorization":
        {"secretRef": {"name": "a", "namespace": "ns", "key": "token"}}});
    let basic = json!({"basicAuth": reference("a")});
    let client = json!({"clientTLS": reference("a")});
    let ca = json!({"caBundle": reference("a")});
    let (own, other) = (own.serialize_pem(), other.serialize_pem());
    for (webhook, values, expected) in [
        (&token, &[][..], "Secret ns/a has no value of token"),
        (&token, &[("token", "hu\nsh")], "Secret ns/a has characters that a header cannot hold"),
        (
            &basic,
            &[("username", "hu:sh"), ("password", "hush")],
            "username of Secret ns/a must not contain ':'",
        ),
        (&basic, &[("username", "me")], "Secret ns/a has no value of password"),
        (&ca, &[("ca.crt", "")], "Secret ns/a has no value of ca.crt"),
        (&client, &[("tls.crt", ""), ("tls.key", &*own)], "Secret ns/a has no value of tls.crt"),
        (&ca, &[("ca.crt", "hush")], "ca.crt of Secret ns/a holds no certificate as PEM"),
        (
            &client,
            &[("tls.crt", &*certificate), ("tls.key", "hush")],
            "tls.key of Secret ns/a holds no private key as PEM",
        ),
        (
            &client,
            &[("tls.crt", &*certificate), ("tls.key", &*other)],
            "tls.key of Secret ns/a is not the key of the client certificate tls.crt; store",
        ),
    ] {
        let error = resolve(webhook, &[("a", content(values))]).unwrap_err().to_string();
        assert!(error.starts_with(expected) && !error.contains("hush"), "{error}");
    }
    let missing = resolve(&token, &[]).unwrap_err().to_string();
    assert_eq!(missing, "Secret ns/a does not exist; create it or correct its name");

    let values = [("tls.crt", &*certificate), ("tls.key", &*own)];
    let endpoint = resolve(&client, &[("a", content(&values))]).unwrap();
    assert!(endpoint.tls.unwrap().client_auth_cert_resolver.has_certs());
    assert!(endpoint.anonymous_tls.is_none(), "the certificate is not for another host");
}
