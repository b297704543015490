//! The divergence of a student's distributions from those of a teacher over the full vocabulary, computed a few
//! rows at a time: neither model has an `[N, V]` tensor of logits.
//!
//! With `p` the distribution of the student, `q` that of the teacher, both at temperature `t`, and `z` the
//! logits of the student:
//! ```text
//!   forward KL   KL(q, p)                                      dz  (p - q) / t
//!   reverse KL   KL(p, q)                                      dz  p (log p - log q - KL(p, q)) / t
//!   JSD          b KL(q, m) + (1 - b) KL(p, m)                 dz  (1 - b) p (log p - log m - KL(p, m)) / t
//!                m = b q + (1 - b) p
//! ```
//! `KL(x, y)` is `sum_v x_v (log x_v - log y_v)`. The gradient of the JSD has no other terms, because those that
//! `m` brings add up to a constant, which the softmax removes. (Agarwal et al. 2024, arXiv 2306.13649, section
//! 2 and equation 1.)

use tch::{Kind, Tensor, no_grad};

use super::chunk::{DetachedHead, Head, HeadGrads, chunks, log_softmax, with_grads};
use crate::Error;

/// How far a student is from its teacher.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Divergence {
    /// `KL(teacher, student)`: the student covers everything that the teacher does.
    ForwardKl,
    /// `KL(student, teacher)`: the student does nothing that the teacher would not do.
    ReverseKl,
    /// The Jensen-Shannon divergence, in which the teacher has this weight, between 0 and 1.
    Jsd(f64),
}

/// A teacher's hidden states `[N, H']` and the head that makes logits of them, over the vocabulary of the
/// student.
#[derive(Clone, Copy, Debug)]
pub struct Teacher<'a> {
    /// The hidden states.
    pub hidden: &'a Tensor,
    /// The head.
    pub head: Head<'a>,
}

/// Computes the sum over rows of the divergence of a student from `teacher`, with logits divided by
/// `temperature`: a scalar in fp32, differentiable in `hidden` `[N, H]` and the student's head. If the
/// vocabulary is sharded, both heads are sharded in the same way.
/// TRL: `generalized_jsd_loss`; Liger: `LigerFusedLinearJSD`.
pub fn divergence(
    hidden: &Tensor,
    head: Head<'_>,
    teacher: Teacher<'_>,
    divergence: Divergence,
    temperature: f64,
) -> Result<Tensor, Error> {
    let make = |head: Head<'_>| self::divergence(hidden, head, teacher, divergence, temperature);
    if let Some(result) = head.broadcast_from_last_stage(hidden, &[], Kind::Float, make) {
        return result;
    }
    let Some(row_partition) = head.row_partition(hidden) else {
        return local_divergence(hidden, head, teacher, divergence, temperature);
    };
    let range = row_partition.local_range(hidden.size()[0]);
    let local_rows = |x: &Tensor| x.narrow(0, range.start, range.end - range.start);
    let teacher_rows = local_rows(teacher.hidden);
    let teacher = Teacher { hidden: &teacher_rows, ..teacher };
    let sum = local_divergence(&local_rows(hidden), head, teacher, divergence, temperature)?;
    Ok(row_partition.all_reduce(sum)?)
}

/// [`divergence`] of rows that only this rank computes.
fn local_divergence(
    hidden: &Tensor,
    head: Head<'_>,
    teacher: Teacher<'_>,
    divergence: Divergence,
    temperature: f64,
) -> Result<Tensor, Error> {
    let _weights = [head.hold()?, teacher.head.hold()?];
    let wants_grad = head.requires_grad(hidden);
    let mut grads = HeadGrads::new(hidden, &head, wants_grad);
    let (student_head, teacher_head) = (head.detach(), teacher.head.detach());
    let total = no_grad(|| {
        let mut total = Tensor::zeros([], (Kind::Double, hidden.device()));
        for (start, length) in chunks(hidden.size()[0], head.chunk_rows()) {
            let rows = hidden.narrow(0, start, length);
            let of_student = distribution(&student_head, &rows, temperature)?;
            let of_teacher =
                distribution(&teacher_head, &teacher.hidden.narrow(0, start, length), temperature)?;
            let (values, grad_logits) = compare(&of_student, &of_teacher, divergence, &student_head)?;
            total += values.sum(Kind::Double);
            if wants_grad {
                grads.add(&student_head, &rows, &(grad_logits / temperature), start);
            }
        }
        Ok::<_, Error>(total.to_kind(Kind::Float))
    })?;
    if wants_grad { with_grads(&total, hidden, &head, grads) } else { Ok(total) }
}

/// The log-probabilities of this rank's tokens, `[n, V]`.
fn distribution(head: &DetachedHead, hidden: &Tensor, temperature: f64) -> Result<Tensor, Error> {
    let logits = head.logits(hidden, temperature);
    Ok(log_softmax(&logits, head.global_logsumexp(&logits)?.as_ref()))
}

/// The divergence of each row, `[n]`, and its gradient with respect to the student's logits over the
/// temperature, `[n, V]`, from log-probabilities `[n, V]`.
fn compare(
    student: &Tensor,
    teacher: &Tensor,
    divergence: Divergence,
    head: &DetachedHead,
) -> Result<(Tensor, Tensor), Error> {
    let (of_student, of_teacher) = (student.exp(), teacher.exp());
    let sum = |terms: Tensor| -> Result<Tensor, Error> {
        let sums = terms.sum_dim_intlist(1, true, Kind::Float);
        head.all_reduce(&sums)?;
        Ok(sums)
    };
    match divergence {
        Divergence::ForwardKl => {
            let values = sum((teacher - student) * &of_teacher)?;
            Ok((values.squeeze_dim(1), of_student - of_teacher))
        }
        Divergence::ReverseKl => {
            let differences = student - teacher;
            let values = sum(&differences * &of_student)?;
            let grad = (differences - &values) * of_student;
            Ok((values.squeeze_dim(1), grad))
        }
        Divergence::Jsd(weight) => {
            // In logarithms, because a probability that underflows has one.
            let mixture = (teacher + weight.ln()).logaddexp(&(student + (1.0 - weight).ln()));
            let differences = student - &mixture;
            let from_student = sum(&differences * &of_student)?;
            let from_teacher = sum((teacher - mixture) * of_teacher)?;
            let values = from_teacher * weight + &from_student * (1.0 - weight);
            let grad = (differences - from_student) * of_student * (1.0 - weight);
            Ok((values.squeeze_dim(1), grad))
        }
    }
}
