//! A model of what the processes of a fleet do with the store on Redis, every state of which is visited within bounds: three
//! processes, one or two documents, a few requests, and some of what may go wrong. What it is good for, what it leaves out and
//! what it found: docs/decisions/0010-a-model-of-the-protocol.md.
//!
//! A change of one of these is a change of the model too. Paths are in `crates/store/src/redis/`; a script is one step.
//!
//! | step of the model | script | code |
//! |---|---|---|
//! | `Ask`, `Look` | `look.lua` | `Shared::look`, `RefusalStore::look`; `last_fence` where there is no connection |
//! | `Send`, `Go`, `WaitOut` | | `look_for_all` in the gateway's `exchange/recall.rs`: it holds the lease, the other landed, time is up |
//! | `Answer` | | the gateway's `exchange/judge.rs` |
//! | `Prepare` | `prepare.lua` | `Shared::before`, `decide` |
//! | `Commit` | `commit.lua` | `Shared::commit` |
//! | `Learn` | | `Near::put`; then the caller has the refusal |
//! | `Land` | `release.lua` | `HeldLease::land_without_verdict`, and its drop |
//! | `Accept` | `accept.lua` | `Shared::accept`, `Shared::tell_judgements` |
//! | `Hear`, `Miss` | | `hear` in `tending.rs`, `Leases::tell`, `Near::remove`, `Near::forget`; of an acceptance, `Flights::accepted` in the gateway |
//! | `Cut`, `Join` | | `tend` in `tending.rs`: the connection is lost, and made anew |
//! | `Crash`, `Lapse`, `Expire`, `Wipe` | | a process dies; `leases::LIFE` is over; an entry's life is over; all data are lost |
//! | `ForgetKey` | `forget_key.lua` | `Shared::forget_key` |
//! | `ForgetAll`, then `Forget` per key and for its return | `forget.lua`, `drop.lua` | `Shared::forget` in `pages.rs` |
//! | `Tick` | | half of `near::FRESH`, longer than a call may take |

#[path = "protocol_model/promises.rs"]
mod promises;
#[path = "protocol_model/steps.rs"]
mod steps;
#[path = "protocol_model/world.rs"]
mod world;

use stateright::{Checker, HasDiscoveries, Model};
use steps::Outcome;
use world::{Limits, World};

/// I1: no attempt for a request that came after a verdict was acknowledged, as long as nothing has ended that.
const NOT_AGAIN: &str = "no attempt after an acknowledged verdict";
/// I2: no attempt while another one holds a lease that has not lapsed, except for requests that may go whatever others do.
const ONE_AT_A_TIME: &str = "no attempt beside one that holds its lease";
/// I7: the store has no entry of an attempt from before a forget that has returned.
const STAYS_FORGOTTEN: &str = "what was forgotten is not recorded";
/// I7: nor has a process that is connected and has heard all messages.
const HEARD: &str = "who has heard of a forget has no copy";
/// I7: nor has any process after the bound, whatever was lost.
const AGED_OUT: &str = "no copy outlives the bound after a forget";

/// Weaknesses by design: what the model must be able to show.
const OVERTAKEN: &str = "a refusal is recorded after another attempt was accepted";
const TWO: &str = "two attempts at one document, since a lease has lapsed";
const LATE: &str = "an attempt that begins after a verdict, since it looked before it";

/// What is wrong with the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    /// A record is not refused because of forgets since its attempt began.
    NoFence,
    /// A record is written whatever has changed since it was decided.
    BlindWrite,
    /// Whoever gives a lease up removes it, whosever it is by now.
    ReleaseWithoutToken,
    /// A forget of all is noted after its removals.
    RemoveBeforeEpoch,
    /// Near copies stay when a connection is made anew.
    KeepOverReconnect,
    /// A forget of all is told before its removals, and not after them.
    ToldOnce,
    /// An answer of the store is kept at hand though its end was heard of meanwhile.
    PutWhateverWasHeard,
    /// A near copy is as old as the answer, not as the question.
    AgeFromAnswer,
    /// Those who wait go when any attempt at their document lands.
    AnyRelease,
    /// After a loss of all data, attempts from before it are judged by the forgets since.
    NoFloorAfterLoss,
}

/// The protocol, with what may happen.
struct Protocol {
    limits: Limits,
    keys: usize,
    /// Requests per process.
    each: u8,
    outcomes: &'static [Outcome],
    flaw: Option<Flaw>,
}

impl Protocol {
    fn of(keys: usize, outcomes: &'static [Outcome], limits: Limits) -> Self {
        Self { limits, keys, each: 2, outcomes, flaw: None }
    }

    /// Visits all states, those that differ in the names of processes once.
    #[expect(clippy::print_stderr, reason = "decision 0010 tells these numbers")]
    fn holds(self, weaknesses: &[&'static str]) {
        let checked = self.checker().symmetry_fn(World::canonical).spawn_dfs().join();
        eprintln!("{} states, {} deep", checked.unique_state_count(), checked.max_depth());
        for promise in [NOT_AGAIN, ONE_AT_A_TIME, STAYS_FORGOTTEN, HEARD, AGED_OUT] {
            checked.assert_no_discovery(promise);
        }
        for weakness in weaknesses {
            checked.assert_any_discovery(weakness);
        }
    }

    /// Looks for the shortest way to break `promise`.
    #[expect(clippy::print_stderr, reason = "a counterexample is there to be read")]
    fn breaks(self, flaw: Flaw, promise: &'static str) {
        let flawed = Self { flaw: Some(flaw), ..self };
        let checked = flawed.checker().finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
        let path = checked.assert_any_discovery(promise);
        eprintln!("{flaw:?}: {:?}", path.into_actions());
    }
}

const NONE: Limits = Limits {
    requests: 0,
    lapses: 0,
    wait_outs: 0,
    expiries: 0,
    crashes: 0,
    cuts: 0,
    unheard: 0,
    wipes: 0,
    forget_keys: 0,
    forget_alls: 0,
    ticks: 0,
};

const REFUSED: &[Outcome] = &[Outcome::Refused];
const NO_SUCCESS: &[Outcome] = &[Outcome::Refused, Outcome::Neither];
const SUCCESS: &[Outcome] = &[Outcome::Refused, Outcome::Accepted];
const ANY: &[Outcome] = &[Outcome::Refused, Outcome::Accepted, Outcome::Neither];

fn leases(requests: u8) -> Protocol {
    Protocol::of(1, NO_SUCCESS, Limits { requests, lapses: 1, crashes: 1, wait_outs: 1, ..NONE })
}

fn success(requests: u8) -> Protocol {
    Protocol::of(1, SUCCESS, Limits { requests, lapses: 1, expiries: 1, ..NONE })
}

fn forget_key(requests: u8, forget_keys: u8) -> Protocol {
    Protocol::of(1, REFUSED, Limits { requests, lapses: 1, forget_keys, ..NONE })
}

fn forget_all(requests: u8, lapses: u8) -> Protocol {
    Protocol::of(2, REFUSED, Limits { requests, lapses, forget_alls: 1, ..NONE })
}

fn connections(requests: u8, crashes: u8) -> Protocol {
    Protocol::of(1, REFUSED, Limits { requests, cuts: 1, forget_alls: 1, crashes, ..NONE })
}

fn clock(requests: u8, expiries: u8) -> Protocol {
    Protocol::of(1, REFUSED, Limits { requests, unheard: 1, forget_keys: 1, ticks: 3, expiries, ..NONE })
}

fn loss(requests: u8, keys: usize) -> Protocol {
    Protocol::of(keys, REFUSED, Limits { requests, wipes: 1, forget_keys: 1, ..NONE })
}

#[test]
fn one_attempt_at_a_time_whoever_dies_or_is_slow() {
    leases(3).holds(&[TWO, LATE]);
}

#[test]
fn success_ends_a_verdict() {
    success(3).holds(&[OVERTAKEN, LATE]);
}

#[test]
fn a_forget_of_one_key_holds() {
    forget_key(3, 1).holds(&[]);
}

#[test]
fn a_forget_of_all_holds() {
    forget_all(3, 0).holds(&[]);
}

#[test]
fn near_copies_end_when_connections_are_lost() {
    connections(3, 0).holds(&[]);
}

#[test]
fn near_copies_end_when_messages_are_lost() {
    clock(3, 0).holds(&[]);
}

#[test]
fn a_loss_of_all_data_brings_nothing_back() {
    loss(3, 1).holds(&[]);
    loss(2, 2).holds(&[]);
}

#[test]
fn slow_with_more_requests() {
    leases(4).holds(&[TWO, LATE]);
    success(4).holds(&[OVERTAKEN, LATE]);
}

#[test]
fn slow_with_more_forgets() {
    forget_key(3, 2).holds(&[]);
    forget_all(3, 1).holds(&[]);
}

#[test]
fn slow_with_more_trouble() {
    connections(3, 1).holds(&[]);
    clock(3, 1).holds(&[]);
    loss(3, 2).holds(&[]);
}

#[test]
fn slow_with_some_of_everything() {
    let limits = Limits { requests: 3, crashes: 1, cuts: 1, forget_keys: 1, ..NONE };
    Protocol::of(1, ANY, limits).holds(&[TWO, LATE, OVERTAKEN]);
}

#[test]
fn each_flaw_is_found() {
    forget_key(3, 1).breaks(Flaw::NoFence, STAYS_FORGOTTEN);
    forget_key(3, 1).breaks(Flaw::BlindWrite, STAYS_FORGOTTEN);
    leases(3).breaks(Flaw::ReleaseWithoutToken, ONE_AT_A_TIME);
    forget_all(3, 0).breaks(Flaw::RemoveBeforeEpoch, STAYS_FORGOTTEN);
    connections(3, 0).breaks(Flaw::KeepOverReconnect, HEARD);
    connections(3, 0).breaks(Flaw::ToldOnce, HEARD);
    connections(3, 0).breaks(Flaw::PutWhateverWasHeard, HEARD);
    clock(3, 0).breaks(Flaw::AgeFromAnswer, AGED_OUT);
    leases(3).breaks(Flaw::AnyRelease, ONE_AT_A_TIME);
    loss(2, 2).breaks(Flaw::NoFloorAfterLoss, STAYS_FORGOTTEN);
}
