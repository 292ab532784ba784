//! The closed list of reasons for which a connection's bytes are refused.

use std::error::Error;
use std::fmt;

/// Where and why the bytes of a connection stopped having one certain reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The rule that was broken.
    pub kind: ViolationKind,
    /// True if the head of the offending message was valid and its body, chunk framing or trailer section is not.
    pub in_body: bool,
    /// Bytes of the refused feed that come before the offending message. They are valid and may be passed on. It is 0
    /// when that message began in an earlier feed, even if the violation comes after some valid bytes of this one.
    pub valid_prefix: usize,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.detail())
    }
}

impl Error for Violation {}

/// Every rule a request's framing can break. Section numbers are those of RFC 9112 unless stated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ViolationKind {
    /// A head or trailer section exceeds its limit in bytes.
    HeadTooLarge,
    /// A head or trailer section exceeds its limit in field lines.
    TooManyFields,
    /// Many empty lines where a request line should be (section 2.2).
    TooManyEmptyLines,
    /// A line ends in LF without CR (section 2.2).
    BareLineFeed,
    /// A CR that no LF follows (section 2.2).
    BareCarriageReturn,
    /// A control byte other than HTAB in a line (RFC 9110 section 5.5).
    ControlByte,
    /// Not `method SP request-target SP HTTP-version` (section 3).
    MalformedRequestLine,
    /// An HTTP version other than 1.0 and 1.1 (section 2.3).
    UnsupportedVersion,
    /// The CONNECT method (RFC 9110 section 9.3.6): after it the bytes are no longer HTTP.
    Connect,
    /// A field line that starts with whitespace (sections 2.2 and 5.2).
    FoldedLine,
    /// Whitespace between a field name and its colon (section 5.1).
    WhitespaceBeforeColon,
    /// A field line without a colon, or whose name is not a token (section 5).
    MalformedFieldLine,
    /// More than one Host field (section 3.2).
    RepeatedHost,
    /// An HTTP/1.1 request without Host (section 3.2).
    MissingHost,
    /// A Host value with bytes that are in no host or port (section 3.2).
    MalformedHost,
    /// A Content-Length that is not one decimal number of at most 64 bits (section 6.3).
    MalformedContentLength,
    /// More than one Content-Length field (section 6.3).
    RepeatedContentLength,
    /// Content-Length and Transfer-Encoding in one head (section 6.3).
    LengthAndTransferEncoding,
    /// More than one Transfer-Encoding field, or chunked named twice (section 6.1).
    RepeatedTransferEncoding,
    /// A Transfer-Encoding that is not a list of codings (section 6.1).
    MalformedTransferEncoding,
    /// A transfer coding other than chunked (section 6.1).
    UnknownTransferCoding,
    /// Transfer-Encoding in an HTTP/1.0 request (section 6.1).
    TransferEncodingInHttp10,
    /// A chunk size that is not one to sixteen hexadecimal digits (section 7.1).
    MalformedChunkSize,
    /// A chunk-size line longer than the bound on its extensions (section 7.1.1).
    ChunkLineTooLong,
    /// Chunk data that is not followed by CRLF (section 7.1).
    MissingChunkEnd,
    /// Host, Content-Length or Transfer-Encoding in a trailer section (RFC 9110 section 6.5.1).
    ForbiddenTrailer,
}

impl ViolationKind {
    /// A short text for the answer and the log.
    pub fn detail(self) -> &'static str {
        match self {
            Self::HeadTooLarge => "head or trailer section too large",
            Self::TooManyFields => "too many header fields",
            Self::TooManyEmptyLines => "too many empty lines before the request line",
            Self::BareLineFeed => "line feed without carriage return",
            Self::BareCarriageReturn => "carriage return without line feed",
            Self::ControlByte => "control byte in a line",
            Self::MalformedRequestLine => "malformed request line",
            Self::UnsupportedVersion => "unsupported HTTP version",
            Self::Connect => "method CONNECT is not supported",
            Self::FoldedLine => "header line starts with whitespace",
            Self::WhitespaceBeforeColon => "whitespace before the colon of a header field",
            Self::MalformedFieldLine => "malformed header field",
            Self::RepeatedHost => "more than one host field",
            Self::MissingHost => "host field missing",
            Self::MalformedHost => "malformed host field",
            Self::MalformedContentLength => "malformed content-length",
            Self::RepeatedContentLength => "more than one content-length field",
            Self::LengthAndTransferEncoding => "both content-length and transfer-encoding",
            Self::RepeatedTransferEncoding => "more than one transfer-encoding",
            Self::MalformedTransferEncoding => "malformed transfer-encoding",
            Self::UnknownTransferCoding => "unknown transfer coding",
            Self::TransferEncodingInHttp10 => "transfer-encoding in an HTTP/1.0 request",
            Self::MalformedChunkSize => "malformed chunk size",
            Self::ChunkLineTooLong => "chunk size line too long",
            Self::MissingChunkEnd => "chunk data not followed by a line end",
            Self::ForbiddenTrailer => "framing field in the trailer section",
        }
    }

    /// The status of the answer: 400, 431, 501 or 505.
    pub fn status(self) -> u16 {
        match self {
            Self::HeadTooLarge | Self::TooManyFields => 431,
            Self::Connect | Self::UnknownTransferCoding => 501,
            Self::UnsupportedVersion => 505,
            Self::TooManyEmptyLines
            | Self::BareLineFeed
            | Self::BareCarriageReturn
            | Self::ControlByte
            | Self::MalformedRequestLine
            | Self::FoldedLine
            | Self::WhitespaceBeforeColon
            | Self::MalformedFieldLine
            | Self::RepeatedHost
            | Self::MissingHost
            | Self::MalformedHost
            | Self::MalformedContentLength
            | Self::RepeatedContentLength
            | Self::LengthAndTransferEncoding
            | Self::RepeatedTransferEncoding
            | Self::MalformedTransferEncoding
            | Self::TransferEncodingInHttp10
            | Self::MalformedChunkSize
            | Self::ChunkLineTooLong
            | Self::MissingChunkEnd
            | Self::ForbiddenTrailer => 400,
        }
    }
}
