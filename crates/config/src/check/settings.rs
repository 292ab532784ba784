//! Audit, limits and the HTTP conversation.

use super::Context;
use crate::bounds;
use crate::checked::{Audit, AuditSink, Http, Limits, OnFull};
use crate::raw;
use crate::raw::read::At;

pub(super) fn audit(raw: Option<&At<raw::Audit>>, cx: &mut Context<'_>) -> Option<Audit> {
    let At { value: raw, place } = raw?;
    let rotate_bytes = bounds::ROTATE_BYTES.given(raw.rotate_bytes.as_ref(), cx.found);
    let keep = bounds::KEEP.take(raw.keep.as_ref(), cx.found);
    let on_full = match raw.on_full.as_ref().map(|o| o.value) {
        Some(raw::OnFull::Refuse) => OnFull::Refuse,
        Some(raw::OnFull::Drop) | None => OnFull::Drop,
    };
    let stdout = raw.stdout.as_ref().is_some_and(|s| s.value);
    let sink = match (&raw.file, stdout) {
        (Some(_), true) => {
            cx.found.error(
                place,
                "audit lines go to a file or to standard output, not to both",
                "remove one of them",
            );
            return None;
        }
        (Some(file), false) => AuditSink::File(cx.path(&file.value)),
        (None, true) => AuditSink::Stdout,
        (None, false) => {
            let cure = "write `file: PATH` or `stdout: true`, or remove `audit`";
            cx.found.missing(place, "file", "`audit` does not say where lines go", cure);
            return None;
        }
    };
    for (key, place) in [
        ("rotate_bytes", raw.rotate_bytes.as_ref().map(|n| &n.place)),
        ("keep", raw.keep.as_ref().map(|n| &n.place)),
    ] {
        let Some(place) = place else { continue };
        if sink == AuditSink::Stdout {
            cx.found.warning(place, format!("`{key}` has no effect on standard output"), "remove it");
        } else if key == "keep" && raw.rotate_bytes.is_none() {
            cx.found.warning(place, "`keep` has no effect without `rotate_bytes`", "add `rotate_bytes`");
        }
    }
    Some(Audit { sink, on_full, rotate_bytes, keep: u32::try_from(keep).unwrap_or(u32::MAX) })
}

pub(super) fn limits(raw: Option<&At<raw::Limits>>, cx: &mut Context<'_>) -> Limits {
    let none = raw::Limits::default();
    let raw = raw.map_or(&none, |limits| &limits.value);
    Limits {
        body_max_bytes: bounds::BODY_MAX_BYTES.take(raw.body_max_bytes.as_ref(), cx.found),
        buffer_memory_bytes: bounds::BUFFER_MEMORY_BYTES.take(raw.buffer_memory_bytes.as_ref(), cx.found),
        spill_dir: raw.spill_dir.as_ref().map(|dir| cx.path(&dir.value)),
    }
}

pub(super) fn http(raw: Option<&At<raw::Http>>, cx: &mut Context<'_>) -> Http {
    let none = raw::Http::default();
    let raw = raw.map_or(&none, |http| &http.value);
    Http {
        header_max_bytes: cx.size(&bounds::HEADER_MAX_BYTES, raw.header_max_bytes.as_ref()),
        header_max_count: cx.size(&bounds::HEADER_MAX_COUNT, raw.header_max_count.as_ref()),
        header_timeout: cx.millis(&bounds::HEADER_TIMEOUT_MS, raw.header_timeout_ms.as_ref()),
        body_idle_timeout: cx.millis(&bounds::BODY_IDLE_TIMEOUT_MS, raw.body_idle_timeout_ms.as_ref()),
        body_min_rate: bounds::BODY_MIN_RATE_BYTES_S.take(raw.body_min_rate_bytes_s.as_ref(), cx.found),
        write_stall_timeout: cx.millis(&bounds::WRITE_STALL_TIMEOUT_MS, raw.write_stall_timeout_ms.as_ref()),
        keep_alive: cx.millis(&bounds::KEEP_ALIVE_TIMEOUT_MS, raw.keep_alive_timeout_ms.as_ref()),
        max_connections: cx.size(&bounds::MAX_CONNECTIONS, raw.max_connections.as_ref()),
        h2: raw.h2.as_ref().is_none_or(|h2| h2.value),
    }
}
