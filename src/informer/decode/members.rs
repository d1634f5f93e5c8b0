//! Members of an object and of its metadata, as spans of its text.

use std::{fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, Visitor},
};
use serde_json::value::RawValue;

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

/// Spans of the members of an object's metadata.
#[derive(Default)]
pub(super) struct MetadataMembers<'a> {
    pub(super) name: Option<&'a RawValue>,
    pub(super) namespace: Option<&'a RawValue>,
    pub(super) uid: Option<&'a RawValue>,
    pub(super) resource_version: Option<&'a RawValue>,
    pub(super) generation: Option<&'a RawValue>,
    pub(super) deletion_timestamp: Option<&'a RawValue>,
    pub(super) labels: Option<&'a RawValue>,
    pub(super) annotations: Option<&'a RawValue>,
    pub(super) owner_references: Option<&'a RawValue>,
    pub(super) finalizers: Option<&'a RawValue>,
    pub(super) managed_fields: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "camelCase")]
enum MetadataMember {
    Name,
    Namespace,
    Uid,
    ResourceVersion,
    Generation,
    DeletionTimestamp,
    Labels,
    Annotations,
    OwnerReferences,
    Finalizers,
    ManagedFields,
    #[serde(other)]
    Other,
}

impl<'de> Deserialize<'de> for MetadataMembers<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MetadataVisitor;

        impl<'de> Visitor<'de> for MetadataVisitor {
            type Value = MetadataMembers<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut metadata = MetadataMembers::default();
                while let Some(member) = map.next_key()? {
                    let slot = match member {
                        MetadataMember::Name => &mut metadata.name,
                        MetadataMember::Namespace => &mut metadata.namespace,
                        MetadataMember::Uid => &mut metadata.uid,
                        MetadataMember::ResourceVersion => &mut metadata.resource_version,
                        MetadataMember::Generation => &mut metadata.generation,
                        MetadataMember::DeletionTimestamp => &mut metadata.deletion_timestamp,
                        MetadataMember::Labels => &mut metadata.labels,
                        MetadataMember::Annotations => &mut metadata.annotations,
                        MetadataMember::OwnerReferences => &mut metadata.owner_references,
                        MetadataMember::Finalizers => &mut metadata.finalizers,
                        MetadataMember::ManagedFields => &mut metadata.managed_fields,
                        MetadataMember::Other => {
                            map.next_value::<IgnoredAny>()?;
                            continue;
                        }
                    };
                    *slot = Some(map.next_value()?);
                }
                Ok(metadata)
            }
        }

        deserializer.deserialize_map(MetadataVisitor)
    }
}
