//! A named parameter and its place on the mesh.
//!
//! Placement is data: loading, saving and resharding read it and are written once for every layer.

use std::ops::Range;
use std::sync::Arc;

use tch::{Tensor, no_grad};

use crate::comm::Group;
use crate::tensor_file::Named;
use crate::{Error, Groups};

/// How one dimension of a tensor is sharded over a process group: for each rank, the index ranges that the
/// rank holds, concatenated in this order.
///
/// Fused matrices (queries, keys and values in one) have several runs a rank. The runs of all ranks cover the dimension, each place
/// once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    dim: usize,
    runs: Vec<Vec<Range<i64>>>,
}

impl Cut {
    /// `length` places of dimension `dim`, one run a rank, as even as can be.
    pub fn even(dim: usize, length: i64, ranks: usize) -> Self {
        let place = |rank: usize| length * rank as i64 / ranks as i64;
        let run = |rank| std::iter::once(place(rank)..place(rank + 1));
        Self { dim, runs: (0..ranks).map(|rank| run(rank).collect()).collect() }
    }

    /// Each place of this cut as `width` places side by side.
    #[must_use]
    pub fn widened(self, width: i64) -> Self {
        let wide = |run: Range<i64>| run.start * width..run.end * width;
        let runs = self.runs.into_iter().map(|runs| runs.into_iter().map(wide).collect()).collect();
        Self { dim: self.dim, runs }
    }

    /// Several cuts of the same dimension, one behind the other.
    pub fn joined(cuts: &[Self]) -> Self {
        let (dim, ranks) = (cuts[0].dim, cuts[0].runs.len());
        let mut runs = vec![Vec::new(); ranks];
        let mut start = 0;
        for cut in cuts {
            for (rank, own) in cut.runs.iter().enumerate() {
                runs[rank].extend(own.iter().map(|run| run.start + start..run.end + start));
            }
            start += cut.whole();
        }
        Self { dim, runs }
    }

    /// The same cut of another dimension.
    #[must_use]
    pub fn of_dim(&self, dim: usize) -> Self {
        Self { dim, runs: self.runs.clone() }
    }

    /// The dimension.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// What rank `rank` holds.
    pub fn runs(&self, rank: usize) -> &[Range<i64>] {
        &self.runs[rank]
    }

    /// Places of rank `rank`.
    pub fn length(&self, rank: usize) -> i64 {
        self.runs[rank].iter().map(|run| run.end - run.start).sum()
    }

    /// Places of all ranks.
    pub fn whole(&self) -> i64 {
        (0..self.runs.len()).map(|rank| self.length(rank)).sum()
    }

    /// What rank `rank` holds of `whole`.
    pub fn narrow(&self, whole: &Tensor, rank: usize) -> Tensor {
        let part = |run: &Range<i64>| whole.narrow(self.dim as i64, run.start, run.end - run.start);
        match self.runs(rank) {
            [run] => part(run).contiguous(),
            runs => Tensor::cat(&runs.iter().map(part).collect::<Vec<_>>(), self.dim as i64),
        }
    }

    /// The whole on every rank of `group`, from what each holds; without a graph.
    pub fn gather(&self, part: &Tensor, group: &Group) -> Result<Tensor, Error> {
        no_grad(|| {
            // Collectives join the first dimension, in parts of one length.
            let dim = self.dim as i64;
            let rows = part.detach().transpose(0, dim);
            let longest = (0..self.runs.len()).map(|rank| self.length(rank)).max().unwrap_or(0);
            let missing = longest - rows.size()[0];
            let rows = if missing > 0 {
                let mut shape = rows.size();
                shape[0] = missing;
                Tensor::cat(&[&rows, &Tensor::zeros(&shape, (rows.kind(), rows.device()))], 0)
            } else {
                rows
            };
            let all = group.all_gather(&rows)?;
            let mut shape = all.size();
            shape[0] = self.whole();
            let whole = Tensor::empty(&shape, (all.kind(), all.device()));
            for (rank, runs) in self.runs.iter().enumerate() {
                let mut start = rank as i64 * longest;
                for run in runs {
                    let length = run.end - run.start;
                    whole.narrow(0, run.start, length).copy_(&all.narrow(0, start, length));
                    start += length;
                }
            }
            Ok(whole.transpose(0, dim).contiguous())
        })
    }
}

/// Where the values of one parameter lie.
#[derive(Clone, Debug)]
pub enum Placement {
    /// Every rank holds the whole.
    Replicate,
    /// The ranks of a group hold parts.
    Shard {
        /// Which part each of them holds.
        cut: Cut,
        /// The group.
        group: Arc<Group>,
    },
}

impl Placement {
    /// The shape of the whole whose part here has the shape `part`.
    pub fn whole_shape(&self, part: &[i64]) -> Vec<i64> {
        let mut shape = part.to_vec();
        if let Self::Shard { cut, .. } = self {
            shape[cut.dim] = cut.whole();
        }
        shape
    }

    /// The shape of this rank's part of a whole of the shape `whole`.
    pub fn part_shape(&self, whole: &[i64]) -> Vec<i64> {
        let mut shape = whole.to_vec();
        if let Self::Shard { cut, group } = self {
            shape[cut.dim] = cut.length(group.rank());
        }
        shape
    }

    /// This rank's part of `whole`.
    pub fn part(&self, whole: &Tensor) -> Tensor {
        match self {
            Self::Replicate => whole.shallow_clone(),
            Self::Shard { cut, group } => no_grad(|| cut.narrow(whole, group.rank())),
        }
    }

    /// The whole, from the parts of all ranks. Every rank of the group calls it.
    pub fn whole(&self, part: &Tensor) -> Result<Tensor, Error> {
        match self {
            Self::Replicate => Ok(part.detach()),
            Self::Shard { cut, group } => cut.gather(part, group),
        }
    }

    /// Whether this rank writes the whole to a file: the first of those that hold parts.
    pub fn writes(&self) -> bool {
        match self {
            Self::Replicate => true,
            Self::Shard { group, .. } => group.rank() == 0,
        }
    }

    /// Whether this is a part.
    pub fn is_shard(&self) -> bool {
        matches!(self, Self::Shard { .. })
    }
}

/// A parameter under the name that it has in a HF checkpoint.
#[derive(Debug)]
pub struct Parameter {
    /// The checkpoint's name, such as `model.layers.0.self_attn.q_proj.weight`.
    pub name: String,
    /// The local part of the values; layers hold handles to this very tensor.
    pub tensor: Tensor,
    /// Where the other parts are.
    pub placement: Placement,
    /// Whether the gradient here is one term, and its sum over the tensor group the gradient: every rank of the group holds the whole
    /// values and does another part of the work with them.
    pub partial: bool,
    /// Whether the ranks of the expert group hold other parameters in its place.
    pub exclusive: bool,
    /// The ranks that hold a tied copy of this weight (the input embedding and the output head). Their
    /// gradients are all-reduced.
    pub copies: Option<Arc<Group>>,
    /// Whether weight decay applies: to matrices and embeddings, not to norms and biases.
    pub decay: bool,
}

impl Parameter {
    /// A parameter that every rank holds whole. Decays if it has two dimensions or more.
    pub fn replicated(name: impl Into<String>, tensor: &Tensor) -> Self {
        Self::placed(name, tensor, Placement::Replicate)
    }

    /// A parameter of which `tensor` is what this rank holds. Decays if it has two dimensions or more.
    pub fn placed(name: impl Into<String>, tensor: &Tensor, placement: Placement) -> Self {
        let (tensor, decay) = (tensor.shallow_clone(), tensor.dim() > 1);
        Self { name: name.into(), tensor, placement, partial: false, exclusive: false, copies: None, decay }
    }

    /// Whether this rank owns the tied weight. Only the owner is counted in norms, parameter counts and
    /// checkpoints.
    pub fn is_first_copy(&self) -> bool {
        self.copies.as_ref().is_none_or(|copies| copies.rank() == 0)
    }

    /// Whether this rank counts the parameter. Over the model-parallel group every parameter is counted
    /// exactly once.
    pub fn counts_among(&self, groups: &Groups) -> bool {
        self.is_first_copy() && (self.exclusive || groups.expert().rank() == 0)
    }

    /// For a file.
    pub fn named(&self) -> Named<'_> {
        Named { name: &self.name, tensor: &self.tensor, placement: &self.placement }
    }

    /// Values of the whole.
    pub fn num_elements(&self) -> usize {
        self.placement.whole_shape(&self.tensor.size()).iter().product::<i64>() as usize
    }

    /// Bytes of the whole.
    pub fn num_bytes(&self) -> usize {
        self.num_elements() * self.tensor.kind().elt_size_in_bytes()
    }
}

impl Clone for Parameter {
    /// Another handle to the same values.
    fn clone(&self) -> Self {
        Self {
            name: self.name.clone(),
            tensor: self.tensor.shallow_clone(),
            placement: self.placement.clone(),
            partial: self.partial,
            exclusive: self.exclusive,
            copies: self.copies.clone(),
            decay: self.decay,
        }
    }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind};

    use super::*;
    use crate::Transport;
    use crate::world::tests::worlds;

    #[test]
    fn an_even_cut_of_seven_by_hand() {
        let cut = Cut::even(1, 7, 3);
        let firsts = [0, 1, 2].map(|rank| cut.runs(rank)[0].clone());
        assert_eq!(firsts, [0..2, 2..4, 4..7]);
        assert_eq!(cut.whole(), 7);
    }

    #[test]
    fn queries_keys_and_values_in_one_matrix_have_three_runs_a_rank() {
        // Four query heads and two key-value heads of three columns each.
        let heads = |count| Cut::even(0, count, 2).widened(3);
        let fused = Cut::joined(&[heads(4), heads(2), heads(2)]);
        assert_eq!(fused.runs(0), [0..6, 12..15, 18..21]);
        assert_eq!(fused.runs(1), [6..12, 15..18, 21..24]);
    }

    #[test]
    fn parts_make_the_whole_again_on_every_rank() {
        let whole = Tensor::arange(24 * 5, (Kind::Float, Device::Cpu)).reshape([5, 24]);
        let heads = |count| Cut::even(1, count, 3).widened(3);
        let cuts = [Cut::even(1, 24, 3), Cut::even(0, 5, 3), Cut::joined(&[heads(4), heads(4)])];
        let whole = std::sync::Mutex::new(whole);
        for transport in [Transport::Shared, Transport::Gloo] {
            worlds(3, transport, |world| {
                let group = Arc::new(world.group("test", &[0, 1, 2]).unwrap());
                let whole = whole.lock().unwrap().copy();
                for cut in &cuts {
                    let placement = Placement::Shard { cut: cut.clone(), group: Arc::clone(&group) };
                    let part = placement.part(&whole);
                    assert_eq!(part.size(), placement.part_shape(&whole.size()));
                    assert_eq!(placement.whole_shape(&part.size()), whole.size());
                    assert_eq!(placement.whole(&part).unwrap(), whole);
                }
            });
        }
    }
}
