//! The query of a request to the jobs API.

use std::ops::RangeInclusive;

use nevertwice_domain::job::{JobId, JobStatus};
use nevertwice_domain::outcome::OwnCode;
use nevertwice_domain::tenant::UpstreamName;

use crate::exchange::Rejection;

/// More parameters than there are names for; so many are not looked at.
const PAIRS_MAX: usize = 8;

/// Names and values, each name once.
pub(super) struct Query(Vec<(String, String)>);

fn wrong(detail: &'static str) -> Rejection {
    Rejection::with(OwnCode::BadRequest, detail)
}

impl Query {
    pub(super) fn of(query: Option<&str>) -> Result<Self, Rejection> {
        let mut pairs: Vec<(String, String)> = Vec::new();
        for (name, value) in form_urlencoded::parse(query.unwrap_or_default().as_bytes()) {
            if pairs.len() == PAIRS_MAX {
                return Err(wrong("there are more than 8 query parameters"));
            }
            if pairs.iter().any(|(known, _)| **known == *name) {
                return Err(wrong("a query parameter is there twice"));
            }
            pairs.push((name.into_owned(), value.into_owned()));
        }
        Ok(Self(pairs))
    }

    /// Whether there are no others than these.
    pub(super) fn only(&self, names: &[&str]) -> Result<(), Rejection> {
        match self.0.iter().all(|(name, _)| names.contains(&name.as_str())) {
            true => Ok(()),
            false => Err(wrong(
                "an unknown query parameter: one job takes wait; the list status, upstream, limit and cursor",
            )),
        }
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub(super) fn number(&self, name: &str, range: RangeInclusive<u64>) -> Result<Option<u64>, Rejection> {
        let Some(text) = self.get(name) else { return Ok(None) };
        let number = text.parse().ok().filter(|number| range.contains(number));
        number.map(Some).ok_or_else(|| wrong("wait is 0 to 60 seconds, limit is 1 to 1000"))
    }

    pub(super) fn upstream(&self, name: &str) -> Result<Option<UpstreamName>, Rejection> {
        let Some(text) = self.get(name) else { return Ok(None) };
        UpstreamName::new(text).map(Some).map_err(|_| wrong("upstream is the name of one"))
    }

    pub(super) fn status(&self, name: &str) -> Result<Option<JobStatus>, Rejection> {
        let Some(text) = self.get(name) else { return Ok(None) };
        let known = JobStatus::ALL.iter().find(|status| status.name() == text);
        known
            .copied()
            .map(Some)
            .ok_or_else(|| wrong("status is queued, running, succeeded, failed or cancelled"))
    }

    pub(super) fn cursor(&self, name: &str) -> Result<Option<JobId>, Rejection> {
        let Some(text) = self.get(name) else { return Ok(None) };
        text.parse().map(Some).map_err(|_| wrong("cursor is the next_cursor of the page before"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_has_few_parameters_and_each_once() {
        let of = |n: usize| (0..n).map(|i| format!("p{i}=1")).collect::<Vec<_>>().join("&");
        assert!(Query::of(Some(&of(8))).is_ok_and(|query| query.0.len() == 8));
        assert!(Query::of(Some(&of(9))).is_err() && Query::of(Some(&of(100_000))).is_err());
        assert!(Query::of(Some("a=1&a=2")).is_err() && Query::of(None).is_ok());
    }
}
