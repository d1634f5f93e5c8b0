//! Header `User-Agent` of requests.

use http::{HeaderValue, Request, header::USER_AGENT};

use super::Error;

/// Returns the value of the header: the embedder's product, if any, then this library's.
///
/// # Errors
///
/// If the product has characters that a header cannot hold.
pub(super) fn value(product: Option<&str>) -> Result<HeaderValue, Error> {
    let own = product.map(|product| format!("{product} ")).unwrap_or_default();
    HeaderValue::try_from(format!("{own}{}", own_product()))
        .map_err(|_| Error::Product { product: product.unwrap_or_default().to_owned() })
}

/// Returns the `User-Agent` of a transport without an embedder's product, for requests outside the
/// transport.
#[expect(clippy::missing_panics_doc, reason = "version and platform are printable")]
pub fn library() -> HeaderValue {
    HeaderValue::try_from(own_product()).expect("version and platform are printable")
}

fn own_product() -> String {
    format!("pilotlight/{} ({}/{})", env!("CARGO_PKG_VERSION"), os(), arch())
}

/// Sets the header where a request has none: an embedder may have put it into `Config::headers`.
pub(super) fn set<B>(mut request: Request<B>, value: &HeaderValue) -> Request<B> {
    request.headers_mut().entry(USER_AGENT).or_insert_with(|| value.clone());
    request
}

/// Operating system under Go's name, as in other clients' headers.
fn os() -> &'static str {
    match std::env::consts::OS {
        "macos" => "darwin",
        other => other,
    }
}

/// Architecture under Go's name.
fn arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_embedders_product_stands_before_the_library() {
        let library = format!("pilotlight/{} ({}/{})", env!("CARGO_PKG_VERSION"), os(), arch());

        assert_eq!(value(None).unwrap(), library);
        assert_eq!(value(Some("myoperator/1.0")).unwrap(), format!("myoperator/1.0 {library}"));
        let error = value(Some("my\noperator")).unwrap_err().to_string();
        assert!(error.contains("my\\noperator"), "{error}");
    }
}
