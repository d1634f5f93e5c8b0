//! Closed choice: an enum whose variants have the names of a flag, an annotation or a field.

/// Defines an enum with a name for each variant, by which it is displayed and parsed.
macro_rules! choice {
    (
        $(#[$enum_meta:meta])*
        $vis:vis enum $choice:ident {
            $($(#[$variant_meta:meta])* $variant:ident = $name:literal,)+
        }
    ) => {
        $(#[$enum_meta])*
        $vis enum $choice {
            $($(#[$variant_meta])* $variant,)+
        }

        impl $choice {
            /// All variants.
            $vis const ALL: [Self; [$($name),+].len()] = [$(Self::$variant),+];

            /// Returns the name by which the variant is chosen.
            $vis fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }
        }

        impl std::fmt::Display for $choice {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }

        impl std::str::FromStr for $choice {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                let named = Self::ALL.into_iter().find(|choice| choice.name() == text);
                named.ok_or_else(|| format!("give {}", Self::ALL.map(Self::name).join(" or ")))
            }
        }
    };
}

pub(in crate::meta) use choice;
