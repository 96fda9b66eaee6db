/// Writes the setters of a builder. Each has the name of the field that it sets, and returns the builder.
#[doc(hidden)]
#[macro_export]
macro_rules! setters {
    ($self:ident => $place:expr; $($(#[$doc:meta])* $name:ident($given:ident: $type:ty) = $value:expr;)+) => {
        $(
            $(#[$doc])*
            pub fn $name(mut $self, $given: $type) -> Self {
                $place.$name = $value;
                $self
            }
        )+
    };
}
