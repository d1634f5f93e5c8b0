//! Pages of a list. The API server answers a page at once, even if it has just started to serve the
//! type.

use kube::{api::ListParams, core::ListMeta};

/// Number of objects in one page of a list.
pub(super) const PAGE: u32 = 500;

/// Returns the parameters of the first page.
pub(super) fn first_page() -> ListParams {
    ListParams::default().limit(PAGE)
}

/// Returns the parameters of the page after the one with this metadata; `None` after the last one.
pub(super) fn next_page(list: &ListMeta) -> Option<ListParams> {
    let token = list.continue_.as_deref().filter(|token| !token.is_empty())?;
    Some(first_page().continue_token(token))
}
