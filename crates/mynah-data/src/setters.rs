/// Writes the setters of a builder. Each has the name of the field that it sets, and returns the builder.
#[doc(hidden)]
#[macro_export]
macro_rules! setters {
    ($self:ident => $place:expr; $($(#[$doc:meta])* $name:ident($($given:ident: $type:ty)?) = $value:expr;)+) => {
        $(
            $(#[$doc])*
            pub fn $name(mut $self $(, $given: $type)?) -> Self {
                $place.$name = $value;
                $self
            }
        )+
    };
}

/// Implements `Debug` with some fields of a struct, where others hold code.
#[doc(hidden)]
#[macro_export]
macro_rules! partial_debug {
    ($($name:ident $(<$parameter:tt>)? { $($field:ident),* })+) => {
        $(
            impl $(<$parameter>)? std::fmt::Debug for $name $(<$parameter>)? {
                fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                    f.debug_struct(stringify!($name))
                        $(.field(stringify!($field), &self.$field))*
                        .finish_non_exhaustive()
                }
            }
        )+
    };
}
