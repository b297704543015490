"""Golden values of eval's report of a reward model from numpy, scipy and scikit-learn.

Run:  pip install numpy==2.4.6 scipy==1.17.1 scikit-learn==1.9.1 && python reward_model.py
It writes reward_model.json beside it: scored pairs of replies, and the numbers that are expected of them.
"""

import json
from pathlib import Path

import numpy
from scipy import stats
from scipy.special import expit
from sklearn.calibration import calibration_curve
from sklearn.metrics import log_loss

HERE = Path(__file__).parent
RANDOM = numpy.random.default_rng(11)


def case(n, ties, scale):
    lengths = RANDOM.integers(1, 40, size=(n, 2))
    scores = scale * (RANDOM.normal(size=(n, 2)) + 0.04 * lengths + [0.4, 0.0])
    scores[:ties, 1] = scores[:ties, 0]
    margin = scores[:, 0] - scores[:, 1]
    difference = (lengths[:, 0] - lengths[:, 1]).astype(float)
    right = margin > 0

    decided = margin[margin != 0]
    probability = expit(numpy.abs(decided))
    correct = decided > 0
    # Bins that are closed on the right, from 0.5 to 1.
    bins = numpy.ceil((probability - 0.5) / 0.05)
    gaps = [abs(correct[bins == b].sum() - probability[bins == b].sum()) for b in numpy.unique(bins)]
    # The same bins as scikit-learn makes them; no probability lies on an edge.
    accuracy, confidence = calibration_curve(correct, probability, n_bins=20, strategy="uniform")

    def share(holds, of):
        return [float(holds[of].mean()), int(of.sum())]

    unequal = difference != 0
    return {
        "scores": scores.tolist(),
        "lengths": lengths.tolist(),
        "accuracy": float(right.mean()),
        "ties": int((margin == 0).sum()),
        "half": float((right + 0.5 * (margin == 0)).mean()),
        # Each pair once in either order has the same loss as the chosen reply first.
        "loss": float(log_loss([1, 0] * n, numpy.ravel([[p, 1 - p] for p in expit(margin)]))),
        "margin": [float(margin.mean()), float(margin.std(ddof=1))],
        "quantiles": numpy.quantile(margin, [0, 0.05, 0.25, 0.5, 0.75, 0.95, 1]).tolist(),
        "chosen": [float(scores[:, 0].mean()), float(scores[:, 0].std(ddof=1))],
        "rejected": [float(scores[:, 1].mean()), float(scores[:, 1].std(ddof=1))],
        "ece": float(sum(gaps) / len(decided)),
        "reliability": [accuracy.tolist(), confidence.tolist()],
        "score_pearson": float(stats.pearsonr(scores.ravel(), lengths.ravel()).statistic),
        "score_spearman": float(stats.spearmanr(scores.ravel(), lengths.ravel()).statistic),
        "margin_pearson": float(stats.pearsonr(margin, difference).statistic),
        "margin_spearman": float(stats.spearmanr(margin, difference).statistic),
        "chosen_longer": share(right, difference > 0),
        "chosen_shorter": share(right, difference < 0),
        "equal_length": share(right, difference == 0),
        "longer_scored_higher": share(margin * difference > 0, unequal),
        "longer_is_chosen": share(difference > 0, unequal),
    }


cases = [case(40, 0, 1.0), case(200, 9, 0.5), case(500, 3, 4.0)]
versions = {"numpy": numpy.__version__, "scipy": __import__("scipy").__version__, "sklearn": __import__("sklearn").__version__}
(HERE / "reward_model.json").write_text(json.dumps({"versions": versions, "pairs": cases}) + "\n")
