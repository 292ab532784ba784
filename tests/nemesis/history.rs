//! What happened, on one clock: what clients asked and were told, what reached the upstream, what was done to the fleet, and
//! what the replicas admitted.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Microseconds since the beginning of the run.
pub type At = u64;

pub const MS: At = 1000;
pub const SECOND: At = 1_000_000;

/// What the upstream thinks of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A verdict, always.
    Refused,
    /// Accepted, always.
    Accepted,
    /// So many attempts end without a verdict, then it is refused.
    Shaky(u32),
    /// Refused by the attempts that arrive before this moment, then accepted.
    Turning(At),
}

/// A document that clients send.
#[derive(Clone, Debug)]
pub struct Document {
    pub kind: Kind,
    /// A probe of the healed fleet: nothing is excused.
    pub probe: bool,
    /// Attempts so far.
    pub attempts: u32,
}

/// How an attempt ends at the upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Verdict(u16),
    Accepted,
    /// Neither: it says nothing about the document.
    Neither(u16),
}

impl Outcome {
    pub fn status(self) -> u16 {
        match self {
            Self::Verdict(status) | Self::Neither(status) => status,
            Self::Accepted => 200,
        }
    }
}

/// One submission by a client.
#[derive(Clone, Debug)]
pub struct Op {
    pub document: usize,
    pub replica: usize,
    pub invoked: At,
    /// `None`: the client is still there, or the run ended before it was.
    pub returned: Option<At>,
    pub said: Said,
}

/// What a client was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// An answer: its status, whether it was marked as a replay, and the attempt whose body it had.
    Answer { status: u16, hit: bool, attempt: Option<usize> },
    /// An answer of the gateway's own.
    Own(String),
    /// No answer.
    Failed(String),
    /// The client left.
    Left,
}

/// One call that reached the upstream.
#[derive(Clone, Debug)]
pub struct Attempt {
    pub document: usize,
    /// The submission that made it.
    pub op: usize,
    pub arrived: At,
    /// It is answered then, and no earlier.
    pub due: At,
    pub outcome: Outcome,
}

/// A forget of one document.
#[derive(Clone, Debug)]
pub struct Forget {
    pub document: usize,
    pub replica: usize,
    pub invoked: At,
    pub ended: At,
    /// Whether it said that it was done. One that did not may have been done all the same, then or later.
    pub done: bool,
}

/// What was done to the fleet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum What {
    /// A replica's process was killed, and started again.
    Killed(usize),
    /// A replica's process stood still.
    Paused(usize),
    /// The store answered late, in part or not at all: to this replica, or to all.
    Unreachable(Option<usize>),
    /// The store took no writes.
    Full,
    /// The store lost what was written since then.
    Lost { since: At },
    /// Another server became the primary: what it did not have of what was written since then is lost, and until the old one
    /// has stepped down some replicas may speak to the one and some to the other.
    Failover { since: At },
    /// A replica's clock was wrong by so many seconds.
    ReplicaClock(usize, i64),
    /// The store's clock was wrong by so many seconds.
    StoreClock(i64),
}

/// One fault.
#[derive(Clone, Copy, Debug)]
pub struct Trouble {
    pub what: What,
    pub from: At,
    pub healed: At,
    /// When the whole fleet was well again, as it said itself.
    pub settled: At,
}

/// What a replica's counters rose by between two looks at them.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    pub replica: usize,
    pub from: At,
    pub to: At,
    /// Look-ups that failed.
    pub unknown: usize,
    /// Verdicts that were not recorded because of the store.
    pub not_recorded: usize,
    /// Verdicts that were not recorded because of something that came after their attempt began.
    pub fenced: usize,
    /// The replica was killed before anybody could look again.
    pub blind: bool,
}

#[derive(Clone, Debug, Default)]
pub struct History {
    pub documents: Vec<Document>,
    pub ops: Vec<Op>,
    pub attempts: Vec<Attempt>,
    pub forgets: Vec<Forget>,
    pub troubles: Vec<Trouble>,
    pub samples: Vec<Sample>,
    /// Times in which this machine did not even wake a sleeper.
    pub stalls: Vec<(At, At)>,
}

/// The history while it is written.
pub struct Recorder {
    began: Instant,
    history: Mutex<History>,
}

impl Recorder {
    pub fn new() -> Self {
        Self { began: Instant::now(), history: Mutex::default() }
    }

    pub fn now(&self) -> At {
        u64::try_from(self.began.elapsed().as_micros()).unwrap_or(At::MAX)
    }

    pub fn get(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn document(&self, kind: Kind, probe: bool) -> usize {
        let mut history = self.get();
        history.documents.push(Document { kind, probe, attempts: 0 });
        history.documents.len() - 1
    }

    pub fn invoked(&self, document: usize, replica: usize) -> usize {
        let mut history = self.get();
        // within the lock: numbers are in the order of time
        let invoked = self.now();
        history.ops.push(Op { document, replica, invoked, returned: None, said: Said::Left });
        history.ops.len() - 1
    }

    pub fn returned(&self, op: usize, said: Said) {
        let now = self.now();
        let op = &mut self.get().ops[op];
        (op.returned, op.said) = (Some(now), said);
    }

    /// An attempt arrives. Returns its number and how it will end.
    pub fn arrived(&self, document: usize, op: usize, delay: Duration) -> (usize, Outcome) {
        let mut history = self.get();
        let arrived = self.now();
        let before = history.documents[document].attempts;
        history.documents[document].attempts += 1;
        let refusal = [400, 413, 415, 422][document % 4];
        let outcome = match history.documents[document].kind {
            Kind::Accepted => Outcome::Accepted,
            Kind::Shaky(n) if before < n => Outcome::Neither([503, 429, 500][before as usize % 3]),
            Kind::Turning(moment) if arrived >= moment => Outcome::Accepted,
            Kind::Refused | Kind::Shaky(_) | Kind::Turning(_) => Outcome::Verdict(refusal),
        };
        let due = arrived + u64::try_from(delay.as_micros()).unwrap_or(0);
        history.attempts.push(Attempt { document, op, arrived, due, outcome });
        (history.attempts.len() - 1, outcome)
    }

    pub fn trouble(&self, what: What, from: At, healed: At) {
        self.get().troubles.push(Trouble { what, from, healed, settled: At::MAX });
    }

    /// The fleet is well: whatever was done to it is over.
    pub fn settled(&self) {
        let now = self.now();
        for trouble in &mut self.get().troubles {
            trouble.settled = trouble.settled.min(now);
        }
    }
}

/// A time in a report.
pub struct Shown(pub At);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == At::MAX {
            return f.write_str("never");
        }
        write!(f, "{}.{:03}", self.0 / SECOND, self.0 % SECOND / MS)
    }
}

impl History {
    /// All that is known of a document, and what was done to the fleet around then, in the order of time.
    pub fn story(&self, document: usize, around: At) -> String {
        let mut lines: Vec<(At, String)> = Vec::new();
        for (n, op) in self.ops.iter().enumerate().filter(|(_, op)| op.document == document) {
            let returned = op.returned.unwrap_or(At::MAX);
            lines.push((
                op.invoked,
                format!("op {n} at replica {} .. {}: {:?}", op.replica, Shown(returned), op.said),
            ));
        }
        for (n, a) in self.attempts.iter().enumerate().filter(|(_, a)| a.document == document) {
            let replica = self.ops[a.op].replica;
            lines.push((
                a.arrived,
                format!(
                    "    ATTEMPT {n} by op {} of replica {replica}, due {}: {:?}",
                    a.op,
                    Shown(a.due),
                    a.outcome
                ),
            ));
        }
        for f in self.forgets.iter().filter(|f| f.document == document) {
            let done = if f.done { "done" } else { "in doubt" };
            lines.push((
                f.invoked,
                format!("  forget at replica {} .. {}: {done}", f.replica, Shown(f.ended)),
            ));
        }
        let near = |from: At, to: At| from < around + 8 * SECOND && to + 8 * SECOND > around;
        for t in self.troubles.iter().filter(|t| near(t.from, t.healed)) {
            lines.push((
                t.from,
                format!("{:?} .. healed {}, settled {}", t.what, Shown(t.healed), Shown(t.settled)),
            ));
        }
        for s in
            self.samples.iter().filter(|s| near(s.from, s.to) && s.unknown + s.not_recorded + s.fenced > 0)
        {
            lines.push((
                s.from,
                format!(
                    "  replica {} until {} admits {} look-ups failed, {} not recorded, {} fenced",
                    s.replica,
                    Shown(s.to),
                    s.unknown,
                    s.not_recorded,
                    s.fenced
                ),
            ));
        }
        lines.sort();
        let kind = &self.documents[document];
        let mut story = format!("document {document}: {kind:?}\n");
        for (at, line) in lines {
            story += &format!("  {:>9} {line}\n", Shown(at).to_string());
        }
        story
    }
}
