//! Runs the document checker alone.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use nevertwice_document_checker::Checker;
use tokio_util::sync::CancellationToken;

/// A small service that parses documents and refuses broken ones
#[derive(Parser)]
#[command(name = "nevertwice-document-checker")]
struct Args {
    /// Address to listen on
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9001")]
    listen: SocketAddr,
    /// Processing time added to every document, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 0)]
    delay_ms: u64,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let checker =
        Checker::bind(args.listen).await.with_context(|| format!("cannot listen on {}", args.listen))?;
    let checker = Arc::new(checker.with_delay(Duration::from_millis(args.delay_ms)));
    writeln!(std::io::stdout(), "document checker listening on http://{}", checker.addr())?;

    let cancel = CancellationToken::new();
    let serving = checker.run(cancel.clone());
    let stopping = async {
        tokio::signal::ctrl_c().await.context("cannot wait for ctrl-c")?;
        cancel.cancel();
        anyhow::Ok(())
    };
    let ((), stopped) = tokio::join!(serving, stopping);
    stopped
}
