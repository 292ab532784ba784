//! The `nevertwice` command.

mod admin_client;
mod args;
mod build_info;
mod cmd;
mod exit;
mod lines;
mod pages;
mod patience;
mod print;
mod progress;
mod store;
mod table;

use std::process::ExitCode;

use clap::Parser;

use args::{Args, Command};
use exit::{Exit, Failure};

#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let args = Args::parse();
    match run(&args) {
        Ok(Exit::Done) => ExitCode::SUCCESS,
        Err(Failure { code, message }) => {
            print::error(&format!("nevertwice: {message}"));
            ExitCode::from(code)
        }
    }
}

fn run(args: &Args) -> Result<Exit, Failure> {
    match &args.command {
        Command::Serve(serve) => {
            // the client of Redis tells each attempt at each node of a cluster that is down; the store says it once
            start_logging("info,redis=off");
            runtime(serve.threads)?.block_on(cmd::serve::run(serve))
        }
        Command::Demo(demo) => {
            // the parsers of the demo's document service talk about every broken document
            start_logging("info,lopdf=off");
            runtime(0)?.block_on(cmd::demo::run(demo))
        }
        Command::Check(check) => runtime(1)?.block_on(cmd::check::run(check)),
        Command::Refusals(refusals) => runtime(1)?.block_on(cmd::refusals::run(refusals)),
        Command::Jobs(jobs) => runtime(1)?.block_on(cmd::jobs::run(jobs)),
        Command::Coverage(coverage) => runtime(1)?.block_on(cmd::coverage::run(coverage)),
        Command::Upstreams(upstreams) => runtime(1)?.block_on(cmd::coverage::upstreams(upstreams)),
        Command::Recover(recover) => runtime(1)?.block_on(cmd::coverage::recover(recover)),
        Command::Reload(reload) => runtime(1)?.block_on(cmd::coverage::reload(reload)),
        Command::Verdict(verdict) => cmd::verdict::run(verdict),
        Command::Version(version) => runtime(1)?.block_on(cmd::version::run(version)),
    }
}

/// After how many turns of tasks a busy worker looks for what has arrived on the sockets. Tokio's own 61 are for short turns: those
/// of uploads take a tenth of a millisecond and more, and a small request would wait for 61 of them before it is even seen.
const EVENT_INTERVAL: u32 = 7;

/// `threads` workers; one is the plain single-threaded runtime, zero means one per core.
fn runtime(threads: usize) -> Result<tokio::runtime::Runtime, Failure> {
    let mut builder = match threads {
        1 => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    builder.event_interval(EVENT_INTERVAL);
    if threads > 1 {
        builder.worker_threads(threads);
    }
    builder.enable_all().build().map_err(|e| Failure::failed(&format!("cannot start the runtime: {e}")))
}

/// Logs go to standard error; `NEVERTWICE_LOG` filters them.
fn start_logging(default: &str) {
    let filter = tracing_subscriber::EnvFilter::try_from_env("NEVERTWICE_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(default));
    let ansi = std::io::IsTerminal::is_terminal(&std::io::stderr());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(ansi).init();
}
