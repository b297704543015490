//! The divergence of a student's distributions from those of a teacher, over the full vocabulary or over
//! the teacher's likeliest tokens and all others as one. It is computed a few rows at a time: neither model
//! has an `[N, V]` tensor of logits.
//!
//! With `p` the distribution of the student, `q` that of the teacher, both at temperature `t`, and `z` the
//! logits of the student:
//! ```text
//!   forward KL   KL(q, p)                                      dz  (p - q) / t
//!   reverse KL   KL(p, q)                                      dz  p (log p - log q - KL(p, q)) / t
//!   JSD          b KL(q, m) + (1 - b) KL(p, m)                 dz  (1 - b) p (log p - log m - KL(p, m)) / t
//!                m = b q + (1 - b) p
//! ```
//! `KL(x, y)` is `sum_v x_v (log x_v - log y_v)`. The gradient of the JSD has no other terms, because those
//! that `m` brings add up to a constant, which the softmax removes. (Agarwal et al. 2024, arXiv 2306.13649,
//! section 2 and equation 1.)
//!
//! A teacher may tell its `k` likeliest tokens alone ([`Teacher::top_k`]). Then `p` and `q` are distributions
//! over k + 1 outcomes, of which the last is all other tokens. With `P_v` and `Q_v` the probabilities of the
//! outcome of token v, the logarithms above are those of `P_v` and `Q_v`, and the gradient of the forward KL
//! is `p_v (1 - Q_v / P_v) / t`. The weights outside the logarithms stay `p_v` and `q_v`, because those of
//! the tokens of an outcome add up to its probability.

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
    /// The number of its likeliest tokens that are compared one by one: at least 1, and below the size of the
    /// vocabulary. All other tokens are one outcome. Tokens that are as likely as the last one count with it.
    /// `None` if all tokens are compared.
    pub top_k: Option<i64>,
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
            let mut of_student = Distribution::new(&student_head, &rows, temperature)?;
            let mut of_teacher =
                Distribution::new(&teacher_head, &teacher.hidden.narrow(0, start, length), temperature)?;
            if let Some(count) = teacher.top_k {
                let rest = of_teacher.rest(count, &teacher_head)?;
                of_student.join_tokens(&rest, &student_head)?;
                of_teacher.join_tokens(&rest, &teacher_head)?;
            }

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

/// A distribution at some rows, over this rank's tokens.
struct Distribution {
    /// The log-probability of each token, `[n, V]`.
    logprobs: Tensor,
    /// The log-probability of the outcome of each token, `[n, V]`; `None` if every token is an outcome.
    outcome_logprobs: Option<Tensor>,
}

impl Distribution {
    fn new(head: &DetachedHead, hidden: &Tensor, temperature: f64) -> Result<Self, Error> {
        let logits = head.logits(hidden, temperature);
        let logprobs = log_softmax(&logits, head.global_logsumexp(&logits)?.as_ref());
        Ok(Self { logprobs, outcome_logprobs: None })
    }

    /// Whether a token is not among the `count` likeliest of the full vocabulary, `[n, V]`.
    fn rest(&self, count: i64, head: &DetachedHead) -> Result<Tensor, Error> {
        Ok(self.logprobs.lt_tensor(&head.kth_largest(&self.logprobs, count)?))
    }

    /// Makes one outcome of the tokens of `rest`, `[n, V]`.
    fn join_tokens(&mut self, rest: &Tensor, head: &DetachedHead) -> Result<(), Error> {
        // A sum of small probabilities keeps its digits, unlike 1 minus the sum of the large ones.
        let of_rest = self.logprobs.masked_fill(&rest.logical_not(), f64::NEG_INFINITY);
        let total = match head.global_logsumexp(&of_rest)? {
            Some(total) => total,
            None => of_rest.logsumexp([1i64].as_slice(), true),
        };
        self.outcome_logprobs = Some(total.where_self(rest, &self.logprobs));
        Ok(())
    }

    /// The log-probability of the outcome of each token.
    fn outcomes(&self) -> &Tensor {
        self.outcome_logprobs.as_ref().unwrap_or(&self.logprobs)
    }
}

/// The divergence of each row, `[n]`, and its gradient with respect to the student's logits over the
/// temperature, `[n, V]`.
fn compare(
    student: &Distribution,
    teacher: &Distribution,
    divergence: Divergence,
    head: &DetachedHead,
) -> Result<(Tensor, Tensor), Error> {
    let (of_student, of_teacher) = (student.logprobs.exp(), teacher.logprobs.exp());
    let (student_outcomes, teacher_outcomes) = (student.outcomes(), teacher.outcomes());
    let sum = |terms: Tensor| -> Result<Tensor, Error> {
        let sums = row_sums(&terms);
        head.all_reduce(&sums)?;
        Ok(sums)
    };
    // The probabilities of the student add up to 1 but for rounding. A mean that divides by their sum keeps
    // the gradient of equal differences at 0; without it, the rounding of large differences is what is left.
    let mean = |differences: &Tensor| -> Result<Tensor, Error> {
        let terms = [&(differences * &of_student), &of_student].map(row_sums);
        let sums = Tensor::cat(&terms, 1); // [n, 2]
        head.all_reduce(&sums)?;
        Ok(sums.narrow(1, 0, 1) / sums.narrow(1, 1, 1))
    };
    match divergence {
        Divergence::ForwardKl => {
            let values = sum((teacher_outcomes - student_outcomes) * &of_teacher)?;
            // The tokens of an outcome share its probability under the teacher as they do under the student.
            // In logarithms, because a probability that underflows has one.
            let shares = match &student.outcome_logprobs {
                Some(outcomes) => (&student.logprobs - outcomes + teacher_outcomes).exp(),
                None => of_teacher,
            };
            Ok((values.squeeze_dim(1), of_student - shares))
        }
        Divergence::ReverseKl => {
            let differences = student_outcomes - teacher_outcomes;
            let values = mean(&differences)?;
            let grad = (differences - &values) * of_student;
            Ok((values.squeeze_dim(1), grad))
        }
        Divergence::Jsd(weight) => {
            // In logarithms, for the same reason.
            let mixture =
                (teacher_outcomes + weight.ln()).logaddexp(&(student_outcomes + (1.0 - weight).ln()));
            let differences = student_outcomes - &mixture;
            let from_student = mean(&differences)?;
            let from_teacher = sum((teacher_outcomes - mixture) * of_teacher)?;
            let values = from_teacher * weight + &from_student * (1.0 - weight);
            let grad = (differences - from_student) * of_student * (1.0 - weight);
            Ok((values.squeeze_dim(1), grad))
        }
    }
}

/// The sum of each row, `[n, 1]`.
fn row_sums(terms: &Tensor) -> Tensor {
    terms.sum_dim_intlist(1, true, Kind::Float)
}
