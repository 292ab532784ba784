//! Every way a request can end: the closed list behind the audit's `code`, the metrics' `code` label and the pages in
//! `docs/outcomes`.

use std::fmt;

use http::StatusCode;

use crate::status::RefusalStatus;

/// How an exchange ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The upstream answered 2xx or 3xx.
    Ok,
    /// The upstream answered with this 4xx or 5xx.
    Upstream(StatusCode),
    /// The upstream answered with a 200, and says in its body that the operation failed.
    FailedOperation,
    /// Answered from the memory.
    Replayed(RefusalStatus),
    /// Answered by the loop breaker, with the upstream's last answer.
    Held(StatusCode),
    /// Answered by the gateway itself.
    Own(OwnCode),
}

impl Outcome {
    /// The outcome of an upstream's answer with this status, where nothing more is known of it.
    #[must_use]
    pub fn of_upstream(status: StatusCode) -> Self {
        if status.as_u16() < 400 { Self::Ok } else { Self::Upstream(status) }
    }
}

/// `OK`, `HTTP_nnn`, `FAILED_HTTP_200`, `REFUSED_HTTP_nnn`, `HELD_HTTP_nnn` or one of the gateway's own codes.
impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ok => f.write_str("OK"),
            Self::Upstream(status) => write!(f, "HTTP_{}", status.as_u16()),
            Self::FailedOperation => write!(f, "FAILED_HTTP_{}", RefusalStatus::failed_operation()),
            Self::Replayed(status) => write!(f, "REFUSED_HTTP_{status}"),
            Self::Held(status) => write!(f, "HELD_HTTP_{}", status.as_u16()),
            Self::Own(code) => f.write_str(code.name()),
        }
    }
}

macro_rules! own_codes {
    ($($(#[$doc:meta])* $variant:ident $name:literal $status:literal $title:literal;)*) => {
        /// The answers that the gateway makes itself. Never recorded, never confused with an upstream's answer.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum OwnCode {
            $($(#[$doc])* $variant,)*
        }

        impl OwnCode {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The stable name: in the audit, in `X-Gateway-Error` and as the name of its page in `docs/outcomes`.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }

            /// The HTTP status it is answered with.
            #[must_use]
            pub fn status(self) -> u16 {
                match self { $(Self::$variant => $status),* }
            }

            /// One short sentence for people: the `title` of the problem document (RFC 9457).
            #[must_use]
            pub fn title(self) -> &'static str {
                match self { $(Self::$variant => $title),* }
            }
        }
    };
}

own_codes! {
    /// The request cannot be read as one HTTP request.
    BadRequest "BAD_REQUEST" 400 "the request is not a well-formed HTTP request";
    /// The `Idempotency-Key` cannot be one.
    BadIdempotencyKey "BAD_IDEMPOTENCY_KEY" 400 "the Idempotency-Key has to be 1 to 255 printable ASCII characters";
    /// The webhook's address is not allowed, or there are no webhooks.
    WebhookRefused "WEBHOOK_REFUSED" 400 "this gateway does not call that webhook";
    /// A guarded route got no document.
    EmptyDocument "EMPTY_DOCUMENT" 400 "the document is empty";
    /// No valid credential, or a contradictory one.
    Unauthenticated "UNAUTHENTICATED" 401 "a valid key is required";
    /// The tenant may not call this upstream.
    ForbiddenRoute "FORBIDDEN_ROUTE" 403 "this tenant may not call this route";
    /// No upstream is mounted there, or its paths are strict.
    NoRoute "NO_ROUTE" 404 "no upstream serves this path";
    /// No operation with this id, or none of this tenant, or none any more.
    OperationNotFound "OPERATION_NOT_FOUND" 404 "there is no such operation";
    /// No job with this id, or none of this tenant, or none any more.
    JobNotFound "JOB_NOT_FOUND" 404 "there is no such job";
    /// The job came to its end without an answer of the upstream.
    NoResult "NO_RESULT" 404 "the job has no result";
    /// The body came too slowly, or stopped coming.
    BodyTimeout "BODY_TIMEOUT" 408 "the request body did not arrive in time";
    /// The job's result was asked for before its end.
    JobNotFinished "JOB_NOT_FINISHED" 409 "the job has not come to its end";
    /// The replica that has the operation is no longer configured.
    OperationGone "OPERATION_GONE" 410 "the server that has this operation is no longer configured";
    /// The body is over the gateway's limit.
    BodyTooLarge "BODY_TOO_LARGE" 413 "the request body is over the gateway's limit";
    /// The `Idempotency-Key` stands for another request.
    IdempotencyMismatch "IDEMPOTENCY_MISMATCH" 422 "this Idempotency-Key was used for another request";
    /// The header section is over the gateway's limits.
    HeadersTooLarge "HEADERS_TOO_LARGE" 431 "the request's header fields are over the gateway's limits";
    /// The client left before it was answered. Never sent; it stands in the audit alone.
    ClientAborted "CLIENT_ABORTED" 499 "the client left before it was answered";
    /// The job's owner gave it up during a call. Never sent; it stands in the audit alone.
    JobCancelled "JOB_CANCELLED" 499 "the job was cancelled";
    /// A worker died in a call of a job, and what became of the call is not known. Never sent; it stands in the audit and as a job's
    /// error.
    Interrupted "INTERRUPTED" 500 "the gateway stopped during the call, and its outcome is not known";
    /// The gateway failed; a fault in the program.
    Internal "INTERNAL" 500 "the gateway failed on this request";
    /// The protocol feature is not supported.
    NotSupported "NOT_SUPPORTED" 501 "the request uses a protocol feature that the gateway does not support";
    /// The connection to the upstream could not be made.
    UpstreamUnreachable "UPSTREAM_UNREACHABLE" 502 "the upstream could not be reached; the request was not sent";
    /// The upstream closed the connection before its answer was complete.
    UpstreamClosed "UPSTREAM_CLOSED" 502 "the upstream closed the connection before it answered";
    /// The upstream's answer is not HTTP, or over the gateway's limits.
    UpstreamMalformed "UPSTREAM_MALFORMED" 502 "the upstream's answer could not be read";
    /// The upstream's answer to a job is longer than what is kept of one. Never sent; it stands in the audit and as a job's error.
    ResultTooLarge "RESULT_TOO_LARGE" 502 "the upstream's answer is over the gateway's limit for results";
    /// The upstream did not answer in time.
    UpstreamTimeout "UPSTREAM_TIMEOUT" 504 "the upstream did not answer in time";
    /// The upstream's pool and its queue are full.
    PoolFull "POOL_FULL" 503 "the upstream's queue is full";
    /// No place in the upstream's pool came free in time.
    QueueTimeout "QUEUE_TIMEOUT" 503 "no place in the upstream's pool came free in time";
    /// There is no room for another job: too many wait, or too many bytes are kept.
    JobsFull "JOBS_FULL" 503 "there is no room for another job";
    /// A job or an operation could not be kept.
    StoreUnavailable "STORE_UNAVAILABLE" 503 "the gateway's store cannot be used";
    /// The gateway is shutting down.
    Draining "DRAINING" 503 "the gateway is shutting down";
    /// The audit cannot be written and `on_full: refuse` is set.
    AuditUnavailable "AUDIT_UNAVAILABLE" 503 "the audit cannot be written, and this gateway does not serve without it";
    /// The body could not be kept on disk while it was read.
    SpillFailed "SPILL_FAILED" 507 "the request body could not be stored on the gateway's disk";
}

impl OwnCode {
    /// The HTTP status as a type.
    #[must_use]
    pub fn status_code(self) -> StatusCode {
        StatusCode::from_u16(self.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_print_as_the_audit_has_them() {
        let refused = RefusalStatus::new(422).unwrap_or_else(|e| unreachable!("{e}"));
        assert_eq!(Outcome::of_upstream(StatusCode::ACCEPTED).to_string(), "OK");
        assert_eq!(Outcome::of_upstream(StatusCode::TEMPORARY_REDIRECT).to_string(), "OK");
        assert_eq!(Outcome::of_upstream(StatusCode::BAD_REQUEST).to_string(), "HTTP_400");
        assert_eq!(Outcome::Replayed(refused).to_string(), "REFUSED_HTTP_422");
        assert_eq!(Outcome::Held(StatusCode::INTERNAL_SERVER_ERROR).to_string(), "HELD_HTTP_500");
        assert_eq!(Outcome::FailedOperation.to_string(), "FAILED_HTTP_200");
        let failed = RefusalStatus::failed_operation();
        assert_eq!(Outcome::Replayed(failed).to_string(), "REFUSED_HTTP_200");
        assert_eq!(Outcome::Own(OwnCode::PoolFull).to_string(), "POOL_FULL");
    }

    #[test]
    fn every_code_has_an_http_status() {
        for code in OwnCode::ALL {
            assert_eq!(code.status_code().as_u16(), code.status(), "{code:?}");
        }
    }
}
