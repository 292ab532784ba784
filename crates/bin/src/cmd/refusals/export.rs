//! `nevertwice refusals export`.

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, ErrorKind, Seek as _, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use clap::Args;
use serde_json::{Value, json};

use super::moving::{Header, LINE_MAX};
use super::now;
use crate::admin_client::{AdminArgs, Client};
use crate::exit::{Exit, Failure};
use crate::lines::{Line, Lines};
use crate::patience::patiently;
use crate::print;
use crate::progress::Progress;

/// The most refusals of a page.
const PAGE: usize = 500;

/// Where to write the refusals.
#[derive(Args, Debug)]
pub(super) struct Export {
    /// The file to write, which must not exist yet; - for standard output
    #[arg(long, value_name = "FILE")]
    out: String,
    /// Go on with a file that an export could not finish
    #[arg(long)]
    resume: bool,
    /// JSON instead of text at the end
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    admin: AdminArgs,
}

pub(super) async fn run(export: &Export) -> Result<Exit, Failure> {
    let to_stdout = export.out == "-";
    if to_stdout && export.resume {
        return Err(Failure::input("--resume needs a file to go on with, and --out - is none"));
    }
    if to_stdout && export.json {
        return Err(Failure::input("--json and --out - would both write to standard output"));
    }
    let client = export.admin.client()?;
    let running = client.get("/admin/v1/version").await?;
    let version = running["version"].as_str().unwrap_or("unknown");
    let header = Header::new(client.url(), version, now().to_string());
    let mut target = match (to_stdout, export.resume) {
        (true, _) => Target::new(Box::new(io::stdout()), &header),
        (false, resume) => Target::file(Path::new(&export.out), resume, &header),
    }?;
    let before = target.refusals;
    match all(&client, &mut target).await {
        Ok(()) => {}
        Err(failure) if to_stdout || target.refusals == 0 => return Err(failure),
        Err(Failure { code, message }) => {
            let message = format!(
                "{message}; {} has {} refusals by now: go on with --resume",
                export.out, target.refusals
            );
            return Err(Failure { code, message });
        }
    }
    target.finish()?;
    let refusals = target.refusals;
    if export.json {
        return print::line(&json!({ "exported": refusals - before, "in_file": refusals }).to_string());
    }
    let sum = match before {
        0 => format!("{refusals} refusals exported"),
        _ => format!("{} more refusals exported, {refusals} in all", refusals - before),
    };
    if to_stdout {
        print::error(&sum);
        return Ok(Exit::Done);
    }
    print::line(&format!("{sum}: {}", export.out))
}

/// Page after page, until the last one.
async fn all(client: &Client, target: &mut Target) -> Result<(), Failure> {
    let mut progress = Progress::new(Some(0));
    let mut worked = false;
    loop {
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.append_pair("limit", &PAGE.to_string());
        if let Some(cursor) = &target.cursor {
            query.append_pair("cursor", cursor);
        }
        let path = format!("/admin/v1/refusals/export?{}", query.finish());
        let mut page = patiently(worked, async || client.get(&path).await).await?;
        worked = true;
        let next = page["next_cursor"].as_str().map(ToOwned::to_owned);
        let Value::Array(items) = page["items"].take() else {
            return Err(Failure::failed("the gateway's answer is not understood: it has no items"));
        };
        if !target.write(&items)? {
            return Ok(());
        }
        let refusals = target.refusals;
        let length = page["entries"].as_u64().unwrap_or(0).max(refusals);
        progress.at(refusals, &format!("{refusals} refusals exported"), Some(length));
        match next {
            None => return Ok(()),
            // a page that is followed by itself would go on for ever
            Some(next) if target.cursor.as_ref() == Some(&next) => {
                return Err(Failure::failed("the gateway's answer is not understood: a page follows itself"));
            }
            next => target.cursor = next,
        }
    }
}

/// What is written to.
struct Target {
    out: Box<dyn Write>,
    /// The same, where it has to be on the disk in the end.
    file: Option<File>,
    /// How many refusals are in it.
    refusals: u64,
    /// Where the export goes on.
    cursor: Option<String>,
}

impl Target {
    fn new(out: Box<dyn Write>, header: &Header) -> Result<Self, Failure> {
        let mut target = Self { out, file: None, refusals: 0, cursor: None };
        target.lines(&format!("{}\n", header.line()?))?;
        Ok(target)
    }

    /// A file that is new, or one to go on with.
    fn file(path: &Path, resume: bool, header: &Header) -> Result<Self, Failure> {
        let shown = path.display();
        let mut open = OpenOptions::new();
        // bodies are for nobody else to read
        open.read(true).write(true).mode(0o600);
        let made = open.clone().create_new(true).open(path);
        let (mut file, found) = match made {
            Ok(file) => (file, None),
            Err(error) if error.kind() == ErrorKind::AlreadyExists && resume => {
                let unread = |e: io::Error| Failure::input(&format!("cannot go on with {shown}: {e}"));
                let file = open.open(path).map_err(unread)?;
                let found = found(&shown.to_string(), &file, header)?;
                (file, found)
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                return Err(Failure::input(&format!(
                    "{shown} exists: choose another name, or go on with it with --resume"
                )));
            }
            Err(error) => return Err(Failure::input(&format!("cannot make {shown}: {error}"))),
        };
        let unwritten = |e: io::Error| Failure::failed(&format!("cannot write: {e}"));
        let whole = found.as_ref().map_or(0, |found| found.whole);
        file.set_len(whole).and_then(|()| file.seek(SeekFrom::Start(whole))).map_err(unwritten)?;
        let out = Box::new(file.try_clone().map_err(unwritten)?);
        let mut target = match found {
            None => Self::new(out, header)?,
            Some(Found { refusals, cursor, .. }) => Self { out, file: None, refusals, cursor },
        };
        target.file = Some(file);
        Ok(target)
    }

    /// Whether somebody still reads.
    fn write(&mut self, items: &[Value]) -> Result<bool, Failure> {
        let lines: String = items.iter().map(|item| format!("{item}\n")).collect();
        self.refusals += items.len() as u64;
        self.lines(&lines)
    }

    fn lines(&mut self, lines: &str) -> Result<bool, Failure> {
        match self.out.write_all(lines.as_bytes()).and_then(|()| self.out.flush()) {
            Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(false),
            Err(e) => Err(Failure::failed(&format!("cannot write: {e}"))),
            Ok(()) => Ok(true),
        }
    }

    fn finish(&self) -> Result<(), Failure> {
        let synced = self.file.as_ref().map_or(Ok(()), File::sync_all);
        synced.map_err(|e| Failure::failed(&format!("cannot write: {e}")))
    }
}

/// What a file has already.
#[derive(Debug, PartialEq, Eq)]
struct Found {
    /// The bytes of its whole lines.
    whole: u64,
    refusals: u64,
    cursor: Option<String>,
}

/// Looks through a file to go on with; `None` if it is empty.
fn found(name: &str, file: &File, header: &Header) -> Result<Option<Found>, Failure> {
    let mut lines = Lines::new(BufReader::with_capacity(1 << 16, file), LINE_MAX);
    let unread = |e: io::Error| Failure::input(&format!("cannot read {name}: {e}"));
    let Some(first) = lines.next().map_err(unread)? else { return Ok(None) };
    let from = Header::read(name, Some(&first))?.from;
    if from != header.from {
        return Err(Failure::input(&format!(
            "{name} comes from {from}, not from {}: where to go on is known for that gateway alone",
            header.from
        )));
    }
    let mut found = Found { whole: lines.offset, refusals: 0, cursor: None };
    let mut last = None;
    while let Some(line) = lines.next().map_err(unread)? {
        match line {
            Line::Whole(bytes) => {
                found.whole = lines.offset;
                found.refusals += 1;
                last = Some((lines.number, bytes));
            }
            // it is written again
            Line::Cut(_) => {}
            Line::TooLong => {
                let message = format!("line {} of {name} is too long for a refusal", lines.number);
                return Err(Failure::input(&message));
            }
        }
    }
    if let Some((number, bytes)) = last {
        let item: Option<Value> = serde_json::from_slice(&bytes).ok();
        found.cursor = item.and_then(|item| item["cursor"].as_str().map(ToOwned::to_owned));
        if found.cursor.is_none() {
            return Err(Failure::input(&format!(
                "line {number} of {name} does not say where to go on: remove it, then resume again"
            )));
        }
    }
    Ok(Some(found))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "test")]

    use super::*;
    use crate::admin_client::tests::canned;

    fn header(from: &str) -> Header {
        Header::new(from.into(), "0.1.0", "2026-01-31T12:00:00.000Z".into())
    }

    fn page(cursors: &[&str], next: Option<&str>) -> Value {
        let items: Vec<_> = cursors.iter().map(|cursor| json!({ "cursor": cursor })).collect();
        json!({ "items": items, "next_cursor": next, "entries": 3 })
    }

    #[tokio::test]
    async fn pages_are_followed_to_the_last_even_past_an_empty_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        let mut target = Target::file(&path, false, &header("here")).unwrap();
        let pages = vec![page(&["a", "b"], Some("b")), page(&[], Some("x&y")), page(&["z"], None)];
        let (client, mut server) = canned(pages).await;
        all(&client, &mut target).await.unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<_> = text.lines().skip(1).collect();
        assert_eq!(lines, [r#"{"cursor":"a"}"#, r#"{"cursor":"b"}"#, r#"{"cursor":"z"}"#]);
        let seen = server.join_next().await.unwrap().unwrap();
        assert!(seen[2].contains("&cursor=x%26y "), "{}", seen[2]);

        let (client, _server) = canned(vec![page(&[], Some("q")), page(&[], Some("q"))]).await;
        assert!(all(&client, &mut target).await.unwrap_err().message.contains("follows itself"));
    }

    #[test]
    fn a_file_is_gone_on_with_after_its_last_whole_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        let go_on = |text: &str| {
            std::fs::write(&path, text).unwrap();
            Target::file(&path, true, &header("here")).map(|target| (target.refusals, target.cursor))
        };
        let first = format!("{}\n", header("here").line().unwrap());
        let with = |rest: &str| format!("{first}{rest}");
        for (text, expected, left) in [
            (String::new(), (0, None), first.clone()),
            (with(""), (0, None), first.clone()),
            (with("{\"cur"), (0, None), first.clone()),
            (with("{\"cursor\":\"a\"}\n"), (1, Some("a")), with("{\"cursor\":\"a\"}\n")),
            (
                with("{\"cursor\":\"a\"}\n{}\n{\"cursor\":\"b\"}\n{\"cursor\":\"c\"}"),
                (3, Some("b")),
                with("{\"cursor\":\"a\"}\n{}\n{\"cursor\":\"b\"}\n"),
            ),
        ] {
            let (refusals, cursor) = go_on(&text).unwrap();
            assert_eq!((refusals, cursor.as_deref()), expected, "{text}");
            // the first line of an empty file is new
            let now = std::fs::read_to_string(&path).unwrap();
            assert_eq!(now, left, "{text}");
        }
        for (text, part) in [
            ("hello\n".to_owned(), "is no export"),
            ("hello".to_owned(), "is no export"),
            (with("{}\n"), "line 2 of "),
            (format!("{}\n", header("there").line().unwrap()), "comes from there, not from here"),
        ] {
            let failure = go_on(&text).unwrap_err();
            assert!(failure.code == 2 && failure.message.contains(part), "{text}: {}", failure.message);
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text, "nothing was changed");
        }
        let failure = Target::file(&path, false, &header("here")).err().unwrap();
        assert!(failure.code == 2 && failure.message.contains("--resume"), "{}", failure.message);
    }
}
