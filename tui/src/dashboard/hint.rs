//! The rules that look at the numbers of a run and say what is unusual, what it means, and what to change.
//!
//! All rules are in one table, [`RULES`]; `docs/watch.md` lists them with the sources of their limits. A rule
//! looks at the newest rows only, so its hint goes away when the numbers are usual again. A hint is advice:
//! no rule stops a run.

use super::series::Series;
use super::state::{Dashboard, THROUGHPUT};
use text::number::metric;
use text::single_line;

/// The number of rows over which a rule averages.
const WINDOW: usize = 5;

/// The number of rows on each side of a [`clear change`](Numbers::clear_change).
const SIDE: usize = 2 * WINDOW;

/// The KL of a full reply, in nats, that is large when the run file names no target.
const LARGE_KL: f64 = 10.0;

/// A correlation of score and length above the 0.45 of an ordinary reward model (Chen et al. 2024, arXiv
/// 2402.07319).
const LARGE_CORRELATION: f64 = 0.6;

/// The growth of replies that is more than the scatter of a rollout.
const GROWTH: f64 = 1.1;

/// The share of repeated 4-grams between that of people, below 0.01, and that of a model that is caught in
/// loops, above 0.4 (Welleck et al. 2020, arXiv 1908.04319).
const LARGE_REPETITION: f64 = 0.2;

/// A share of repeated 4-grams that is worth a look if the replies began with less than half of it.
const RISEN_REPETITION: f64 = 0.05;

/// The share of replies without a score from which on failures are no accidents.
const MANY_EXCLUDED: f64 = 0.1;

/// The share of tokens that a correction may cut: a sampler with the weights of the trainer differs by
/// rounding, which leaves the bounds at rare tokens only.
const MANY_CUT: f64 = 0.05;

/// A rule.
pub(super) struct Rule {
    /// What is unusual.
    pub(super) title: &'static str,
    /// What it means.
    meaning: &'static str,
    /// What to change.
    change: &'static str,
    /// The numbers that show it, or `None` if they are usual.
    finds: fn(&Numbers<'_>) -> Option<String>,
}

/// A rule that has found something.
pub(super) struct Hint {
    /// The rule.
    pub(super) rule: &'static Rule,
    /// The numbers that show it.
    pub(super) figures: String,
}

impl Hint {
    /// What is unusual, with its numbers.
    pub(super) fn headline(&self) -> String {
        format!("{}: {}", self.rule.title, self.figures)
    }

    /// What it means and what to change.
    pub(super) fn advice(&self) -> String {
        format!("{} {}", self.rule.meaning, self.rule.change)
    }

    /// The whole hint.
    pub(super) fn text(&self) -> String {
        format!("{}. {}", self.headline(), self.advice())
    }
}

/// The numbers that a rule may look at.
pub(super) struct Numbers<'a>(&'a Dashboard);

impl<'a> Numbers<'a> {
    fn series(&self, name: &str) -> Option<&'a Series> {
        self.0.find(name)
    }

    /// The mean of the newest rows.
    fn recent(&self, name: &str) -> Option<f64> {
        self.series(name)?.mean_of_last(WINDOW)
    }

    /// The mean of the newest rows of a metric that a row leaves out if it has no such number. `None` if the
    /// newest row has none, because the older numbers say nothing of it.
    fn current(&self, name: &str) -> Option<f64> {
        let newest_step = self.series(name)?.points.last()?.0;
        if newest_step < self.0.newest_step as f64 { None } else { self.recent(name) }
    }

    /// The mean of the newest rows minus the mean of the rows before them, if that is more than twice its
    /// standard error. Each side has [`SIDE`] rows.
    fn clear_change(&self, name: &str) -> Option<f64> {
        let points = &self.long(name, 2 * SIDE)?.points;
        let (before, newest) = points[points.len() - 2 * SIDE..].split_at(SIDE);
        let (before, variance_before) = mean_with_variance(before)?;
        let (newest, variance) = mean_with_variance(newest)?;
        let change = newest - before;
        (change.abs() > 2.0 * (variance_before + variance).sqrt()).then_some(change)
    }

    /// The rewards of weight 0: the replies are scored by them, and not trained for them.
    fn held_out_rewards(&self) -> impl Iterator<Item = &'a str> {
        let held_out = |(key, weight): &'a (String, f64)| {
            let name = key.strip_prefix("reward.")?.strip_suffix(".weight")?;
            (*weight == 0.0).then_some(name)
        };
        self.0.run.settings.iter().filter_map(held_out)
    }

    /// The reward that leaves the largest share of replies without a score, with that share.
    fn most_failing_reward(&self) -> Option<(&'a str, f64)> {
        let failures = |series: &'a Series| {
            let name = series.name.strip_prefix("rewards/")?.strip_suffix("/failed")?;
            Some((name, series.mean_of_last(WINDOW)?))
        };
        let failing = self.0.series.iter().filter_map(failures).filter(|(_, failed)| *failed > 0.0);
        failing.max_by(|left, right| left.1.total_cmp(&right.1))
    }

    /// A metric with at least `rows` rows.
    fn long(&self, name: &str, rows: usize) -> Option<&'a Series> {
        self.series(name).filter(|series| series.points.len() >= rows)
    }

    fn setting(&self, key: &str) -> Option<f64> {
        self.0.run.settings.iter().find(|(name, _)| name == key).map(|&(_, value)| value)
    }

    /// The KL of a full reply above which a hint is given.
    fn largest_kl(&self) -> f64 {
        self.setting("ppo.kl_target").map_or(LARGE_KL, |target| 1.5 * target)
    }
}

/// Says `value` if it is above `limit`.
fn above(value: f64, limit: f64) -> Option<String> {
    (value > limit).then(|| format!("{} is above {}", metric(value), metric(limit)))
}

/// Says `value` if it is below `limit`.
fn below(value: f64, limit: f64) -> Option<String> {
    (value < limit).then(|| format!("{} is below {}", metric(value), metric(limit)))
}

/// Every rule, the most urgent first.
pub(super) static RULES: [Rule; 23] = [
    Rule {
        title: "a number is not finite",
        meaning: "The loss or a gradient overflowed, and the weights may be damaged.",
        change: "Resume from an earlier checkpoint with a lower train.lr, and look at the rows of this step.",
        finds: |numbers| {
            let bad =
                |name: &&str| numbers.series(name).and_then(Series::last).is_some_and(|v| !v.is_finite());
            ["loss", "grad_norm", "critic_grad_norm", "loss/value_avg"]
                .into_iter()
                .find(bad)
                .map(str::to_owned)
        },
    },
    Rule {
        title: "the KL is above its limit",
        meaning: "The policy is far from the reference, where the reward model was not trained and its scores mislead.",
        change: "Raise ppo.kl_coef (online-dpo: dpo.beta), set ppo.kl_target, or lower train.lr; read the samples.",
        finds: |numbers| above(numbers.recent("objective/kl")?, numbers.largest_kl()),
    },
    Rule {
        title: "the KL is negative",
        meaning: "An estimate over enough replies is positive, so the sampler and the trainer may disagree.",
        change: "Check sampling/logp_difference/max, ppo.reference_model and ppo.temperature; kl_estimator = \"k3\" is never negative.",
        finds: |numbers| below(numbers.recent("objective/kl")?, -1.0),
    },
    Rule {
        title: "the sampler and the trainer disagree",
        meaning: "The log-probabilities of the rollout are not those of training, so the ratios are wrong.",
        change: "Use model.dtype = \"float32\"; if it stays, please report it.",
        finds: |numbers| above(numbers.recent("sampling/logp_difference/max")?, 0.5),
    },
    Rule {
        title: "the correction cuts many tokens",
        meaning: "The sampler gave these tokens other probabilities than the trainer, and they teach less or nothing.",
        change: "Look at sampling/logp_difference/max and use model.dtype = \"float32\"; widen the bounds of the correction only if the two agree.",
        finds: |numbers| above(numbers.recent("correction/cut")?, MANY_CUT),
    },
    Rule {
        title: "many replies have no score",
        meaning: "A reward could not score them, so they train nothing, and failures often fall on one kind of reply.",
        change: "Read the log for the reasons, and mend the reward or raise its timeout.",
        finds: |numbers| {
            let share = above(numbers.current("monitor/excluded")?, MANY_EXCLUDED)?;
            let failing = numbers.most_failing_reward();
            let failing = failing
                .map(|(name, failed)| format!(", {} fails most: {}", single_line(name), metric(failed)));
            Some(share + &failing.unwrap_or_default())
        },
    },
    Rule {
        title: "the clip fraction is high",
        meaning: "Many tokens have moved further than ppo.clip_range in one rollout, and teach nothing any more.",
        change: "Lower train.lr or ppo.epochs, or raise ppo.mini_batch_size.",
        finds: |numbers| above(numbers.recent("policy/clipfrac_avg")?, 0.3),
    },
    Rule {
        title: "the policy moves far in one rollout",
        meaning: "The approximate KL between the policy before and after its updates is large.",
        change: "Lower train.lr or ppo.epochs.",
        finds: |numbers| above(numbers.recent("policy/approxkl_avg")?, 0.05),
    },
    Rule {
        title: "the entropy has collapsed",
        meaning: "The policy gives nearly the same reply to every prompt and explores no more.",
        change: "Raise ppo.kl_coef or ppo.entropy_coef, or lower train.lr.",
        finds: |numbers| {
            let first = numbers.long("objective/entropy", 2 * WINDOW)?.mean_of_first(WINDOW)?;
            below(numbers.recent("objective/entropy")?, 0.2 * first)
        },
    },
    Rule {
        title: "the replies repeat themselves",
        meaning: "The same four tokens stand again and again in a reply, which people notice and a reward may not.",
        change: "Read the samples; raise ppo.kl_coef, lower train.lr, or add a reward of kind \"repetition\".",
        finds: |numbers| {
            let repetition = numbers.current("monitor/repetition")?;
            above(repetition, LARGE_REPETITION).or_else(|| {
                let first = numbers.long("monitor/repetition", 2 * WINDOW)?.mean_of_first(WINDOW)?;
                (repetition > RISEN_REPETITION && repetition > 2.0 * first)
                    .then(|| format!("{}, at first {}", metric(repetition), metric(first)))
            })
        },
    },
    Rule {
        title: "replies reach the length limit",
        meaning: "Cut replies are scored without their end.",
        change: "Raise ppo.max_new_tokens, or set ppo.missing_eos_penalty so that the policy learns to stop.",
        finds: |numbers| above(numbers.recent("truncated_rate")?, 0.5),
    },
    Rule {
        title: "most groups have no variance",
        meaning: "Where all replies to a prompt have one score there is nothing to compare, so few prompts teach anything.",
        change: "Use prompts that the policy solves now and then, or raise ppo.samples_per_prompt or ppo.temperature.",
        finds: |numbers| above(numbers.recent("groups/zero_variance")?, 0.5),
    },
    Rule {
        title: "the refills reach their limit",
        meaning: "Most rollouts end with fewer groups than they should have, because too many groups have no variance.",
        change: "Use prompts that the policy solves now and then, or raise ppo.max_refills.",
        finds: |numbers| {
            let limit = numbers.setting("ppo.max_refills").filter(|limit| *limit > 0.0)?;
            let usual = numbers.series("rollout/refills")?.median_of_last(WINDOW)?;
            (usual >= limit).then(|| format!("{} of {}", metric(usual), metric(limit)))
        },
    },
    Rule {
        title: "the critic explains nothing",
        meaning: "Its values predict the returns worse than their mean does, so the advantages are noise.",
        change: "Raise ppo.critic_warmup or ppo.critic_lr, or use ppo.gae_lambda = 1.",
        finds: |numbers| {
            below(numbers.long("val/explained_variance", 4 * WINDOW)?.mean_of_last(WINDOW)?, 0.0)
        },
    },
    Rule {
        title: "the reward rises while the KL is above its limit",
        meaning: "This is what exploiting the reward model looks like: the score grows and the replies get worse.",
        change: "Read the samples, stop at an earlier checkpoint, or raise ppo.kl_coef (online-dpo: dpo.beta).",
        finds: |numbers| {
            let rise = numbers.long("objective/scores", 4 * WINDOW)?.change(2 * WINDOW)?;
            above(numbers.recent("objective/kl")?, numbers.largest_kl())?;
            (rise > 0.0).then(|| format!("{} more", metric(rise)))
        },
    },
    Rule {
        title: "the score rises while a held-out reward falls",
        meaning: "This is over-optimization: the policy gets better at the rewards and worse at what they stand for.",
        change: "Read the samples, stop at an earlier checkpoint, raise ppo.kl_coef (online-dpo: dpo.beta), or mend the rewards.",
        finds: |numbers| {
            let rise = numbers.clear_change("objective/scores").filter(|rise| *rise > 0.0)?;
            numbers.held_out_rewards().find_map(|name| {
                let change = numbers.clear_change(&format!("rewards/{name}/mean"))?;
                let name = single_line(name);
                (change < 0.0)
                    .then(|| format!("score {} more, {name} {} less", metric(rise), metric(-change)))
            })
        },
    },
    Rule {
        title: "the score follows the length",
        meaning: "The score depends on the length of a reply more than on what it says, and the policy has learned so.",
        change: "Compare short and long samples; add a reward of kind \"length\", or train the reward model on pairs of equal length.",
        finds: |numbers| {
            let correlation = numbers.current("monitor/length_score_correlation")?;
            let lengths = numbers.long("response_length/mean", 2 * WINDOW)?;
            let (first, newest) = (lengths.mean_of_first(WINDOW)?, lengths.mean_of_last(WINDOW)?);
            // With a negative correlation the shorter replies have the higher scores.
            let (from, to) = if correlation < 0.0 { (newest, first) } else { (first, newest) };
            let follows = correlation.abs() > LARGE_CORRELATION && to > GROWTH * from;
            let (correlation, newest, first) = (metric(correlation), metric(newest), metric(first));
            follows.then(|| format!("correlation {correlation}, {newest} tokens, at first {first}"))
        },
    },
    Rule {
        title: "the loss falls while the held-out loss rises",
        meaning: "The model learns its rows by heart.",
        change: "Use an earlier checkpoint, fewer train.epochs, a lower train.lr, or more rows.",
        finds: |numbers| {
            let held_out = numbers.long("eval/loss", 4)?.change(2)?;
            let trained = numbers.long("loss", 2 * WINDOW)?.change(WINDOW)?;
            (held_out > 0.0 && trained < 0.0).then(|| format!("held-out {} more", metric(held_out)))
        },
    },
    Rule {
        title: "the accuracy rises while the held-out accuracy falls",
        meaning: "The model learns its pairs by heart.",
        change: "One epoch is usual: lower train.epochs or train.lr.",
        finds: |numbers| {
            ["accuracy", "rewards/accuracies"].into_iter().find_map(|name| {
                let held_out = numbers.long(&format!("eval/{name}"), 4)?.change(2)?;
                let trained = numbers.long(name, 2 * WINDOW)?.change(WINDOW)?;
                (held_out < 0.0 && trained > 0.0).then(|| format!("held-out {} less", metric(-held_out)))
            })
        },
    },
    Rule {
        title: "the better answers have become less likely",
        meaning: "The margin grows because the worse answers fall faster, and what the model says instead is in no row.",
        change: "Lower train.lr, raise beta, or add the cross-entropy (\"sft\" in dpo.loss, nll_coef); read what it says.",
        finds: |numbers| {
            let first = numbers.long("logps/chosen", 4 * WINDOW)?.mean_of_first(WINDOW)?;
            below(numbers.recent("logps/chosen")?, 1.5 * first)
        },
    },
    Rule {
        title: "the loss does not fall",
        meaning: "The last tenth of the rows has the loss of the first tenth, or a higher one.",
        change: "Check train.lr and its warm-up, and that the rows have marked tokens (data check).",
        finds: |numbers| {
            // The policy loss of PPO is not a measure of progress.
            if numbers.series("objective/scores").is_some() {
                return None;
            }
            let loss = numbers.long("loss", 100)?;
            let tenth = loss.points.len() / 10;
            let (first, last) = (loss.mean_of_first(tenth)?, loss.mean_of_last(tenth)?);
            (last >= first).then(|| format!("{}, at first {}", metric(last), metric(first)))
        },
    },
    Rule {
        title: "the gradient norm jumps",
        meaning: "One step had a gradient far above the usual; it is clipped, but its direction may be noise.",
        change: "If it repeats, lower train.lr or look at the rows; keep train.max_grad_norm above 0.",
        finds: |numbers| {
            let norms = numbers.long("grad_norm", 4 * WINDOW)?;
            above(norms.last()?, 10.0 * norms.median_of_last(50)?)
        },
    },
    Rule {
        title: "the throughput has fallen",
        meaning: "The newest steps are much slower than most: other programs use the processor, or memory is short.",
        change: "Look at the processes and at the memory pane.",
        finds: |numbers| {
            let rates = numbers.long(THROUGHPUT, 4 * WINDOW)?;
            below(rates.mean_of_last(WINDOW)?, 0.5 * rates.median_of_last(200)?)
        },
    },
];

/// The mean of the finite numbers of some rows and the variance of this mean. `None` with fewer than two.
fn mean_with_variance(rows: &[(f64, f64)]) -> Option<(f64, f64)> {
    let values: Vec<f64> = rows.iter().map(|row| row.1).filter(|value| value.is_finite()).collect();
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (values.len() > 1).then(|| (mean, squares / (count * (count - 1.0))))
}

/// What the rules find in the newest rows.
pub(super) fn hints(dashboard: &Dashboard) -> Vec<Hint> {
    let numbers = Numbers(dashboard);
    RULES.iter().filter_map(|rule| Some(Hint { rule, figures: (rule.finds)(&numbers)? })).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dashboard::{Event, RunFacts};
    use crate::theme::{Symbols, Theme, ThemeName};

    /// The titles of the hints after rows of `columns`.
    fn titles(columns: &[(&str, &[f64])], settings: &[(&str, f64)]) -> Vec<&'static str> {
        hints(&after_rows(columns, settings)).iter().map(|hint| hint.rule.title).collect()
    }

    /// The hints after rows of `columns`, with their numbers.
    fn headlines(columns: &[(&str, &[f64])], settings: &[(&str, f64)]) -> Vec<String> {
        hints(&after_rows(columns, settings)).iter().map(Hint::headline).collect()
    }

    fn after_rows(columns: &[(&str, &[f64])], settings: &[(&str, f64)]) -> Dashboard {
        let mut dashboard = Dashboard::new(Theme::new(ThemeName::Plain), Symbols::ASCII);
        let settings = settings.iter().map(|&(name, value)| (name.to_owned(), value)).collect();
        dashboard.update(Event::Run(RunFacts { settings, ..RunFacts::default() }));
        for step in 0..columns[0].1.len() {
            let numbers = columns.iter().map(|(name, values)| ((*name).to_owned(), values[step])).collect();
            dashboard.update(Event::Row { step: step as u64 + 1, numbers });
        }
        dashboard
    }

    #[test]
    fn each_limit_is_met_on_one_side_only() {
        let cases: [(&str, f64, f64, &str); 11] = [
            ("objective/kl", 9.9, 10.1, "the KL is above its limit"),
            ("objective/kl", -0.9, -1.1, "the KL is negative"),
            ("policy/clipfrac_avg", 0.29, 0.31, "the clip fraction is high"),
            ("policy/approxkl_avg", 0.04, 0.06, "the policy moves far in one rollout"),
            ("truncated_rate", 0.49, 0.51, "replies reach the length limit"),
            ("sampling/logp_difference/max", 0.4, 0.6, "the sampler and the trainer disagree"),
            ("grad_norm", 1.0, f64::NAN, "a number is not finite"),
            ("correction/cut", 0.04, 0.06, "the correction cuts many tokens"),
            ("monitor/excluded", 0.09, 0.11, "many replies have no score"),
            ("monitor/repetition", 0.19, 0.21, "the replies repeat themselves"),
            ("groups/zero_variance", 0.49, 0.51, "most groups have no variance"),
        ];
        for (name, usual, unusual, title) in cases {
            assert_eq!(titles(&[(name, &[usual; 6])], &[]), [""; 0], "{name}");
            assert_eq!(titles(&[(name, &[unusual; 6])], &[]), [title], "{name}");
        }
    }

    #[test]
    fn the_limit_of_the_kl_follows_the_target_of_the_run_file() {
        let kl = |value, target| titles(&[("objective/kl", &[value; 6])], &[("ppo.kl_target", target)]).len();
        assert_eq!([kl(8.0, 6.0), kl(9.5, 6.0), kl(40.0, 30.0)], [0, 1, 0]);
    }

    #[test]
    fn what_goes_apart_is_found() {
        let rising: Vec<f64> = (0..20).map(f64::from).collect();
        let falling: Vec<f64> = rising.iter().map(|value| 20.0 - value).collect();
        let apart = titles(&[("loss", &falling), ("eval/loss", &rising)], &[]);
        assert_eq!(apart, ["the loss falls while the held-out loss rises"]);
        assert!(titles(&[("loss", &falling), ("eval/loss", &falling)], &[]).is_empty());
        let hacked = titles(&[("objective/scores", &rising), ("objective/kl", &[30.0; 20])], &[]);
        assert_eq!(hacked[1], "the reward rises while the KL is above its limit");
        let collapsed: Vec<f64> = (0..20).map(|i| if i < 10 { 2.0 } else { 0.3 }).collect();
        assert_eq!(titles(&[("objective/entropy", &collapsed)], &[]), ["the entropy has collapsed"]);
        let by_heart = titles(&[("rewards/accuracies", &rising), ("eval/rewards/accuracies", &falling)], &[]);
        assert_eq!(by_heart, ["the accuracy rises while the held-out accuracy falls"]);
        let fallen: Vec<f64> = (0..20).map(|i| if i < 10 { -20.0 } else { -31.0 }).collect();
        let less_likely = titles(&[("logps/chosen", &fallen)], &[]);
        assert_eq!(less_likely, ["the better answers have become less likely"]);
    }

    #[test]
    fn a_score_that_follows_the_length_is_found_on_either_side() {
        let growing: Vec<f64> = (0..20).map(|i| if i < 10 { 40.0 } else { 60.0 }).collect();
        let shrinking: Vec<f64> = growing.iter().map(|length| 100.0 - length).collect();
        let found = |correlation: f64, lengths: &[f64]| {
            let correlations = [correlation; 20];
            let columns: [(&str, &[f64]); 2] =
                [("monitor/length_score_correlation", &correlations), ("response_length/mean", lengths)];
            headlines(&columns, &[])
        };
        let longer = "the score follows the length: correlation 0.7000, 60 tokens, at first 40";
        assert_eq!(found(0.7, &growing), [longer]);
        let shorter = "the score follows the length: correlation -0.7000, 40 tokens, at first 60";
        assert_eq!(found(-0.7, &shrinking), [shorter]);
        // A weak correlation, replies that have changed against the score, and replies that have not changed.
        assert!(found(0.5, &growing).is_empty());
        assert!(found(-0.7, &growing).is_empty() && found(0.7, &shrinking).is_empty());
        assert!(found(0.7, &[40.0; 20]).is_empty());
    }

    #[test]
    fn a_held_out_reward_that_falls_is_found_by_its_weight() {
        let rising: Vec<f64> = (0..20).map(f64::from).collect();
        let falling: Vec<f64> = rising.iter().map(|value| 20.0 - value).collect();
        let columns: [(&str, &[f64]); 2] = [("objective/scores", &rising), ("rewards/math/mean", &falling)];
        // Ten rows with the mean 4.5 and ten with the mean 14.5.
        let expected = "the score rises while a held-out reward falls: score 10 more, math 10 less";
        let weights = |weight| [("reward.model.weight", 1.0), ("reward.math.weight", weight)];
        assert_eq!(headlines(&columns, &weights(0.0)), [expected]);
        assert!(headlines(&columns, &weights(0.5)).is_empty());
        assert!(headlines(&columns[1..], &weights(0.0)).is_empty());

        // The rows go 0.1 up and down. The variance of the mean of ten is 10 x 0.01 / (10 x 9), so twice the
        // standard error of a difference of two is 2 sqrt(0.02 / 9) = 0.094.
        let scatter = |fall: f64| -> Vec<f64> {
            (0..20).map(|i| if i % 2 == 0 { 0.6 } else { 0.4 } - if i < 10 { 0.0 } else { fall }).collect()
        };
        let found = |fall| {
            let scattered = scatter(fall);
            headlines(&[("objective/scores", &rising), ("rewards/math/mean", &scattered)], &weights(0.0))
                .len()
        };
        assert_eq!([found(0.04), found(0.09), found(0.1)], [0, 0, 1]);
    }

    #[test]
    fn repetition_is_found_when_it_has_doubled() {
        let of = |first: f64, newest: f64| {
            let rows: Vec<f64> = (0..10).map(|i| if i < 5 { first } else { newest }).collect();
            headlines(&[("monitor/repetition", &rows)], &[])
        };
        assert_eq!(of(0.02, 0.06), ["the replies repeat themselves: 0.0600, at first 0.0200"]);
        assert!(of(0.01, 0.04).is_empty());
        assert!(of(0.08, 0.15).is_empty());
    }

    #[test]
    fn the_reward_that_fails_most_is_named() {
        let columns: [(&str, &[f64]); 3] = [
            ("monitor/excluded", &[0.25; 5]),
            ("rewards/code/failed", &[0.2; 5]),
            ("rewards/math/failed", &[0.05; 5]),
        ];
        let found = headlines(&columns, &[]);
        assert_eq!(found, ["many replies have no score: 0.2500 is above 0.1000, code fails most: 0.2000"]);
    }

    #[test]
    fn a_monitor_without_a_number_in_the_newest_row_gives_no_hint() {
        let mut dashboard = after_rows(&[("monitor/repetition", &[0.5; 5])], &[]);
        assert_eq!(hints(&dashboard).len(), 1);
        dashboard.update(Event::Row { step: 6, numbers: vec![("objective/kl".to_owned(), 1.0)] });
        assert!(hints(&dashboard).is_empty());
    }

    #[test]
    fn refills_are_compared_with_the_limit_of_the_run_file() {
        let found =
            |limits: &[(&str, f64)]| headlines(&[("rollout/refills", &[1.0, 3.0, 3.0, 2.0, 3.0])], limits);
        assert_eq!(found(&[("ppo.max_refills", 3.0)]), ["the refills reach their limit: 3 of 3"]);
        assert!(found(&[("ppo.max_refills", 4.0)]).is_empty());
        assert!(found(&[("ppo.max_refills", 0.0)]).is_empty());
        assert!(found(&[]).is_empty());
    }

    #[test]
    fn the_documentation_lists_every_rule() {
        let page = include_str!("../../../docs/watch.md");
        for rule in &RULES {
            assert!(page.contains(rule.title), "docs/watch.md does not list {:?}", rule.title);
        }
    }
}
