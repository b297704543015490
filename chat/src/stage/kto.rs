//! The stage `kto`: learning from single completions, each good or bad ([`rlhf::offline::kto`]).

use datasets::UnpairedRow;
use rlhf::offline::kto::{Kto, KtoLoss, KtoRow};
use tui::dashboard::{Charts, THROUGHPUT};

use super::definition::{CommandHelp, InitKey, InitSpec, RowKind, Stage};
use super::offline::{self, Algorithm};
use crate::config::{RunConfig, StageSchema, Units};

/// The stage `kto`.
pub(super) static STAGE: Stage = Stage {
    schema: StageSchema {
        name: "kto",
        units: Units::ROWS,
        has_rollouts: false,
        sections: &["kto", "reference"],
        ignored_keys: offline::IGNORED_KEYS,
        defaults: None,
    },
    command: Some(CommandHelp {
        about: "Learn from single answers, each marked as good or bad (KTO)",
        title: "Kahneman-Tversky optimization",
        examples: "\
Examples:
  colossal-chat kto --config run.toml
  colossal-chat data import-feedback   # answers that were marked in the chat, as rows for kto",
    }),
    init: Some(InitSpec {
        rows: RowKind::Rated,
        after: Some("sft"),
        is_in_all: false,
        other_model: None,
        lr: ["1e-6", "1e-4"],
        keys: |_| vec![InitKey::new("How strongly the model is tied to the reference.", "beta", "0.1")],
    }),
    curves: &["loss", "rewards/chosen", "rewards/rejected", "kl"],
    charts: CHARTS,
    set_pipeline_paths: offline::set_pipeline_paths,
    preflight: offline::preflight::<KahnemanTversky>,
    run: offline::run::<KahnemanTversky>,
};

const CHARTS: Charts = &[
    ("loss", &["loss", "eval/loss"]),
    ("rewards, good and bad", &["rewards/chosen", "rewards/rejected"]),
    ("KL, the baseline", &["kl"]),
    ("entropy", &["entropy"]),
    ("gradient norm", &["grad_norm"]),
    ("learning rate", &["lr"]),
    ("throughput, tokens/s", &[THROUGHPUT]),
];

/// The algorithm.
struct KahnemanTversky;

impl Algorithm for KahnemanTversky {
    type Row = UnpairedRow;
    type Loss = Kto;

    fn schema() -> &'static StageSchema {
        &STAGE.schema
    }

    fn loss(config: &RunConfig) -> Kto {
        Kto(config.kto.clone())
    }

    fn rows(rows: Vec<UnpairedRow>, config: &RunConfig) -> Vec<KtoRow> {
        KtoRow::of_rows(rows, config.data.max_length)
    }

    fn runs_before_step(config: &RunConfig) -> bool {
        config.kto.loss == KtoLoss::Kto
    }

    fn lengths(row: &UnpairedRow) -> (Vec<usize>, usize) {
        (vec![row.input_ids.len()], row.input_ids.len() - row.prompt_length)
    }
}
