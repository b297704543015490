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
use parallel::{ShardSpec, mappings, upload};
use tch::{Kind, Tensor, no_grad};

use crate::Error;
use crate::architecture::{self, Architecture};
use crate::builder::ModuleBuilder;
use crate::forward_context::ForwardContext;
use crate::linear::Linear;
use crate::mlp::Mlp;
use crate::tensor_parallel_region::TokenPartition;

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

/// Applies this rank's experts to rows that are sorted by expert, given with the number of rows of each.
type ExpertFn<'a> = dyn FnMut(&Tensor, &[i64]) -> Result<Tensor, parallel::Error> + 'a;

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
        let router = builder
            .replicated_linear(&format!("{prefix}.{}", names.router), [hidden, settings.num_experts])?;

        let placement =
            ExpertPlacement::new(settings.num_experts, builder.model_parallel().expert_parallel.as_ref())?;
        let mut experts = Vec::new();
        for index in 0..settings.num_experts {
            let matrix_names =
                names.matrices.map(|matrix| format!("{prefix}.{}.{index}.{matrix}", names.experts));
            let matrix_names = matrix_names.each_ref().map(String::as_str);
            let is_local = placement.local_experts().contains(&index);
            let build_expert = |builder: &mut ModuleBuilder<'_>| {
                Mlp::new(builder, architecture, matrix_names, settings.intermediate_size)
            };
            let expert = builder.expert_scope(is_local, build_expert)?;
            experts.extend(is_local.then_some(expert));
        }

        let shared = match settings.shared_expert_intermediate_size {
            None => None,
            Some(inner) => {
                let [shared_expert, shared_expert_gate] = names.shared.map(|name| format!("{prefix}.{name}"));
                let matrix_names =
                    ["gate_proj", "up_proj", "down_proj"].map(|matrix| format!("{shared_expert}.{matrix}"));
                let mlp =
                    Mlp::new(builder, architecture, matrix_names.each_ref().map(String::as_str), inner)?;
                Some((mlp, builder.replicated_linear(&shared_expert_gate, [hidden, 1])?))
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
        // Megatron: `TopKRouter`.
        let router_probs = self.router.forward(x)?.softmax(-1, Kind::Float);
        let (mut topk_weights, topk_indices) = router_probs.topk(self.top_k, -1, true, true);
        if self.norm_topk_prob {
            topk_weights = &topk_weights / topk_weights.sum_dim_intlist(-1, true, Kind::Float);
        }

        // Router results are copied into the tensor-parallel region as well, so that the router gets its full
        // gradient.
        let x_tp = ctx.tp_region.copy_to_region(x)?;
        let topk_weights = ctx.tp_region.copy_to_region(&topk_weights.to_kind(x.kind()))?;
        let topk_indices_tp = ctx.tp_region.copy_to_region(&topk_indices)?;
        let mut sum = self.forward_experts(&x_tp, &topk_weights, &topk_indices_tp, ctx)?;
        if let Some((mlp, gate)) = &self.shared {
            sum += mlp.forward_partial(&x_tp)? * ctx.tp_region.copy_to_region(&gate.forward(x)?.sigmoid())?;
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
        let Some(group) = self.placement.group.as_ref().filter(|_| !ctx.tokens_differ_per_expert_rank) else {
            return self.forward_local_tokens(x, topk_weights, topk_indices);
        };
        // All ranks have the same tokens, so each rank handles a range of them.
        let (row_partition, rows) = (TokenPartition(vec![Arc::clone(group)]), x.size()[0]);
        let range = row_partition.local_range(rows);
        let local_rows = |x: &Tensor| x.narrow(0, range.start, range.end - range.start);
        row_partition.gather_rows(
            &self.forward_local_tokens(
                &local_rows(x),
                &local_rows(topk_weights),
                &local_rows(topk_indices),
            )?,
            rows,
        )
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
            (order, Vec::<i64>::try_from(&counts).expect("one count per expert"))
        });
        let tokens = order.divide_scalar_mode(self.top_k, "floor");
        let rows = x.index_select(0, &tokens);
        let expert_output = self.placement.dispatch_and_combine(&rows, &counts, &mut |rows, counts| {
            self.forward_local_experts(rows, counts)
        })?;
        let weighted = expert_output * topk_weights.flatten(0, -1).index_select(0, &order).unsqueeze(1);
        Ok(x.zeros_like().index_add(0, &tokens, &weighted.to_kind(x.kind())))
    }

    /// Applies each of this rank's experts to its rows, which are sorted by expert. An expert without rows
    /// still runs, so that it gets a zero gradient.
    fn forward_local_experts(&self, rows: &Tensor, counts: &[i64]) -> Result<Tensor, parallel::Error> {
        let mut start = 0;
        let mut outputs = Vec::with_capacity(self.experts.len());
        for (expert, &count) in self.experts.iter().zip(counts) {
            outputs.push(expert.forward_partial(&rows.narrow(0, start, count))?);
            start += count;
        }
        Ok(Tensor::cat(&outputs, 0))
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

    /// The token dispatcher of expert parallelism: sends rows to the ranks of their experts by all-to-all,
    /// runs `expert_fn` there, and returns the results in the original order. `rows` are sorted by expert,
    /// and `counts` has the number of rows for each of all experts. `expert_fn` receives the rows of this
    /// rank's experts, sorted by expert, and their counts.
    /// Megatron: `MoEAlltoAllTokenDispatcher`, `token_permutation` and `token_unpermutation`.
    fn dispatch_and_combine(
        &self,
        rows: &Tensor,
        counts: &[i64],
        expert_fn: &mut ExpertFn<'_>,
    ) -> Result<Tensor, parallel::Error> {
        let Some(group) = &self.group else { return expert_fn(rows, counts) };

        // Every rank learns from the counts of all ranks how many rows it will receive.
        let all_counts = group.all_gather(&upload(counts, rows.device()).unsqueeze(0))?;
        let rank_counts =
            |rank: usize| Vec::<i64>::try_from(all_counts.get(rank as i64)).expect("one count per expert");
        let all_counts: Vec<Vec<i64>> = (0..group.size()).map(rank_counts).collect();

        let sum = |counts: &[i64], rank: usize| -> i64 {
            let range = &self.spec.ranges(rank)[0];
            counts[range.start as usize..range.end as usize].iter().sum()
        };
        let input_splits: Vec<i64> = (0..group.size()).map(|rank| sum(counts, rank)).collect();
        let output_splits: Vec<i64> = all_counts.iter().map(|counts| sum(counts, group.rank())).collect();
        let dispatched = mappings::all_to_all_uneven(rows, &output_splits, &input_splits, group)?;

        // Rows arrive sorted by source rank; `expert_fn` needs them sorted by expert.
        let (permutation, local_counts) = permute_by_expert(&all_counts, self.local_experts());
        let unpermute: Vec<i64> = inverse_permutation(&permutation);
        let [permutation, unpermute] =
            [permutation, unpermute].map(|indices| upload(&indices, rows.device()));

        let expert_output = expert_fn(&dispatched.index_select(0, &permutation), &local_counts)?;
        let expert_output = expert_output.index_select(0, &unpermute);
        mappings::all_to_all_uneven(&expert_output, &input_splits, &output_splits, group)
    }
}

/// For rows sorted by source rank and then by expert: the permutation that sorts them by expert, and the
/// number of rows per expert. `local_experts` are this rank's experts.
fn permute_by_expert(counts: &[Vec<i64>], local_experts: std::ops::Range<i64>) -> (Vec<i64>, Vec<i64>) {
    let local_experts = local_experts.start as usize..local_experts.end as usize;
    let mut start = 0;
    let mut rows_by_expert: Vec<Vec<i64>> = vec![Vec::new(); local_experts.len()];
    for rank in counts {
        for (rows, &count) in rows_by_expert.iter_mut().zip(&rank[local_experts.clone()]) {
            rows.extend(start..start + count);
            start += count;
        }
    }
    let sizes = rows_by_expert.iter().map(|rows| rows.len() as i64).collect();
    (rows_by_expert.concat(), sizes)
}

fn inverse_permutation(permutation: &[i64]) -> Vec<i64> {
    let mut inverse = vec![0; permutation.len()];
    for (index, &target) in permutation.iter().enumerate() {
        inverse[target as usize] = index as i64;
    }
    inverse
}

/// Returns `x` with the scalar `aux_loss` attached: the backward pass of `x` gives `aux_loss` the gradient 1.
/// The loss needs no path through the later layers.
/// Megatron: `MoEAuxLossAutoScaler`.
fn attach_aux_loss(x: &Tensor, aux_loss: &Tensor) -> Result<Tensor, parallel::Error> {
    if !(aux_loss.requires_grad() && autograd::is_enabled()) {
        return Ok(x.shallow_clone());
    }
    let one = aux_loss.detach().ones_like();
    let backward: Backward = Box::new(move |grads| {
        Ok(vec![grads[0].as_ref().map(Tensor::shallow_clone), Some(one.shallow_clone())])
    });
    let mut attached = with_backward(&[&x.detach()], &[x, aux_loss], backward)?;
    Ok(attached.pop().expect("one attached tensor per result"))
}
