//! Decides which tokens each step computes: continuous batching over a paged cache (Yu et al. 2022, OSDI,
//! "Orca"; Kwon et al. 2023, arXiv 2309.06180), with long prompts cut into chunks that run beside decoding
//! sequences (Agrawal et al. 2024, arXiv 2403.02310).
//!
//! ```text
//!   add ──> waiting ──admit──> running ──finish──> events
//!                ^                 │
//!                └────preempt──────┘   no page is free: its pages go, and it is computed again later
//! ```
//! A request is one sequence until its prompt has been computed, and then as many as it has samples, which
//! share the pages of the prompt. A sequence never writes into a page that another one uses: it copies the
//! page first.
//!
//! This is pure data: the scheduler knows tokens and pages, and neither a model nor a tensor.

mod plan;

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::ops::Range;

pub use plan::{Counts, Finished, Limits, NoRoom, Order, Slice, StepPlan};

use crate::pages::{PageId, PageTable, PrefixHash};
use crate::request::{FinishReason, ReplyId, Request};

/// A prompt with a reply, or several replies that have not begun.
#[derive(Clone, Debug)]
struct Sequence {
    id: ReplyId,
    /// The prompt and the reply so far.
    tokens: Vec<i64>,
    /// The number of tokens whose keys and values are in the pages.
    computed: usize,
    pages: Vec<PageId>,
    /// The prefix of the full pages that were published or found.
    prefix: PrefixHash,
    published: usize,
    /// The samples that the end of the prompt is for; 1 once the reply has begun.
    samples: u32,
}

/// A request, from its arrival until its last reply has ended.
#[derive(Debug)]
struct Entry {
    request: Request,
    arrival: u64,
    /// The replies that have not ended.
    open: u32,
    /// The tokens of the prompt that need no more log-probability: all of them, if none is wanted.
    scored: usize,
}

/// The scheduler.
/// vLLM: `Scheduler`.
#[derive(Debug)]
pub struct Scheduler {
    limits: Limits,
    order: Order,
    pages: PageTable,
    requests: BTreeMap<u64, Entry>,
    waiting: VecDeque<Sequence>,
    /// Whether `waiting` is in its order.
    is_sorted: bool,
    /// In the order of admission: the last one is preempted first.
    running: Vec<Sequence>,
    arrivals: u64,
    /// Counts what the guards of tests look at.
    counts: Counts,
}

impl Sequence {
    /// The first tokens of a request.
    fn new(request: &Request) -> Self {
        Self {
            id: ReplyId { request: request.id, sample: 0 },
            tokens: request.prompt.to_vec(),
            computed: 0,
            pages: Vec::new(),
            prefix: PrefixHash::empty(request.salt),
            published: 0,
            samples: request.samples,
        }
    }

    /// The tokens that are not in the pages. One of them at least: the last token is computed for its output.
    fn uncomputed(&self) -> usize {
        self.tokens.len() - self.computed
    }
}

impl Scheduler {
    /// A scheduler without requests, over the pages of `pages`.
    pub fn new(limits: Limits, order: Order, pages: PageTable) -> Self {
        assert!(limits.batched_tokens > 0 && limits.sequences > 0, "a step has room for a token");
        Self {
            limits,
            order,
            pages,
            requests: BTreeMap::new(),
            waiting: VecDeque::new(),
            is_sorted: true,
            running: Vec::new(),
            arrivals: 0,
            counts: Counts::default(),
        }
    }

    /// Adds a request. The caller has checked it: it has a prompt that leaves room for a token, at least one
    /// sample, at most as many as [`Limits::sequences`], and an id of its own.
    pub fn add(&mut self, request: Request) {
        let sequence = Sequence::new(&request);
        // Nothing comes before the first token, so it has no log-probability.
        let scored = if request.prompt_logprobs { 1 } else { request.prompt.len() };
        let entry = Entry { arrival: self.arrivals, open: request.samples, scored, request };
        self.arrivals += 1;
        let id = sequence.id.request;
        assert!(self.requests.insert(id, entry).is_none(), "request {id} was added twice");
        self.wait(sequence);
    }

    /// Ends a request. Returns whether there was such a request.
    pub fn abort(&mut self, request: u64) -> bool {
        if self.requests.remove(&request).is_none() {
            return false;
        }
        self.waiting.retain(|sequence| sequence.id.request != request);
        let is_ended = |sequence: &mut Sequence| sequence.id.request == request;
        let ended: Vec<Sequence> = self.running.extract_if(.., is_ended).collect();
        for sequence in ended {
            self.release(sequence.pages);
        }
        true
    }

    /// Ends one reply that has begun. Returns whether there was such a reply.
    pub fn abort_reply(&mut self, reply: ReplyId) -> bool {
        let is_ended = |sequence: &Sequence| sequence.id == reply;
        if let Some(index) = self.running.iter().position(is_ended) {
            let sequence = self.running.remove(index);
            self.release(sequence.pages);
        } else if let Some(index) = self.waiting.iter().position(is_ended) {
            self.waiting.remove(index);
        } else {
            return false;
        }
        self.close(reply.request);
        true
    }

    /// Whether there is nothing to compute.
    pub fn is_idle(&self) -> bool {
        self.requests.is_empty()
    }

    /// The limits.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// The numbers of sequences that have pages, and that wait.
    pub fn num_sequences(&self) -> (usize, usize) {
        (self.running.len(), self.waiting.len())
    }

    /// The pages.
    pub fn pages(&self) -> &PageTable {
        &self.pages
    }

    /// What was done so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Makes all running sequences wait, and forgets the content of every page: the weights change, or the
    /// memory of the pages is given back.
    pub fn suspend(&mut self) {
        while let Some(sequence) = self.running.pop() {
            self.preempt(sequence);
        }
        self.pages.forget_unused();
    }

    /// Plans the next step.
    ///
    /// The plan is empty only if nothing waits and nothing runs. A request that alone does not fit is an
    /// error; the caller ends it and plans again.
    pub fn schedule(&mut self) -> Result<StepPlan, NoRoom> {
        let mut plan = StepPlan::default();
        let mut budget = self.limits.batched_tokens;
        let preempted = self.counts.preempted;
        self.continue_running(&mut plan, &mut budget)?;
        // A sequence that has just lost its pages must not take them from the others at once.
        if self.counts.preempted == preempted {
            self.admit_waiting(&mut plan, &mut budget)?;
        }
        Ok(plan)
    }

    /// Plans the next tokens of the running sequences, oldest first.
    fn continue_running(&mut self, plan: &mut StepPlan, budget: &mut usize) -> Result<(), NoRoom> {
        // A long prompt does not hold up the replies: they take their tokens first.
        for is_reply in [true, false] {
            let mut index = 0;
            while index < self.running.len() && *budget > 0 {
                let uncomputed = self.running[index].uncomputed();
                let count = self.count_now(uncomputed, *budget, plan);
                if (uncomputed == 1) == is_reply && count > 0 {
                    // No other sequence gives up a page for guesses.
                    let mut lookahead = self.lookahead(index, *budget - count);
                    if lookahead > 0 && !self.make_room(index, count + lookahead, plan) {
                        lookahead = 0;
                    }
                    while !self.make_room(index, count, plan) {
                        self.preempt_youngest(plan, budget)?;
                        if index == self.running.len() {
                            break;
                        }
                    }
                    if index == self.running.len() {
                        break;
                    }
                    *budget = budget.saturating_sub(count + lookahead);
                    self.push_slice(index, count, lookahead, plan);
                }
                index += 1;
            }
        }
        Ok(())
    }

    /// How many of the next tokens of a sequence may be guessed, `most` at most: none before its reply has
    /// begun.
    fn lookahead(&self, index: usize, most: usize) -> usize {
        let sequence = &self.running[index];
        let request = &self.requests[&sequence.id.request].request;
        let has_begun = sequence.tokens.len() > request.prompt.len();
        if !has_begun || sequence.uncomputed() > 1 || !self.limits.splits_prompts {
            return 0;
        }
        // One token more than the right guesses is drawn, and none after the last one of the reply.
        let longest = request.prompt.len().saturating_add(request.max_new_tokens).min(self.limits.positions);
        self.limits.speculative_tokens.min(longest - sequence.tokens.len() - 1).min(most)
    }

    /// The tokens of a sequence that runs.
    pub fn tokens(&self, sequence: ReplyId) -> &[i64] {
        let running = self.running.iter().find(|running| running.id == sequence);
        running.map_or(&[], |running| &running.tokens)
    }

    /// Adds guesses of the next tokens to a slice of the last plan, as many as it has room for. A guess that
    /// would end the reply and those after it are left out.
    pub fn guess(&self, slice: &mut Slice, guesses: &[i64]) {
        let stop_ids = &self.requests[&slice.sequence.request].request.stop_ids;
        let is_no_stop = |token: &&i64| !stop_ids.contains(token);
        let before = slice.tokens.len();
        slice.tokens.extend(guesses.iter().take(slice.lookahead).take_while(is_no_stop));
        slice.guesses += slice.tokens.len() - before;
    }

    /// How many of its uncomputed tokens a sequence may compute in this step.
    fn count_now(&self, uncomputed: usize, budget: usize, plan: &StepPlan) -> usize {
        let is_first_prompt = || plan.slices.iter().all(|slice| slice.tokens.len() == 1);
        if self.limits.splits_prompts {
            uncomputed.min(budget)
        } else if uncomputed <= budget || is_first_prompt() {
            uncomputed
        } else {
            0
        }
    }

    /// Takes the pages from the sequence that was admitted last, and its tokens out of the plan.
    fn preempt_youngest(&mut self, plan: &mut StepPlan, budget: &mut usize) -> Result<(), NoRoom> {
        let youngest = self.running.pop().expect("a sequence runs");
        if self.running.is_empty() {
            return Err(self.no_room(youngest));
        }
        if let Some(place) = plan.slices.iter().position(|slice| slice.sequence == youngest.id) {
            let slice = plan.slices.remove(place);
            *budget += slice.tokens.len() + slice.lookahead;
        }
        plan.copies.retain(|(_, to)| !youngest.pages.contains(to));
        self.preempt(youngest);
        Ok(())
    }

    /// Admits waiting sequences and plans their first tokens, as long as the step has room.
    fn admit_waiting(&mut self, plan: &mut StepPlan, budget: &mut usize) -> Result<(), NoRoom> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        self.sort_waiting();
        // The prefixes that this step computes: who needs one of them waits for it.
        let mut pending: HashSet<PrefixHash> = HashSet::new();
        for index in 0..self.running.len() {
            pending.extend(self.pending_prefixes(index));
        }

        let mut under_way: usize = self.running.iter().map(|sequence| sequence.samples as usize).sum();
        let mut place = 0;
        while place < self.waiting.len().min(self.limits.sequences) && *budget > 0 {
            let sequence = &self.waiting[place];
            if under_way + sequence.samples as usize > self.limits.sequences {
                break;
            }
            if self.next_prefix(sequence).is_some_and(|prefix| pending.contains(&prefix)) {
                place += 1;
                continue;
            }

            let mut sequence = self.waiting.remove(place).expect("the place is within the queue");
            self.find_prefix(&mut sequence);
            let count = self.count_now(sequence.uncomputed(), *budget, plan);
            if count == 0 {
                self.put_back(sequence);
                break;
            }
            under_way += sequence.samples as usize;
            self.running.push(sequence);
            let index = self.running.len() - 1;
            if !self.make_room(index, count, plan) {
                let sequence = self.running.pop().expect("it was pushed");
                if self.running.is_empty() {
                    return Err(self.no_room(sequence));
                }
                self.put_back(sequence);
                break;
            }
            *budget = budget.saturating_sub(count);
            self.push_slice(index, count, 0, plan);
            pending.extend(self.pending_prefixes(index));
        }
        Ok(())
    }

    /// Higher priority first; then sequences that were preempted, and the order of the scheduler.
    fn sort_waiting(&mut self) {
        if std::mem::replace(&mut self.is_sorted, true) {
            return;
        }
        let (requests, order) = (&self.requests, self.order);
        let key = |sequence: &Sequence| {
            let entry = &requests[&sequence.id.request];
            let is_new = sequence.tokens.len() == entry.request.prompt.len();
            let length = match order {
                Order::LongestFirst => usize::MAX - sequence.tokens.len(),
                Order::Arrival => 0,
            };
            (-i64::from(entry.request.priority), is_new, length, entry.arrival, sequence.id.sample)
        };
        self.waiting.make_contiguous().sort_by_key(key);
    }

    /// Gives the sequence at `index` pages for `count` more tokens, of which it may write every one. Returns
    /// false if there are not enough pages; those it has got stay with it.
    fn make_room(&mut self, index: usize, count: usize, plan: &mut StepPlan) -> bool {
        let size = self.pages.page_size();
        let sequence = &mut self.running[index];
        let needed = (sequence.computed + count).div_ceil(size);

        // The first token may go into a page that other samples of the prompt use.
        let page = sequence.computed / size;
        if let Some(&shared) = sequence.pages.get(page)
            && self.pages.is_shared(shared)
        {
            let Some(own) = self.pages.allocate() else { return false };
            plan.copies.push((shared, own));
            self.pages.release(shared);
            sequence.pages[page] = own;
        }
        while sequence.pages.len() < needed {
            let Some(page) = self.pages.allocate() else { return false };
            sequence.pages.push(page);
        }
        true
    }

    fn push_slice(&self, index: usize, count: usize, lookahead: usize, plan: &mut StepPlan) {
        let sequence = &self.running[index];
        let tokens = sequence.computed..sequence.computed + count;
        let is_end = tokens.end == sequence.tokens.len();
        let Entry { request, scored, .. } = &self.requests[&sequence.id.request];
        let scored = (*scored).max(tokens.start + 1)..(tokens.end + 1).min(request.prompt.len());
        plan.slices.push(Slice {
            sequence: sequence.id,
            tokens: sequence.tokens[tokens.clone()].to_vec(),
            lookahead,
            guesses: 0,
            first: tokens.start,
            pages: sequence.pages[..(tokens.end + lookahead).div_ceil(self.pages.page_size())].to_vec(),
            draws: if is_end { sequence.samples } else { 0 },
            scored_after: scored.start - 1 - tokens.start,
            scored: request.prompt.get(scored).unwrap_or_default().to_vec(),
        });
    }

    /// Takes the pages that hold the beginning of a sequence.
    fn find_prefix(&mut self, sequence: &mut Sequence) {
        while let Some(prefix) = self.next_prefix(sequence) {
            let Some(page) = self.pages.find(prefix) else { break };
            sequence.pages.push(page);
            sequence.prefix = prefix;
            sequence.published += 1;
            sequence.computed += self.pages.page_size();
        }
        self.counts.shared += sequence.computed as u64;
    }

    /// The prefix that ends with the next page of a waiting sequence; `None` if the page is not full or holds
    /// the last token, whose output is needed, or if prompts are not split, or if every output is needed.
    fn next_prefix(&self, sequence: &Sequence) -> Option<PrefixHash> {
        let is_scored = self.requests[&sequence.id.request].request.prompt_logprobs;
        if !self.limits.splits_prompts || is_scored {
            return None;
        }
        let tokens = page_tokens(self.pages.page_size(), sequence.published);
        let is_before_the_last = tokens.end < sequence.tokens.len();
        is_before_the_last.then(|| sequence.prefix.extended(&sequence.tokens[tokens]))
    }

    /// The prefixes of the full pages that a running sequence has not computed yet.
    fn pending_prefixes(&self, index: usize) -> Vec<PrefixHash> {
        let sequence = &self.running[index];
        let size = self.pages.page_size();
        let mut prefix = sequence.prefix;
        let pages = sequence.published..sequence.tokens.len() / size;
        let extend = |page| {
            prefix = prefix.extended(&sequence.tokens[page_tokens(size, page)]);
            prefix
        };
        pages.map(extend).collect()
    }

    fn wait(&mut self, sequence: Sequence) {
        self.waiting.push_back(sequence);
        self.is_sorted = false;
    }

    /// Puts a sequence that found no room back into the queue.
    fn put_back(&mut self, mut sequence: Sequence) {
        self.counts.shared -= (sequence.published * self.pages.page_size()) as u64;
        self.forget_pages(&mut sequence);
        self.wait(sequence);
    }

    /// Takes the pages from a sequence, which waits to be computed again.
    fn preempt(&mut self, mut sequence: Sequence) {
        self.counts.preempted += 1;
        self.forget_pages(&mut sequence);
        self.wait(sequence);
    }

    fn forget_pages(&mut self, sequence: &mut Sequence) {
        self.release(std::mem::take(&mut sequence.pages));
        let salt = self.requests[&sequence.id.request].request.salt;
        sequence.prefix = PrefixHash::empty(salt);
        (sequence.computed, sequence.published) = (0, 0);
    }

    /// Gives pages back, the last one first: the beginning of a text is needed more often than its end.
    fn release(&mut self, pages: Vec<PageId>) {
        pages.into_iter().rev().for_each(|page| self.pages.release(page));
    }

    fn no_room(&mut self, mut sequence: Sequence) -> NoRoom {
        let needed = sequence.tokens.len().div_ceil(self.pages.page_size());
        self.forget_pages(&mut sequence);
        let request = sequence.id.request;
        self.wait(sequence);
        NoRoom { request, needed, pages: self.pages.len() }
    }

    /// Takes the tokens that were drawn for the slices of a plan that draw, in their order, and returns the
    /// replies that have ended. Requests that were aborted since are left out.
    pub fn complete(&mut self, plan: &StepPlan, drawn: &[Vec<i64>]) -> Vec<Finished> {
        let mut drawn = drawn.iter();
        let mut finished = Vec::new();
        for slice in &plan.slices {
            let tokens = if slice.draws > 0 { drawn.next().map_or(&[][..], Vec::as_slice) } else { &[] };
            let Some(index) = self.running.iter().position(|running| running.id == slice.sequence) else {
                continue;
            };
            if slice.guesses > 0 {
                self.accept(index, slice, tokens, &mut finished);
                continue;
            }
            self.advance(index, slice);
            if !tokens.is_empty() {
                self.split(index, tokens, &mut finished);
            }
        }
        finished
    }

    /// Notes that the tokens of a slice are in the pages, and publishes the pages that are full now.
    fn advance(&mut self, index: usize, slice: &Slice) {
        let sequence = &mut self.running[index];
        sequence.computed += slice.tokens.len();
        let entry = self.requests.get_mut(&sequence.id.request).expect("a sequence has a request");
        entry.scored += slice.scored.len();
        let prompt = entry.request.prompt.len();
        if slice.first < prompt || slice.tokens.len() > 1 {
            self.counts.prefilled += slice.tokens.len() as u64;
        }
        publish(sequence, &mut self.pages);
    }

    /// Appends the tokens that were drawn after a token of a reply and after each right guess.
    fn accept(&mut self, index: usize, slice: &Slice, tokens: &[i64], finished: &mut Vec<Finished>) {
        let Some(&last) = tokens.last() else { return };
        self.counts.guessed += slice.guesses as u64;
        self.counts.accepted += tokens.len() as u64 - 1;

        // Each token was drawn after one that is in the pages. The places of wrong guesses are written again.
        let mut sequence = self.running.remove(index);
        sequence.tokens.extend(tokens);
        sequence.computed = slice.first + tokens.len();
        publish(&mut sequence, &mut self.pages);
        match self.finish_reason(&sequence, last) {
            Some(reason) => {
                finished.push(Finished { sequence: sequence.id, reason });
                self.release(sequence.pages);
                self.close(sequence.id.request);
            }
            None => self.running.insert(index, sequence),
        }
    }

    /// Appends one drawn token to each sample of a sequence. The end of a prompt makes a sequence of every
    /// sample; they share its pages.
    fn split(&mut self, index: usize, tokens: &[i64], finished: &mut Vec<Finished>) {
        let first = self.running.remove(index);
        let mut samples = Vec::with_capacity(tokens.len());
        for sample in 1..first.samples {
            first.pages.iter().for_each(|&page| self.pages.share(page));
            samples.push(Sequence { id: ReplyId { sample, ..first.id }, samples: 1, ..first.clone() });
        }
        samples.insert(0, Sequence { samples: 1, ..first });

        let mut open = Vec::with_capacity(samples.len());
        for (mut sequence, &token) in samples.into_iter().zip(tokens) {
            sequence.tokens.push(token);
            match self.finish_reason(&sequence, token) {
                Some(reason) => {
                    finished.push(Finished { sequence: sequence.id, reason });
                    self.release(sequence.pages);
                    self.close(sequence.id.request);
                }
                None => open.push(sequence),
            }
        }
        self.running.splice(index..index, open);
    }

    /// Why a reply ends with its newest token, if it does.
    fn finish_reason(&self, sequence: &Sequence, token: i64) -> Option<FinishReason> {
        let request = &self.requests[&sequence.id.request].request;
        let new_tokens = sequence.tokens.len() - request.prompt.len();
        if request.stop_ids.contains(&token) {
            Some(FinishReason::Stop)
        } else if new_tokens >= request.max_new_tokens || sequence.tokens.len() >= self.limits.positions {
            Some(FinishReason::Length)
        } else {
            None
        }
    }

    /// Counts the end of a reply, and forgets the request after its last one.
    fn close(&mut self, request: u64) {
        let entry = self.requests.get_mut(&request).expect("a reply has a request");
        entry.open -= 1;
        if entry.open == 0 {
            self.requests.remove(&request);
        }
    }
}

/// Publishes the pages of a sequence that are full.
fn publish(sequence: &mut Sequence, pages: &mut PageTable) {
    let size = pages.page_size();
    while (sequence.published + 1) * size <= sequence.computed {
        let tokens = page_tokens(size, sequence.published);
        sequence.prefix = sequence.prefix.extended(&sequence.tokens[tokens]);
        pages.publish(sequence.pages[sequence.published], sequence.prefix);
        sequence.published += 1;
    }
}

/// The tokens of a page of a sequence.
fn page_tokens(size: usize, page: usize) -> Range<usize> {
    page * size..(page + 1) * size
}

#[cfg(test)]
mod tests;
