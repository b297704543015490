//! Random traffic through the scheduler, over a cache that remembers tokens instead of keys and values.

use std::collections::HashMap;
use std::sync::Arc;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::*;
use crate::ngram;
use crate::sample::SamplingParams;

/// A model whose next token depends on every token before it, on the request and on the sample. It often
/// repeats a token that was there before.
fn next_token(tokens: &[i64], id: ReplyId) -> i64 {
    let mut state = id.request.wrapping_mul(0x9e37_79b9) ^ u64::from(id.sample).wrapping_mul(0x85eb_ca6b);
    for &token in tokens {
        state = (state ^ token as u64).wrapping_mul(0x0100_0000_01b3).rotate_left(17);
    }
    let repeated = tokens.len().checked_sub(5).filter(|_| !state.is_multiple_of(4));
    repeated.map_or((state / 4 % 23) as i64, |place| tokens[place])
}

/// The cache: the token of each place in each page.
#[derive(Default)]
struct Cache {
    pages: HashMap<PageId, Vec<Option<i64>>>,
    /// Tokens that were computed.
    computed: usize,
}

impl Cache {
    /// Computes a step, and returns the tokens that are drawn by slice.
    fn execute(&mut self, plan: &StepPlan, size: usize) -> Vec<Vec<i64>> {
        let empty = || vec![None; size];
        // As the device does it: all pages are read, and then all are written.
        let copied: Vec<_> = plan.copies.iter().map(|(from, _)| self.pages[from].clone()).collect();
        for ((_, to), page) in plan.copies.iter().zip(copied) {
            self.pages.insert(*to, page);
        }
        let mut written: HashMap<(PageId, usize), ReplyId> = HashMap::new();
        for slice in &plan.slices {
            self.computed += slice.tokens.len();
            for (position, &token) in (slice.first..).zip(&slice.tokens) {
                let place = (slice.pages[position / size], position % size);
                assert_eq!(written.insert(place, slice.sequence), None, "two sequences write one place");
                self.pages.entry(place.0).or_insert_with(empty)[place.1] = Some(token);
            }
        }

        let mut drawn = Vec::new();
        for slice in plan.slices.iter().filter(|slice| slice.draws > 0) {
            let end = slice.first + slice.tokens.len() - slice.guesses;
            let read = |position: usize| self.pages[&slice.pages[position / size]][position % size];
            let mut tokens: Vec<i64> = (0..end).map(|position| read(position).expect("computed")).collect();
            let mut own: Vec<i64> =
                (0..slice.draws).map(|draw| next_token(&tokens, slice.drawn_reply(draw))).collect();
            for position in end..end + slice.guesses {
                if read(position) != own.last().copied() {
                    break;
                }
                tokens.extend(read(position));
                own.push(next_token(&tokens, slice.sequence));
            }
            drawn.push(own);
        }
        drawn
    }
}

fn request(id: u64, prompt: Vec<i64>, samples: u32, max_new_tokens: usize) -> Request {
    Request {
        id,
        samples,
        max_new_tokens,
        stop_ids: Arc::new([0]),
        ..Request::new(prompt.into(), SamplingParams::default())
    }
}

/// The replies of a request, one token after the other.
fn expected(request: &Request, positions: usize) -> Vec<(Vec<i64>, FinishReason)> {
    let reply = |sample| {
        let mut tokens = request.prompt.to_vec();
        loop {
            let token = next_token(&tokens, ReplyId { request: request.id, sample });
            tokens.push(token);
            let reply = &tokens[request.prompt.len()..];
            if request.stop_ids.contains(&token) {
                return (reply.to_vec(), FinishReason::Stop);
            }
            if reply.len() >= request.max_new_tokens || tokens.len() >= positions {
                return (reply.to_vec(), FinishReason::Length);
            }
        }
    };
    (0..request.samples).map(reply).collect()
}

/// Runs requests to their end, and returns every reply.
struct Run {
    scheduler: Scheduler,
    cache: Cache,
    size: usize,
    replies: BTreeMap<ReplyId, Vec<i64>>,
    ended: BTreeMap<ReplyId, FinishReason>,
    steps: usize,
}

impl Run {
    fn new(limits: Limits, order: Order, size: usize, pages: usize) -> Self {
        let mut table = PageTable::new(size);
        table.grow(pages);
        Self {
            scheduler: Scheduler::new(limits, order, table),
            cache: Cache::default(),
            size,
            replies: BTreeMap::new(),
            ended: BTreeMap::new(),
            steps: 0,
        }
    }

    fn step(&mut self) -> Result<(), NoRoom> {
        let mut plan = self.scheduler.schedule()?;
        for slice in &mut plan.slices {
            let guesses = ngram::guess(self.scheduler.tokens(slice.sequence), slice.lookahead);
            self.scheduler.guess(slice, &guesses);
        }
        let tokens: usize = plan.slices.iter().map(|slice| slice.tokens.len()).sum();
        let Limits { batched_tokens, splits_prompts, .. } = self.scheduler.limits;
        assert!(tokens <= batched_tokens || !splits_prompts);
        assert!(tokens > 0 || self.scheduler.is_idle(), "a step makes progress");
        let drawn = self.cache.execute(&plan, self.size);
        let mut tokens = drawn.iter();
        for slice in &plan.slices {
            let own = if slice.draws > 0 { tokens.next().unwrap().as_slice() } else { &[] };
            for (draw, &token) in (0..).zip(own) {
                self.replies.entry(slice.drawn_reply(draw)).or_default().push(token);
            }
        }
        for finished in self.scheduler.complete(&plan, &drawn) {
            assert_eq!(self.ended.insert(finished.sequence, finished.reason), None);
        }
        self.steps += 1;
        assert!(self.steps < 100_000, "the run ends");
        Ok(())
    }

    fn finish(&mut self) {
        while !self.scheduler.is_idle() {
            self.step().unwrap();
        }
    }

    fn reply(&self, request: u64, sample: u32) -> (Vec<i64>, FinishReason) {
        let id = ReplyId { request, sample };
        (self.replies[&id].clone(), self.ended[&id])
    }
}

const LIMITS: Limits = Limits {
    batched_tokens: 64,
    sequences: 16,
    positions: 1000,
    splits_prompts: true,
    speculative_tokens: 0,
};

#[test]
fn random_traffic_gets_the_replies_of_one_request_after_the_other() {
    let mut accepted = 0;
    for seed in 0..300 {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let size = random.random_range(1..9);
        let limits = Limits {
            batched_tokens: random.random_range(1..40),
            sequences: random.random_range(4..12),
            positions: random.random_range(30..60),
            splits_prompts: random.random_range(0..4) > 0,
            speculative_tokens: random.random_range(0..5),
        };
        let order = if random.random() { Order::Arrival } else { Order::LongestFirst };
        // The longest sequence fits alone, and four of them do not always.
        let alone = limits.positions.div_ceil(size) + 1;
        let pages = random.random_range(alone..4 * alone);
        let mut run = Run::new(limits, order, size, pages);

        let mut requests = Vec::new();
        let mut aborted = HashSet::new();
        for id in 0..30 {
            let common: Vec<i64> = (0..random.random_range(0..12)).map(|index| 7 + index % 5).collect();
            let own = (0..random.random_range(1..12)).map(|_| random.random_range(1..9));
            let prompt = common.into_iter().chain(own).collect();
            let (samples, longest) = (random.random_range(1..4), random.random_range(1..30));
            let request =
                Request { priority: random.random_range(0..2), ..request(id, prompt, samples, longest) };
            requests.push(request.clone());
            run.scheduler.add(request);
            for _ in 0..random.random_range(0..4) {
                run.step().unwrap();
            }
            if random.random_range(0..8) == 0 {
                let id = random.random_range(0..=id);
                if run.scheduler.abort(id) {
                    aborted.insert(id);
                }
            }
            if random.random_range(0..20) == 0 {
                run.scheduler.suspend();
            }
        }
        run.finish();

        for request in requests.iter().filter(|request| !aborted.contains(&request.id)) {
            for (sample, reply) in (0..).zip(expected(request, limits.positions)) {
                assert_eq!(run.reply(request.id, sample), reply, "seed {seed}: {request:?}");
            }
        }
        assert_eq!(run.scheduler.pages.num_used(), 0, "seed {seed}: a page is lost");
        accepted += run.scheduler.counts().accepted;
    }
    assert!(accepted > 1000, "{accepted} right guesses are no test");
}

#[test]
fn right_guesses_save_steps_and_wrong_ones_cost_none() {
    let steps = |speculative_tokens| {
        let mut run = Run::new(Limits { speculative_tokens, ..LIMITS }, Order::Arrival, 4, 500);
        run.scheduler.add(request(1, vec![1, 2, 3], 1, 200));
        run.finish();
        (run.reply(1, 0), run.steps, run.scheduler.counts())
    };
    let (reply, plain, _) = steps(0);
    let (same, fewer, counts) = steps(4);
    assert_eq!(reply, same);
    assert_eq!(plain as u64, fewer as u64 + counts.accepted);
    assert!(counts.accepted > 0 && counts.guessed > counts.accepted, "{counts:?}");
}

#[test]
fn the_prompt_of_several_samples_is_computed_once() {
    for length in [1, 4, 5, 63, 64, 200] {
        let mut run = Run::new(LIMITS, Order::Arrival, 4, 500);
        let prompt: Vec<i64> = (0..length).map(|index| 1 + index % 20).collect();
        run.scheduler.add(request(1, prompt, 4, 1));
        run.finish();
        assert_eq!(run.cache.computed, length as usize);
    }
}

#[test]
fn requests_with_a_common_prefix_compute_it_once_also_if_they_come_together() {
    let mut run = Run::new(Limits { batched_tokens: 1000, ..LIMITS }, Order::Arrival, 4, 500);
    let common: Vec<i64> = (0..100).map(|index| 1 + index % 20).collect();
    for id in 0..4 {
        run.scheduler.add(request(id, [common.as_slice(), &[id as i64 + 1]].concat(), 1, 1));
    }
    run.finish();
    // 100 tokens are 25 pages; each request computes its own last token.
    assert_eq!(run.cache.computed, 100 + 4);
    assert_eq!(run.scheduler.counts().shared, 300);
}

#[test]
fn other_salts_share_nothing() {
    let mut run = Run::new(LIMITS, Order::Arrival, 4, 500);
    for id in 0..2 {
        run.scheduler.add(Request { salt: id, ..request(id, vec![3; 41], 1, 1) });
        run.finish();
    }
    assert_eq!(run.cache.computed, 82);
}

#[test]
fn each_token_of_a_prompt_is_scored_once_also_after_a_suspension() {
    let prompt: Vec<i64> = (1..42).collect();
    let mut run = Run::new(Limits { batched_tokens: 8, ..LIMITS }, Order::Arrival, 4, 500);
    run.scheduler.add(request(0, prompt.clone(), 1, 1));
    run.finish();
    run.scheduler.add(Request { prompt_logprobs: true, ..request(1, prompt.clone(), 1, 3) });
    let mut scored = Vec::new();
    for step in 0.. {
        let plan = run.scheduler.schedule().unwrap();
        let Some(slice) = plan.slices.first() else { break };
        for (index, &token) in slice.scored.iter().enumerate() {
            assert_eq!(token, prompt[slice.first + slice.scored_after + index + 1]);
            scored.push(token);
        }
        let drawn = run.cache.execute(&plan, 4);
        run.scheduler.complete(&plan, &drawn);
        if step == 2 {
            run.scheduler.suspend();
        }
    }
    assert_eq!(scored, prompt[1..]);
}

#[test]
fn a_prompt_that_is_not_split_is_computed_alone_and_shares_nothing() {
    let limits = Limits { batched_tokens: 8, splits_prompts: false, ..LIMITS };
    let mut run = Run::new(limits, Order::Arrival, 4, 500);
    for id in 0..2 {
        run.scheduler.add(request(id, vec![3; 41], 1, 1));
    }
    run.step().unwrap();
    assert_eq!(run.cache.computed, 41);
    run.finish();
    assert_eq!(run.cache.computed, 82);
}

#[test]
fn one_reply_ends_and_the_others_go_on() {
    let mut run = Run::new(LIMITS, Order::Arrival, 4, 500);
    let request = Request { stop_ids: Arc::new([]), ..request(0, vec![1, 2], 3, 9) };
    run.scheduler.add(request.clone());
    run.step().unwrap();
    let ended = ReplyId { request: 0, sample: 1 };
    assert!(run.scheduler.abort_reply(ended));
    assert!(!run.scheduler.abort_reply(ended));
    run.finish();
    let wanted = expected(&request, 1000);
    assert_eq!([0, 2].map(|sample| run.reply(0, sample)), [wanted[0].clone(), wanted[2].clone()]);
    assert_eq!((run.replies[&ended].len(), run.scheduler.pages.num_used()), (1, 0));
}

#[test]
fn a_long_prompt_is_cut_and_replies_go_on_beside_it() {
    let mut run = Run::new(Limits { batched_tokens: 8, ..LIMITS }, Order::Arrival, 4, 500);
    run.scheduler.add(Request { stop_ids: Arc::new([]), ..request(0, vec![1, 2], 1, 100) });
    run.step().unwrap();
    run.scheduler.add(request(1, vec![5; 70], 1, 1));
    let before = run.replies[&ReplyId { request: 0, sample: 0 }].len();
    for _ in 0..10 {
        run.step().unwrap();
    }
    assert_eq!(run.replies[&ReplyId { request: 0, sample: 0 }].len(), before + 10);
    // 7 of 8 tokens a step are left for the prompt of 70.
    assert!(run.ended.contains_key(&ReplyId { request: 1, sample: 0 }));
}

#[test]
fn a_request_that_never_fits_is_named_and_the_others_go_on() {
    let mut run = Run::new(LIMITS, Order::Arrival, 4, 10);
    run.scheduler.add(request(0, vec![1; 50], 1, 5));
    run.scheduler.add(request(1, vec![2; 8], 2, 5));
    let error = run.step().unwrap_err();
    assert_eq!(error, NoRoom { request: 0, needed: 13, pages: 10 });
    assert!(run.scheduler.abort(0));
    run.finish();
    let wanted = expected(&request(1, vec![2; 8], 2, 5), 1000);
    assert_eq!([0, 1].map(|sample| run.reply(1, sample)), [wanted[0].clone(), wanted[1].clone()]);
}
