//! How a request becomes the same bytes whoever sends it: header fields without what carries no meaning, forms without
//! their boundary. What is not canonicalised here is keyed as it came.

pub mod fields;
pub mod form;
