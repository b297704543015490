//! Mixture-of-experts layer: a router computes a probability for every expert, and each token is sent to its
//! top-k experts.
//!
//! ```text
//!   p = softmax(W_r x)            in fp32
//!   y = sum over the k largest p_e of  p_e (or p_e / sum of the k)  expert_e(x)   [+ sigmoid(w_s x) shared(x)]
//! ```
//! (Shazeer et al. 2017, arXiv 1701.06538; Jiang et al. 2024, arXiv 2401.04088; no token is dropped.) Where a group of ranks shares the
//! experts, each has some of them: tokens travel to the rank of their expert and back, each rank its own in training, a part of the same
//! ones where nothing is trained.
//!
//! The term that keeps experts equally busy is that of Fedus et al. 2021 (arXiv 2101.03961, equation 4), over each row by itself, so that it
//! does not depend on what else is in a batch: for a row of `T` tokens and `E` experts `E sum_e (C_e / T) (S_e / T)`, where `C_e` tokens took
//! expert `e` and `S_e` is the sum of its shares; the mean over the layers, and over the rows by their tokens.
//!
//! Legend: `n` tokens, `H` width, `E` experts, `k` experts of a token.

use std::sync::Arc;

use parallel::autograd::{self, Backward, attach};
use parallel::comm::{Group, Reduction};
use parallel::{Cut, region};
use tch::{Kind, Tensor, no_grad};

use crate::Error;
use crate::architecture::{self, Architecture};
use crate::block::{Mlp, Way};
use crate::layer::{Linear, Registry};
use crate::split::Dealt;

/// The experts of one layer.
#[derive(Debug)]
pub struct Mixture {
    router: Linear,
    /// Those of this rank, from [`first`](Self::first) on.
    experts: Vec<Mlp>,
    shared: Option<(Mlp, Linear)>,
    per_token: i64,
    normalized: bool,
    /// The share of this layer in the mean over the layers with experts.
    layer_share: f64,
    owners: Owners,
}

/// Who has which experts.
#[derive(Debug)]
pub(crate) struct Owners {
    cut: Cut,
    /// `None` for a rank with all of them.
    group: Option<Arc<Group>>,
}

impl Mixture {
    /// The experts of a layer whose modules have names that begin with `prefix`.
    pub fn new(
        registry: &mut Registry<'_>,
        architecture: &Architecture,
        settings: &architecture::Experts,
        prefix: &str,
    ) -> Result<Self, Error> {
        let (hidden, names) = (architecture.hidden_size, &settings.names);
        let outside = registry.split().outside();
        let router = registry.columns(
            &format!("{prefix}.{}", names.router),
            [hidden, settings.count],
            false,
            &outside,
        )?;
        let owners = Owners::new(settings.count, registry.split().experts.as_ref())?;
        let mut experts = Vec::new();
        for index in 0..settings.count {
            let parts = names.parts.map(|part| format!("{prefix}.{}.{index}.{part}", names.list));
            let parts = parts.each_ref().map(String::as_str);
            let own = owners.own().contains(&index);
            let make = |registry: &mut Registry<'_>| {
                Mlp::new(registry, architecture, parts, settings.intermediate_size)
            };
            let expert = registry.expert(own, make)?;
            experts.extend(own.then_some(expert));
        }
        let shared = match settings.shared_size {
            None => None,
            Some(inner) => {
                let [list, gate] = names.shared.map(|name| format!("{prefix}.{name}"));
                let parts = ["gate_proj", "up_proj", "down_proj"].map(|part| format!("{list}.{part}"));
                let mlp = Mlp::new(registry, architecture, parts.each_ref().map(String::as_str), inner)?;
                Some((mlp, registry.columns(&gate, [hidden, 1], false, &outside)?))
            }
        };
        let layers = settings.layers.iter().filter(|&&has| has).count();
        Ok(Self {
            router,
            experts,
            shared,
            per_token: settings.per_token,
            normalized: settings.normalized,
            layer_share: (layers.max(1) as f64).recip(),
            owners,
        })
    }

    /// `[n, H]` to the same shape, on top of `residual`.
    pub fn forward(
        &self,
        x: &Tensor,
        residual: Option<&Tensor>,
        way: &Way,
    ) -> Result<Tensor, parallel::Error> {
        let shares = self.router.forward(x).softmax(-1, Kind::Float);
        let (mut taken, chosen) = shares.topk(self.per_token, -1, true, true);
        if self.normalized {
            taken = &taken / taken.sum_dim_intlist(-1, true, Kind::Float);
        }
        let x_inside = way.border.enter(x)?;
        let taken = way.border.enter(&taken.to_kind(x.kind()))?;
        let chosen_inside = way.border.enter(&chosen)?;
        let mut sum = self.mix(&x_inside, &taken, &chosen_inside, way)?;
        if let Some((mlp, gate)) = &self.shared {
            sum += mlp.term(&x_inside) * way.border.enter(&gate.forward(x).sigmoid())?;
        }
        let mut sum = way.border.add_up(&sum)?;
        if let Some(residual) = residual {
            sum += residual;
        }
        match &way.balance {
            None => Ok(sum),
            Some(balance) => with_term(&sum, &(balance.term(&shares, &chosen)? * self.layer_share)),
        }
    }

    /// What the experts make of tokens `[n, H]` that take the experts `chosen` `[n, k]` by the shares `taken` `[n, k]`.
    fn mix(&self, x: &Tensor, taken: &Tensor, chosen: &Tensor, way: &Way) -> Result<Tensor, parallel::Error> {
        let Some(group) = self.owners.group.as_ref().filter(|_| !way.rows_are_own) else {
            return self.mix_own(x, taken, chosen);
        };
        // All ranks have the same tokens: each looks after a part of them.
        let (dealt, rows) = (Dealt(vec![Arc::clone(group)]), x.size()[0]);
        let run = dealt.own(rows);
        let own = |x: &Tensor| x.narrow(0, run.start, run.end - run.start);
        dealt.whole(&self.mix_own(&own(x), &own(taken), &own(chosen))?, rows)
    }

    /// [`mix`](Self::mix) of tokens that are this rank's own.
    fn mix_own(&self, x: &Tensor, taken: &Tensor, chosen: &Tensor) -> Result<Tensor, parallel::Error> {
        // Every pair of a token and an expert, expert by expert.
        let (order, counts) = no_grad(|| {
            let flat = chosen.flatten(0, -1);
            let order = flat.argsort_stable(true, 0, false);
            let counts = flat.bincount(None::<&Tensor>, self.owners.cut.whole());
            (order, Vec::<i64>::try_from(&counts).expect("one number an expert"))
        });
        let tokens = order.divide_scalar_mode(self.per_token, "floor");
        let rows = x.index_select(0, &tokens);
        let made = self.owners.work(&rows, &counts, &mut |rows, counts| self.run(rows, counts))?;
        let weighted = made * taken.flatten(0, -1).index_select(0, &order).unsqueeze(1);
        Ok(x.zeros_like().index_add(0, &tokens, &weighted.to_kind(x.kind())))
    }

    /// Each of this rank's experts on its rows, which lie expert by expert. One without rows has a gradient too: zero.
    fn run(&self, rows: &Tensor, counts: &[i64]) -> Tensor {
        let mut start = 0;
        let parts: Vec<Tensor> = self
            .experts
            .iter()
            .zip(counts)
            .map(|(expert, &count)| {
                let part = expert.term(&rows.narrow(0, start, count));
                start += count;
                part
            })
            .collect();
        Tensor::cat(&parts, 0)
    }
}

impl Owners {
    pub(crate) fn new(count: i64, group: Option<&Arc<Group>>) -> Result<Self, Error> {
        let ranks = group.map_or(1, |group| group.size());
        if count < ranks as i64 {
            return Err(Error::Split { axis: "expert", ranks, what: format!("{count} experts of a layer") });
        }
        Ok(Self { cut: Cut::even(0, count, ranks), group: group.cloned() })
    }

    fn own(&self) -> std::ops::Range<i64> {
        self.cut.runs(self.group.as_ref().map_or(0, |group| group.rank()))[0].clone()
    }

    /// Runs `work` on rows that lie expert by expert, `counts` of each of all experts, where their experts are; what it makes comes back to
    /// the same places. `work` gets the rows of this rank's experts, expert by expert.
    fn work(
        &self,
        rows: &Tensor,
        counts: &[i64],
        work: &mut dyn FnMut(&Tensor, &[i64]) -> Tensor,
    ) -> Result<Tensor, parallel::Error> {
        let Some(group) = &self.group else { return Ok(work(rows, counts)) };
        let all = group.all_gather(&Tensor::from_slice(counts).unsqueeze(0).to_device(rows.device()))?;
        let of = |rank: usize| Vec::<i64>::try_from(all.get(rank as i64)).expect("one number an expert");
        let all: Vec<Vec<i64>> = (0..group.size()).map(of).collect();
        let sum = |counts: &[i64], rank: usize| -> i64 {
            let run = &self.cut.runs(rank)[0];
            counts[run.start as usize..run.end as usize].iter().sum()
        };
        let sent: Vec<i64> = (0..group.size()).map(|rank| sum(counts, rank)).collect();
        let received: Vec<i64> = all.iter().map(|counts| sum(counts, group.rank())).collect();
        let arrived = region::exchange(rows, &received, &sent, group)?;
        // They come rank by rank; experts want theirs together.
        let (places, own) = by_expert(&all, self.own());
        let back: Vec<i64> = inverse(&places);
        let [places, back] =
            [places, back].map(|places| Tensor::from_slice(&places).to_device(rows.device()));
        let made = work(&arrived.index_select(0, &places), &own).index_select(0, &back);
        region::exchange(&made, &sent, &received, group)
    }
}

/// Of rows that lie rank by rank and within a rank expert by expert: their places in the order of the experts, and how many each has.
fn by_expert(counts: &[Vec<i64>], own: std::ops::Range<i64>) -> (Vec<i64>, Vec<i64>) {
    let own = own.start as usize..own.end as usize;
    let mut start = 0;
    let mut runs: Vec<Vec<i64>> = vec![Vec::new(); own.len()];
    for rank in counts {
        for (run, &count) in runs.iter_mut().zip(&rank[own.clone()]) {
            run.extend(start..start + count);
            start += count;
        }
    }
    let sizes = runs.iter().map(|run| run.len() as i64).collect();
    (runs.concat(), sizes)
}

fn inverse(places: &[i64]) -> Vec<i64> {
    let mut inverse = vec![0; places.len()];
    for (index, &place) in places.iter().enumerate() {
        inverse[place as usize] = index as i64;
    }
    inverse
}

/// `x`, whose backward pass seeds `aside`, a scalar, with one: a term of the loss that no later layer sees.
fn with_term(x: &Tensor, aside: &Tensor) -> Result<Tensor, parallel::Error> {
    if !(aside.requires_grad() && autograd::is_enabled()) {
        return Ok(x.shallow_clone());
    }
    let one = aside.detach().ones_like();
    let backward: Backward = Box::new(move |grads| {
        Ok(vec![grads[0].as_ref().map(Tensor::shallow_clone), Some(one.shallow_clone())])
    });
    let mut attached = attach(&[&x.detach()], &[x, aside], backward)?;
    Ok(attached.pop().expect("as many outputs as were given"))
}

/// What the term that keeps experts equally busy needs to know of a batch.
#[derive(Debug)]
pub struct Balance {
    /// The row of each of this rank's tokens, int64 `[n]`.
    pub(crate) rows: Tensor,
    /// Tokens of each row, fp32 `[R]`.
    pub(crate) lengths: Tensor,
    /// Whether each of this rank's tokens counts, fp32 `[n]`; all do where it is absent.
    pub(crate) counts: Option<Tensor>,
    /// The weight of one token.
    pub(crate) weight: f64,
    /// Those who have other tokens of the same rows.
    pub(crate) group: Option<Arc<Group>>,
}

impl Balance {
    /// The term of one layer, a scalar, from the shares `[n, E]` and the experts that were taken `[n, k]`.
    fn term(&self, shares: &Tensor, chosen: &Tensor) -> Result<Tensor, parallel::Error> {
        let sums = |x: &Tensor| {
            let x = self.counts.as_ref().map_or_else(|| x.shallow_clone(), |counts| x * counts.unsqueeze(1));
            let zeros = Tensor::zeros([self.lengths.size()[0], shares.size()[1]], (Kind::Float, x.device()));
            zeros.index_add(0, &self.rows, &x)
        };
        let took = no_grad(|| sums(&shares.zeros_like().scatter_value(1, chosen, 1.0)));
        let mut shares_of_rows = sums(shares);
        if let Some(group) = &self.group {
            group.all_reduce(&took, Reduction::Sum)?;
            shares_of_rows = region::reduce(&shares_of_rows, group)?;
        }
        let factor = self.weight * shares.size()[1] as f64;
        Ok((took * shares_of_rows / self.lengths.unsqueeze(1)).sum(Kind::Float) * factor)
    }
}
