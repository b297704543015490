//! Scores that a program of the user writes: `kind = "command"`.
//!
//! The replies go to the programs in batches (see `batch.rs`), one batch at a time to each program.
//! A program that fails costs the replies of the batch that it had (see `program.rs`).

use crate::batch::{ScoreRequest, scores, share};
use crate::entry::CommandConfig;
use crate::error::Wrong;
use crate::program::{Program, ProgramLog};
use crate::score::{Reply, ScoreError, Scorer};

/// The longest answer to a batch, in bytes.
const LONGEST_ANSWER: usize = 1 << 20;

/// Programs that score replies.
#[derive(Debug)]
pub(crate) struct CommandScorer {
    programs: Vec<Program>,
    batch_size: usize,
}

impl CommandScorer {
    /// Starts the programs of the entry that messages call `label`.
    pub(crate) fn start(label: &str, config: &CommandConfig, log: &ProgramLog) -> Result<Self, Wrong> {
        let programs = Program::start_all(label, config, LONGEST_ANSWER, log)?;
        Ok(Self { programs, batch_size: config.batch_size })
    }

    /// Asks each program about no replies, to find out at the start of a run whether it answers.
    pub(crate) fn probe(&mut self) -> Result<(), Wrong> {
        let each: Vec<()> = vec![(); self.programs.len()];
        let answers = share(&mut self.programs, &each, |program, ()| {
            let answer = program.ask(|_| ScoreRequest::new(&[]));
            answer.map(|answer| answer.get("scores").is_some()).map_err(|error| error.wrong())
        });
        for has_scores in answers {
            if !has_scores? {
                let fix = "answer {\"id\": 1, \"replies\": []} with {\"id\": 1, \"scores\": []}";
                return Err(Wrong::new("command", "gives an answer without `scores`", fix));
            }
        }
        Ok(())
    }
}

impl Scorer for CommandScorer {
    fn score(&mut self, replies: &[Reply<'_>]) -> Vec<Result<f64, ScoreError>> {
        let batches: Vec<&[Reply<'_>]> = replies.chunks(self.batch_size).collect();
        let scored = share(&mut self.programs, &batches, |program, batch| {
            match program.ask(|_| ScoreRequest::new(batch)) {
                Ok(answer) => scores(&answer, batch.len()),
                Err(error) => vec![Err(error.of_score()); batch.len()],
            }
        });
        scored.into_iter().flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::test_program::{lines, no_log, script, wait_for};

    /// The score of a reply is its number of tokens.
    const TOKENS: &str = r#"
        while read -r line; do
            printf '%s\n' "$line" >> "$1"; field id; id=$value; scores=
            while [ "${line#*'"tokens":'}" != "$line" ]; do
                field tokens; scores="$scores${scores:+,}$value"; line=${line#*'"tokens":'}
            done
            ANSWER
            printf '{"id":%s,"scores":[%s]}\n' "$id" "$scores"
        done"#;

    fn tokens(file: &Path, answer: &str) -> CommandConfig {
        script(&TOKENS.replace("ANSWER", answer), file)
    }

    fn start(config: &CommandConfig) -> CommandScorer {
        CommandScorer::start("test", config, &no_log()).unwrap()
    }

    /// Scores replies with 1, 2, ... tokens.
    fn score(scorer: &mut CommandScorer, replies: usize) -> Vec<Result<f64, ScoreError>> {
        let reply = |tokens| Reply { prompt: &[], text: "a", answer: None, tokens, stopped: true };
        scorer.score(&(1..=replies).map(reply).collect::<Vec<_>>())
    }

    #[test]
    fn batches_are_scored_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("requests");
        let mut scorer = start(&tokens(&file, ""));
        assert_eq!(scorer.probe(), Ok(()));
        assert_eq!(score(&mut scorer, 5), [1.0, 2.0, 3.0, 4.0, 5.0].map(Ok));
        assert_eq!(score(&mut scorer, 0), []);
        // The probe, and batches of 2, 2 and 1.
        assert_eq!(lines(&file).len(), 4);
    }

    #[test]
    fn programs_share_the_batches_whatever_the_timing() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("requests");
        // Batches with the replies 1, 3, 5 ... first: those that begin low take long.
        let slow = r#"case $scores in 1,*|5,*) sleep 0.2 ;; esac; scores="$scores"; echo $$ >> "$1.by""#;
        let mut scorer = start(&CommandConfig { concurrency: 3, ..tokens(&file, slow) });
        let scores: Vec<f64> = score(&mut scorer, 11).into_iter().map(Result::unwrap).collect();
        assert_eq!(scores, (1..=11).map(f64::from).collect::<Vec<_>>());
        // Each of the three had two of the six batches.
        let mut by = lines(&folder.path().join("requests.by"));
        by.sort();
        assert!(by.len() == 6 && by.chunks(2).all(|pair| pair[0] == pair[1]) && by[1] != by[2], "{by:?}");
    }

    #[test]
    fn a_program_that_dies_costs_its_batch_and_nothing_is_sent_twice() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("requests");
        let mut scorer = start(&tokens(&file, "case $scores in 3,*) exit 7 ;; esac"));
        for _ in 0..2 {
            let scores = score(&mut scorer, 6);
            let died = Err(ScoreError::Died { reason: "the program ended (exit status: 7)".to_owned() });
            assert_eq!(scores, [Ok(1.0), Ok(2.0), died.clone(), died, Ok(5.0), Ok(6.0)]);
        }
        assert_eq!(lines(&file).len(), 6);
    }

    #[test]
    fn after_the_last_restart_no_reply_has_a_score() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("requests");
        let mut scorer = start(&CommandConfig { max_restarts: 1, ..tokens(&file, "exit 7") });
        let names = |scores: Vec<Result<f64, ScoreError>>| -> Vec<&str> {
            scores.iter().map(|score| score.as_ref().unwrap_err().name()).collect()
        };
        assert_eq!(names(score(&mut scorer, 5)), ["died", "died", "died", "died", "unreachable"]);
        assert_eq!(names(score(&mut scorer, 1)), ["unreachable"]);
        assert_eq!(lines(&file).len(), 2);
    }

    #[test]
    fn a_program_without_an_answer_costs_its_batch() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("requests");
        let hangs = "case $scores in 1,*) sleep 1000 ;; esac";
        let mut scorer = start(&CommandConfig { timeout: 0.5, ..tokens(&file, hangs) });
        let slow = Err(ScoreError::TimedOut { seconds: 0.5 });
        let scores = score(&mut scorer, 3);
        assert_eq!(scores[..2], [slow.clone(), slow]);
        // The new program may need longer than half a second on a busy machine.
        assert!(matches!(scores[2], Ok(3.0) | Err(ScoreError::TimedOut { .. })), "{scores:?}");
    }

    #[test]
    fn a_score_that_is_none_costs_its_reply() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("requests");
        let odd = r#"case $scores in 1,*) scores=1,null ;; 3,*) scores='"3",4' ;; 5,*) scores=5 ;; 7,*) scores=NaN,8 ;; esac"#;
        let mut scorer = start(&tokens(&file, odd));
        let scores = score(&mut scorer, 10);
        assert_eq!((&scores[0], &scores[3]), (&Ok(1.0), &Ok(4.0)));
        assert_eq!(scores[1].as_ref().unwrap_err().name(), "declined");
        for index in [2, 4, 5, 6, 7] {
            assert_eq!(scores[index].as_ref().unwrap_err().name(), "not_a_score", "{index}");
        }
        assert_eq!(scores[8..], [Ok(9.0), Ok(10.0)]);
    }

    #[test]
    fn what_a_program_does_wrong_is_said_as_at_the_start() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("requests");
        for (answer, said) in [
            ("echo loading; continue", r#"stdout holds "loading", which is no answer (expected value"#),
            ("id=77", "an answer has the id 77, and the request has 1: answer each request once"),
            ("scores=[1", r#""scores":[[1]}", which is no answer ("#),
            ("scores=1", "1 score for 2 replies"),
            ("scores=1,true", ""),
            (r#"echo '{"id":1,"error":"no key"}'; continue"#, "the program reports \"no key\""),
            ("echo gone >&2; exit 7", r#"ended (exit status: 7); the last line of its stderr: "gone""#),
        ] {
            let reasons: Vec<String> = score(&mut start(&tokens(&file, answer)), 2)
                .into_iter()
                .filter_map(|score| Some(score.err()?.to_string()))
                .collect();
            assert_eq!(reasons.len(), if said.is_empty() { 0 } else { 2 }, "{answer}: {reasons:?}");
            assert!(reasons.iter().all(|reason| reason.contains(said)), "{answer}: {reasons:?}");
        }
    }

    #[test]
    fn a_program_that_does_not_work_is_found_at_the_start() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("requests");
        let mut dies = start(&script("echo 'no module named torch' >&2; exit 1", &file));
        let wrong = dies.probe().unwrap_err();
        assert!(wrong.problem.contains("no module named torch"), "{wrong:?}");
        let mut other = start(&script(r#"read -r line; echo '{"id": 1, "score": 2}'; read -r line"#, &file));
        assert_eq!(other.probe().unwrap_err().problem, "gives an answer without `scores`");
        // A program without restarts that dies while nothing is asked is found by the next batch.
        let mut scorer = start(&CommandConfig { max_restarts: 0, ..tokens(&file, "exit 0") });
        assert_eq!(scorer.probe().unwrap_err().key, "command");
        wait_for("the request is noted", || lines(&file).len() == 1);
        assert_eq!(score(&mut scorer, 1)[0].as_ref().unwrap_err().name(), "unreachable");
    }
}
