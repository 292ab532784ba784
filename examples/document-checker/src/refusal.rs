//! Why a request was not answered with 200: a closed list of codes and a message that depends on the
//! document alone, so that one document always gets the same bytes back.

use std::fmt::Display;

use http::StatusCode;

/// Parser messages may quote the document; nobody needs more of it than this, in characters.
const MESSAGE_LIMIT: usize = 240;

/// The closed list of reasons, each with its status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    CorruptDocument,
    MalformedRequest,
    RequestTimeout,
    DocumentTooLarge,
    UnsupportedMediaType,
    UnprocessableDocument,
    ParserGaveUp,
    Overloaded,
    NotFound,
    MethodNotAllowed,
}

impl Code {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::CorruptDocument => "corrupt_document",
            Self::MalformedRequest => "malformed_request",
            Self::RequestTimeout => "request_timeout",
            Self::DocumentTooLarge => "document_too_large",
            Self::UnsupportedMediaType => "unsupported_media_type",
            Self::UnprocessableDocument => "unprocessable_document",
            Self::ParserGaveUp => "parser_gave_up",
            Self::Overloaded => "overloaded",
            Self::NotFound => "not_found",
            Self::MethodNotAllowed => "method_not_allowed",
        }
    }

    pub(crate) const fn status(self) -> StatusCode {
        match self {
            Self::CorruptDocument | Self::MalformedRequest => StatusCode::BAD_REQUEST,
            Self::RequestTimeout => StatusCode::REQUEST_TIMEOUT,
            Self::DocumentTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::UnsupportedMediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::UnprocessableDocument | Self::ParserGaveUp => StatusCode::UNPROCESSABLE_ENTITY,
            Self::Overloaded => StatusCode::SERVICE_UNAVAILABLE,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
        }
    }
}

/// One refusal as the caller sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) code: Code,
    pub(crate) message: String,
}

impl Refusal {
    pub(crate) fn new(code: Code, message: impl Display) -> Self {
        Self { code, message: message.to_string().chars().take(MESSAGE_LIMIT).collect() }
    }

    pub(crate) fn corrupt(message: impl Display) -> Self {
        Self::new(Code::CorruptDocument, message)
    }

    pub(crate) fn unprocessable(message: impl Display) -> Self {
        Self::new(Code::UnprocessableDocument, message)
    }

    pub(crate) fn malformed(message: impl Display) -> Self {
        Self::new(Code::MalformedRequest, message)
    }
}
