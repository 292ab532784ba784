#![expect(clippy::unwrap_used, reason = "test")]

use clap::Parser;

use super::*;

/// The command as `main` has it.
#[derive(Parser, Debug)]
struct Cli {
    #[command(flatten)]
    verdict: Verdict,
}

fn parse(words: &[&str]) -> Result<Verdict, String> {
    Cli::try_parse_from(std::iter::once(&"verdict").chain(words)).map(|cli| cli.verdict).map_err(|e| {
        assert_eq!(e.exit_code(), 2);
        e.to_string()
    })
}

#[test]
fn what_can_be_asked() {
    let one = parse(&["--profile", "openai", "--header", "Retry-After: 5", "--status", "400", "-"]).unwrap();
    assert_eq!((one.answer.as_deref(), one.status), (Some("-"), Some(StatusCode::BAD_REQUEST)));
    assert_eq!(one.header[0].1, "5");
    assert_eq!(parse(&["--batch"]).unwrap().batch.as_deref(), Some("-"));
    assert_eq!(parse(&["--batch", "f"]).unwrap().batch.as_deref(), Some("f"));
    let own =
        parse(&["--profiles", "a.yaml", "--profiles", "b.yaml", "--corpus", "c.yaml", "--json"]).unwrap();
    assert_eq!((own.profiles.len(), own.corpus.is_some()), (2, true));
    for (words, part) in [
        (&["--profile", "openai"][..], "ANSWER_FILE"),
        (&["-"], "--profile"),
        (&[], "required"),
        (&["--batch", "--corpus", "c"], "cannot be used with"),
        (&["--batch", "--profile", "x"], "cannot be used with"),
        (&["--batch", "--status", "400"], "cannot be used with"),
        (&["--corpus", "c", "--config", "x", "--profiles", "y"], "cannot be used with"),
        (&["--profile", "x", "--status", "4000", "-"], "from 100 to 999"),
        (&["--profile", "x", "--phase", "later", "-"], "`submit` or `poll`"),
        (&["--profile", "x", "--header", "no", "-"], "'Name: value'"),
    ] {
        let told = parse(words).unwrap_err();
        assert!(told.contains(part), "{words:?}: {told}");
    }
}

fn explained<'a>(profile: &str, body: &'a [u8]) -> (Answer<'a>, Explanation) {
    let headers = Box::leak(Box::default());
    let answer = Answer { status: StatusCode::BAD_REQUEST, headers, body };
    let profile = Catalog::default().get(profile).unwrap();
    let facts = SavedRequest::default().facts(Phase::Submit, &profile);
    (answer, profile.explain(&facts, &answer, &Terms::default()))
}

#[test]
fn the_path_is_told_rule_by_rule() {
    let body = br#"{"error":{"code":"InvalidRequest","message":"m","innererror":{"code":"InvalidContentDimensions","message":"m"}}}"#;
    let (answer, explanation) = explained("azure-document-intelligence", body);
    let text = text_of("azure-document-intelligence", &answer, &explanation);
    for part in [
        "profile   azure-document-intelligence\n",
        "remember  full\n",
        "class     content\n",
        "\nsource    https://",
        "\n\n  400 is a status that may be remembered\n",
        ": no: ",
        "; found ",
        ": yes",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let json = json_of("azure-document-intelligence", answer.status, &explanation);
    assert_eq!((&json["remember"], &json["status"]), (&"full".into(), &400.into()));
    assert!(json["steps"].as_array().unwrap().len() > 3 && json["source"].is_string());
}

#[test]
fn what_is_not_known_is_not_remembered() {
    let (answer, explanation) = explained("openai", br#"{"error":{"code":"brand_new\u001b[2J"}}"#);
    let text = text_of("openai", &answer, &explanation);
    assert!(text.contains("remember  no\nclass     unclassified\nrule      -\n"), "{text}");
    assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text}");
}
