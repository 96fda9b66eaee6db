//! What each dialect takes.

use mynah_data::Metadata;
use serde_json::Value;

use super::types;

/// What a dialect takes.
#[derive(Clone, Copy)]
pub(super) struct Rules {
    /// Objects have no members but those that they name.
    pub(super) closed: bool,
    /// Objects require all members. Optional ones are nullable.
    pub(super) all_required: bool,
    /// Every schema has a type, and the root is one of an object.
    pub(super) typed: bool,
    /// Annotations may be siblings of a reference.
    pub(super) ref_siblings: bool,
    /// Definitions may refer to themselves.
    pub(super) recursion: bool,
    /// Members through which a definition refers to itself cannot be required.
    pub(super) optional_recursion: bool,
    /// `null` is no type, but `nullable`.
    pub(super) nullable: bool,
    /// Arrays may have `prefixItems`.
    pub(super) prefix_items: bool,
    /// Objects may have members of any name, of one schema.
    pub(super) maps: bool,
    pub(super) enums: Enums,
    pub(super) keywords: &'static [&'static str],
    pub(super) formats: &'static [&'static str],
    pub(super) limits: Limits,
}

/// What a list of values may hold.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Enums {
    /// No lists and objects.
    Scalars,
    StringsAndNumbers,
    /// Strings that are not empty.
    Strings,
}

/// How much of something a schema may have.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    /// Objects within each other.
    pub(super) levels: usize,
    pub(super) properties: usize,
    pub(super) values: usize,
    /// Properties that are not required.
    pub(super) optional: usize,
    /// Schemas of several types.
    pub(super) unions: usize,
}

const UNLIMITED: Limits = Limits {
    levels: usize::MAX,
    properties: usize::MAX,
    values: usize::MAX,
    optional: usize::MAX,
    unions: usize::MAX,
};

pub(super) const OPENAI: Rules = Rules {
    closed: true,
    all_required: true,
    typed: true,
    ref_siblings: false,
    recursion: true,
    optional_recursion: false,
    nullable: false,
    prefix_items: false,
    maps: false,
    enums: Enums::Scalars,
    keywords: &[
        "title",
        "description",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
        "minItems",
        "maxItems",
        "pattern",
    ],
    formats: &[
        "date-time",
        "time",
        "date",
        "duration",
        "email",
        "hostname",
        "ipv4",
        "ipv6",
        "uuid",
    ],
    limits: Limits { levels: 10, properties: 5000, values: 1000, ..UNLIMITED },
};

pub(super) const DEEPSEEK: Rules = Rules {
    keywords: &[
        "title",
        "description",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
        "pattern",
    ],
    formats: &["email", "hostname", "ipv4", "ipv6", "uuid"],
    ..OPENAI
};

/// Claude, at Anthropic and at Bedrock.
pub(super) const CLAUDE: Rules = Rules {
    all_required: false,
    typed: false,
    ref_siblings: true,
    recursion: false,
    keywords: &["title", "description", "default", "pattern"],
    formats: &[
        "date-time",
        "time",
        "date",
        "duration",
        "email",
        "hostname",
        "uri",
        "ipv4",
        "ipv6",
        "uuid",
    ],
    limits: Limits { optional: 24, unions: 16, ..UNLIMITED },
    ..OPENAI
};

pub(super) const GEMINI_JSON: Rules = Rules {
    closed: false,
    all_required: false,
    typed: false,
    optional_recursion: true,
    prefix_items: true,
    maps: true,
    enums: Enums::StringsAndNumbers,
    keywords: &[
        "title",
        "description",
        "minItems",
        "maxItems",
        "minimum",
        "maximum",
        "propertyOrdering",
    ],
    formats: &["float", "double", "int32", "int64"],
    limits: UNLIMITED,
    ..OPENAI
};

pub(super) const OPEN_API: Rules = Rules {
    optional_recursion: false,
    nullable: true,
    prefix_items: false,
    maps: false,
    enums: Enums::Strings,
    keywords: &[
        "title",
        "description",
        "nullable",
        "minItems",
        "maxItems",
        "minProperties",
        "maxProperties",
        "minLength",
        "maxLength",
        "pattern",
        "example",
        "default",
        "minimum",
        "maximum",
        "propertyOrdering",
    ],
    formats: &["date-time", "enum", "float", "double", "int32", "int64"],
    ..GEMINI_JSON
};

impl Rules {
    /// Whether a member that holds no schema may stay.
    pub(super) fn keeps(&self, schema: &Metadata, name: &str, value: &Value) -> bool {
        match name {
            "format" => value.as_str().is_some_and(|format| self.formats.contains(&format)),
            // The only limit that Claude takes.
            "minItems" if !self.keywords.contains(&name) => {
                self.ref_siblings && matches!(value.as_u64(), Some(0 | 1))
            }
            "pattern" => {
                self.keywords.contains(&name)
                    && types(schema).is_none_or(|kinds| kinds.contains(&"string"))
                    && value.as_str().is_some_and(|pattern| self.nullable || is_regular(pattern))
            }
            name => self.keywords.contains(&name),
        }
    }

    /// Whether a value may be in a list of values.
    pub(super) fn lists(&self, value: &Value) -> bool {
        match self.enums {
            Enums::Scalars => !value.is_array() && !value.is_object(),
            Enums::StringsAndNumbers => value.is_string() || value.is_number() || value.is_null(),
            Enums::Strings => {
                value.as_str().is_some_and(|text| !text.is_empty()) || value.is_null()
            }
        }
    }
}

/// Whether a pattern neither looks around nor back.
fn is_regular(pattern: &str) -> bool {
    let refers_back = pattern.as_bytes().windows(2).any(|two| {
        two[0] == b'\\' && (matches!(two[1], b'b' | b'B' | b'k') || (b'1'..=b'9').contains(&two[1]))
    });
    !pattern.contains("(?") && !refers_back
}

/// Whether a constraint constrains nothing.
pub(super) fn is_vacuous(name: &str, value: &Value) -> bool {
    match name {
        "minItems" | "minLength" | "minProperties" | "minContains" => value.as_u64() == Some(0),
        "uniqueItems" => *value == false,
        "required" => value.as_array().is_some_and(Vec::is_empty),
        "patternProperties" | "dependentRequired" | "dependentSchemas" => {
            value.as_object().is_some_and(Metadata::is_empty)
        }
        "propertyNames" | "unevaluatedItems" => {
            *value == true || value.as_object().is_some_and(Metadata::is_empty)
        }
        _ => false,
    }
}
