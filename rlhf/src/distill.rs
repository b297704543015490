//! Knowledge distillation: a student learns the distributions of a teacher, over the full vocabulary or over
//! the teacher's likeliest tokens, on given rows (Hinton et al. 2015, arXiv 1503.02531; Agarwal et al. 2024,
//! arXiv 2306.13649).
//!
//! ```text
//! before the gradients of a step   the teacher's last hidden states of its rows    Objective::run_frozen_models
//! each micro-batch                 the divergence of both distributions            models::head::divergence
//! ```
//! `loss = (sum_t D(p_t, q_t) - nll_coef sum_t log p(y_t)) / (number of labelled tokens in the full step)`,
//! with `D` at `temperature` and without the factor `temperature^2` of Hinton et al., as in TRL. With
//! `top_k`, `D` is between distributions over the k likeliest tokens of the teacher and all others as one.
//! Rows, labels and packing are those of supervised fine-tuning ([`crate::sft`]).

use std::path::Path;

use datasets::SftRow;
use models::batch::Batch;
use models::causal_lm::CausalLm;
use models::head::{self, Divergence, Teacher};
use parallel::ProcessGroups;
use parallel::pipeline::forward_only;
use parallel::residency::HeldWeights;
use serde::{Deserialize, Serialize};
use tch::{Kind, Tensor, no_grad};

use crate::Error;
use crate::event::Metrics;
use crate::setting::{not_negative, positive, refuse};
use crate::sft::Sft;
use crate::sums::Sums;
use crate::trainer::Objective;

/// The divergence that a student minimizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DivergenceKind {
    /// `KL(teacher, student)`.
    #[default]
    ForwardKl,
    /// `KL(student, teacher)`.
    ReverseKl,
    /// The Jensen-Shannon divergence, weighted by `beta`.
    Jsd,
}

/// The `[distill]` section.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DistillConfig {
    /// Required. The model to learn from: a model folder or a hub name, with the same tokenizer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub teacher: Option<String>,
    /// The divergence: `forward_kl`, `reverse_kl` or `jsd`.
    pub divergence: DivergenceKind,
    /// The weight of the teacher in `divergence = "jsd"`, between 0 and 1.
    /// TRL: `beta`, of which 0 and 1 are `forward_kl` and `reverse_kl`.
    pub beta: f64,
    /// The divisor of the logits of both models.
    pub temperature: f64,
    /// The weight of the cross-entropy of the labels.
    pub nll_coef: f64,
    /// The number of likeliest tokens of the teacher that are compared one by one; all others are compared as
    /// one. If absent, every token of the vocabulary is.
    /// TRL, `iw_opd`: `loss_top_k` with `loss_add_tail`, for the forward KL.
    pub top_k: Option<usize>,
}

impl Default for DistillConfig {
    fn default() -> Self {
        let divergence = DivergenceKind::ForwardKl;
        Self { teacher: None, divergence, beta: 0.5, temperature: 1.0, nll_coef: 0.0, top_k: None }
    }
}

impl DistillConfig {
    /// Refuses settings out of bounds.
    pub fn check(&self) -> Result<(), Error> {
        positive("distill", "temperature", self.temperature)?;
        not_negative("distill", "nll_coef", self.nll_coef)?;
        if self.top_k == Some(0) {
            return refuse("distill", "top_k", &0, "must be at least 1; leave it out to compare all tokens");
        }
        if self.beta > 0.0 && self.beta < 1.0 {
            return Ok(());
        }
        let wanted =
            "must be above 0 and below 1; the limits are divergence = \"forward_kl\" and \"reverse_kl\"";
        refuse("distill", "beta", &self.beta, wanted)
    }

    /// Refuses a `top_k` that is all of a vocabulary of `size` tokens.
    pub fn check_vocabulary(&self, size: i64) -> Result<(), Error> {
        match self.top_k.filter(|&top_k| top_k as i64 >= size) {
            Some(top_k) => {
                let wanted =
                    format!("must be below the {size} tokens of the vocabulary; leave it out for all");
                refuse("distill", "top_k", &top_k, &wanted)
            }
            None => Ok(()),
        }
    }

    /// The divergence with its weight.
    pub fn divergence(&self) -> Divergence {
        match self.divergence {
            DivergenceKind::ForwardKl => Divergence::ForwardKl,
            DivergenceKind::ReverseKl => Divergence::ReverseKl,
            DivergenceKind::Jsd => Divergence::Jsd(self.beta),
        }
    }
}

/// The micro-batches whose teacher's states an evaluation holds at the same time.
const MICRO_BATCHES_PER_PASS: usize = 8;

/// The objective of distillation.
pub struct Distill<'a> {
    rows: Sft<'a>,
    teacher: &'a CausalLm,
    config: &'a DistillConfig,
}

impl<'a> Distill<'a> {
    /// Creates the objective from that of supervised fine-tuning on the same rows. Refuses a teacher whose
    /// vocabulary has another size.
    pub fn new(rows: Sft<'a>, teacher: &'a CausalLm, config: &'a DistillConfig) -> Result<Self, Error> {
        let [left_size, right_size] = [rows.model(), teacher].map(|model| model.config().vocab_size());
        if left_size != right_size {
            return Err(Error::Vocabulary { left: "trained", left_size, right: "teacher", right_size });
        }
        config.check_vocabulary(left_size)?;
        Ok(Self { rows, teacher, config })
    }
}

/// The labels of a micro-batch, with what the teacher says of it.
pub struct Labels {
    /// The labelled tokens, `[M]`.
    ids: Tensor,
    /// The teacher's last hidden states before them, `[M, H]`, once it has run.
    teacher: Option<Tensor>,
}

impl<'a> Objective for Distill<'a> {
    type Model = CausalLm;
    type Example = Vec<&'a SftRow>;
    type Targets = Labels;
    /// The labelled tokens of the step.
    type Step = f64;

    fn model(&self) -> &CausalLm {
        self.rows.model()
    }

    fn save(&self, folder: &Path) -> Result<(), Error> {
        self.rows.save(folder)
    }

    fn num_examples(&self) -> usize {
        self.rows.num_examples()
    }

    fn example(&self, index: usize) -> Self::Example {
        self.rows.example(index)
    }

    fn content_hash(&self) -> String {
        self.rows.content_hash()
    }

    fn num_tokens(&self, bin: &Self::Example) -> usize {
        self.rows.num_tokens(bin)
    }

    fn begin_step(
        &self,
        bins: &mut [Self::Example],
        micro_batch_size: usize,
        groups: &ProcessGroups,
    ) -> Result<f64, Error> {
        self.rows.begin_step(bins, micro_batch_size, groups)
    }

    fn collate(&self, bins: &[Self::Example]) -> (Batch, Labels) {
        let (batch, ids) = self.rows.collate(bins);
        (batch, Labels { ids, teacher: None })
    }

    fn run_frozen_models(&self, micro_batches: &mut [(Batch, Labels)]) -> Result<(), Error> {
        let mut states = Vec::new();
        let batches = micro_batches.iter().map(|(batch, _)| batch);
        forward_only::<_, _, Error>(
            self.teacher,
            batches,
            |batch| batch,
            |_, hidden| {
                states.push(hidden.shallow_clone());
                Ok(())
            },
        )?;
        for ((_, labels), hidden) in micro_batches.iter_mut().zip(states) {
            labels.teacher = Some(hidden);
        }
        Ok(())
    }

    fn hold_frozen_weights(&self) -> Result<HeldWeights<'_>, Error> {
        Ok(self.teacher.head().hold_if_sharded()?)
    }

    fn loss(&self, tokens: &f64, labels: &Labels, hidden: &Tensor, sums: &mut Sums) -> Result<Tensor, Error> {
        let (student, count) = (self.model().head(), labels.ids.numel());
        let sum = head::divergence(
            hidden,
            student,
            self.teacher_of(labels),
            self.config.divergence(),
            self.config.temperature,
        )?;
        if self.config.nll_coef == 0.0 {
            return Ok(sum * (1.0 / tokens));
        }
        let nll = head::cross_entropy(hidden, student, &labels.ids, None)?;
        sums.add("divergence", sum.double_value(&[]), count);
        sums.add("nll", nll.double_value(&[]), count);
        Ok((sum + nll * self.config.nll_coef) * (1.0 / tokens))
    }

    fn has_eval(&self) -> bool {
        self.rows.has_eval()
    }

    fn evaluate(&self, micro_batch_size: usize, groups: &ProcessGroups) -> Result<Metrics, Error> {
        let replicas = groups.model_replicas();
        let bins = self.rows.eval_bins();
        let all = bins.chunks(micro_batch_size);
        // Ranks that share the teacher's weights run it equally often.
        let passes = all.len().div_ceil(replicas.size()).div_ceil(MICRO_BATCHES_PER_PASS);
        let mut own = replicas.round_robin(all);
        let mut sums = Sums::default();
        for _ in 0..passes {
            let mut micro_batches: Vec<(Batch, Labels)> =
                own.by_ref().take(MICRO_BATCHES_PER_PASS).map(|bins| self.collate(bins)).collect();
            self.run_frozen_models(&mut micro_batches)?;
            let _weights = self.hold_frozen_weights()?;
            forward_only::<_, _, Error>(
                self.model(),
                micro_batches.into_iter(),
                |(batch, _)| batch,
                |(_, labels), hidden| no_grad(|| self.add_evaluation(&labels, hidden, &mut sums)),
            )?;
        }
        let mut metrics = Metrics::default();
        sums.all_reduce(replicas)?.push_means("eval/", &mut metrics);
        Ok(metrics)
    }
}

impl Distill<'_> {
    /// What the loss reads of the teacher. It has run before any micro-batch has a loss.
    fn teacher_of<'l>(&'l self, labels: &'l Labels) -> Teacher<'l> {
        let hidden = labels.teacher.as_ref().expect("the teacher ran before the loss");
        Teacher { hidden, head: self.teacher.head(), top_k: self.config.top_k.map(|top_k| top_k as i64) }
    }

    /// Adds the loss of held-out labels, and how often the likeliest tokens of both models agree.
    fn add_evaluation(&self, labels: &Labels, hidden: &Tensor, sums: &mut Sums) -> Result<(), Error> {
        let count = labels.ids.numel();
        let loss = self.loss(&1.0, labels, hidden, sums)?;
        let teacher = self.teacher_of(labels);
        let best = [head::argmax(hidden, self.model().head())?, head::argmax(teacher.hidden, teacher.head)?];
        let agreed = best[0].eq_tensor(&best[1]).sum(Kind::Int64).double_value(&[]);
        sums.add("loss", loss.double_value(&[]), count);
        sums.add("agreement", agreed, count);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_out_of_bounds_are_refused() {
        let refusal = |config: DistillConfig| config.check().unwrap_err().to_string();
        DistillConfig::default().check().unwrap();
        for beta in [0.0, 1.0, f64::NAN] {
            let message = refusal(DistillConfig { beta, ..DistillConfig::default() });
            assert!(message.contains("[distill] beta") && message.contains("forward_kl"), "{message}");
        }
        assert!(
            refusal(DistillConfig { temperature: 0.0, ..DistillConfig::default() }).contains("temperature")
        );
        assert!(refusal(DistillConfig { nll_coef: -1.0, ..DistillConfig::default() }).contains("nll_coef"));
        assert!(refusal(DistillConfig { top_k: Some(0), ..DistillConfig::default() }).contains("top_k = 0"));
    }
}
