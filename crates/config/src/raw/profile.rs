//! A profile as people write it.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator};

use super::read::{At, Key, OneOrMany, Read, Reader, Whole};
use crate::problem::Place;
use crate::tree::{Node, Value};

block! {
    /// The rules for one kind of upstream.
    Profile {
        /// Its name. Required.
        profile: String,
        /// What it is for. Required.
        about: String,
        /// Another profile, whose lists follow those of this one.
        extends: String,
        /// `json`: the service answers with JSON alone. `any`: it does not. Default `json`.
        answers: String,
        /// JSON keys, form fields and query parameters that name the input instead of carrying it.
        references: OneOrMany<String>,
        /// JSON keys whose text is the document in base64.
        documents: OneOrMany<String>,
        /// JSON pointers to the service's error codes, most exact first.
        codes: OneOrMany<String>,
        /// What says that a 200 is a failed operation; one of them is enough.
        failures: Vec<At<Condition>>,
        /// JSON pointers to what may be left out of a body that is too large to keep.
        reduce: OneOrMany<String>,
        /// The rules; the first that matches decides. Required.
        rules: Vec<At<Rule>>,
    } later []
}

block! {
    /// One rule.
    Rule {
        /// Its name. Required.
        rule: String,
        /// The statuses it judges. Required.
        status: OneOrMany<Whole>,
        /// The step it judges, `submit` or `poll`. Default both.
        phase: String,
        /// The conditions, all of which must hold. Required.
        when: Vec<At<Condition>>,
        /// What the refusal speaks about. Required.
        class: String,
        /// What is done with it. Required.
        remember: String,
        /// What it depends on.
        depends_on: OneOrMany<String>,
        /// How it is known.
        confidence: String,
        /// Where it is known from.
        source: String,
        /// What else there is to say.
        note: String,
    } later []
}

block! {
    /// A condition.
    Condition {
        /// A JSON pointer, `text` or `aws-error`.
        at: String,
        /// A JSON pointer to an Azure error object.
        leaves: String,
        /// A header field of the answer.
        header: String,
        /// `content-type` of the request.
        request: String,
        /// Equal to one of these.
        is: OneOrMany<Scalar>,
        /// With one of these in it.
        contains: OneOrMany<Scalar>,
        /// Beginning with one of these.
        starts_with: OneOrMany<Scalar>,
        /// Not there, or null.
        absent: bool,
        /// There, and not null.
        present: bool,
        /// `ignore`: ASCII case does not count.
        case: String,
    } later []
}

/// A text, a number or a truth value as text; or null.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scalar(pub(crate) Option<String>);

impl Read for Scalar {
    fn read(node: &Node, place: &Place, reader: &mut Reader<'_>) -> Option<Self> {
        match &node.value {
            Value::Null => Some(Self(None)),
            Value::Bool(word) => Some(Self(Some(word.to_string()))),
            Value::Int(number) => Some(Self(Some(number.to_string()))),
            _ => String::read(node, place, reader).map(|text| Self(Some(text))),
        }
    }
}

impl JsonSchema for Scalar {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Scalar".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        schemars::json_schema!({ "type": ["string", "integer", "boolean", "null"] })
    }
}
