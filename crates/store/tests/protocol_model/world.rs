//! The state of the model: one store, three processes with one request each at a time, one operator.

/// Processes of the fleet.
pub(super) const PROCESSES: usize = 3;
/// Fingerprints.
pub(super) const KEYS: usize = 2;
/// How many ticks a near copy may be behind. A call takes at most one.
pub(super) const FRESH: u8 = 2;

/// What holds a lease: the process and the number of its request.
pub(super) type Token = u8;

/// How much of what may happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Limits {
    /// Requests that the near copy does not answer.
    pub(super) requests: u8,
    /// Leases that end while their holder is alive and connected.
    pub(super) lapses: u8,
    /// Waiters whose time is up.
    pub(super) wait_outs: u8,
    /// Entries whose life ends.
    pub(super) expiries: u8,
    /// Processes that die, and start again with nothing.
    pub(super) crashes: u8,
    /// Connections that are lost, and made anew.
    pub(super) cuts: u8,
    /// Messages that are lost on a connection that holds.
    pub(super) unheard: u8,
    /// Losses of all data.
    pub(super) wipes: u8,
    /// Forgets of one key.
    pub(super) forget_keys: u8,
    /// Forgets of all keys.
    pub(super) forget_alls: u8,
    /// Steps of the clock.
    pub(super) ticks: u8,
}

/// When an attempt began, seen from the latest forget of its key. History that the protocol does not know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Age {
    /// After it was called, or there was none.
    #[default]
    Fresh,
    /// Before it was called.
    Older,
    /// Before it was called, and it has returned.
    Forgotten,
}

/// An entry in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Kept {
    pub(super) age: Age,
    /// Another attempt at this document was accepted while this one was under way.
    pub(super) overtaken: bool,
}

/// The keys in Redis.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Store {
    /// How often all data were lost: what the server's clock shows.
    pub(super) era: u8,
    pub(super) epoch: Option<u8>,
    pub(super) floor: u8,
    pub(super) wide: u8,
    pub(super) keyed: [u8; KEYS],
    pub(super) seq: u8,
    pub(super) entry: [Option<Kept>; KEYS],
    /// `q`, which an entry that has expired keeps.
    pub(super) number: [u8; KEYS],
    pub(super) lease: [Option<Token>; KEYS],
}

/// What the fleet is told. That a verdict was recorded or an attempt was given up makes those who wait look again, which they
/// may do at any time: these messages are not in the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Message {
    /// The attempt with this lease ended without a verdict.
    Released(u8, Token),
    Gone(u8),
    /// All keys are forgotten.
    Forgotten,
    /// A document was accepted.
    Accepted(u8),
}

/// A near copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Near {
    pub(super) age: Age,
    pub(super) ticks: u8,
}

/// How far a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Phase {
    /// The store has answered with an entry: found, recorded, or there before it could be recorded.
    Known {
        age: Age,
        /// Since it was asked.
        ticks: u8,
        /// Nothing was heard meanwhile of this entry's end.
        current: bool,
        /// Nothing has ended the verdict since the store answered. History.
        counts: bool,
        /// The lease is given up after this.
        lands: bool,
    },
    /// The store has answered that the lease is its.
    Leased,
    /// The attempt with this lease is under way elsewhere; which one has landed without a verdict.
    Waiting { on: Token, told: Option<Token> },
    /// At the upstream.
    Sent,
    /// Refused, and not recorded.
    Refused,
    /// What the record is decided on was read: the epoch and the number.
    Decided { epoch: Option<u8>, number: u8 },
    /// The upstream accepted it, which the store does not know.
    Accepted,
    /// It ended without a verdict, which the others do not know, or with one that was there (`false`).
    Landing { tells: bool },
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Request {
    pub(super) key: u8,
    pub(super) token: Token,
    pub(super) fence: u8,
    pub(super) phase: Phase,
    /// It took the lease.
    pub(super) leased: bool,
    /// It was heard since it was sent that another process's attempt was accepted.
    pub(super) barred: bool,
    /// When its attempt began. This and the rest is history that the protocol does not know.
    pub(super) age: Age,
    /// The lease that it took has ended by itself, or with all data.
    pub(super) lapsed: bool,
    /// It may go whatever others do: its time is up, the attempt that it waited for has landed, the document was accepted lately.
    pub(super) free: bool,
    /// It goes without the store.
    pub(super) blind: bool,
    /// It came after a verdict was acknowledged, which holds.
    pub(super) after_ack: bool,
    /// Another attempt was accepted since it was sent.
    pub(super) overtaken: bool,
    /// The leases that it waited for.
    pub(super) waited_for: u16,
}

impl Request {
    /// Whether its attempt is at the upstream, or was, and the store does not know how it ended.
    pub(super) fn is_under_way(&self) -> bool {
        matches!(
            self.phase,
            Phase::Sent
                | Phase::Refused
                | Phase::Decided { .. }
                | Phase::Accepted
                | Phase::Landing { tells: true }
        )
    }
}

/// A process.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Process {
    pub(super) connected: bool,
    /// The latest epoch that was heard of.
    pub(super) seen: u8,
    /// Requests so far.
    pub(super) asked: u8,
    pub(super) near: [Option<Near>; KEYS],
    /// What it is told and has not heard, the oldest first.
    pub(super) inbox: Vec<Message>,
    /// A message was lost unnoticed. History.
    pub(super) deaf: bool,
    /// Accepted lately.
    pub(super) accepted: [bool; KEYS],
    pub(super) request: Option<Request>,
}

/// A forget under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Forget {
    /// Of one key: the script has run.
    Key(u8),
    /// Of all: so many keys have been gone through.
    All(u8),
}

/// What must hold at the moment when an attempt is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Promise {
    /// I1: not after a verdict was acknowledged.
    NotAgain,
    /// I2: not while another one is under way.
    OneAtATime,
}

/// Everything.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct World {
    pub(super) store: Store,
    pub(super) processes: [Process; PROCESSES],
    pub(super) forget: Option<Forget>,
    pub(super) left: Limits,
    /// A verdict was acknowledged to a caller, and nothing has ended it. History, as the rest.
    pub(super) acked: [bool; KEYS],
    /// Ticks since a forget returned.
    pub(super) since_forget: u8,
    pub(super) broken: Option<Promise>,
}

impl World {
    pub(super) fn new(limits: Limits) -> Self {
        let process = Process {
            connected: true,
            seen: 0,
            asked: 0,
            near: [None; KEYS],
            inbox: Vec::new(),
            deaf: false,
            accepted: [false; KEYS],
            request: None,
        };
        Self {
            store: Store::default(),
            processes: std::array::from_fn(|_| process.clone()),
            forget: None,
            left: limits,
            acked: [false; KEYS],
            since_forget: 0,
            broken: None,
        }
    }

    pub(super) fn requests(&self) -> impl Iterator<Item = &Request> {
        self.processes.iter().filter_map(|process| process.request.as_ref())
    }

    pub(super) fn requests_of(&mut self, key: usize) -> impl Iterator<Item = &mut Request> {
        let requests = self.processes.iter_mut().filter_map(|process| process.request.as_mut());
        requests.filter(move |request| usize::from(request.key) == key)
    }

    /// The verdict under this key is not to be counted on any more.
    pub(super) fn ended(&mut self, key: usize) {
        self.acked[key] = false;
        for request in self.requests_of(key) {
            request.after_ack = false;
            if let Phase::Known { counts, .. } = &mut request.phase {
                *counts = false;
            }
        }
    }

    /// What was of one age is of another: entries, copies, answers on their way, and attempts.
    pub(super) fn ages(&mut self, key: usize, from: Age, to: Age) {
        let change = |age: &mut Age| {
            if *age == from {
                *age = to;
            }
        };
        if let Some(kept) = &mut self.store.entry[key] {
            change(&mut kept.age);
        }
        for process in &mut self.processes {
            if let Some(near) = &mut process.near[key] {
                change(&mut near.age);
            }
        }
        for request in self.requests_of(key) {
            change(&mut request.age);
            if let Phase::Known { age, .. } = &mut request.phase {
                change(age);
            }
        }
    }

    /// The same world with its processes in an order of their own, so that worlds that differ in their names alone are one.
    pub(super) fn canonical(&self) -> Self {
        let mut order: Vec<usize> = (0..PROCESSES).collect();
        let nameless = |at: usize| {
            let process = &self.processes[at];
            let held = self.store.lease.map(|lease| lease.is_some_and(|token| usize::from(token >> 2) == at));
            let phase = process.request.map(|request| match request.phase {
                Phase::Waiting { told, .. } => Phase::Waiting { on: 0, told: told.map(|_| 0) },
                phase => phase,
            });
            let rest = process.request.map(|r| {
                (
                    r.key,
                    r.fence,
                    r.leased,
                    r.barred,
                    r.age,
                    r.lapsed,
                    r.free,
                    r.blind,
                    r.after_ack,
                    r.overtaken,
                )
            });
            let messages: Vec<Message> = process
                .inbox
                .iter()
                .map(|message| match message {
                    Message::Released(key, _) => Message::Released(*key, 0),
                    message => *message,
                })
                .collect();
            let state = (process.asked, process.seen, process.connected, process.deaf, process.accepted);
            (state, phase, rest, process.near, messages, held)
        };
        order.sort_by_cached_key(|at| nameless(*at));
        let mut new_place = [0_u8; PROCESSES];
        for (place, old) in (0_u8..).zip(&order) {
            new_place[*old] = place;
        }
        let renamed = |token: Token| (new_place[usize::from(token >> 2)] << 2) | (token & 3);
        let mut world = self.clone();
        world.store.lease = self.store.lease.map(|lease| lease.map(renamed));
        world.processes = std::array::from_fn(|place| {
            let mut process = self.processes[order[place]].clone();
            for message in &mut process.inbox {
                if let Message::Released(_, token) = message {
                    *token = renamed(*token);
                }
            }
            if let Some(request) = &mut process.request {
                request.token = renamed(request.token);
                let waited_for = request.waited_for;
                let bits = (0..16).filter(|bit| waited_for >> bit & 1 == 1);
                request.waited_for = bits.fold(0, |all, bit| all | 1 << renamed(bit));
                if let Phase::Waiting { on, told } = &mut request.phase {
                    *on = renamed(*on);
                    *told = told.map(renamed);
                }
            }
            process
        });
        world
    }
}
