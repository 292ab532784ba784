//! From a request to the bytes of one document: reads the body within bounds and takes the document out of
//! a form. Never looks into the document.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::stream;
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use http_body::Body;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use multer::Multipart;
use tokio::time::timeout;

use crate::refusal::{Code, Refusal};

/// The largest body that `/classify` takes, in bytes (32 MiB); a larger one is answered with 413.
pub const BODY_LIMIT: usize = 32 * 1024 * 1024;

/// How much of a body that is too large is read and thrown away, in bytes. A connection closed under a
/// client that still sends is reset, and the reset can destroy the answer (RFC 9112 section 9.6).
const DISCARD_LIMIT: usize = 4 * BODY_LIMIT;

/// How long a whole body may take.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);

/// How many parts of a form are looked at in search of the first file.
const PART_LIMIT: usize = 256;

/// Reads the request body and returns the document in it.
pub(crate) async fn document(headers: &HeaderMap, body: Incoming) -> Result<Bytes, Refusal> {
    let body = timeout(BODY_TIMEOUT, read(body))
        .await
        .map_err(|_elapsed| Refusal::new(Code::RequestTimeout, "the body did not arrive in time"))??;

    let content_type = match headers.get(CONTENT_TYPE) {
        None => return Ok(body),
        Some(value) => value.to_str().map_err(|_error| Refusal::malformed("the content type is not text"))?,
    };
    let essence = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    match essence.as_str() {
        "multipart/form-data" => first_file(content_type, body).await,
        // What the document truly is shows in its bytes; the declared type only says that it is one.
        "application/pdf" | "application/octet-stream" => Ok(body),
        picture if picture.starts_with("image/") => Ok(body),
        _ => Err(Refusal::new(Code::UnsupportedMediaType, "the content type is not one this service reads")),
    }
}

async fn read(mut body: Incoming) -> Result<Bytes, Refusal> {
    let mut kept = BytesMut::new();
    let mut seen: usize = 0;
    let mut fits = body.size_hint().lower() <= BODY_LIMIT as u64;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_error| Refusal::malformed("the body broke off"))?;
        let Ok(data) = frame.into_data() else { continue };
        seen = seen.saturating_add(data.len());
        fits = fits && seen <= BODY_LIMIT;
        if fits {
            kept.extend_from_slice(&data);
        } else {
            kept = BytesMut::new();
            if seen > DISCARD_LIMIT {
                break;
            }
        }
    }
    if fits {
        Ok(kept.freeze())
    } else {
        let message = format!("the body is larger than {BODY_LIMIT} bytes");
        Err(Refusal::new(Code::DocumentTooLarge, message))
    }
}

/// The first part of the form that carries a file name (RFC 7578 section 4.2).
async fn first_file(content_type: &str, body: Bytes) -> Result<Bytes, Refusal> {
    let boundary = multer::parse_boundary(content_type).map_err(broken_form)?;
    let whole = stream::iter([Ok::<_, std::convert::Infallible>(body)]);
    let mut form = Multipart::new(whole, boundary);
    for _ in 0..PART_LIMIT {
        let Some(part) = form.next_field().await.map_err(broken_form)? else { break };
        if part.file_name().is_some() {
            return part.bytes().await.map_err(broken_form);
        }
    }
    Err(Refusal::malformed("the form has no file part"))
}

fn broken_form(error: multer::Error) -> Refusal {
    Refusal::malformed(format_args!("the form does not parse: {error}"))
}
