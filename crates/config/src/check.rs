//! Raw to [`Checked`]: the rules that need more than one value, the bounds, and the secrets. Every problem is collected;
//! one that follows from another is not told.

use std::path::{Path, PathBuf};
use std::time::Duration;

mod base_url;
mod guarded;
mod headers;
mod identity;
mod jobs;
mod links;
mod listen;
mod memory;
mod path;
mod profiles;
mod redis_url;
mod settings;
mod store;
mod upstreams;

pub use listen::{DEFAULT_ADMIN, DEFAULT_LISTEN};

use crate::bounds::{self, Bound};
use crate::checked::Checked;
use crate::problem::{Findings, Place};
use crate::profiles::Catalog;
use crate::raw::Config;
use crate::raw::read::{At, Whole};
use crate::secret::SecretSource;

/// What the checks need beside the configuration itself.
pub(crate) struct Context<'a> {
    /// The folder that paths are relative to.
    pub(crate) base: &'a Path,
    pub(crate) secrets: &'a dyn SecretSource,
    pub(crate) found: &'a mut Findings,
    /// The profiles there are.
    pub(crate) profiles: Catalog,
    /// Every path of every upstream is guarded, as `serve --upstream` has it.
    pub(crate) all_paths: bool,
}

impl Context<'_> {
    fn millis(&mut self, bound: &Bound, number: Option<&At<Whole>>) -> Duration {
        Duration::from_millis(bound.take(number, self.found))
    }

    fn seconds(&mut self, bound: &Bound, number: Option<&At<Whole>>) -> Duration {
        Duration::from_secs(bound.take(number, self.found))
    }

    /// For counts and sizes in memory; the bounds lie far below what any machine can address.
    fn size(&mut self, bound: &Bound, number: Option<&At<Whole>>) -> usize {
        usize::try_from(bound.take(number, self.found)).unwrap_or(usize::MAX)
    }

    fn path(&self, path: &Path) -> PathBuf {
        self.base.join(path)
    }

    /// A required value; missing is a problem.
    fn required<'v, T>(
        &mut self,
        value: Option<&'v At<T>>,
        block: &Place,
        key: &str,
        cure: &str,
    ) -> Option<&'v At<T>> {
        if value.is_none() {
            self.found.missing(block, key, format!("`{key}` is missing"), cure);
        }
        value
    }
}

/// Checks everything. `None`, or a value beside errors among the findings, when the configuration is refused.
pub(crate) fn check(raw: &At<Config>, digest: String, cx: &mut Context<'_>) -> Option<Checked> {
    let At { value: config, place } = raw;
    let listen = listen::listen(config, place, cx);
    let admin = listen::admin(config.admin.as_ref(), &listen, cx);
    let names = upstreams::names(config, place, cx);
    let identity = identity::identity(config, &names, admin.as_ref(), cx);
    let store = store::store(config.store.as_ref(), cx);
    let audit = settings::audit(config.audit.as_ref(), cx);
    let limits = settings::limits(config.limits.as_ref(), cx);
    let http = settings::http(config.http.as_ref(), cx);
    let drain = cx.seconds(&bounds::DRAIN_S, config.drain_s.as_ref());
    let memory = memory::memory(config.negative_cache.as_ref(), cx);
    cx.profiles = profiles::profiles(config.profiles.as_ref(), cx);
    let public_base_url = links::public_base_url(config.public_base_url.as_ref(), cx);
    let trusted_hops = links::trusted_hops(config.trusted_hops.as_ref(), cx);
    let jobs = jobs::jobs(config, cx);
    let upstreams = upstreams::upstreams(config, &names, memory.as_ref(), cx);
    links::made_of_host(config, place, &listen, &upstreams, cx);
    let listen = listen.into_iter().map(|(listen, _)| listen).collect();
    let complete = upstreams.len() == names.len();
    complete.then_some(Checked {
        listen,
        identity,
        admin: admin.map(|(admin, _)| admin),
        store,
        audit,
        limits,
        http,
        drain,
        memory,
        profiles: std::mem::take(&mut cx.profiles),
        public_base_url,
        trusted_hops,
        jobs,
        upstreams,
        digest,
    })
}
