//! Over-optimization: how the proxy reward and a gold reward go on as a policy leaves its reference.
//!
//! A policy that is trained against a reward model (the proxy) raises its score further and further. The gold
//! reward, what is really wanted, rises at first and then falls (Gao, Schulman and Hilton 2023, arXiv
//! 2210.10760). Both are drawn over the square root of the KL divergence from the reference, in nats per
//! reply, as in figure 1 there.
//!
//! KL and proxy of an iteration are means over its rollout, so they are those of the policy that the
//! iteration began with. The gold values come from elsewhere and are for the same policies: a row names the
//! `step` of the iteration, or the `checkpoint` that the policy is; the iteration after it begins with that
//! checkpoint. Several values of one policy are averaged.
//!
//! An estimate of the KL divergence can be below 0; its root is then 0. This file does not know how the gold
//! values were measured.

use std::collections::BTreeMap;
use std::path::Path;

use datasets::record::preview;
use datasets::{Row, RowLocation, TableReader};
use serde::Serialize;
use serde_json::Value;

use super::entry::{need, wrong};
use crate::Error;
use crate::statistics::{Estimate, estimate};

/// The curve of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OverOptimization {
    /// The run.
    pub run: String,
    /// The file of the gold values.
    pub gold_file: Option<String>,
    /// The points, by step.
    pub points: Vec<CurvePoint>,
    /// What happens to the gold value after its highest point.
    pub peak: Option<Peak>,
}

/// One policy of the run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CurvePoint {
    /// The iteration whose rollout it sampled.
    pub step: u64,
    /// The KL divergence from the reference, in nats per reply.
    pub kl: f64,
    /// Its square root.
    pub root_kl: f64,
    /// The score of the reward model that the run trained against.
    pub proxy: f64,
    /// The gold value.
    pub gold: Option<f64>,
    /// The gold value with Student's interval, if there are several values.
    pub gold_estimate: Option<Estimate>,
}

/// Where the gold value is highest, and what changes from there to the last gold value.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Peak {
    /// The step of the highest gold value.
    pub step: u64,
    /// The KL divergence there.
    pub kl: f64,
    /// The gold value there.
    pub gold: f64,
    /// The change of the proxy until the last gold value.
    pub proxy_change: f64,
    /// The change of the gold value until the last one.
    pub gold_change: f64,
}

/// Which policy a gold value belongs to.
#[derive(Clone, Debug, PartialEq)]
pub struct GoldValue {
    /// The row.
    pub at: RowLocation,
    /// The iteration whose rollout the policy sampled.
    pub step: u64,
    /// The value.
    pub gold: f64,
}

/// Reads gold values: `gold`, and `step` or `checkpoint`.
pub fn read_gold(path: &Path) -> Result<Vec<GoldValue>, Error> {
    let mut values = Vec::new();
    for row in TableReader::open(path)?.rows(None)? {
        let (at, row) = row?;
        let (step, gold) = (step(&row, &at)?, gold(&row, &at)?);
        values.push(GoldValue { at, step, gold });
    }
    if values.is_empty() {
        return Err(datasets::Error::NoRows { path: path.to_owned() }.into());
    }
    Ok(values)
}

fn gold(row: &Row, at: &RowLocation) -> Result<f64, datasets::Error> {
    let value = need(row, "gold", at, "a finite number")?;
    let number = value.as_f64().filter(|number| number.is_finite());
    number.ok_or_else(|| wrong(at, "gold", preview(value), "a finite number"))
}

fn step(row: &Row, at: &RowLocation) -> Result<u64, datasets::Error> {
    const ONE: &str =
        "the number of an iteration in step, or that of a checkpoint in checkpoint: one of both";
    let has = |name: &str| row.get(name).filter(|value| !value.is_null());
    let whole = |name: &str, value: &Value| {
        value.as_u64().ok_or_else(|| wrong(at, name, preview(value), "a whole number"))
    };
    match (has("step"), has("checkpoint")) {
        (Some(value), None) => whole("step", value),
        // The rollout of the next iteration is the first that the checkpoint samples.
        (None, Some(value)) => Ok(whole("checkpoint", value)?.saturating_add(1)),
        (Some(_), Some(_)) => Err(wrong(at, "step", "there beside checkpoint".to_owned(), ONE)),
        (None, None) => Err(need(row, "step", at, ONE).expect_err("the field is missing")),
    }
}

/// Joins what a run logged, as pairs of step and value, with gold values. A step that is not finite in one of
/// them is left out.
pub fn over_optimization(
    run: String,
    kl: &[(f64, f64)],
    proxy: &[(f64, f64)],
    gold: &[GoldValue],
) -> Result<OverOptimization, Error> {
    const LOGGED: &str = "an iteration that logged objective/kl and objective/scores (checkpoint N belongs to iteration N + 1)";
    let finite = |points: &[(f64, f64)]| -> BTreeMap<u64, f64> {
        let finite = points.iter().filter(|(_, value)| value.is_finite());
        finite.map(|&(step, value)| (step as u64, value)).collect()
    };
    let (kl, proxy) = (finite(kl), finite(proxy));

    let mut of_step: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
    for value in gold {
        if !(kl.contains_key(&value.step) && proxy.contains_key(&value.step)) {
            let (field, found) = ("step", format!("iteration {}, which has no row in the run", value.step));
            return Err(wrong(&value.at, field, found, LOGGED).into());
        }
        of_step.entry(value.step).or_default().push(value.gold);
    }

    let mut points = Vec::new();
    for (&step, &kl) in &kl {
        let Some(&proxy) = proxy.get(&step) else { continue };
        let values = of_step.get(&step);
        let gold = values.map(|values| values.iter().sum::<f64>() / values.len() as f64);
        let several = values.filter(|values| values.len() > 1);
        let gold_estimate = several.map(|values| estimate(values)).transpose()?;
        points.push(CurvePoint { step, kl, root_kl: kl.max(0.0).sqrt(), proxy, gold, gold_estimate });
    }
    if points.is_empty() {
        return Err(Error::TooFew { what: "an over-optimization curve", needed: 1, got: 0 });
    }
    let gold_file = gold.first().map(|value| value.at.path.display().to_string());
    let peak = peak(&points);
    Ok(OverOptimization { run, gold_file, points, peak })
}

/// The first point with the highest gold value; `None` without gold values.
fn peak(points: &[CurvePoint]) -> Option<Peak> {
    let with_gold: Vec<(&CurvePoint, f64)> =
        points.iter().filter_map(|point| Some((point, point.gold?))).collect();
    let (last, last_gold) = *with_gold.last()?;
    let higher = |best: (_, f64), other: (_, f64)| if other.1 > best.1 { other } else { best };
    let (point, gold) = with_gold.into_iter().reduce(higher)?;
    Some(Peak {
        step: point.step,
        kl: point.kl,
        gold,
        proxy_change: last.proxy - point.proxy,
        gold_change: last_gold - gold,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<GoldValue>, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gold.jsonl");
        std::fs::write(&path, text).unwrap();
        read_gold(&path).map_err(|error| error.to_string())
    }

    #[test]
    fn gold_values_join_the_policies_they_are_of() {
        let gold = read(
            "{\"step\": 1, \"gold\": 0.5}\n{\"checkpoint\": 1, \"gold\": 1.0}\n{\"checkpoint\": 1, \"gold\": 2.0}\n\
             {\"step\": 4, \"gold\": 0.25}\n",
        )
        .unwrap();
        let kl = [(1.0, -0.01), (2.0, 4.0), (3.0, f64::NAN), (4.0, 9.0), (5.0, 16.0)];
        let proxy = [(1.0, 0.0), (2.0, 1.0), (3.0, 1.5), (4.0, 3.0)];
        let found = over_optimization("runs/ppo".to_owned(), &kl, &proxy, &gold).unwrap();
        let roots: Vec<(u64, f64)> = found.points.iter().map(|point| (point.step, point.root_kl)).collect();
        assert_eq!(roots, [(1, 0.0), (2, 2.0), (4, 3.0)]);
        assert_eq!(found.points[1].gold, Some(1.5));
        assert_eq!(found.points[1].gold_estimate.unwrap().n, 2);
        let peak = found.peak.unwrap();
        assert_eq!((peak.step, peak.kl, peak.gold), (2, 4.0, 1.5));
        assert_eq!((peak.proxy_change, peak.gold_change), (2.0, -1.25));

        let without = over_optimization("runs/ppo".to_owned(), &kl, &proxy, &[]).unwrap();
        assert!(without.peak.is_none() && without.points.iter().all(|point| point.gold.is_none()));
        assert!(over_optimization("r".to_owned(), &kl, &[], &[]).is_err());
        let late = read("{\"checkpoint\": 5, \"gold\": 1}\n").unwrap();
        let error = over_optimization("r".to_owned(), &kl, &proxy, &late).unwrap_err().to_string();
        assert!(error.contains("gold.jsonl line 1") && error.contains("iteration 6"), "{error}");
    }

    #[test]
    fn rows_without_a_policy_or_a_value_are_named() {
        for (row, words) in [
            ("{\"gold\": 1}", "the field step is missing or null"),
            ("{\"step\": 1, \"checkpoint\": 1, \"gold\": 1}", "there beside checkpoint"),
            ("{\"step\": -1, \"gold\": 1}", "the field step is the number -1"),
            ("{\"step\": 1, \"gold\": \"x\"}", "the field gold is the text \"x\""),
            ("{\"step\": 1}", "the field gold is missing"),
        ] {
            let error = read(row).unwrap_err();
            assert!(error.contains("gold.jsonl line 1") && error.contains(words), "{error}");
        }
    }
}
