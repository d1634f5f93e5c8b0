//! Pages of a list response, and the continue tokens between them.

use std::{
    collections::HashSet,
    hash::{BuildHasher, RandomState},
};

use serde::Deserialize;

/// Pages in a row without an object after which a list counts as endless. A server that filters
/// after it has read a page may send some.
const EMPTY_PAGES_MAX: u32 = 1000;

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

/// Continue tokens of one list. They must lead to its end.
#[derive(Debug, Default)]
pub(crate) struct ContinueTokens {
    /// Hashes of the tokens so far.
    seen: HashSet<u64>,
    hasher: RandomState,
    /// Pages without an object since the last page that had one.
    empty_pages: u32,
}

/// Error of a list whose pages do not lead to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EndlessList {
    #[error("the list does not end: the server has sent the same continue token twice")]
    RepeatedToken,
    #[error("the list does not end: {EMPTY_PAGES_MAX} pages in a row have no object")]
    EmptyPages,
}

impl ContinueTokens {
    /// Returns the token of the page after this one; `None` after the last page.
    ///
    /// # Errors
    ///
    /// If the server has sent the token before in this list, or sends pages without objects.
    pub(crate) fn after<T>(&mut self, page: &ListPage<T>) -> Result<Option<String>, EndlessList> {
        let Some(token) = page.continue_token() else { return Ok(None) };
        if !self.seen.insert(self.hasher.hash_one(token)) {
            return Err(EndlessList::RepeatedToken);
        }
        let is_empty = page.items.as_ref().is_none_or(Vec::is_empty);
        self.empty_pages = if is_empty { self.empty_pages + 1 } else { 0 };
        if self.empty_pages >= EMPTY_PAGES_MAX {
            return Err(EndlessList::EmptyPages);
        }
        Ok(Some(token.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(token: &str, items: Vec<u8>) -> ListPage<u8> {
        let metadata = ListMetadata { r#continue: Some(token.to_owned()), ..Default::default() };
        ListPage { metadata: Some(metadata), items: Some(items) }
    }

    #[test]
    fn token_that_returns_later_in_the_list_is_an_error() {
        let mut tokens = ContinueTokens::default();

        assert_eq!(tokens.after(&page("a", vec![1])), Ok(Some("a".to_owned())));
        assert_eq!(tokens.after(&page("b", vec![2])), Ok(Some("b".to_owned())));

        assert_eq!(tokens.after(&page("a", vec![3])), Err(EndlessList::RepeatedToken));
        assert_eq!(tokens.after(&page("", vec![4])), Ok(None));
    }

    #[test]
    fn new_tokens_without_objects_are_an_error_after_a_thousand_pages() {
        let mut tokens = ContinueTokens::default();
        let mut next = 0..;
        let mut send = |items: Vec<u8>, count: u32| {
            let mut last = Ok(None);
            for _ in 0..count {
                last = tokens.after(&page(&next.next().unwrap().to_string(), items.clone()));
            }
            last.map(drop)
        };

        assert_eq!(send(vec![], EMPTY_PAGES_MAX - 1), Ok(()));
        assert_eq!(send(vec![1], 1), Ok(()));
        assert_eq!(send(vec![], EMPTY_PAGES_MAX - 1), Ok(()));
        assert_eq!(send(vec![], 1), Err(EndlessList::EmptyPages));
    }

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
