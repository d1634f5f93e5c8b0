//! The declared controllers as their objects say.

use anyhow::anyhow;
use kube::{Api, Client, api::ListParams};
use pilotlight::meta::CompositeController;

/// Every declared controller, by pages, which the API server answers at once also where it has just
/// begun to serve.
pub(super) async fn list(client: Client) -> anyhow::Result<Vec<CompositeController>> {
    let api = Api::<CompositeController>::all(client);
    let mut page = ListParams::default().limit(500);
    let mut controllers = Vec::new();
    loop {
        let list = api.list(&page).await.map_err(explain)?;
        controllers.extend(list.items);
        match list.metadata.continue_ {
            Some(token) if !token.is_empty() => page = page.continue_token(&token),
            Some(_) | None => return Ok(controllers),
        }
    }
}

fn explain(error: kube::Error) -> anyhow::Error {
    let kube::Error::Api(status) = error else { return error.into() };
    if status.code == 404 {
        return anyhow!(
            "the API server knows no CompositeControllers; install Pilotlight's CRDs: \
             pilotlight crds | kubectl apply --filename -"
        );
    }
    anyhow!("{} ({})", status.message, status.code)
}
