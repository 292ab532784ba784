//! Jobs.

use super::Context;
use crate::bounds;
use crate::checked::{Jobs, Webhooks};
use crate::raw::read::At;
use crate::raw::{self, Config};
use crate::secret::{self, Purpose};

/// Whether jobs are served: the block is there, or an upstream is for them.
pub(super) fn served(config: &Config) -> bool {
    let mut upstreams = config.upstreams.iter().flat_map(|list| &list.value);
    config.jobs.is_some() || upstreams.any(|raw| super::upstreams::adapter(&raw.value).for_jobs())
}

pub(super) fn jobs(config: &Config, cx: &mut Context<'_>) -> Option<Jobs> {
    if !served(config) {
        return None;
    }
    let none = raw::Jobs::default();
    let raw = config.jobs.as_ref().map_or(&none, |jobs| &jobs.value);
    let max_attempts = bounds::MAX_ATTEMPTS.take(raw.max_attempts.as_ref(), cx.found);
    let retry_first = cx.millis(&bounds::RETRY_FIRST_MS, raw.retry_first_ms.as_ref());
    let retry_max = cx.millis(&bounds::RETRY_MAX_MS, raw.retry_max_ms.as_ref());
    let told = ["jobs.retry_first_ms", "jobs.retry_max_ms"].iter().any(|path| cx.found.explains(path));
    if let Some(At { place, .. }) = raw.retry_first_ms.as_ref().or(raw.retry_max_ms.as_ref())
        && retry_first > retry_max
        && !told
    {
        let cause = format!(
            "the first wait of {} ms is longer than the longest of {} ms",
            retry_first.as_millis(),
            retry_max.as_millis()
        );
        cx.found.error(place, cause, "lower `retry_first_ms` or raise `retry_max_ms`");
    }
    let input_max_bytes = bounds::INPUT_MAX_BYTES.take(raw.input_max_bytes.as_ref(), cx.found);
    let max_bytes = bounds::MAX_BYTES.take(raw.max_bytes.as_ref(), cx.found);
    let told = ["jobs.input_max_bytes", "jobs.max_bytes"].iter().any(|path| cx.found.explains(path));
    if let Some(At { place, .. }) = &raw.max_bytes
        && max_bytes / 2 < input_max_bytes
        && !told
    {
        let cause = format!("half of it has no room for a document of {input_max_bytes} bytes");
        cx.found.error(place, cause, "raise `max_bytes` or lower `input_max_bytes`");
    }
    Some(Jobs {
        input_max_bytes,
        result_max_bytes: bounds::RESULT_MAX_BYTES.take(raw.result_max_bytes.as_ref(), cx.found),
        max_queued: bounds::MAX_QUEUED.take(raw.max_queued.as_ref(), cx.found),
        max_bytes,
        retention: cx.seconds(&bounds::RETENTION_S, raw.retention_s.as_ref()),
        max_attempts: u32::try_from(max_attempts).unwrap_or(u32::MAX),
        retry_first,
        retry_max,
        webhooks: raw.webhooks.as_ref().and_then(|webhooks| self::webhooks(webhooks, cx)),
    })
}

fn webhooks(raw: &At<raw::Webhooks>, cx: &mut Context<'_>) -> Option<Webhooks> {
    let At { value: raw, place } = raw;
    let reference = cx.required(raw.secret.as_ref(), place, "secret", "add `secret: env:NAME`")?;
    let secret = secret::resolve(reference, Purpose::Signing, cx.base, cx.secrets, cx.found)?;
    Some(Webhooks { secret, allow_private: raw.allow_private.as_ref().is_some_and(|allow| allow.value) })
}
