//! Page of a list response.

use serde::Deserialize;

/// Page of a list of `T`. A document without `items` is not a page: a proxy may send it in the
/// place of the server, and an empty list would prove that all objects are gone.
#[derive(Deserialize)]
#[serde(bound(deserialize = "T: Deserialize<'de>"))]
pub(crate) struct ListPage<T> {
    #[serde(default)]
    metadata: Option<ListMetadata>,
    /// Objects of this page; `None` for `null`, which some servers send for an empty list.
    #[serde(deserialize_with = "Option::deserialize")]
    pub(crate) items: Option<Vec<T>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListMetadata {
    resource_version: Option<String>,
    r#continue: Option<String>,
}

impl<T> ListPage<T> {
    /// Returns the version of the list; empty if it has none.
    pub(crate) fn resource_version(&self) -> &str {
        let metadata = self.metadata.as_ref();
        metadata.and_then(|metadata| metadata.resource_version.as_deref()).unwrap_or_default()
    }

    /// Returns the token of the next page, if there is one.
    pub(crate) fn continue_token(&self) -> Option<&str> {
        let token = self.metadata.as_ref().and_then(|metadata| metadata.r#continue.as_deref());
        token.filter(|token| !token.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(json: &str, version: &str, token: Option<&str>, items: Option<usize>) {
        let page: ListPage<u8> = serde_json::from_str(json).unwrap();

        assert_eq!(page.resource_version(), version, "{json}");
        assert_eq!(page.continue_token(), token, "{json}");
        assert_eq!(page.items.map(|items| items.len()), items, "{json}");
    }

    #[test]
    fn missing_metadata_and_null_are_none() {
        check(r#"{"items":null}"#, "", None, None);
        check(r#"{"metadata":null,"items":null}"#, "", None, None);
        check(
            r#"{"metadata":{"resourceVersion":null,"continue":""},"items":[]}"#,
            "",
            None,
            Some(0),
        );
        check(
            r#"{"metadata":{"resourceVersion":"7","continue":"t"},"items":[1,2]}"#,
            "7",
            Some("t"),
            Some(2),
        );
    }

    #[test]
    fn document_without_items_is_no_page() {
        for json in ["{}", r#"{"kind":"Status","metadata":{},"code":200}"#] {
            assert!(serde_json::from_str::<ListPage<u8>>(json).is_err(), "{json}");
        }
    }
}
