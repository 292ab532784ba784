//! What may happen, one step at a time. A step is what one script does at once, or what a process does between two of them.

use super::world::{Age, FRESH, Forget, KEYS, Kept, Message, Near, Phase, Promise, Request, Store, World};
use super::{Flaw, Protocol};

/// How the upstream answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Refused,
    Accepted,
    /// Neither, or no answer.
    Neither,
}

/// A step; most are of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// A request comes that no near copy answers, and is looked up.
    Ask(usize, usize),
    /// It is looked up again.
    Look(usize),
    /// What it waited for has landed without a verdict: it goes.
    Go(usize),
    /// Its time to wait is up: it goes.
    WaitOut(usize),
    /// It holds the lease and goes.
    Send(usize),
    /// The upstream answers.
    Answer(usize, Outcome),
    /// All that the record is decided on is read.
    Prepare(usize),
    /// It is written, if nothing has changed.
    Commit(usize),
    /// The store's answer is taken note of, and the caller gets the refusal.
    Learn(usize),
    /// The lease is given up.
    Land(usize),
    /// The store is told of the acceptance.
    Accept(usize),
    /// The oldest message is heard.
    Hear(usize),
    /// It is lost, and nobody knows.
    Miss(usize),
    /// The connection is lost.
    Cut(usize),
    /// It is made anew.
    Join(usize),
    /// The process dies.
    Crash(usize),
    /// A lease ends by itself.
    Lapse(usize),
    /// The life of an entry ends.
    Expire(usize),
    /// The store loses all data.
    Wipe,
    /// One key is forgotten.
    ForgetKey(usize),
    /// All are: noted and told.
    ForgetAll,
    /// The next part of a forget: one key, or its return.
    Forget,
    /// Time passes.
    Tick,
}

/// One less of what may happen, where any is left.
fn spend(left: &mut u8) -> bool {
    let any = *left > 0;
    *left = left.saturating_sub(1);
    any
}

/// A world in which something is done, under the rules of a protocol.
pub(super) struct Act<'a> {
    pub(super) rules: &'a Protocol,
    pub(super) world: World,
}

impl Act<'_> {
    fn flawed(&self, flaw: Flaw) -> bool {
        self.rules.flaw == Some(flaw)
    }

    /// `PUBLISH`: to all that are connected. Left out is what changes nothing for a process as it is now: it could only take
    /// away what comes to be known later, and a model that knows more breaks its promises sooner.
    fn publish(&mut self, message: Message) {
        let any = self.flawed(Flaw::AnyRelease);
        for process in &mut self.world.processes {
            let near = &process.near;
            let knows = process.request.filter(|request| matches!(request.phase, Phase::Known { .. }));
            let matters = match message {
                Message::Released(_, token) => {
                    let waits = |r: &Request| matches!(r.phase, Phase::Waiting { on, .. } if on == token);
                    any || process.request.as_ref().is_some_and(waits)
                }
                Message::Gone(key) => near[usize::from(key)].is_some() || knows.is_some_and(|r| r.key == key),
                Message::Accepted(key) => {
                    let sent = |r: &Request| matches!(r.phase, Phase::Sent | Phase::Refused);
                    process.request.as_ref().is_some_and(|r| r.key == key && !r.barred && sent(r))
                }
                Message::Forgotten => near.iter().any(Option::is_some) || knows.is_some(),
            };
            if process.connected && matters {
                process.inbox.push(message);
            }
        }
    }

    /// The epoch, which begins anew from the clock after a loss of all data.
    fn epoch(&mut self) -> u8 {
        let clock = 16 * (self.world.store.era + 1);
        let floor = !self.flawed(Flaw::NoFloorAfterLoss);
        let store = &mut self.world.store;
        if store.epoch.is_none() && floor {
            store.floor = clock;
        }
        *store.epoch.get_or_insert(clock)
    }

    /// `INCR` of it.
    fn next_epoch(&mut self) -> u8 {
        if self.flawed(Flaw::NoFloorAfterLoss) {
            let epoch = self.world.store.epoch.unwrap_or(0) + 1;
            self.world.store.epoch = Some(epoch);
            return epoch;
        }
        let epoch = self.epoch() + 1;
        self.world.store.epoch = Some(epoch);
        epoch
    }

    fn ask(&mut self, at: usize, key: usize) {
        self.world.left.requests -= 1;
        let after_ack = self.world.acked[key];
        let process = &mut self.world.processes[at];
        let number = u8::try_from(at << 2).unwrap_or(0) | process.asked;
        process.asked += 1;
        // should there be one, it has aged out or made room for another
        process.near[key] = None;
        process.request = Some(Request {
            key: u8::try_from(key).unwrap_or(0),
            token: number,
            fence: 0,
            phase: Phase::Sent,
            leased: false,
            barred: false,
            age: Age::Fresh,
            lapsed: false,
            free: false,
            blind: false,
            after_ack,
            overtaken: false,
            waited_for: 0,
        });
        self.look(at);
    }

    /// `look.lua`, or no store to ask.
    fn look(&mut self, at: usize) {
        let Some(mut request) = self.world.processes[at].request else { return };
        let key = usize::from(request.key);
        request.age = Age::Fresh;
        if !self.world.processes[at].connected {
            request.blind = true;
            request.fence = self.world.processes[at].seen;
            self.begin(at, request);
            return;
        }
        request.fence = self.epoch();
        if self.rules.limits.cuts > 0 {
            self.world.processes[at].seen = request.fence;
        }
        if let Some(kept) = self.world.store.entry[key] {
            request.phase =
                Phase::Known { age: kept.age, ticks: 0, current: true, counts: true, lands: false };
        } else if self.world.processes[at].accepted[key] {
            request.free = true;
            self.begin(at, request);
            return;
        } else if let Some(on) = self.world.store.lease[key] {
            request.waited_for |= 1 << on;
            request.phase = Phase::Waiting { on, told: None };
        } else {
            self.world.store.lease[key] = Some(request.token);
            request.leased = true;
            request.phase = Phase::Leased;
        }
        self.world.processes[at].request = Some(request);
    }

    /// The attempt is sent: the moment at which I1 and I2 are looked at.
    fn begin(&mut self, at: usize, mut request: Request) {
        let another = self.world.requests().any(|other| {
            other.key == request.key
                && other.token != request.token
                && other.leased
                && !other.lapsed
                && other.is_under_way()
        });
        if request.after_ack && !request.blind {
            self.world.broken = Some(Promise::NotAgain);
        } else if another && !request.free && !request.blind && !request.lapsed {
            self.world.broken = Some(Promise::OneAtATime);
        }
        request.phase = Phase::Sent;
        self.world.processes[at].request = Some(request);
    }

    fn go(&mut self, at: usize, mut request: Request, told: u8) {
        request.free |= request.waited_for >> told & 1 == 1;
        self.begin(at, request);
    }

    fn answer(&mut self, at: usize, mut request: Request, outcome: Outcome) {
        request.phase = match outcome {
            Outcome::Refused => {
                // an acceptance that was heard since it was sent is the newer of the two
                self.world.processes[at].accepted[usize::from(request.key)] &= request.barred;
                Phase::Refused
            }
            Outcome::Accepted => Phase::Accepted,
            Outcome::Neither => Phase::Landing { tells: true },
        };
        let ends = outcome == Outcome::Neither && !request.leased;
        self.world.processes[at].request = (!ends).then_some(request);
    }

    /// `prepare.lua` and `decide`.
    fn prepare(&mut self, at: usize, mut request: Request) {
        let store = &self.world.store;
        let key = usize::from(request.key);
        let fence = request.fence;
        let known = store.epoch.is_some_and(|epoch| fence > 0 && fence <= epoch);
        let forgotten = !known || fence < store.floor || fence < store.keyed[key] || fence < store.wide;
        request.phase = if request.barred || forgotten && !self.flawed(Flaw::NoFence) {
            Phase::Landing { tells: true }
        } else if let Some(kept) = store.entry[key] {
            let lands = request.leased;
            Phase::Known { age: kept.age, ticks: 0, current: true, counts: true, lands }
        } else {
            Phase::Decided { epoch: store.epoch, number: store.number[key] }
        };
        let ends = matches!(request.phase, Phase::Landing { .. }) && !request.leased;
        self.world.processes[at].request = (!ends).then_some(request);
    }

    /// `commit.lua`.
    fn commit(&mut self, at: usize, mut request: Request, epoch: Option<u8>, number: u8) {
        let key = usize::from(request.key);
        let blind = self.flawed(Flaw::BlindWrite);
        let store = &mut self.world.store;
        if blind || (store.epoch, store.number[key]) == (epoch, number) {
            store.seq += 1;
            store.number[key] = store.seq;
            store.entry[key] = Some(Kept { age: request.age, overtaken: request.overtaken });
            if store.lease[key] == Some(request.token) {
                store.lease[key] = None;
            }
            request.phase =
                Phase::Known { age: request.age, ticks: 0, current: true, counts: true, lands: false };
        } else {
            request.phase = Phase::Refused;
        }
        self.world.processes[at].request = Some(request);
    }

    fn learn(&mut self, at: usize, mut request: Request) {
        let Phase::Known { age, ticks, current, counts, lands } = request.phase else { return };
        let key = usize::from(request.key);
        let ticks = if self.flawed(Flaw::AgeFromAnswer) { 0 } else { ticks };
        if current || self.flawed(Flaw::PutWhateverWasHeard) {
            self.world.processes[at].near[key] = Some(Near { age, ticks });
        }
        self.world.acked[key] |= counts;
        request.phase = Phase::Landing { tells: false };
        self.world.processes[at].request = lands.then_some(request);
    }

    /// `release.lua`, if there is a store.
    fn land(&mut self, at: usize, request: Request, tells: bool) {
        let key = usize::from(request.key);
        self.world.processes[at].request = None;
        let holds = self.world.store.lease[key] == Some(request.token);
        if self.world.processes[at].connected && (holds || self.flawed(Flaw::ReleaseWithoutToken)) {
            self.world.store.lease[key] = None;
            if tells {
                self.publish(Message::Released(request.key, request.token));
            }
        }
    }

    /// `accept.lua`, if there is a store.
    fn accept(&mut self, at: usize, request: Request) {
        let key = usize::from(request.key);
        let process = &mut self.world.processes[at];
        process.request = None;
        process.near[key] = None;
        process.accepted[key] = true;
        if !process.connected {
            return;
        }
        if self.world.store.entry[key].take().is_some() {
            self.publish(Message::Gone(request.key));
        }
        self.world.store.number[key] = 0;
        if self.world.store.lease[key] == Some(request.token) {
            self.world.store.lease[key] = None;
            self.publish(Message::Released(request.key, request.token));
        }
        self.publish(Message::Accepted(request.key));
        for other in self.world.requests_of(key) {
            other.overtaken |= other.is_under_way();
        }
        self.world.ended(key);
    }

    fn hear(&mut self, at: usize) {
        let any = self.flawed(Flaw::AnyRelease);
        let process = &mut self.world.processes[at];
        let message = process.inbox.remove(0);
        let gone = match message {
            Message::Released(key, token) => {
                if let Some(Request { key: of, phase: Phase::Waiting { on, told: told @ None }, .. }) =
                    &mut process.request
                    && *of == key
                    && (any || *on == token)
                {
                    *told = Some(token);
                }
                return;
            }
            Message::Accepted(key) => {
                if let Some(request @ Request { phase: Phase::Sent | Phase::Refused, .. }) =
                    &mut process.request
                    && request.key == key
                {
                    request.barred = true;
                    process.accepted[usize::from(key)] = true;
                }
                return;
            }
            Message::Gone(key) => usize::from(key)..usize::from(key) + 1,
            Message::Forgotten => 0..KEYS,
        };
        for key in gone {
            process.near[key] = None;
            not_current(&mut process.request, key);
        }
    }

    fn join(&mut self, at: usize) {
        let keeps = self.flawed(Flaw::KeepOverReconnect);
        let process = &mut self.world.processes[at];
        process.connected = true;
        process.deaf = false;
        if !keeps {
            process.near = [None; KEYS];
            (0..KEYS).for_each(|key| not_current(&mut process.request, key));
        }
    }

    fn cut(&mut self, at: usize) {
        let process = &mut self.world.processes[at];
        process.connected = false;
        process.inbox.clear();
        if let Some(request) = &mut process.request {
            match &mut request.phase {
                Phase::Waiting { told, .. } => *told = None,
                // it is written late
                Phase::Decided { .. } => request.phase = Phase::Refused,
                _ => {}
            }
        }
    }

    fn lapse(&mut self, key: usize) {
        let Some(token) = self.world.store.lease[key].take() else { return };
        if let Some(holder) = self.world.requests_of(key).find(|request| request.token == token) {
            holder.lapsed = true;
        }
        let at = usize::from(token >> 2);
        let process = &self.world.processes[at];
        if process.connected && process.request.is_some_and(|request| request.token == token) {
            self.world.left.lapses -= 1;
        }
    }

    fn expire(&mut self, key: usize) {
        self.world.store.entry[key] = None;
        for process in &mut self.world.processes {
            process.near[key] = None;
            not_current(&mut process.request, key);
        }
        self.world.ended(key);
    }

    fn wipe(&mut self) {
        self.world.store = Store { era: self.world.store.era + 1, ..Store::default() };
        for key in 0..KEYS {
            self.world.ended(key);
            self.world.requests_of(key).for_each(|request| request.lapsed |= request.leased);
        }
    }

    fn remove(&mut self, key: usize) {
        self.world.store.entry[key] = None;
        self.world.store.number[key] = 0;
        self.world.ended(key);
    }

    /// `forget_key.lua`.
    fn forget_key(&mut self, key: usize) {
        self.world.ages(key, Age::Fresh, Age::Older);
        self.world.store.keyed[key] = self.next_epoch();
        self.remove(key);
        let name = u8::try_from(key).unwrap_or(0);
        self.publish(Message::Gone(name));
        self.world.forget = Some(Forget::Key(name));
    }

    /// `forget.lua`.
    fn note_forget_all(&mut self) {
        self.world.store.wide = self.next_epoch();
        self.publish(Message::Forgotten);
    }

    fn forget_all(&mut self) {
        (0..self.rules.keys).for_each(|key| self.world.ages(key, Age::Fresh, Age::Older));
        if !self.flawed(Flaw::RemoveBeforeEpoch) {
            self.note_forget_all();
        }
        self.world.forget = Some(Forget::All(0));
    }

    fn forget(&mut self, forget: Forget) {
        let of = match forget {
            Forget::All(next) if usize::from(next) < self.rules.keys => {
                self.remove(usize::from(next));
                self.world.forget = Some(Forget::All(next + 1));
                return;
            }
            Forget::All(_) => {
                if self.flawed(Flaw::RemoveBeforeEpoch) {
                    self.note_forget_all();
                } else if !self.flawed(Flaw::ToldOnce) {
                    self.publish(Message::Forgotten);
                }
                0..self.rules.keys
            }
            Forget::Key(key) => usize::from(key)..usize::from(key) + 1,
        };
        of.for_each(|key| self.world.ages(key, Age::Older, Age::Forgotten));
        self.world.forget = None;
        self.world.since_forget = 0;
    }

    fn tick(&mut self) {
        self.world.since_forget = (self.world.since_forget + 1).min(FRESH);
        for process in &mut self.world.processes {
            for near in &mut process.near {
                *near = near.map(|n| Near { ticks: n.ticks + 1, ..n }).filter(|n| n.ticks < FRESH);
            }
            if let Some(Request { phase: Phase::Known { ticks, .. }, .. }) = &mut process.request {
                *ticks += 1;
            }
        }
    }

    /// Takes a step; `None` where it cannot be taken.
    pub(super) fn take(&mut self, step: Step) -> Option<()> {
        let left = &mut self.world.left;
        let affordable = match step {
            Step::WaitOut(_) => spend(&mut left.wait_outs),
            Step::Miss(_) => spend(&mut left.unheard),
            Step::Cut(_) => spend(&mut left.cuts),
            Step::Crash(_) => spend(&mut left.crashes),
            Step::Expire(_) => spend(&mut left.expiries),
            Step::Wipe => spend(&mut left.wipes),
            Step::ForgetKey(_) => spend(&mut left.forget_keys),
            Step::ForgetAll => spend(&mut left.forget_alls),
            Step::Tick => spend(&mut left.ticks),
            _ => true,
        };
        if !affordable {
            return None;
        }
        let request = |act: &Self, at: usize| act.world.processes[at].request;
        match step {
            Step::Ask(at, key) => self.ask(at, key),
            Step::Look(at) => self.look(at),
            Step::Go(at) => {
                let request = request(self, at)?;
                let Phase::Waiting { told: Some(told), .. } = request.phase else { return None };
                self.go(at, request, told);
            }
            Step::WaitOut(at) => {
                let request = request(self, at)?;
                self.begin(at, Request { free: true, ..request });
            }
            Step::Send(at) => self.begin(at, request(self, at)?),
            Step::Answer(at, outcome) => self.answer(at, request(self, at)?, outcome),
            Step::Prepare(at) => self.prepare(at, request(self, at)?),
            Step::Commit(at) => {
                let request = request(self, at)?;
                let Phase::Decided { epoch, number } = request.phase else { return None };
                self.commit(at, request, epoch, number);
            }
            Step::Learn(at) => self.learn(at, request(self, at)?),
            Step::Land(at) => {
                let request = request(self, at)?;
                let Phase::Landing { tells } = request.phase else { return None };
                self.land(at, request, tells);
            }
            Step::Accept(at) => self.accept(at, request(self, at)?),
            Step::Hear(at) => self.hear(at),
            Step::Miss(at) => {
                self.world.processes[at].inbox.remove(0);
                self.world.processes[at].deaf = true;
            }
            Step::Cut(at) => self.cut(at),
            Step::Join(at) => self.join(at),
            Step::Crash(at) => {
                let process = &mut self.world.processes[at];
                process.request = None;
                process.inbox.clear();
                process.near = [None; KEYS];
                process.accepted = [false; KEYS];
                (process.connected, process.deaf, process.seen) = (true, false, 0);
            }
            Step::Lapse(key) => self.lapse(key),
            Step::Expire(key) => self.expire(key),
            Step::Wipe => self.wipe(),
            Step::ForgetKey(key) => self.forget_key(key),
            Step::ForgetAll => self.forget_all(),
            Step::Forget => self.forget(self.world.forget?),
            Step::Tick => self.tick(),
        }
        Some(())
    }
}

fn not_current(request: &mut Option<Request>, key: usize) {
    if let Some(Request { key: of, phase: Phase::Known { current, .. }, .. }) = request
        && usize::from(*of) == key
    {
        *current = false;
    }
}
