//! Differentiable collectives: the forward and backward communication at the boundaries of tensor-parallel
//! and sequence-parallel regions.
//!
//! | function | forward | backward |
//! |---|---|---|
//! | [`copy_to_region`] | identity | all-reduce |
//! | [`reduce_from_region`] | all-reduce | identity |
//! | [`gather_from_region`] | all-gather along a dimension | this rank's chunk |
//! | [`gather_from_sequence_region`] | all-gather | reduce-scatter |
//! | [`reduce_scatter_to_sequence_region`] | reduce-scatter | all-gather |
//! | [`all_to_all_uneven`] | all-to-all with a row count for each rank | the reverse all-to-all |
//! | [`all_to_all`] | all-to-all: chunk `i` along one dimension goes to rank `i`, received chunks are concatenated along another | the reverse all-to-all |
//!
//! `copy_to_region` and `reduce_from_region` are the `f` and `g` of Shoeybi et al. 2019 (arXiv 1909.08053,
//! section 3). `gather_from_sequence_region` and `reduce_scatter_to_sequence_region` are the operators of
//! Korthikanti et al. 2022 (arXiv 2205.05198, section 4.2). `all_to_all` is the operator of Jacobs et al.
//! 2023 (arXiv 2309.14509). The loss is replicated: every rank computes the same scalar, and its gradient is
//! not summed over ranks. This module knows no layers.

use std::sync::Arc;

use parallel_sys::autograd::{self, Backward, with_backward};
use tch::{Tensor, no_grad};

use crate::Error;
use crate::comm::{ProcessGroup, Reduction};

/// Passes `x` into a region where every rank uses it in a different computation.
/// Megatron: `copy_to_tensor_model_parallel_region`.
pub fn copy_to_region(x: &Tensor, group: &Arc<ProcessGroup>) -> Result<Tensor, Error> {
    collective_with_backward(x, group, Ok(x.detach()), all_reduced)
}

/// Sums the results of all ranks at the end of such a region.
/// Megatron: `reduce_from_tensor_model_parallel_region`.
pub fn reduce_from_region(x: &Tensor, group: &Arc<ProcessGroup>) -> Result<Tensor, Error> {
    collective_with_backward(x, group, all_reduced(group, x), |_, grad| Ok(grad.shallow_clone()))
}

/// Concatenates the `[.., n, ..]` tensors of all ranks to `[.., n P, ..]` along `dim`, for a region where
/// every rank does the same computation with the result.
/// Megatron: `gather_from_tensor_model_parallel_region`.
pub fn gather_from_region(x: &Tensor, dim: i64, group: &Arc<ProcessGroup>) -> Result<Tensor, Error> {
    collective_with_backward(x, group, all_gathered(group, x, dim), move |group, grad| {
        Ok(local_chunk(group, grad, dim))
    })
}

/// Like [`gather_from_region`], for a region where every rank does a different computation with the result,
/// as in sequence parallelism.
/// Megatron: `gather_from_sequence_parallel_region`.
pub fn gather_from_sequence_region(x: &Tensor, dim: i64, group: &Arc<ProcessGroup>) -> Result<Tensor, Error> {
    collective_with_backward(x, group, all_gathered(group, x, dim), move |group, grad| {
        reduce_scattered(group, grad, dim)
    })
}

/// Sums the `[.., n P, ..]` tensors of all ranks and returns this rank's `[.., n, ..]` chunk of the sum along
/// `dim`, as in sequence parallelism.
/// Megatron: `reduce_scatter_to_sequence_parallel_region`.
pub fn reduce_scatter_to_sequence_region(
    x: &Tensor,
    dim: i64,
    group: &Arc<ProcessGroup>,
) -> Result<Tensor, Error> {
    collective_with_backward(x, group, reduce_scattered(group, x, dim), move |group, grad| {
        all_gathered(group, grad, dim)
    })
}

/// Splits `x` along `split_dim`, sends chunk `i` to rank `i`, and concatenates the received chunks along
/// `concat_dim`: `[.., a P, .., b, ..]` to `[.., a, .., b P, ..]`.
pub fn all_to_all(
    x: &Tensor,
    split_dim: i64,
    concat_dim: i64,
    group: &Arc<ProcessGroup>,
) -> Result<Tensor, Error> {
    collective_with_backward(
        x,
        group,
        all_to_all_chunks(group, x, split_dim, concat_dim),
        move |group, grad| all_to_all_chunks(group, grad, concat_dim, split_dim),
    )
}

/// Sends `input_split_sizes[i]` rows of `x` `[n, ..]` to rank `i`. Returns the received rows,
/// `output_split_sizes[i]` from rank `i`, concatenated in rank order. PyTorch: `all_to_all_single`.
pub fn all_to_all_uneven(
    x: &Tensor,
    output_split_sizes: &[i64],
    input_split_sizes: &[i64],
    group: &Arc<ProcessGroup>,
) -> Result<Tensor, Error> {
    let result = group.all_to_all(&x.detach(), [output_split_sizes, input_split_sizes]);
    let (output_sizes, input_sizes) = (output_split_sizes.to_vec(), input_split_sizes.to_vec());
    collective_with_backward(x, group, result, move |group, grad| {
        group.all_to_all(grad, [&input_sizes, &output_sizes])
    })
}

/// Attaches `backward` to `result` as its vector-Jacobian product with respect to `x`.
fn collective_with_backward(
    x: &Tensor,
    group: &Arc<ProcessGroup>,
    result: Result<Tensor, Error>,
    backward: impl Fn(&ProcessGroup, &Tensor) -> Result<Tensor, Error> + Send + 'static,
) -> Result<Tensor, Error> {
    let result = result?;
    if !(x.requires_grad() && autograd::is_enabled()) {
        return Ok(result);
    }
    let group = Arc::clone(group);
    let backward: Backward = Box::new(move |grads| {
        let Some(grad) = &grads[0] else { return Ok(vec![None]) };
        Ok(vec![Some(no_grad(|| backward(&group, grad))?)])
    });
    let mut attached = with_backward(&[&result], &[x], backward)?;
    Ok(attached.pop().expect("one attached tensor per result"))
}

fn all_reduced(group: &ProcessGroup, x: &Tensor) -> Result<Tensor, Error> {
    let sum = no_grad(|| x.detach().contiguous().copy());
    group.all_reduce(&sum, Reduction::Sum)?;
    Ok(sum)
}

fn local_chunk(group: &ProcessGroup, x: &Tensor, dim: i64) -> Tensor {
    let chunk_size = x.size()[normalize_dim(x, dim)] / group.size() as i64;
    x.narrow(dim, group.rank() as i64 * chunk_size, chunk_size).contiguous()
}

/// The collectives work along the first dimension, so `dim` is moved there and back.
fn all_gathered(group: &ProcessGroup, x: &Tensor, dim: i64) -> Result<Tensor, Error> {
    let first = x.detach().transpose(0, dim);
    Ok(group.all_gather(&first)?.transpose(0, dim).contiguous())
}

fn reduce_scattered(group: &ProcessGroup, x: &Tensor, dim: i64) -> Result<Tensor, Error> {
    let first = x.detach().transpose(0, dim);
    Ok(group.reduce_scatter(&first)?.transpose(0, dim).contiguous())
}

fn all_to_all_chunks(
    group: &ProcessGroup,
    x: &Tensor,
    split_dim: i64,
    concat_dim: i64,
) -> Result<Tensor, Error> {
    let ranks = group.size() as i64;
    let chunks: Vec<Tensor> = x.detach().chunk(ranks, split_dim);
    // Each chunk is one row of the first dimension.
    let chunks =
        group.all_to_all(&Tensor::stack(&chunks, 0), [&vec![1; ranks as usize], &vec![1; ranks as usize]])?;
    let chunks: Vec<Tensor> = chunks.unbind(0);
    Ok(Tensor::cat(&chunks, concat_dim))
}

fn normalize_dim(x: &Tensor, dim: i64) -> usize {
    if dim < 0 { (x.dim() as i64 + dim) as usize } else { dim as usize }
}

#[cfg(test)]
pub(crate) mod tests {
    use tch::{Device, Kind};

    use super::*;
    use crate::Transport;
    use crate::world::tests::run_worlds;

    fn ramp(shape: &[i64]) -> Tensor {
        let count: i64 = shape.iter().product();
        Tensor::arange(count, (Kind::Double, Device::Cpu)).sin().reshape(shape)
    }

    pub(crate) fn leaf(tensor: &Tensor) -> Tensor {
        tensor.detach().copy().set_requires_grad(true)
    }

    pub(crate) fn close(left: &Tensor, right: &Tensor) {
        assert_eq!(left.size(), right.size());
        let worst = (left - right).abs().max().double_value(&[]);
        assert!(worst < 1e-12, "{worst}");
    }

    /// Runs `body` on three ranks over both transports.
    fn on_three_ranks(body: impl Fn(&Arc<ProcessGroup>, i64) + Sync) {
        for transport in [Transport::Shared, Transport::Gloo] {
            run_worlds(3, transport, |world| {
                body(&Arc::new(world.group("test", &[0, 1, 2]).unwrap()), world.rank() as i64);
            });
        }
    }

    #[test]
    fn a_split_mlp_equals_the_whole_with_all_its_gradients() {
        // tanh(x A) B with A split by columns and B by rows: `copy_to_region` before, `reduce_from_region`
        // after.
        let (x, a, b) = (ramp(&[4, 5]), ramp(&[5, 6]), ramp(&[6, 5]));
        let seed = ramp(&[4, 5]).cos();
        let [full_x, full_a, full_b] = [&x, &a, &b].map(leaf);
        let full = full_x.matmul(&full_a).tanh().matmul(&full_b);
        (&full * &seed).sum(Kind::Double).backward();
        let (full, grads) = (full.detach(), [full_x.grad(), full_a.grad(), full_b.grad()]);
        let shared = std::sync::Mutex::new((full, grads));
        on_three_ranks(|group, rank| {
            let (x, a, b) = (
                leaf(&ramp(&[4, 5])),
                leaf(&ramp(&[5, 6]).narrow(1, 2 * rank, 2)),
                leaf(&ramp(&[6, 5]).narrow(0, 2 * rank, 2)),
            );
            let y =
                reduce_from_region(&copy_to_region(&x, group).unwrap().matmul(&a).tanh().matmul(&b), group)
                    .unwrap();
            (&y * ramp(&[4, 5]).cos()).sum(Kind::Double).backward();
            let expected = shared.lock().unwrap();
            let (full, [x_grad, a_grad, b_grad]) = &*expected;
            close(&y.detach(), full);
            close(&x.grad(), x_grad);
            close(&a.grad(), &a_grad.narrow(1, 2 * rank, 2));
            close(&b.grad(), &b_grad.narrow(0, 2 * rank, 2));
        });
    }

    #[test]
    fn gather_hands_back_the_gradient_of_each_rank() {
        on_three_ranks(|group, rank| {
            let full = ramp(&[2, 6, 3]);
            let local = leaf(&full.narrow(1, 2 * rank, 2));
            let gathered = gather_from_region(&local, 1, group).unwrap();
            close(&gathered.detach(), &full);
            // Every rank has the same loss: d / d local is this rank's chunk of 2 x.
            gathered.square().sum(Kind::Double).backward();
            close(&local.grad(), &(full.narrow(1, 2 * rank, 2) * 2.0));
        });
    }

    #[test]
    fn a_gather_for_different_work_adds_up_the_gradients() {
        on_three_ranks(|group, rank| {
            let full = ramp(&[6, 3]);
            let local = leaf(&full.narrow(0, 2 * rank, 2));
            let gathered = gather_from_sequence_region(&local, 0, group).unwrap();
            // Rank r uses the weight r + 1: the weights of all ranks add up to 6.
            (gathered * (rank + 1) as f64).sum(Kind::Double).backward();
            close(&local.grad(), &Tensor::full([2, 3], 6.0, (Kind::Double, Device::Cpu)));

            let all = leaf(&(&full * (rank + 1) as f64));
            let chunk = reduce_scatter_to_sequence_region(&all, 0, group).unwrap();
            close(&chunk.detach(), &(full.narrow(0, 2 * rank, 2) * 6.0));
            (chunk * (rank + 1) as f64).sum(Kind::Double).backward();
            let expected: Vec<Tensor> = (1..=3)
                .map(|weight| Tensor::full([2, 3], f64::from(weight), (Kind::Double, Device::Cpu)))
                .collect();
            close(&all.grad(), &Tensor::cat(&expected, 0));
        });
    }

    #[test]
    fn an_exchange_and_its_reverse_change_nothing() {
        on_three_ranks(|group, rank| {
            // Tokens split over the ranks become heads split over the ranks.
            let full = ramp(&[6, 9, 2]);
            let local = leaf(&full.narrow(0, 2 * rank, 2));
            let heads = all_to_all(&local, 1, 0, group).unwrap();
            close(&heads.detach(), &full.narrow(1, 3 * rank, 3));
            let restored = all_to_all(&heads, 0, 1, group).unwrap();
            close(&restored.detach(), &local.detach());
            (restored.square() * (rank + 1) as f64).sum(Kind::Double).backward();
            close(&local.grad(), &(local.detach() * (2 * (rank + 1)) as f64));
        });
    }

    #[test]
    fn without_a_graph_there_is_no_backward() {
        let group = Arc::new(ProcessGroup::single("test", 0));
        assert!(!copy_to_region(&ramp(&[2]), &group).unwrap().requires_grad());
        assert!(!no_grad(|| reduce_from_region(&leaf(&ramp(&[2])), &group)).unwrap().requires_grad());
    }
}
