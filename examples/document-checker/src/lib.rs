//! A document checker: a small upstream service that parses what it is sent and refuses what is broken.
//!
//! `POST /classify` takes one document, as the raw body or as the first file part of a form, reads it with
//! a real parser (lopdf for PDF, the image crate for pictures) and answers what it is or why it cannot be
//! processed. One document always gets one answer. `GET /healthz` says that the service is up.
//!
//! | status | code | meaning |
//! |---|---|---|
//! | 200 | | the document is fine: its kind, and its pages or its size |
//! | 400 | `corrupt_document` | empty, or its kind is known and it does not decode |
//! | 400 | `malformed_request` | the form or the body around the document is broken |
//! | 408 | `request_timeout` | the body did not arrive in time |
//! | 413 | `document_too_large` | the body is larger than [`BODY_LIMIT`] |
//! | 415 | `unsupported_media_type` | neither a PDF nor a picture |
//! | 422 | `unprocessable_document` | readable, but encrypted, without pages, or too large to work on |
//! | 422 | `parser_gave_up` | the parser itself failed on this document |
//! | 503 | `overloaded` | no parser became free, or it did not finish, in time |

mod inspect;
mod intake;
mod refusal;
mod samples;
mod server;

pub use intake::BODY_LIMIT;
pub use samples::{Sample, samples};
pub use server::Checker;
