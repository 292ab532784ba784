//! `nevertwice refusals forget`.

use clap::{ArgGroup, Args};
use nevertwice_domain::clock::Millis;
use nevertwice_domain::fingerprint::DocumentDigest;
use nevertwice_domain::status::RefusalStatus;
use nevertwice_domain::tenant::UpstreamName;
use serde_json::{Map, Value};

use super::{a_document, a_fingerprint, a_status, a_time, whole_fingerprint};
use crate::admin_client::AdminArgs;
use crate::args::an_upstream;
use crate::exit::{Exit, Failure};
use crate::print;

/// Which refusals to forget: all conditions have to hold.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("which").required(true).multiple(true))]
pub(super) struct Forget {
    /// The one with this fingerprint, or the beginning of it (8 hex digits or more)
    #[arg(group = "which", value_parser = a_fingerprint)]
    pub(super) fingerprint: Option<String>,
    /// Those of the document with this SHA-256, or of the document in this file, at every upstream
    #[arg(long, group = "which", value_name = "SHA256|FILE", value_parser = a_document)]
    pub(super) document: Option<DocumentDigest>,
    /// Those of this upstream
    #[arg(long, group = "which", value_name = "NAME", value_parser = an_upstream)]
    pub(super) upstream: Option<UpstreamName>,
    /// Those with this status
    #[arg(long, group = "which", value_parser = a_status)]
    pub(super) status: Option<RefusalStatus>,
    /// Those that were first refused before this time
    #[arg(long, group = "which", value_name = "RFC3339", value_parser = a_time)]
    pub(super) before: Option<Millis>,
    /// Everything; needs --yes
    #[arg(
        long,
        group = "which",
        requires = "yes",
        conflicts_with_all = ["fingerprint", "document", "upstream", "status", "before"]
    )]
    pub(super) all: bool,
    /// Really everything
    #[arg(long, requires = "all")]
    yes: bool,
    /// JSON instead of text
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    admin: AdminArgs,
}

impl Forget {
    /// The body of the request; a fingerprint has to be whole.
    pub(super) fn body(&self, fingerprint: Option<String>) -> Value {
        let conditions = [
            ("fingerprint", fingerprint.map(Value::from)),
            ("document", self.document.map(|v| Value::from(v.to_string()))),
            ("upstream", self.upstream.as_ref().map(|v| Value::from(v.as_str()))),
            ("status", self.status.map(|v| Value::from(v.get()))),
            ("before", self.before.map(|v| Value::from(v.to_string()))),
            ("all", self.all.then_some(Value::from(true))),
        ];
        let set = conditions.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
        Value::Object(set.collect::<Map<_, _>>())
    }
}

pub(super) async fn run(forget: &Forget) -> Result<Exit, Failure> {
    let client = forget.admin.client()?;
    let fingerprint = match &forget.fingerprint {
        None => None,
        Some(begun) => Some(whole_fingerprint(&client, begun).await?),
    };
    let answer = client.post("/admin/v1/refusals/forget", Some(&forget.body(fingerprint))).await?;
    if forget.json {
        return print::line(&answer.to_string());
    }
    let Some(forgotten) = answer["forgotten"].as_u64() else {
        return Err(Failure::failed("the gateway's answer is not understood: it does not say how many"));
    };
    print::line(&match forgotten {
        0 => "nothing forgotten: no refusal matches".to_owned(),
        1 => "1 refusal forgotten".to_owned(),
        n => format!("{n} refusals forgotten"),
    })
}
