//! Members of an object, with its metadata as a type of the reader's choice.

use std::{fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, Visitor},
};

/// Members of an object. The last of repeated members counts, as for the server.
pub(super) struct ObjectMembers<M> {
    pub(super) has_api_version: bool,
    pub(super) has_kind: bool,
    pub(super) metadata: Option<M>,
}

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "camelCase")]
enum Member {
    ApiVersion,
    Kind,
    Metadata,
    #[serde(other)]
    Other,
}

impl<'de, M: Deserialize<'de>> Deserialize<'de> for ObjectMembers<M> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ObjectVisitor<M>(PhantomData<M>);

        impl<'de, M: Deserialize<'de>> Visitor<'de> for ObjectVisitor<M> {
            type Value = ObjectMembers<M>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let (mut has_api_version, mut has_kind, mut metadata) = (false, false, None);
                while let Some(member) = map.next_key()? {
                    if let Member::Metadata = member {
                        metadata = Some(map.next_value()?);
                        continue;
                    }
                    map.next_value::<IgnoredAny>()?;
                    has_api_version |= matches!(member, Member::ApiVersion);
                    has_kind |= matches!(member, Member::Kind);
                }
                Ok(ObjectMembers { has_api_version, has_kind, metadata })
            }
        }

        deserializer.deserialize_map(ObjectVisitor(PhantomData))
    }
}
