//! Connections with one certain reading, and messages without. The rules are those of RFC 9112 and RFC 9110 section
//! 5.5; the ideas for breaking them come from published request-smuggling reports.

use super::super::ViolationKind::{self, *};

/// The head of a message with a chunked body.
pub(super) const CHUNKED_HEAD: &[u8] = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";

/// Name, number of requests, bytes of a whole connection.
pub(super) const VALID: &[(&str, u64, &[u8])] = &[
    ("nothing", 0, b""),
    ("get", 1, b"GET / HTTP/1.1\r\nHost: gw.test\r\n\r\n"),
    ("http/1.0 without host", 1, b"GET / HTTP/1.0\r\n\r\n"),
    ("http/1.0 with length", 1, b"POST / HTTP/1.0\r\nContent-Length: 2\r\n\r\nab"),
    ("length", 1, b"POST /classify HTTP/1.1\r\nHost: gw.test\r\nContent-Length: 4\r\n\r\nabcd"),
    ("length zero", 1, b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"),
    ("length with leading zeros", 1, b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0003\r\n\r\nabc"),
    (
        "body that looks like a request",
        1,
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 16\r\n\r\nGET / HTTP/9.9\n\n",
    ),
    ("body of any bytes", 1, b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\n\r\n\0\r\n\n\xff\r"),
    (
        "chunked",
        1,
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    ),
    ("chunked in capitals", 1, b"POST / HTTP/1.1\r\nHOST: a\r\nTRANSFER-ENCODING: CHUNKED\r\n\r\n0\r\n\r\n"),
    (
        "chunked between tabs",
        1,
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\tchunked\t \r\n\r\n0\r\n\r\n",
    ),
    ("chunked get", 1, b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nHost: a\r\n\r\n0\r\n\r\n"),
    (
        "chunks of any bytes",
        1,
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n\r\n\0\r\n2\r\n0\r\r\n0\r\n\r\n",
    ),
    (
        "chunk size in sixteen digits",
        1,
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n000000000000000a\r\n0123456789\r\n0000\r\n\r\n",
    ),
    (
        "chunk size in both cases",
        1,
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nA\r\n0123456789\r\nb\r\n0123456789a\r\n0\r\n\r\n",
    ),
    (
        "chunk extensions",
        1,
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1;a=b; c=\"d;\\\"e\"\r\nx\r\n0;last\r\n\r\n",
    ),
    (
        "trailers",
        1,
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nDigest: \xe9\r\nX:\r\n\r\n",
    ),
    ("absolute target", 1, b"GET http://gw.test/x HTTP/1.1\r\nHost: gw.test\r\n\r\n"),
    ("asterisk target", 1, b"OPTIONS * HTTP/1.1\r\nHost: gw.test\r\n\r\n"),
    ("target with obs-text", 1, b"GET /\xc3\xa9?q={a|b} HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("method of our own", 1, b"M-SEARCH! /x HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("lower case connect is another method", 1, b"connect /x HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("host with port", 1, b"GET / HTTP/1.1\r\nHost: gw-1_a.test:8443\r\n\r\n"),
    ("host as address", 1, b"GET / HTTP/1.1\r\nHost: [2001:db8::1]:80\r\n\r\n"),
    ("empty host", 1, b"GET / HTTP/1.1\r\nHost:\r\n\r\n"),
    (
        "values with tab and obs-text",
        1,
        b"GET / HTTP/1.1\r\nHost:a\r\nX:\t a\tb \xc3\xa9\x80\xff \t\r\nY:\r\n\r\n",
    ),
    ("colons in a value", 1, b"GET / HTTP/1.1\r\nHost: a\r\nX: b:c:\r\n\r\n"),
    (
        "names near the framing fields",
        1,
        b"GET / HTTP/1.1\r\nHost: a\r\nContent_Length: x\r\nTransfer-Encodin: y\r\n\r\n",
    ),
    ("empty lines first", 1, b"\r\n\r\n\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n"),
    (
        "empty line after a body",
        2,
        b"POST / HTTP/1.0\r\nContent-Length: 1\r\n\r\nx\r\nGET / HTTP/1.0\r\n\r\n",
    ),
    ("empty lines last", 1, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n\r\n\r\n"),
    (
        // Length and body agree, so what follows is a request and is seen as one.
        "request after the end of a body",
        2,
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nabcdGET /admin/entries HTTP/1.1\r\nHost: a\r\n\r\n",
    ),
    (
        "chunked, then length, then none",
        3,
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n\
          POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n0GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    ),
];

/// Name, what its head is refused as, bytes from the start of the message.
pub(super) const INVALID_HEADS: &[(&str, ViolationKind, &[u8])] = &[
    // Two lengths at once.
    (
        "length, then chunked",
        LengthAndTransferEncoding,
        b"POST /classify HTTP/1.1\r\nHost: gw.test\r\nAuthorization: Bearer tok-1\r\nContent-Type: application/json\r\n\
          Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /admin/entries HTTP/1.1\r\nHost: gw.test\r\n\r\n",
    ),
    (
        "chunked, then length",
        LengthAndTransferEncoding,
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
    ),
    (
        "chunked, then length zero",
        LengthAndTransferEncoding,
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n0\r\n\r\n",
    ),
    // Transfer-Encoding.
    (
        "chunked, chunked",
        RepeatedTransferEncoding,
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked, chunked\r\n\r\n",
    ),
    (
        "chunked,gzip,chunked",
        RepeatedTransferEncoding,
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked,gzip,chunked\r\n\r\n",
    ),
    (
        "chunked in two fields",
        RepeatedTransferEncoding,
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
    ),
    (
        "chunked, then identity in a second field",
        RepeatedTransferEncoding,
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\ntransfer-encoding: identity\r\n\r\n",
    ),
    ("junk, chunked", UnknownTransferCoding, b"POST / HTTP/1.1\r\nTransfer-Encoding: JUNK, chunked\r\n\r\n"),
    ("gzip", UnknownTransferCoding, b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n"),
    (
        "gzip with a parameter",
        UnknownTransferCoding,
        b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip ;q=1\r\n\r\n",
    ),
    (
        "chunked, identity",
        UnknownTransferCoding,
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked, identity\r\n\r\n",
    ),
    ("xchunked", UnknownTransferCoding, b"POST / HTTP/1.1\r\nTransfer-Encoding: xchunked\r\n\r\n"),
    ("empty coding", MalformedTransferEncoding, b"POST / HTTP/1.1\r\nTransfer-Encoding:\r\n\r\n"),
    ("empty element", MalformedTransferEncoding, b"POST / HTTP/1.1\r\nTransfer-Encoding: , chunked\r\n\r\n"),
    ("trailing comma", MalformedTransferEncoding, b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked,\r\n\r\n"),
    (
        "quoted coding",
        MalformedTransferEncoding,
        b"POST / HTTP/1.1\r\nTransfer-Encoding: \"chunked\"\r\n\r\n",
    ),
    (
        "chunked with a parameter",
        MalformedTransferEncoding,
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked;q=1\r\n\r\n",
    ),
    ("two words", MalformedTransferEncoding, b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked gzip\r\n\r\n"),
    (
        "chunked with obs-text",
        MalformedTransferEncoding,
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\xa0\r\n\r\n",
    ),
    (
        "vertical tab before chunked",
        ControlByte,
        b"POST / HTTP/1.1\r\nTransfer-Encoding: \x0bchunked\r\n\r\n",
    ),
    ("vertical tab after chunked", ControlByte, b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\x0b\r\n\r\n"),
    ("form feed before chunked", ControlByte, b"POST / HTTP/1.1\r\nTransfer-Encoding: \x0cchunked\r\n\r\n"),
    (
        "chunked in http/1.0",
        TransferEncodingInHttp10,
        b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ),
    // Content-Length.
    ("equal list", MalformedContentLength, b"POST / HTTP/1.1\r\nContent-Length: 5, 5\r\n\r\nhello"),
    ("unequal list", MalformedContentLength, b"POST / HTTP/1.1\r\nContent-Length: 5,6\r\n\r\nhello"),
    ("plus", MalformedContentLength, b"POST / HTTP/1.1\r\nContent-Length: +5\r\n\r\nhello"),
    ("minus", MalformedContentLength, b"POST / HTTP/1.1\r\nContent-Length: -5\r\n\r\nhello"),
    ("empty length", MalformedContentLength, b"POST / HTTP/1.1\r\nContent-Length:\r\n\r\n"),
    ("only spaces", MalformedContentLength, b"POST / HTTP/1.1\r\nContent-Length: \t \r\n\r\n"),
    ("hexadecimal", MalformedContentLength, b"POST / HTTP/1.1\r\nContent-Length: 0x5\r\n\r\nhello"),
    ("fraction", MalformedContentLength, b"POST / HTTP/1.1\r\nContent-Length: 5.0\r\n\r\nhello"),
    ("underscore", MalformedContentLength, b"POST / HTTP/1.1\r\nContent-Length: 1_0\r\n\r\nhello"),
    ("two numbers", MalformedContentLength, b"POST / HTTP/1.1\r\nContent-Length: 5 5\r\n\r\nhello"),
    ("quoted length", MalformedContentLength, b"POST / HTTP/1.1\r\nContent-Length: \"5\"\r\n\r\nhello"),
    (
        "more than 64 bits",
        MalformedContentLength,
        b"POST / HTTP/1.1\r\nContent-Length: 18446744073709551616\r\n\r\n",
    ),
    (
        "far more than 64 bits",
        MalformedContentLength,
        b"POST / HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n",
    ),
    (
        "equal fields",
        RepeatedContentLength,
        b"POST / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
    ),
    (
        "unequal fields",
        RepeatedContentLength,
        b"POST / HTTP/1.1\r\nContent-Length: 5\r\ncontent-length: 6\r\n\r\nhello!",
    ),
    // Line ends.
    ("bare lf after the request line", BareLineFeed, b"GET / HTTP/1.1\nHost: a\r\n\r\n"),
    ("bare lf after a field", BareLineFeed, b"GET / HTTP/1.1\r\nHost: a\n\r\n"),
    ("bare lf at the end of the head", BareLineFeed, b"GET / HTTP/1.1\r\nHost: a\r\n\n"),
    (
        "bare lf in a value",
        BareLineFeed,
        b"GET / HTTP/1.1\r\nHost: a\r\nX: y\nTransfer-Encoding: chunked\r\n\r\n",
    ),
    ("bare lf first", BareLineFeed, b"\nGET / HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("bare cr in the request line", BareCarriageReturn, b"GET /\r HTTP/1.1\r\nHost: a\r\n\r\n"),
    (
        "bare cr in a value",
        BareCarriageReturn,
        b"GET / HTTP/1.1\r\nHost: a\r\nX: y\rTransfer-Encoding: chunked\r\n\r\n",
    ),
    ("bare cr in a name", BareCarriageReturn, b"GET / HTTP/1.1\r\nHost: a\r\n\rX: y\r\n\r\n"),
    ("two cr", BareCarriageReturn, b"GET / HTTP/1.1\r\nHost: a\r\r\n\r\n"),
    ("two cr at the end of the head", BareCarriageReturn, b"GET / HTTP/1.1\r\nHost: a\r\n\r\r\n"),
    ("nul in a value", ControlByte, b"GET / HTTP/1.1\r\nHost: a\r\nX: y\0z\r\n\r\n"),
    ("nul in a name", ControlByte, b"GET / HTTP/1.1\r\nHost: a\r\nX\0: y\r\n\r\n"),
    ("nul in the target", ControlByte, b"GET /a\0b HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("del in a value", ControlByte, b"GET / HTTP/1.1\r\nHost: a\r\nX: \x7f\r\n\r\n"),
    // Request line.
    ("http/0.9", MalformedRequestLine, b"GET /\r\n"),
    ("no target", MalformedRequestLine, b"GET HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("empty target", MalformedRequestLine, b"GET  HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("two spaces before the target", MalformedRequestLine, b"GET  / HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("two spaces before the version", MalformedRequestLine, b"GET /  HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("space after the version", MalformedRequestLine, b"GET / HTTP/1.1 \r\nHost: a\r\n\r\n"),
    ("space in the target", MalformedRequestLine, b"GET /a b HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("tab in the target", MalformedRequestLine, b"GET /a\tb HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("tab as separator", MalformedRequestLine, b"GET\t/ HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("space first", MalformedRequestLine, b" GET / HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("method that is no token", MalformedRequestLine, b"G@T / HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("a binary protocol", MalformedRequestLine, b"\x16\x03\x01\x02\0\x01\0\x01\xfc"),
    ("lower case version", MalformedRequestLine, b"GET / http/1.1\r\nHost: a\r\n\r\n"),
    ("short version", MalformedRequestLine, b"GET / HTTP/1\r\nHost: a\r\n\r\n"),
    ("long version", MalformedRequestLine, b"GET / HTTP/1.10\r\nHost: a\r\n\r\n"),
    ("version of another protocol", MalformedRequestLine, b"GET / RTSP/1.1\r\nHost: a\r\n\r\n"),
    ("http/1.2", UnsupportedVersion, b"GET / HTTP/1.2\r\nHost: a\r\n\r\n"),
    ("http/0.9 spelt out", UnsupportedVersion, b"GET / HTTP/0.9\r\nHost: a\r\n\r\n"),
    ("http/2 preface", UnsupportedVersion, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    ("connect", Connect, b"CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n"),
    // Fields.
    ("folded line", FoldedLine, b"GET / HTTP/1.1\r\nHost: a\r\nX: y\r\n z\r\n\r\n"),
    (
        "folded with a tab",
        FoldedLine,
        b"GET / HTTP/1.1\r\nHost: a\r\nX:\r\n\tTransfer-Encoding: chunked\r\n\r\n",
    ),
    (
        "coding on a folded line",
        MalformedTransferEncoding,
        b"POST / HTTP/1.1\r\nTransfer-Encoding:\r\n chunked\r\n\r\n",
    ),
    ("folded first", FoldedLine, b"GET / HTTP/1.1\r\n Host: a\r\n\r\n"),
    ("line of one space", FoldedLine, b"GET / HTTP/1.1\r\nHost: a\r\n \r\n\r\n"),
    (
        "space before the colon",
        WhitespaceBeforeColon,
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length : 5\r\n\r\nhello",
    ),
    (
        "tab before the colon",
        WhitespaceBeforeColon,
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding\t: chunked\r\n\r\n",
    ),
    ("no colon", MalformedFieldLine, b"GET / HTTP/1.1\r\nHost: a\r\nX\r\n\r\n"),
    ("empty name", MalformedFieldLine, b"GET / HTTP/1.1\r\nHost: a\r\n: y\r\n\r\n"),
    ("space in a name", MalformedFieldLine, b"GET / HTTP/1.1\r\nHost: a\r\nX Y: z\r\n\r\n"),
    ("obs-text in a name", MalformedFieldLine, b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length\xa0: 5\r\n\r\n"),
    ("no host", MissingHost, b"GET / HTTP/1.1\r\n\r\n"),
    ("no host with a body", MissingHost, b"POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello"),
    ("two hosts", RepeatedHost, b"GET / HTTP/1.1\r\nHost: a\r\nhost: a\r\n\r\n"),
    ("two hosts in http/1.0", RepeatedHost, b"GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n"),
    ("host with a path", MalformedHost, b"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n"),
    ("host with user information", MalformedHost, b"GET / HTTP/1.1\r\nHost: a@b\r\n\r\n"),
    ("host with a space", MalformedHost, b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n"),
];

/// Name, what it is refused as, chunked body that follows [`CHUNKED_HEAD`].
pub(super) const INVALID_BODIES: &[(&str, ViolationKind, &[u8])] = &[
    // Chunks.
    ("size 0x5", MalformedChunkSize, b"0x5\r\nhello\r\n0\r\n\r\n"),
    ("space after the size", MalformedChunkSize, b"5 \r\nhello\r\n0\r\n\r\n"),
    ("space before the size", MalformedChunkSize, b" 5\r\nhello\r\n0\r\n\r\n"),
    ("space before an extension", MalformedChunkSize, b"5 ;a=b\r\nhello\r\n0\r\n\r\n"),
    ("seventeen digits", MalformedChunkSize, b"00000000000000005\r\nhello\r\n0\r\n\r\n"),
    ("seventeen digits that wrap to five", MalformedChunkSize, b"10000000000000005\r\nhello\r\n0\r\n\r\n"),
    ("no size", MalformedChunkSize, b"\r\nhello\r\n0\r\n\r\n"),
    ("only an extension", MalformedChunkSize, b";a\r\nhello\r\n0\r\n\r\n"),
    ("negative size", MalformedChunkSize, b"-1\r\nhello\r\n0\r\n\r\n"),
    ("signed size", MalformedChunkSize, b"+5\r\nhello\r\n0\r\n\r\n"),
    ("size with a letter", MalformedChunkSize, b"5g\r\nhello\r\n0\r\n\r\n"),
    ("bare lf after the size", BareLineFeed, b"5\nhello\r\n0\r\n\r\n"),
    ("bare lf in an extension", BareLineFeed, b"5;a\nb\r\nhello\r\n0\r\n\r\n"),
    ("bare cr in an extension", BareCarriageReturn, b"5;a\rb\r\nhello\r\n0\r\n\r\n"),
    ("nul after the size", ControlByte, b"5\0\r\nhello\r\n0\r\n\r\n"),
    ("data longer than its size", MissingChunkEnd, b"3\r\nhello\r\n0\r\n\r\n"),
    ("bare lf after the data", MissingChunkEnd, b"5\r\nhello\n0\r\n\r\n"),
    ("bare cr after the data", MissingChunkEnd, b"5\r\nhello\r0\r\n\r\n"),
    ("no line end after the data", MissingChunkEnd, b"5\r\nhello0\r\n\r\n"),
    ("bare lf ends the body", BareLineFeed, b"0\r\n\n"),
    // Trailers.
    ("folded trailer", FoldedLine, b"0\r\nX: y\r\n z\r\n\r\n"),
    ("trailer without a colon", MalformedFieldLine, b"0\r\nGET / HTTP/1.1\r\n\r\n"),
    ("space before a trailer's colon", WhitespaceBeforeColon, b"0\r\nX : y\r\n\r\n"),
    ("bare lf after a trailer", BareLineFeed, b"0\r\nX: y\n\r\n"),
    ("length as a trailer", ForbiddenTrailer, b"0\r\nContent-Length: 5\r\n\r\n"),
    ("chunked as a trailer", ForbiddenTrailer, b"0\r\nTransfer-Encoding: chunked\r\n\r\n"),
    ("host as a trailer", ForbiddenTrailer, b"0\r\nHost: b\r\n\r\n"),
];
