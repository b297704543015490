//! Mixture-of-experts layer: a router computes a probability for every expert, and each token is sent to its
//! top-k experts.
//!
//! ```text
//!   p = softmax(W_r x)            in fp32
//!   y = sum over the k largest p_e of  p_e (or p_e / sum of the k) expert_e(x)  [+ sigmoid(w_s x) shared(x)]
//! ```
//! (Shazeer et al. 2017, arXiv 1701.06538; Jiang et al. 2024, arXiv 2401.04088; no token is dropped.) With
//! expert parallelism each rank holds some of the experts, and an all-to-all sends each token to the ranks of
//! its experts and back. In training every rank sends its own tokens. In a pass without gradients all ranks
//! have the same tokens, and each rank handles a range of them.
//!
//! Legend: `n` tokens, `H` width, `E` experts, `k` experts per token.

use std::sync::Arc;

use parallel::autograd::{self, Backward, with_backward};
use parallel::comm::ProcessGroup;
use parallel::{ShardSpec, mappings};
use tch::{Kind, Tensor, no_grad};

use crate::Error;
use crate::architecture::{self, Architecture};
use crate::forward_context::ForwardContext;
use crate::layer::{Linear, ModuleBuilder};
use crate::mlp::Mlp;
use crate::tensor_parallel_region::RowPartition;

/// A mixture-of-experts layer.
#[derive(Debug)]
pub struct MoeLayer {
    router: Linear,
    /// The experts of this rank.
    experts: Vec<Mlp>,
    shared: Option<(Mlp, Linear)>,
    top_k: i64,
    norm_topk_prob: bool,
    /// The weight of this layer in the mean of the auxiliary loss over the mixture-of-experts layers.
    layer_weight: f64,
    placement: ExpertPlacement,
}

/// The split of the experts over the expert-parallel group.
#[derive(Debug)]
pub(crate) struct ExpertPlacement {
    spec: ShardSpec,
    /// `None` without expert parallelism.
    group: Option<Arc<ProcessGroup>>,
}

impl MoeLayer {
    /// Builds the layer; the names of its modules begin with `prefix`.
    pub fn new(
        builder: &mut ModuleBuilder<'_>,
        architecture: &Architecture,
        settings: &architecture::MoeConfig,
        prefix: &str,
    ) -> Result<Self, Error> {
        let (hidden, names) = (architecture.hidden_size, &settings.names);
        let replicated = builder.model_parallel().non_parallel_placement();
        let router = builder.column_parallel_linear(
            &format!("{prefix}.{}", names.router),
            [hidden, settings.num_experts],
            false,
            &replicated,
        )?;

        let placement =
            ExpertPlacement::new(settings.num_experts, builder.model_parallel().expert_parallel.as_ref())?;
        let mut experts = Vec::new();
        for index in 0..settings.num_experts {
            let parts = names.matrices.map(|part| format!("{prefix}.{}.{index}.{part}", names.experts));
            let parts = parts.each_ref().map(String::as_str);
            let own = placement.local_experts().contains(&index);
            let make = |builder: &mut ModuleBuilder<'_>| {
                Mlp::new(builder, architecture, parts, settings.intermediate_size)
            };
            let expert = builder.expert_scope(own, make)?;
            experts.extend(own.then_some(expert));
        }

        let shared = match settings.shared_expert_intermediate_size {
            None => None,
            Some(inner) => {
                let [list, gate] = names.shared.map(|name| format!("{prefix}.{name}"));
                let parts = ["gate_proj", "up_proj", "down_proj"].map(|part| format!("{list}.{part}"));
                let mlp = Mlp::new(builder, architecture, parts.each_ref().map(String::as_str), inner)?;
                Some((mlp, builder.column_parallel_linear(&gate, [hidden, 1], false, &replicated)?))
            }
        };

        let layers = settings.is_moe_layer.iter().filter(|&&has| has).count();
        Ok(Self {
            router,
            experts,
            shared,
            top_k: settings.num_experts_per_tok,
            norm_topk_prob: settings.norm_topk_prob,
            layer_weight: (layers.max(1) as f64).recip(),
            placement,
        })
    }

    /// Computes the layer's output `[n, H]` plus `residual` from `x` `[n, H]`, and attaches the auxiliary
    /// loss.
    pub fn forward(
        &self,
        x: &Tensor,
        residual: Option<&Tensor>,
        ctx: &ForwardContext,
    ) -> Result<Tensor, parallel::Error> {
        let router_probs = self.router.forward(x).softmax(-1, Kind::Float);
        let (mut topk_weights, topk_indices) = router_probs.topk(self.top_k, -1, true, true);
        if self.norm_topk_prob {
            topk_weights = &topk_weights / topk_weights.sum_dim_intlist(-1, true, Kind::Float);
        }

        // Router results are copied into the tensor-parallel region as well, so that the router gets its full
        // gradient.
        let x_inside = ctx.tp_region.copy_to_region(x)?;
        let topk_weights = ctx.tp_region.copy_to_region(&topk_weights.to_kind(x.kind()))?;
        let chosen_inside = ctx.tp_region.copy_to_region(&topk_indices)?;
        let mut sum = self.forward_experts(&x_inside, &topk_weights, &chosen_inside, ctx)?;
        if let Some((mlp, gate)) = &self.shared {
            sum +=
                mlp.forward_partial(&x_inside) * ctx.tp_region.copy_to_region(&gate.forward(x).sigmoid())?;
        }

        let mut sum = ctx.tp_region.reduce_from_region(&sum)?;
        if let Some(residual) = residual {
            sum += residual;
        }
        match &ctx.aux_loss {
            None => Ok(sum),
            Some(aux_loss) => attach_aux_loss(
                &sum,
                &(aux_loss.layer_loss(&router_probs, &topk_indices)? * self.layer_weight),
            ),
        }
    }

    /// The weighted sum of the experts' outputs for tokens `[n, H]`, routed to the experts `topk_indices`
    /// `[n, k]` with the weights `topk_weights` `[n, k]`.
    fn forward_experts(
        &self,
        x: &Tensor,
        topk_weights: &Tensor,
        topk_indices: &Tensor,
        ctx: &ForwardContext,
    ) -> Result<Tensor, parallel::Error> {
        let Some(group) = self.placement.group.as_ref().filter(|_| !ctx.distinct_rows_per_rank) else {
            return self.forward_local_tokens(x, topk_weights, topk_indices);
        };
        // All ranks have the same tokens, so each rank handles a range of them.
        let (row_partition, rows) = (RowPartition(vec![Arc::clone(group)]), x.size()[0]);
        let run = row_partition.local_range(rows);
        let own = |x: &Tensor| x.narrow(0, run.start, run.end - run.start);
        row_partition
            .gather_rows(&self.forward_local_tokens(&own(x), &own(topk_weights), &own(topk_indices))?, rows)
    }

    /// [`forward_experts`](Self::forward_experts) for tokens that only this rank handles.
    fn forward_local_tokens(
        &self,
        x: &Tensor,
        topk_weights: &Tensor,
        topk_indices: &Tensor,
    ) -> Result<Tensor, parallel::Error> {
        // Sort all (token, expert) pairs by expert.
        let (order, counts) = no_grad(|| {
            let flat = topk_indices.flatten(0, -1);
            let order = flat.argsort_stable(true, 0, false);
            let counts = flat.bincount(None::<&Tensor>, self.placement.spec.global_len());
            (order, Vec::<i64>::try_from(&counts).expect("one number an expert"))
        });
        let tokens = order.divide_scalar_mode(self.top_k, "floor");
        let rows = x.index_select(0, &tokens);
        let made = self.placement.dispatch_and_combine(&rows, &counts, &mut |rows, counts| {
            self.forward_local_experts(rows, counts)
        })?;
        let weighted = made * topk_weights.flatten(0, -1).index_select(0, &order).unsqueeze(1);
        Ok(x.zeros_like().index_add(0, &tokens, &weighted.to_kind(x.kind())))
    }

    /// Applies each of this rank's experts to its rows, which are sorted by expert. An expert without rows
    /// still runs, so that it gets a zero gradient.
    fn forward_local_experts(&self, rows: &Tensor, counts: &[i64]) -> Tensor {
        let mut start = 0;
        let parts: Vec<Tensor> = self
            .experts
            .iter()
            .zip(counts)
            .map(|(expert, &count)| {
                let part = expert.forward_partial(&rows.narrow(0, start, count));
                start += count;
                part
            })
            .collect();
        Tensor::cat(&parts, 0)
    }
}

impl ExpertPlacement {
    pub(crate) fn new(count: i64, group: Option<&Arc<ProcessGroup>>) -> Result<Self, Error> {
        let ranks = group.map_or(1, |group| group.size());
        if count < ranks as i64 {
            return Err(Error::Indivisible {
                axis: "expert",
                ranks,
                what: format!("{count} experts of a layer"),
            });
        }
        Ok(Self { spec: ShardSpec::even(0, count, ranks), group: group.cloned() })
    }

    fn local_experts(&self) -> std::ops::Range<i64> {
        self.spec.ranges(self.group.as_ref().map_or(0, |group| group.rank()))[0].clone()
    }

    /// Sends rows to the ranks of their experts, runs `work` there, and returns the results in the original
    /// order. `rows` are sorted by expert, and `counts` has the number of rows for each of all experts.
    /// `work` receives the rows of this rank's experts, sorted by expert, and their counts.
    fn dispatch_and_combine(
        &self,
        rows: &Tensor,
        counts: &[i64],
        work: &mut dyn FnMut(&Tensor, &[i64]) -> Tensor,
    ) -> Result<Tensor, parallel::Error> {
        let Some(group) = &self.group else { return Ok(work(rows, counts)) };

        // Every rank learns from the counts of all ranks how many rows it will receive.
        let all = group.all_gather(&Tensor::from_slice(counts).unsqueeze(0).to_device(rows.device()))?;
        let of = |rank: usize| Vec::<i64>::try_from(all.get(rank as i64)).expect("one number an expert");
        let all: Vec<Vec<i64>> = (0..group.size()).map(of).collect();

        let sum = |counts: &[i64], rank: usize| -> i64 {
            let run = &self.spec.ranges(rank)[0];
            counts[run.start as usize..run.end as usize].iter().sum()
        };
        let sent: Vec<i64> = (0..group.size()).map(|rank| sum(counts, rank)).collect();
        let received: Vec<i64> = all.iter().map(|counts| sum(counts, group.rank())).collect();
        let arrived = mappings::all_to_all_uneven(rows, &received, &sent, group)?;

        // Rows arrive sorted by source rank; `work` needs them sorted by expert.
        let (places, own) = permute_by_expert(&all, self.local_experts());
        let back: Vec<i64> = inverse_permutation(&places);
        let [places, back] =
            [places, back].map(|places| Tensor::from_slice(&places).to_device(rows.device()));

        let made = work(&arrived.index_select(0, &places), &own).index_select(0, &back);
        mappings::all_to_all_uneven(&made, &sent, &received, group)
    }
}

/// For rows sorted by source rank and then by expert: the permutation that sorts them by expert, and the
/// number of rows per expert. `own` are this rank's experts.
fn permute_by_expert(counts: &[Vec<i64>], own: std::ops::Range<i64>) -> (Vec<i64>, Vec<i64>) {
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

fn inverse_permutation(places: &[i64]) -> Vec<i64> {
    let mut inverse = vec![0; places.len()];
    for (index, &place) in places.iter().enumerate() {
        inverse[place as usize] = index as i64;
    }
    inverse
}

/// Returns `x` with the scalar loss term `aside` attached: the backward pass of `x` gives `aside` the
/// gradient 1. The term needs no path through the later layers.
fn attach_aux_loss(x: &Tensor, aux_loss: &Tensor) -> Result<Tensor, parallel::Error> {
    if !(aux_loss.requires_grad() && autograd::is_enabled()) {
        return Ok(x.shallow_clone());
    }
    let one = aux_loss.detach().ones_like();
    let backward: Backward = Box::new(move |grads| {
        Ok(vec![grads[0].as_ref().map(Tensor::shallow_clone), Some(one.shallow_clone())])
    });
    let mut attached = with_backward(&[&x.detach()], &[x, aux_loss], backward)?;
    Ok(attached.pop().expect("as many outputs as were given"))
}
