//! The rules that look at the numbers of a run and say what is unusual, what it means, and what to change.
//!
//! All rules are in one table, [`RULES`]; `docs/watch.md` lists them with the sources of their limits. A rule
//! looks at the newest rows only, so its hint goes away when the numbers are usual again. A hint is advice:
//! no rule stops a run.

use super::series::Series;
use super::state::{Dashboard, THROUGHPUT};
use text::number::metric;

/// The number of rows over which a rule averages.
const WINDOW: usize = 5;

/// The KL of a full reply, in nats, that is large when the run file names no target.
const LARGE_KL: f64 = 10.0;

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
pub(super) static RULES: [Rule; 16] = [
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
        change: "Raise ppo.kl_coef, set ppo.kl_target, or lower train.lr; read the samples.",
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
        title: "replies reach the length limit",
        meaning: "Cut replies are scored without their end.",
        change: "Raise ppo.max_new_tokens, or set ppo.missing_eos_penalty so that the policy learns to stop.",
        finds: |numbers| above(numbers.recent("truncated_rate")?, 0.5),
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
        change: "Read the samples, stop at an earlier checkpoint, or raise ppo.kl_coef.",
        finds: |numbers| {
            let rise = numbers.long("objective/scores", 4 * WINDOW)?.change(2 * WINDOW)?;
            above(numbers.recent("objective/kl")?, numbers.largest_kl())?;
            (rise > 0.0).then(|| format!("{} more", metric(rise)))
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

    /// The titles of the hints after rows of `name`.
    fn titles(columns: &[(&str, &[f64])], settings: &[(&str, f64)]) -> Vec<&'static str> {
        let mut dashboard = Dashboard::new(Theme::new(ThemeName::Plain), Symbols::ASCII);
        let settings = settings.iter().map(|&(name, value)| (name.to_owned(), value)).collect();
        dashboard.update(Event::Run(RunFacts { settings, ..RunFacts::default() }));
        for step in 0..columns[0].1.len() {
            let numbers = columns.iter().map(|(name, values)| ((*name).to_owned(), values[step])).collect();
            dashboard.update(Event::Row { step: step as u64 + 1, numbers });
        }
        hints(&dashboard).iter().map(|hint| hint.rule.title).collect()
    }

    #[test]
    fn each_limit_is_met_on_one_side_only() {
        let cases: [(&str, f64, f64, &str); 7] = [
            ("objective/kl", 9.9, 10.1, "the KL is above its limit"),
            ("objective/kl", -0.9, -1.1, "the KL is negative"),
            ("policy/clipfrac_avg", 0.29, 0.31, "the clip fraction is high"),
            ("policy/approxkl_avg", 0.04, 0.06, "the policy moves far in one rollout"),
            ("truncated_rate", 0.49, 0.51, "replies reach the length limit"),
            ("sampling/logp_difference/max", 0.4, 0.6, "the sampler and the trainer disagree"),
            ("grad_norm", 1.0, f64::NAN, "a number is not finite"),
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
    fn the_documentation_lists_every_rule() {
        let page = include_str!("../../../docs/watch.md");
        for rule in &RULES {
            assert!(page.contains(rule.title), "docs/watch.md does not list {:?}", rule.title);
        }
    }
}
