//! The full-screen chat: a state that turns events into effects, and draws itself.
//!
//! [`ChatScreen::update`] is the only way in. It changes the state and returns what the program has to do:
//! [`event`] lists both sides. [`ChatScreen::draw`] shows the state. Nothing here runs a model, reads a file
//! or a clock, so every run of events can be tested.
//!
//! | module | content |
//! |---|---|
//! | [`conversation`] | the tree of turns |
//! | [`command`], [`keys`] | the slash commands and the keys, each in one table |
//! | [`event`] | events and effects |
//! | `input` | keys, pastes and the mouse |
//! | `act` | what commands and actions do |
//! | `models` | which model answers |
//! | `judge` | good, bad, ratings, preferences |
//! | `answer` | reports of models |
//! | `transcript` | the lines of the conversation, and scrolling |
//! | `overlay` | help, lists and tokens in front of the conversation |
//! | `view` | the layout of the screen |

mod act;
mod answer;
pub mod command;
pub mod conversation;
pub mod event;
mod input;
mod judge;
pub mod keys;
mod models;
mod overlay;
mod transcript;
mod view;

use std::collections::VecDeque;
use std::time::Duration;

use crate::editor::{Editor, History};
use crate::line::Statistics;
use crate::theme::{Symbols, Theme};
use conversation::{Asked, Conversation, Judgement, Role, TurnId};
use event::{ContextPolicy, Effect, Event, Feedback, Notice, Request, Sampling, Saved};
use keys::Keymap;
use overlay::Overlay;
use transcript::Transcript;

/// How long a notice stays on the screen. An error stays until the user has had this time and then pressed a
/// key.
const NOTICE: Duration = Duration::from_secs(8);

/// What a screen starts with.
pub struct Setup {
    /// The models as the user gave them. The first one answers; with `compare`, all of them.
    pub models: Vec<String>,
    /// The adapters of the first model. If there are any, the first of them answers.
    pub adapters: Vec<Adapter>,
    /// Whether a model is named by the address of a server, which then decides some settings.
    pub is_endpoint: fn(&str) -> bool,
    /// Whether all models answer side by side, and under which names.
    pub compare: Option<Names>,
    /// Instructions for the models.
    pub system: Option<String>,
    /// How answers are drawn.
    pub sampling: Sampling,
    /// What happens when the context is full.
    pub context: ContextPolicy,
    /// Earlier messages, the oldest first.
    pub history: Vec<String>,
    /// The styles.
    pub theme: Theme,
    /// The symbols.
    pub symbols: Symbols,
    /// The keys.
    pub keys: Keymap,
    /// Whether the input has the keys of vim.
    pub vim: bool,
    /// Whether the terminal reports the mouse.
    pub mouse: bool,
    /// Makes the name of a new session.
    pub new_id: Box<dyn FnMut() -> String>,
    /// Whether sessions are kept.
    pub saves: bool,
    /// What the first session that is opened does not change.
    pub given: Vec<Setting>,
    /// Where judgements are written, for the user to know.
    pub feedback_folder: String,
}

/// An adapter of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adapter {
    /// The name that the user types.
    pub name: String,
    /// Its folder, as the user gave it.
    pub path: String,
}

/// A setting that a session keeps and that a flag may give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// The instructions.
    System,
    /// `temperature`.
    Temperature,
    /// `top_k`.
    TopK,
    /// `top_p`.
    TopP,
    /// `max_new_tokens`.
    MaxNewTokens,
    /// `seed`.
    Seed,
    /// What happens when the context is full.
    Context,
}

/// Whether a comparison shows which model wrote which answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Names {
    /// The answers stand in the order of the models, with their names.
    Shown,
    /// The answers stand in an order that is drawn anew each time, without names.
    Hidden,
}

/// The state of the chat.
pub struct ChatScreen {
    slots: Vec<Slot>,
    is_endpoint: fn(&str) -> bool,
    /// The slot that answers.
    current: usize,
    compare: Option<Compare>,
    talk: Conversation,
    id: String,
    title: Option<String>,
    sampling: Sampling,
    policy: ContextPolicy,
    transcript: Transcript,
    /// The turn that commands are about; without one, the last.
    selected: Option<TurnId>,
    editor: Editor,
    history: History,
    draft: Draft,
    prompt: Option<PromptLine>,
    overlay: Option<Overlay>,
    /// The answers that are asked for, the one in work first.
    running: VecDeque<Running>,
    progress: Progress,
    notice: Option<(Notice, Duration)>,
    note: Option<String>,
    tags: Vec<String>,
    prefill: Option<String>,
    /// Where judgements are written, until the user was told.
    feedback_folder: Option<String>,
    saves: bool,
    given: Vec<Setting>,
    /// When the user last pressed a key of the input.
    typed: Option<Duration>,
    /// When the last answer ended.
    ended: Option<Duration>,
    /// When the user pressed the first of two keys that end the chat.
    asked_to_end: Option<Duration>,
    theme: Theme,
    symbols: Symbols,
    keys: Keymap,
    vim: bool,
    mouse: bool,
    new_id: Box<dyn FnMut() -> String>,
    now: Duration,
    effects: Vec<Effect>,
}

/// A model, or an adapter of the model in the first slot.
struct Slot {
    /// As the user gave it.
    path: String,
    /// The name of an adapter; `None` for a model.
    adapter: Option<String>,
    /// Whether a server runs the model.
    is_remote: bool,
    state: SlotState,
}

enum SlotState {
    Loading(String),
    Ready { context: Option<u64>, detail: String },
    Failed,
}

impl Slot {
    fn name(&self) -> String {
        self.adapter.as_deref().map_or_else(|| short_name(&self.path), text::single_line)
    }
}

/// The last parts of a path, which tell models apart: `ppo/final` of `runs/ppo/final`.
fn short_name(path: &str) -> String {
    let parts: Vec<&str> = path.trim_end_matches('/').split('/').filter(|part| !part.is_empty()).collect();
    let name = match parts[..] {
        [.., stage, "final"] => format!("{stage}/final"),
        [scheme, .., host, version] if scheme.ends_with(':') => format!("{host}/{version}"),
        [.., name] => name.to_owned(),
        [] => path.to_owned(),
    };
    text::single_line(&name)
}

/// Several models that answer the same.
struct Compare {
    slots: Vec<usize>,
    blind: bool,
    /// The answers that wait for a choice, in the order of the columns.
    group: Vec<TurnId>,
}

/// An answer that is asked for.
struct Running {
    turn: TurnId,
    /// The text with which it begins.
    prefix: String,
    /// The answer that was on the screen when the user asked for another one.
    beside: Option<TurnId>,
    numbers: Numbers,
}

/// The numbers of an answer so far.
#[derive(Clone, Copy, Default)]
struct Numbers {
    prompt_tokens: u64,
    new_tokens: u64,
    rate: Option<f64>,
}

/// What sending does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Draft {
    /// The next message.
    Message,
    /// Another version of this message.
    EditMessage(TurnId),
    /// Another version of this answer.
    EditAnswer(TurnId),
}

impl Draft {
    /// The turn of which the input is another version.
    fn turn(self) -> Option<TurnId> {
        match self {
            Self::Message => None,
            Self::EditMessage(turn) | Self::EditAnswer(turn) => Some(turn),
        }
    }
}

/// A line that is typed in place of the status bar.
struct PromptLine {
    kind: PromptKind,
    text: String,
    /// The number of matches to pass over.
    skip: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PromptKind {
    Find,
    History,
}

/// What is known of the last answers.
#[derive(Default)]
struct Progress {
    /// The numbers of the answer that ended last.
    numbers: Numbers,
    dropped: usize,
    statistics: Option<Statistics>,
}

impl ChatScreen {
    /// A screen with an empty conversation. The effects load its models.
    pub fn new(setup: Setup) -> (Self, Vec<Effect>) {
        let Setup { models, adapters, mut new_id, .. } = setup;
        let (is_endpoint, num_models) = (setup.is_endpoint, models.len());
        let slot = |(adapter, path): (Option<String>, String)| {
            let state = SlotState::Loading("waiting".to_owned());
            Slot { is_remote: is_endpoint(&path), path, adapter, state }
        };
        let models = models.into_iter().map(|path| (None, path));
        let adapters = adapters.into_iter().map(|Adapter { name, path }| (Some(name), path));
        let slots: Vec<Slot> = models.chain(adapters).map(slot).collect();
        let load = |(slot, model): (usize, &Slot)| Effect::Load { slot, model: model.path.clone() };
        let effects: Vec<Effect> = slots.iter().enumerate().map(load).collect();

        let mut editor = Editor::new();
        editor.set_vim(setup.vim);
        let screen = Self {
            compare: setup.compare.map(|names| Compare {
                slots: (0..num_models).collect(),
                blind: names == Names::Hidden,
                group: Vec::new(),
            }),
            // The first adapter answers, if there is one; otherwise the first model.
            current: if num_models < slots.len() { num_models } else { 0 },
            slots,
            is_endpoint,
            talk: Conversation::new(setup.system),
            id: new_id(),
            title: None,
            sampling: setup.sampling,
            policy: setup.context,
            transcript: Transcript::default(),
            selected: None,
            editor,
            history: History::new(setup.history),
            draft: Draft::Message,
            prompt: None,
            overlay: None,
            running: VecDeque::new(),
            progress: Progress::default(),
            notice: None,
            note: None,
            tags: Vec::new(),
            prefill: None,
            feedback_folder: Some(setup.feedback_folder),
            saves: setup.saves,
            given: setup.given,
            typed: None,
            ended: None,
            asked_to_end: None,
            theme: setup.theme,
            symbols: setup.symbols,
            keys: setup.keys,
            vim: setup.vim,
            mouse: setup.mouse,
            new_id,
            now: Duration::ZERO,
            effects: Vec::new(),
        };
        (screen, effects)
    }

    /// Takes in an event at the time `now`, and returns what has to be done.
    pub fn update(&mut self, event: Event, now: Duration) -> Vec<Effect> {
        self.now = now;
        let is_key = matches!(event, Event::Input(_));
        let is_over = |(notice, since): &(Notice, Duration)| {
            now.saturating_sub(*since) > NOTICE && (!notice.is_error || is_key)
        };
        self.notice.take_if(|notice| is_over(notice));
        match event {
            Event::Input(input) => self.input(input),
            Event::Model(report) => self.report(report),
            Event::Opened(saved) => self.open(*saved),
            Event::Sessions(sessions) => self.overlay = Some(Overlay::sessions(sessions)),
            Event::Edited(text) => self.editor.set_text(text.trim_end_matches('\n')),
            Event::Notice(notice) => self.tell(notice),
            Event::Text { title, text } => self.overlay = Some(Overlay::text(&title, &text).later()),
            Event::NotWritten { session, turn, before } => {
                if session == self.id && turn < self.talk.len() {
                    self.talk.turn_mut(turn).judgement = before;
                    self.save();
                }
            }
            Event::Tick => {}
        }
        std::mem::take(&mut self.effects)
    }

    /// The name of the session on the screen.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The numbers that are shown: of several answers at once, those of the first one that has not ended.
    fn numbers(&self) -> Numbers {
        self.running.front().map_or(self.progress.numbers, |running| running.numbers)
    }

    /// Whether this answer is asked for and not complete.
    fn is_running(&self, turn: TurnId) -> bool {
        self.running.iter().any(|running| running.turn == turn)
    }

    /// Whether an answer is being written.
    pub fn is_busy(&self) -> bool {
        !self.running.is_empty()
    }

    /// Stops what is in work and asks for the session to be kept, as when the program has to end.
    pub fn close(&mut self) -> Vec<Effect> {
        self.save();
        let mut effects = std::mem::take(&mut self.effects);
        effects.push(Effect::Stop);
        effects
    }

    fn tell(&mut self, notice: Notice) {
        self.notice = Some((notice, self.now));
    }

    fn done(&mut self, text: impl Into<String>) {
        self.tell(Notice::done(text));
    }

    fn error(&mut self, text: impl Into<String>) {
        self.tell(Notice::error(text));
    }

    /// The answer that commands are about: the selected one, otherwise the last.
    fn answer(&self) -> Option<TurnId> {
        let selected = self.selected.filter(|&id| self.talk.turn(id).role == Role::Assistant);
        selected.or_else(|| self.talk.last(Role::Assistant))
    }

    /// The slot that works on an answer that is there: the one that wrote it while several models answer,
    /// otherwise the current one, which the user chose.
    fn slot_of(&self, answer: TurnId) -> usize {
        let wrote = |slot: &Slot| Some(&slot.path) == self.talk.turn(answer).model.as_ref();
        let author = self.slots.iter().position(wrote).filter(|_| self.compare.is_some());
        author.unwrap_or(self.current)
    }

    /// Asks for the answers of `question`: one by the current model, or one by each model of a comparison.
    fn ask(&mut self, question: TurnId) {
        let prefix = self.prefill.take().unwrap_or_default();
        let Some(compare) = &self.compare else {
            let answer = self.begin_answer(question, self.current, self.sampling.seed);
            return self.request(answer, self.current, prefix);
        };
        let slots = compare.slots.clone();
        let order = if compare.blind {
            shuffled(slots.len(), mixed(&self.id, self.talk.len()))
        } else {
            (0..slots.len()).collect()
        };
        let answers: Vec<TurnId> = order
            .iter()
            .map(|&place| self.begin_answer(question, slots[place], self.sampling.seed))
            .collect();
        if self.compare.as_ref().is_some_and(|compare| compare.blind) {
            self.talk.set_blind(&answers, true);
        }
        for (&answer, &place) in answers.iter().zip(&order) {
            self.request(answer, slots[place], prefix.clone());
        }
        if let Some(compare) = &mut self.compare {
            compare.group = answers;
        }
        self.talk.go_to(Some(question));
    }

    fn begin_answer(&mut self, question: TurnId, slot: usize, seed: u64) -> TurnId {
        let answer = self.talk.add(Some(question), Role::Assistant, "");
        let sampling = Sampling { seed, ..self.sampling };
        let asked = Asked { system: self.talk.system.clone(), sampling, blind: false };
        let turn = self.talk.turn_mut(answer);
        turn.model = Some(self.slots[slot].path.clone());
        turn.asked = Some(asked);
        answer
    }

    fn request(&mut self, turn: TurnId, slot: usize, prefix: String) {
        if self.talk.turn(turn).text.is_empty() && !prefix.is_empty() {
            self.talk.turn_mut(turn).text.clone_from(&prefix);
        }
        self.transcript.forget(turn);
        let sampling = self.talk.turn(turn).asked.as_ref().map_or(self.sampling, |asked| asked.sampling);
        let messages = self.talk.messages_before(turn);
        let policy = self.policy;
        let request = Request { turn, slot, messages, prefix: prefix.clone(), sampling, policy };
        match self.effects.last_mut() {
            Some(Effect::Generate(requests)) => requests.push(request),
            _ => self.effects.push(Effect::Generate(vec![request])),
        }
        if self.running.is_empty() {
            self.progress = Progress::default();
        }
        self.running.push_back(Running { turn, prefix, beside: None, numbers: Numbers::default() });
        self.selected = None;
        self.transcript.follow();
    }

    /// Asks for the session to be kept. An empty one is not worth a file.
    fn save(&mut self) {
        if self.talk.is_empty() {
            return;
        }
        let saved = Saved {
            version: Saved::VERSION,
            id: self.id.clone(),
            title: self.title.clone(),
            model: self.slots[self.current].path.clone(),
            sampling: self.sampling,
            context: self.policy,
            conversation: self.talk.clone(),
        };
        self.effects.push(Effect::Save(Box::new(saved)));
    }

    /// Shows a session that was read. The models stay as they are.
    fn open(&mut self, saved: Saved) {
        if let Err(damaged) = saved.conversation.check() {
            let place = damaged.turn.map_or("the session".to_owned(), |turn| format!("turn {turn}"));
            return self.error(format!("session {} is damaged: {place}: {}", saved.id, damaged.problem));
        }
        // An answer that is being written belongs to the session on the screen.
        if self.refuse_while_busy() {
            return;
        }
        let system = self.talk.system.clone();
        let other = (saved.model != self.slots[self.current].path).then_some(saved.model);
        self.begin(saved.id, saved.title, saved.conversation);
        // A comparison that was not decided stands at its question: the newest answer is shown.
        if let Some(head) = self.talk.head().filter(|&id| self.talk.turn(id).role == Role::User) {
            self.talk.go_below(head);
        }
        self.take_settings(system.as_deref(), saved.sampling, saved.context);
        let turns = self.talk.len();
        match other {
            Some(model) => self.done(format!(
                "{turns} turns; answered so far by {model}, from now on by {}",
                self.slots[self.current].path
            )),
            None => self.done(format!("{turns} turns")),
        }
    }

    /// Takes the settings of a session, but for those that a flag gave at the start.
    fn take_settings(&mut self, system: Option<&str>, saved: Sampling, context: ContextPolicy) {
        let given = std::mem::take(&mut self.given);
        let (mine, policy) = (self.sampling, self.policy);
        (self.sampling, self.policy) = (saved, context);
        for setting in given {
            match setting {
                Setting::System => self.talk.system = system.map(str::to_owned),
                Setting::Temperature => self.sampling.temperature = mine.temperature,
                Setting::TopK => self.sampling.top_k = mine.top_k,
                Setting::TopP => self.sampling.top_p = mine.top_p,
                Setting::MaxNewTokens => self.sampling.max_new_tokens = mine.max_new_tokens,
                Setting::Seed => self.sampling.seed = mine.seed,
                Setting::Context => self.policy = policy,
            }
        }
    }

    /// Puts another conversation on the screen.
    fn begin(&mut self, id: String, title: Option<String>, talk: Conversation) {
        (self.id, self.title, self.talk) = (id, title, talk);
        self.transcript = Transcript::default();
        self.selected = None;
        self.draft = Draft::Message;
        self.progress = Progress::default();
        self.overlay = None;
        if let Some(compare) = &mut self.compare {
            compare.group.clear();
        }
    }

    /// Asks for a judgement to be written down. `before` is what was thought of `turn` until now.
    fn feedback(&mut self, turn: TurnId, before: Judgement, verdict: event::Verdict) {
        let feedback = Feedback {
            session: self.id.clone(),
            turn,
            before,
            prompt: self.talk.messages_before(turn),
            verdict,
            note: self.note.clone(),
            tags: self.tags.clone(),
        };
        self.effects.push(Effect::Judge(feedback));
    }
}

/// A number that depends on the session and its number of turns (FNV-1a, finished as in splitmix64).
fn mixed(id: &str, turns: usize) -> u64 {
    let bytes = id.bytes().chain(turns.to_le_bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let hash = (hash ^ hash >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let hash = (hash ^ hash >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ hash >> 31
}

/// The numbers below `count` in an order that `seed` decides (Fisher and Yates, with a linear congruential
/// generator).
fn shuffled(count: usize, seed: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for place in (1..count).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        order.swap(place, (state >> 33) as usize % (place + 1));
    }
    order
}

#[cfg(test)]
mod tests;
