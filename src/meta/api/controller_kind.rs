//! Kinds of declared controllers, with the names that follow from each.

use std::fmt;

use crate::{kind::TypeRef, manager::ControllerName};

/// Kind of a declared controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ControllerKind {
    /// `CompositeController`: its parents own children, which a selector claims.
    Composite,
    /// `DecoratorController`: adds labels, annotations, a status and attachments to objects.
    Decorator,
}

impl ControllerKind {
    /// API group of all kinds.
    pub const GROUP: &str = "metacontroller.k8s.io";
    /// API version of all kinds.
    pub const VERSION: &str = "v1alpha1";
    /// All kinds.
    pub const ALL: [Self; 2] = [Self::Composite, Self::Decorator];

    /// Returns the kind, as in a manifest.
    pub fn kind(self) -> &'static str {
        match self {
            Self::Composite => "CompositeController",
            Self::Decorator => "DecoratorController",
        }
    }

    /// Returns the plural resource name.
    pub fn plural(self) -> &'static str {
        match self {
            Self::Composite => "compositecontrollers",
            Self::Decorator => "decoratorcontrollers",
        }
    }

    /// Returns the prefix of the finalizers of this kind, as in Metacontroller; the name of the
    /// controller follows.
    pub fn finalizer_prefix(self) -> &'static str {
        match self {
            Self::Composite => "metacontroller.io/compositecontroller-",
            Self::Decorator => "metacontroller.io/decoratorcontroller-",
        }
    }

    /// Returns the name of the runnable of a controller: the name of Metacontroller's work queue,
    /// which is its label in metrics.
    pub fn runnable_name(self, controller: &str) -> ControllerName {
        format!("{}-{controller}", self.kind()).into()
    }

    /// Returns the kind and the name of the controller that a runnable runs; `None` for any other
    /// runnable.
    pub fn of_runnable(runnable: &str) -> Option<(Self, &str)> {
        Self::ALL.into_iter().find_map(|kind| {
            let name = runnable.strip_prefix(kind.kind())?.strip_prefix('-')?;
            Some((kind, name))
        })
    }

    /// Returns the `apiVersion` of the controllers.
    pub(crate) fn api_version() -> String {
        format!("{}/{}", Self::GROUP, Self::VERSION)
    }

    /// Returns the name of the CRD.
    pub fn crd_name(self) -> String {
        format!("{}.{}", self.plural(), Self::GROUP)
    }

    /// Returns the type of the controllers.
    pub fn type_ref(self) -> TypeRef {
        TypeRef::resource(Self::GROUP, Self::VERSION, self.plural())
    }
}

/// Formats as in a manifest.
impl fmt::Display for ControllerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_of_a_runnable_names_the_controller_and_its_kind() {
        for kind in ControllerKind::ALL {
            let runnable = kind.runnable_name("a-b");

            assert_eq!(ControllerKind::of_runnable(runnable.as_str()), Some((kind, "a-b")));
        }
        for other in ["compositecontrollers", "CompositeControllers-a", "DecoratorController"] {
            assert_eq!(ControllerKind::of_runnable(other), None, "{other}");
        }
    }
}
