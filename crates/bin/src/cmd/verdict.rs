//! `nevertwice verdict`: what a profile makes of a saved answer, and why. Needs no gateway.

mod answer;
mod batch;
mod corpus;

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use clap::Args;
use http::{HeaderName, HeaderValue, StatusCode};
use nevertwice_config::profiles::Catalog;
use nevertwice_config::secret::Unresolved;
use nevertwice_domain::profile::{Answer, Explanation, Phase, Remember, SavedRequest, Terms};
use serde_json::{Value, json};

use crate::cmd::check::{report_problems, report_warnings};
use crate::exit::{Exit, Failure};
use crate::print;
use crate::table::on_one_line;

use answer::Saved;

/// The longest file or line, in bytes.
const MAX_BYTES: usize = 16 << 20;

/// What to judge, and by what.
#[derive(Args, Debug)]
pub struct Verdict {
    /// The saved answer: its body, or all of it as `curl -i` saves it; - for standard input
    #[arg(value_name = "ANSWER_FILE", required_unless_present_any = ["batch", "corpus"])]
    answer: Option<String>,
    /// The profile that judges
    #[arg(long, value_name = "NAME", required_unless_present_any = ["batch", "corpus"])]
    profile: Option<String>,
    /// The step at which the answer was given
    #[arg(long, value_name = "submit|poll", value_parser = a_phase, conflicts_with_all = ["batch", "corpus"])]
    phase: Option<Phase>,
    /// The status in place of the one in the file; needed where it has none
    #[arg(long, value_parser = a_status, conflicts_with_all = ["batch", "corpus"])]
    status: Option<StatusCode>,
    /// A header field of the answer in place of what the file has, as in 'Retry-After: 5'; may be given several times
    #[arg(long, value_name = "NAME: VALUE", value_parser = a_header, conflicts_with_all = ["batch", "corpus"])]
    header: Vec<(HeaderName, HeaderValue)>,
    /// A file with the body of the request that was answered
    #[arg(long, value_name = "FILE", conflicts_with_all = ["batch", "corpus"])]
    request_body: Option<PathBuf>,
    /// The Content-Type of that request; an empty one for a request without [default: that of a document, unless its body is given]
    #[arg(long, value_name = "TYPE", conflicts_with_all = ["batch", "corpus"])]
    request_type: Option<String>,
    /// The path of that request, with its query
    #[arg(long, value_name = "PATH", conflicts_with_all = ["batch", "corpus"])]
    request_path: Option<String>,
    /// Judge every line of a file, or of standard input, and answer with a line each
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-",
        conflicts_with_all = ["answer", "profile", "corpus"])]
    batch: Option<String>,
    /// Judge a corpus, and compare with what is right
    #[arg(long, value_name = "FILE", conflicts_with_all = ["answer", "profile"])]
    corpus: Option<PathBuf>,
    /// A configuration, for the profiles that it names
    #[arg(long, value_name = "FILE", conflicts_with = "profiles")]
    config: Option<PathBuf>,
    /// A file with a profile of one's own; may be given several times
    #[arg(long, value_name = "FILE")]
    profiles: Vec<PathBuf>,
    /// JSON instead of text
    #[arg(long)]
    json: bool,
}

/// Judges.
pub fn run(verdict: &Verdict) -> Result<Exit, Failure> {
    let catalog = verdict.catalog()?;
    if let Some(file) = &verdict.batch {
        return batch::run(file, &catalog);
    }
    if let Some(file) = &verdict.corpus {
        return corpus::run(file, &catalog, verdict.json);
    }
    let (Some(name), Some(file)) = (&verdict.profile, &verdict.answer) else {
        return Err(Failure::input("nothing to judge: name a profile and a file"));
    };
    let Some(profile) = catalog.get(name) else {
        let cure = catalog.cure(name);
        return Err(Failure::input(&format!("there is no profile `{}`; {cure}", on_one_line(name))));
    };
    let unread = |why: String| Failure::input(&format!("{}: {why}", on_one_line(file)));
    let mut saved = Saved::parse(&contents(file)?).map_err(unread)?;
    for (name, _) in &verdict.header {
        saved.headers.remove(name);
    }
    for (name, value) in &verdict.header {
        saved.headers.append(name, value.clone());
    }
    let status = verdict.status.or(saved.status);
    let status = status.ok_or_else(|| unread("it has no status: say --status".into()))?;
    let body = match &verdict.request_body {
        Some(file) => Some(contents(&file.to_string_lossy())?),
        None => None,
    };
    let request = SavedRequest {
        path: verdict.request_path.as_deref(),
        content_type: verdict.request_type.as_deref(),
        body: body.as_deref(),
    };
    let facts = request.facts(verdict.phase.unwrap_or_default(), &profile);
    let answer = Answer { status, headers: &saved.headers, body: &saved.body };
    let explanation = profile.explain(&facts, &answer, &Terms::default());
    print::line(&if verdict.json {
        format!("{:#}", json_of(name, status, &explanation))
    } else {
        text_of(name, &answer, &explanation)
    })
}

impl Verdict {
    fn catalog(&self) -> Result<Catalog, Failure> {
        match &self.config {
            Some(file) => {
                let loaded = nevertwice_config::read(file, &Unresolved).map_err(|p| report_problems(&p))?;
                report_warnings(&loaded.warnings);
                Ok(loaded.checked.profiles)
            }
            None => Catalog::read(&self.profiles).map_err(|all| {
                let lines: Vec<_> = all.iter().map(ToString::to_string).collect();
                Failure::input(&lines.join("\n"))
            }),
        }
    }
}

/// All of a file, or of standard input, within the bound.
fn contents(file: &str) -> Result<Vec<u8>, Failure> {
    let unread = |why: String| Failure::input(&format!("cannot read {}: {why}", on_one_line(file)));
    let (mut bytes, limit) = (Vec::new(), MAX_BYTES as u64 + 1);
    let read = match file {
        "-" => io::stdin().lock().take(limit).read_to_end(&mut bytes),
        _ => File::open(Path::new(file)).and_then(|f| f.take(limit).read_to_end(&mut bytes)),
    };
    read.map_err(|e| unread(e.to_string()))?;
    if bytes.len() > MAX_BYTES {
        return Err(unread(format!("it has more than {MAX_BYTES} bytes")));
    }
    Ok(bytes)
}

/// What is done with it, in a word; only what nothing is done with has another one than in profiles.
fn word(remember: Remember) -> &'static str {
    match remember {
        Remember::Never => "no",
        other => other.word(),
    }
}

fn class(explanation: &Explanation) -> &'static str {
    explanation.class.map_or("unclassified", |class| class.word())
}

fn json_of(profile: &str, status: StatusCode, explanation: &Explanation) -> Value {
    json!({
        "profile": profile,
        "status": status.as_u16(),
        "remember": word(explanation.remember),
        "class": class(explanation),
        "rule": explanation.rule,
        "reason": explanation.reason,
        "source": explanation.source.as_deref().filter(|source| !source.is_empty()),
        "steps": explanation.steps,
    })
}

fn text_of(profile: &str, answer: &Answer<'_>, explanation: &Explanation) -> String {
    let facts = [
        ("profile", profile.to_owned()),
        ("answer", format!("{}, {} bytes", answer.status.as_u16(), answer.body.len())),
        ("remember", word(explanation.remember).to_owned()),
        ("class", class(explanation).to_owned()),
        ("rule", explanation.rule.as_deref().unwrap_or("-").to_owned()),
        ("reason", explanation.reason.clone()),
        ("source", explanation.source.as_deref().unwrap_or_default().to_owned()),
    ];
    let mut lines: Vec<String> = facts
        .into_iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(name, value)| format!("{name:<10}{}", on_one_line(&value)))
        .collect();
    if !explanation.steps.is_empty() {
        lines.push(String::new());
        lines.extend(explanation.steps.iter().map(|step| format!("  {}", on_one_line(step))));
    }
    lines.join("\n")
}

fn a_phase(text: &str) -> Result<Phase, String> {
    match text {
        "submit" => Ok(Phase::Submit),
        "poll" => Ok(Phase::Poll),
        _ => Err("a phase is `submit` or `poll`".into()),
    }
}

fn a_status(text: &str) -> Result<StatusCode, String> {
    let number = text.parse::<u16>().ok().filter(|number| (100..1000).contains(number));
    let status = number.and_then(|number| StatusCode::from_u16(number).ok());
    status.ok_or_else(|| "a status is a number from 100 to 999".into())
}

fn a_header(text: &str) -> Result<(HeaderName, HeaderValue), String> {
    let wrong = || "a header field is written as 'Name: value'".to_owned();
    let (name, value) = text.split_once(':').ok_or_else(wrong)?;
    let name = HeaderName::try_from(name.trim()).map_err(|_| wrong())?;
    Ok((name, HeaderValue::try_from(value.trim()).map_err(|_| wrong())?))
}

#[cfg(test)]
mod tests;
