//! Which steps there are, and what must hold in every state.

use stateright::{Model, Property};

use super::Protocol;
use super::steps::{Act, Step};
use super::world::{Age, FRESH, KEYS, Near, Phase, Process, Promise, Request, World};

impl Protocol {
    fn steps_of(&self, world: &World, at: usize, steps: &mut Vec<Step>) {
        let (process, left) = (&world.processes[at], &world.left);
        let Some(request) = &process.request else {
            let may = left.requests > 0 && process.asked < self.each;
            steps.extend((0..self.keys).filter(|_| may).map(|key| Step::Ask(at, key)));
            return;
        };
        match request.phase {
            Phase::Known { .. } => steps.push(Step::Learn(at)),
            Phase::Leased => steps.push(Step::Send(at)),
            Phase::Waiting { on, told } => {
                let key = usize::from(request.key);
                let unchanged = world.store.entry[key].is_none() && world.store.lease[key] == Some(on);
                if !unchanged || !process.connected {
                    steps.push(Step::Look(at));
                }
                steps.extend(told.map(|_| Step::Go(at)));
                if left.wait_outs > 0 {
                    steps.push(Step::WaitOut(at));
                }
            }
            Phase::Sent => steps.extend(self.outcomes.iter().map(|outcome| Step::Answer(at, *outcome))),
            Phase::Refused if process.connected => steps.push(Step::Prepare(at)),
            Phase::Refused => {}
            Phase::Decided { .. } => steps.push(Step::Commit(at)),
            Phase::Landing { .. } => steps.push(Step::Land(at)),
            Phase::Accepted => steps.push(Step::Accept(at)),
        }
    }
}

impl Model for Protocol {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(self.limits)]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        if world.broken.is_some() {
            return;
        }
        let left = &world.left;
        for (at, process) in world.processes.iter().enumerate() {
            self.steps_of(world, at, steps);
            if !process.inbox.is_empty() {
                steps.push(Step::Hear(at));
                steps.extend((left.unheard > 0).then_some(Step::Miss(at)));
            }
            if !process.connected {
                steps.push(Step::Join(at));
            } else if left.cuts > 0 {
                steps.push(Step::Cut(at));
            }
            if left.crashes > 0 && process.request.is_some() {
                steps.push(Step::Crash(at));
            }
        }
        for key in 0..self.keys {
            if let Some(token) = world.store.lease[key] {
                let process = &world.processes[usize::from(token >> 2)];
                let lives = process.connected && process.request.is_some_and(|r| r.token == token);
                steps.extend((!lives || left.lapses > 0).then_some(Step::Lapse(key)));
            }
            if left.expiries > 0 && world.store.entry[key].is_some() {
                steps.push(Step::Expire(key));
            }
            if left.forget_keys > 0 && world.forget.is_none() {
                steps.push(Step::ForgetKey(key));
            }
        }
        if left.forget_alls > 0 && world.forget.is_none() {
            steps.push(Step::ForgetAll);
        }
        steps.extend(world.forget.map(|_| Step::Forget));
        steps.extend((left.wipes > 0 && world.store.epoch.is_some()).then_some(Step::Wipe));
        let late = |r: &Request| matches!(r.phase, Phase::Known { ticks: 1.., .. });
        if left.ticks > 0 && !world.requests().any(late) {
            steps.push(Step::Tick);
        }
    }

    fn next_state(&self, world: &World, step: Step) -> Option<World> {
        let mut act = Act { rules: self, world: world.clone() };
        act.take(step)?;
        Some(act.world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(super::NOT_AGAIN, |_, world: &World| world.broken != Some(Promise::NotAgain)),
            Property::always(super::ONE_AT_A_TIME, |_, world: &World| {
                world.broken != Some(Promise::OneAtATime)
            }),
            Property::always(super::STAYS_FORGOTTEN, |_, world: &World| {
                world.store.entry.iter().flatten().all(|kept| kept.age != Age::Forgotten)
            }),
            Property::always(super::HEARD, |_, world: &World| {
                let in_the_dark = |p: &Process| !p.connected || p.deaf || !p.inbox.is_empty();
                let forgotten = |n: &Near| n.age == Age::Forgotten;
                world.processes.iter().all(|p| in_the_dark(p) || !p.near.iter().flatten().any(forgotten))
            }),
            Property::always(super::AGED_OUT, |_, world: &World| {
                let forgotten = |n: &Near| n.age == Age::Forgotten;
                world.since_forget < FRESH
                    || !world.processes.iter().any(|p| p.near.iter().flatten().any(forgotten))
            }),
            Property::sometimes(super::OVERTAKEN, |_, world: &World| {
                world.store.entry.iter().flatten().any(|kept| kept.overtaken)
            }),
            Property::sometimes(super::TWO, |_, world: &World| {
                let of = |key, r: &&Request| r.key == key && r.leased && matches!(r.phase, Phase::Sent);
                (0_u8..).zip(0..KEYS).any(|(key, _)| world.requests().filter(|r| of(key, r)).count() > 1)
            }),
            Property::sometimes(super::LATE, |_, world: &World| {
                world.requests().any(|r| matches!(r.phase, Phase::Leased) && world.acked[usize::from(r.key)])
            }),
        ]
    }
}
