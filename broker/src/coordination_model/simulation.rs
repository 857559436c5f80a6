//! Seeded histories: trouble while applications work, then healing, then everything must be read once.

use std::hash::{DefaultHasher, Hash, Hasher};

use zurau_common::rejection::Rejection;

use super::client::{App, INPUTS, Versions};
use super::dice::Dice;
use super::log::{Node, Place};
use super::messages::Message;
use super::world::{BROKERS, World};
use crate::log::Verification;

/// Steps of trouble in each history.
const STEPS: usize = 400;
/// Rounds in which everything must have healed.
const ROUNDS: usize = 400;

/// What goes wrong, each about once in so many steps; 0: never.
#[derive(Debug, Clone)]
pub(super) struct Setup {
    pub(super) apps: usize,
    pub(super) lose: usize,
    pub(super) repeat: usize,
    /// A message takes its time.
    pub(super) hold: usize,
    pub(super) give_up: usize,
    pub(super) elect: usize,
    pub(super) shrink: usize,
    pub(super) replace: usize,
    /// A long time passes: transactions and sessions are over.
    pub(super) wait: usize,
    pub(super) versions: Versions,
    /// From which epoch the producers go on.
    pub(super) epoch: i16,
}

impl Setup {
    /// Only some kinds of trouble in each history: each gets room to show what it does (swarm testing).
    pub(super) fn of(seed: u64) -> Self {
        let mut dice = Dice::new(seed ^ 0xfeed);
        let mut rate = |often: usize| if dice.one_in(3) { 0 } else { often + dice.roll(2 * often) };
        Self {
            apps: 2,
            lose: rate(15),
            repeat: rate(10),
            hold: rate(10),
            give_up: rate(15),
            elect: rate(12),
            shrink: rate(40),
            replace: rate(60),
            wait: rate(80),
            versions: [Versions::One, Versions::Two, Versions::Two, Versions::Both][dice.roll(4)],
            epoch: if dice.one_in(3) { i16::MAX - 2 - i16::from(dice.one_in(2)) } else { -1 },
        }
    }
}

/// What a history came to.
#[derive(Debug)]
pub(super) struct History {
    pub(super) violation: Option<String>,
    pub(super) steps: usize,
    pub(super) commits: usize,
    /// Of everything that happened, in order.
    pub(super) fingerprint: u64,
    pub(super) summary: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Action {
    Deliver(usize),
    Lose(usize),
    Repeat(usize),
    Hold(usize),
    Release(usize),
    Commit(Place, usize),
    Load(Node, Place),
    Next(usize),
    SendMarkers(Node),
    Inform(Node, Place),
    Pass(i64),
    GiveUp(usize),
    GiveUpQuestion(u64),
    GiveUpMarkers(Node, u64),
    Elect(Place, Node, usize),
    Shrink(Place),
    Replace(usize),
}

struct Run {
    world: World,
    setup: Setup,
    steps: usize,
    hasher: DefaultHasher,
    tells: bool,
}

/// Plays the history of a seed.
pub(super) fn play(setup: Setup, seed: u64) -> History {
    let tells = super::number("TELL").is_some();
    let mut world = World::new(seed, setup.apps, setup.versions);
    if 0 <= setup.epoch {
        world.near_the_last_epoch(setup.epoch);
    }
    world.tells = tells;
    let mut run = Run { world, setup, steps: 0, hasher: DefaultHasher::new(), tells };
    let played = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        for _ in 0..STEPS {
            if run.world.referee.violation.is_some() {
                break;
            }
            let action = run.choose();
            run.take(action);
            if run.steps.is_multiple_of(40) {
                run.judge(false);
            }
        }
        run.heal();
    }));
    if played.is_err() {
        run.world.referee.violate("a core panicked".to_owned());
    }
    let referee = &run.world.referee;
    History {
        violation: referee.violation.clone(),
        steps: run.steps,
        commits: referee.commits(),
        fingerprint: run.hasher.finish(),
        summary: referee.summary(),
    }
}

impl Run {
    fn take(&mut self, action: Action) {
        self.steps += 1;
        action.hash(&mut self.hasher);
        if self.tells {
            println!("{:5} {action:?} {}", self.steps, self.told_by(action));
        }
        let world = &mut self.world;
        match action {
            Action::Deliver(at) => {
                let message = world.flying.remove(at);
                world.deliver(message);
            }
            Action::Lose(at) => {
                world.flying.remove(at);
            }
            Action::Repeat(at) => {
                let message = world.flying[at].clone();
                world.flying.push(message);
            }
            Action::Hold(at) => {
                let message = world.flying.remove(at);
                world.late.push(message);
            }
            Action::Release(at) => {
                let message = world.late.remove(at);
                world.flying.push(message);
            }
            Action::Commit(place, batches) => world.commit(place, batches),
            Action::Load(node, place) => world.load(node, place),
            Action::Next(at) => {
                let (app, referee) = (&mut world.apps[at], &mut world.referee);
                if let Some(what) = app.next(referee, &mut world.dice) {
                    let number = app.last_number;
                    let from =
                        super::messages::Caller { slot: app.slot, incarnation: app.incarnation, number };
                    let to = world.place_of(what.place());
                    world.flying.push(Message::Ask { to, from, what });
                }
            }
            Action::SendMarkers(node) => world.send_markers(node),
            Action::Inform(node, place) => world.inform(node, place),
            Action::Pass(milliseconds) => {
                world.now_ms += milliseconds;
                world.tick();
            }
            Action::GiveUp(at) => world.apps[at].give_up(&mut world.dice),
            Action::GiveUpQuestion(number) => {
                world.verified(number, Err(Rejection::NetworkException), i32::MAX)
            }
            Action::GiveUpMarkers(node, request) => world.marked(node, request, None),
            Action::Elect(place, node, kept) => world.elect(place, node, kept),
            Action::Shrink(place) => {
                let partition = world.partitions.get_mut(&place).expect("it exists");
                partition.is_small = !partition.is_small;
            }
            Action::Replace(at) => world.replace(at),
        }
    }

    fn told_by(&self, action: Action) -> String {
        match action {
            Action::Release(at) => format!("{:?}", self.world.late[at]),
            Action::Deliver(at) | Action::Lose(at) | Action::Repeat(at) | Action::Hold(at) => {
                format!("{:?}", self.world.flying[at])
            }
            _ => String::new(),
        }
    }

    fn judge(&mut self, is_over: bool) {
        let World { referee, partitions, .. } = &mut self.world;
        referee.judge(partitions, is_over);
    }

    /// Whether trouble of this kind happens now.
    fn happens(&mut self, once_in: usize) -> bool {
        once_in != 0 && self.world.dice.one_in(once_in)
    }

    fn roll<T: Copy>(&mut self, of: &[T]) -> Option<T> {
        if of.is_empty() { None } else { Some(of[self.world.dice.roll(of.len())]) }
    }

    fn choose(&mut self) -> Action {
        self.trouble().or_else(|| self.work()).unwrap_or(Action::Pass(500))
    }

    fn trouble(&mut self) -> Option<Action> {
        let setup = self.setup.clone();
        let flying: Vec<usize> = (0..self.world.flying.len()).collect();
        let places: Vec<Place> = Place::all().collect();
        if self.happens(setup.lose) {
            return self.roll(&flying).map(Action::Lose);
        }
        if self.happens(setup.hold) {
            return self.roll(&flying).map(Action::Hold);
        }
        if self.happens(setup.repeat) {
            let repeatable = |at: &usize| match &self.world.flying[*at] {
                Message::Ask { .. } | Message::Verify { .. } => true,
                Message::Markers { markers, .. } => {
                    markers.iter().all(|marker| marker.verification == Verification::EndsLowerEpochs)
                }
                _ => false,
            };
            let asks: Vec<usize> = flying.into_iter().filter(repeatable).collect();
            return self.roll(&asks).map(Action::Repeat);
        }
        if self.happens(setup.give_up) {
            return self.impatience();
        }
        if self.happens(setup.elect) {
            let place = self.roll(&places)?;
            let (node, kept) = (self.world.dice.roll(BROKERS), self.world.dice.roll(3));
            return Some(Action::Elect(place, node, kept));
        }
        if self.happens(setup.shrink) {
            return self.roll(&places).map(Action::Shrink);
        }
        if self.happens(setup.replace) {
            let apps: Vec<usize> = (0..self.world.apps.len()).collect();
            return self.roll(&apps).map(Action::Replace);
        }
        self.happens(setup.wait).then_some(Action::Pass(21_000))
    }

    /// Somebody does not wait any longer.
    fn impatience(&mut self) -> Option<Action> {
        let world = &self.world;
        let mut impatient: Vec<Action> = (0..world.apps.len())
            .filter(|at| world.apps[*at].waiting.is_some())
            .map(Action::GiveUp)
            .collect();
        impatient.extend(world.questions().map(Action::GiveUpQuestion));
        impatient.extend(self.calls());
        self.roll(&impatient)
    }

    fn calls(&self) -> Vec<Action> {
        let calls = |broker: &super::broker::Broker| {
            let give_up = |request: &u64| Action::GiveUpMarkers(broker.number, *request);
            broker.calls.keys().map(give_up).collect::<Vec<_>>()
        };
        self.world.brokers.iter().flat_map(calls).collect()
    }

    /// Brokers that have not heard who leads.
    fn uninformed(&self) -> Vec<Action> {
        let mut found = Vec::new();
        for (place, partition) in &self.world.partitions {
            for broker in &self.world.brokers {
                let is_stale =
                    broker.number != partition.leader && partition.leads.contains_key(&broker.number);
                if is_stale || broker.view[place] != partition.leader {
                    found.push(Action::Inform(broker.number, *place));
                }
            }
        }
        found
    }

    fn work(&mut self) -> Option<Action> {
        let world = &self.world;
        let committable = world.partitions.iter().filter(|(_, partition)| partition.can_commit());
        let commits: Vec<Action> = committable.map(|(place, _)| Action::Commit(*place, 3)).collect();
        let coordinators = (0..BROKERS).flat_map(|node| {
            [Place::Transactions, Place::Offsets].into_iter().map(move |place| (node, place))
        });
        let loads: Vec<Action> = coordinators
            .filter(|(node, place)| world.can_load(*node, *place))
            .map(|(node, place)| Action::Load(node, place))
            .collect();
        let idle = |app: &App| app.waiting.is_none() && !app.is_dead();
        let next: Vec<Action> =
            (0..world.apps.len()).filter(|at| idle(&world.apps[*at])).map(Action::Next).collect();
        let is_due = |broker: &&super::broker::Broker| {
            broker.next_marker_due_ms().is_some_and(|due_ms| due_ms <= world.now_ms)
        };
        let markers: Vec<Action> =
            world.brokers.iter().filter(is_due).map(|broker| Action::SendMarkers(broker.number)).collect();
        let flying: Vec<Action> = (0..world.flying.len()).map(Action::Deliver).collect();
        let late: Vec<Action> = (0..world.late.len()).map(Action::Release).collect();
        let uninformed = self.uninformed();
        let passes = vec![Action::Pass(100)];
        let kinds = [
            (flying, 10),
            (commits, 6),
            (loads, 3),
            (next, 5),
            (markers, 3),
            (uninformed, 2),
            (late, 1),
            (passes, 1),
        ];
        let kinds: Vec<_> = kinds.into_iter().filter(|(actions, _)| !actions.is_empty()).collect();
        let mut at = self.world.dice.roll(kinds.iter().map(|(_, weight)| weight).sum());
        for (actions, weight) in kinds {
            if at < weight {
                return self.roll(&actions);
            }
            at -= weight;
        }
        None
    }

    /// No more trouble: applications come to the end of their inputs, and nothing stays open.
    fn heal(&mut self) {
        for place in Place::all() {
            self.world.partitions.get_mut(&place).expect("it exists").is_small = false;
        }
        self.world.retire_zombies();
        for round in 0..ROUNDS {
            if self.world.referee.violation.is_some() || round > 3 && self.rests() {
                break;
            }
            for _ in 0..60 {
                let Some(action) = self.work() else { break };
                self.take(action);
            }
            self.take(Action::Pass(1_000));
            for at in 0..self.world.apps.len() {
                if self.world.apps[at].is_dead() {
                    self.take(Action::Replace(at));
                } else if round % 4 == 3 && self.world.apps[at].waiting.is_some() {
                    self.take(Action::GiveUp(at));
                }
            }
            if round % 4 == 3 {
                let questions: Vec<u64> = self.world.questions().collect();
                questions.into_iter().for_each(|number| self.take(Action::GiveUpQuestion(number)));
                self.calls().into_iter().for_each(|action| self.take(action));
            }
        }
        if self.world.referee.violation.is_none() {
            if !self.rests() {
                let apps = format!("{:?}", self.world.apps);
                self.world.referee.violate(format!("it does not come to rest: {apps}"));
            }
            self.judge(true);
        }
    }

    fn rests(&self) -> bool {
        let world = &self.world;
        let stable = |place: &Place| {
            let lead = world.partitions[place].current();
            lead.last_stable_offset() == lead.end
        };
        let mut inputs: Vec<i32> = world.apps.iter().flat_map(|app| app.inputs.iter().copied()).collect();
        inputs.sort_unstable();
        world.apps.iter().all(App::rests)
            && inputs.into_iter().eq(0..INPUTS)
            && Place::all().all(|place| stable(&place))
    }
}

impl World {
    /// Whom an application takes for the leader: mostly the right one.
    fn place_of(&mut self, place: Place) -> Node {
        if self.dice.one_in(5) {
            let broker = self.dice.roll(BROKERS);
            return self.brokers[broker].view[&place];
        }
        self.partitions[&place].leader
    }

    /// A new run of an application begins; the old one may not know yet that it is one too many.
    fn replace(&mut self, at: usize) {
        let (slot, is_dead) = (self.apps[at].slot, self.apps[at].is_dead());
        let newest = self.apps.iter().filter(|app| app.slot == slot).map(|app| app.incarnation).max();
        let next = App::new(slot, newest.unwrap_or(0) + 1, self.apps[at].versions);
        if is_dead || 4 <= self.apps.len() {
            self.apps[at] = next;
        } else {
            self.apps.push(next);
        }
    }

    /// Only the newest run of each application goes on.
    fn retire_zombies(&mut self) {
        let newest: Vec<(usize, u32)> = self.apps.iter().map(|app| (app.slot, app.incarnation)).collect();
        self.apps.retain(|app| {
            let is_newer =
                |(slot, incarnation): &(usize, u32)| *slot == app.slot && app.incarnation < *incarnation;
            !newest.iter().any(is_newer)
        });
    }
}
