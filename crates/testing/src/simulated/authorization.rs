//! Authorization of requests by access rules, and the reviews that report it.

use serde_json::json;

use super::{
    access::{RequestAttributes, SCRIPT},
    call::{Call, HttpReply},
    cluster::SimulatedCluster,
    refusal::Refusal,
    resource::SimulatedResource,
};
use crate::Verb;

impl SimulatedCluster {
    fn allows(&self, attributes: &RequestAttributes) -> bool {
        self.rules.iter().find(|rule| rule.fits(attributes)).is_none_or(|rule| rule.allow)
    }

    pub(super) fn authorize(&self, call: &Call) -> Result<(), Refusal> {
        if call.user == SCRIPT {
            return Ok(());
        }
        let attributes = RequestAttributes::of(&call.user, &call.info, &call.method);
        if self.allows(&attributes) { Ok(()) } else { Err(attributes.refused()) }
    }

    /// Answers a review of the user's own access.
    pub(super) fn review_access(
        &self,
        resource: &SimulatedResource,
        call: &Call,
    ) -> Result<HttpReply, Refusal> {
        if call.info.verb != Verb::Create || !call.info.name.is_empty() {
            return Err(Refusal::method_not_allowed());
        }
        if resource.kind != "SelfSubjectAccessReview" {
            return Err(Refusal::not_simulated(resource.qualified()));
        }
        let mut review = call.object(&resource.kind)?.object;
        let attributes = &review["spec"]["resourceAttributes"];
        let path = &review["spec"]["nonResourceAttributes"];
        let text = |from: &serde_json::Value, field: &str| {
            from[field].as_str().unwrap_or_default().to_owned()
        };
        let of_resource = attributes.is_object();
        let attributes = RequestAttributes {
            user: call.user.clone(),
            verb: text(if of_resource { attributes } else { path }, "verb"),
            group: text(attributes, "group"),
            resource: text(attributes, "resource"),
            subresource: text(attributes, "subresource"),
            namespace: text(attributes, "namespace"),
            name: text(attributes, "name"),
            path: text(path, "path"),
        };
        review["status"] = json!({ "allowed": self.allows(&attributes) });
        Ok(HttpReply::json(201, &review))
    }
}
