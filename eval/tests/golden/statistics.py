"""Golden values of eval's statistics from scipy, statsmodels, scikit-learn and exact fractions.

Run:  pip install numpy==2.4.6 scipy==1.17.1 statsmodels==0.15.0 scikit-learn==1.9.1 && python statistics.py
It writes statistics.json beside it: a list of cases per statistic, each with its inputs and what is expected.

Where a library has the statistic, it is called as it is. The rest is written in another shape than the Rust code on purpose:
clustered errors as the triple sum of Miller 2024, group errors as the residuals of a regression on the tasks, pass@k and
McNemar with exact fractions, intervals of paired rates by a root finder, bootstraps with numpy's generator.
"""

import sys
from pathlib import Path

# This file is named after what it holds, which is also the name of a standard module that scipy imports.
sys.path = [folder for folder in sys.path if Path(folder or ".").resolve() != Path(__file__).parent]

import json
import math
import platform
import warnings
from fractions import Fraction
from importlib.metadata import version

import numpy
import statsmodels.api as sm
from scipy import stats
from scipy.optimize import brentq
from sklearn.calibration import calibration_curve
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import NormalIndPower
from statsmodels.stats.proportion import proportion_confint
from statsmodels.tools.sm_exceptions import PerfectSeparationWarning

# A fit with as many parameters as pairs of models predicts each pair exactly. All fits here have a finite maximum.
warnings.simplefilter("ignore", PerfectSeparationWarning)

HERE = Path(__file__).parent
RANDOM = numpy.random.default_rng(7)


def group():
    for sizes in [[5, 9, 4], [2, 30], [2, 6, 7], [40]]:
        scores = [RANDOM.integers(0, 5, size) / 4 for size in sizes]
        errors = [float(stats.sem(score)) if len(score) > 1 else 0.0 for score in scores]
        means = [float(score.mean()) for score in scores]
        together = numpy.concatenate(scores)
        tasks = numpy.repeat(numpy.eye(len(sizes)), sizes, axis=0)
        pooled = sm.OLS(together, tasks).fit().mse_resid
        yield {"sizes": sizes, "means": means, "standard_errors": errors,
               "by_size": float(together.mean()), "equal": float(numpy.mean(means)),
               "standard_error": math.sqrt(pooled / len(together)),
               "macro_standard_error": float(numpy.linalg.norm(errors)) / len(sizes)}


def cluster():
    for items, clusters in [(12, 4), (60, 9), (8, 8), (30, 2)]:
        ids = [int(i) for i in (RANDOM.permutation(items) % clusters)]
        shared = RANDOM.normal(size=clusters)
        values = numpy.round([shared[i] + RANDOM.normal() for i in ids], 3)
        centered = values - values.mean()
        variance = values.var(ddof=1) / items
        for i in range(items):
            for j in range(items):
                if i != j and ids[i] == ids[j]:
                    variance += centered[i] * centered[j] / items**2
        # The sandwich of statsmodels has 1/n in place of Miller's 1/(n - 1) on the diagonal.
        sandwich = sm.OLS(values, numpy.ones(items)).fit(
            cov_type="cluster", cov_kwds={"groups": numpy.array(ids), "use_correction": False}).bse[0]
        assert math.isclose(variance, sandwich**2 + values.var(ddof=1) / items - values.var() / items, rel_tol=1e-9)
        half = stats.t.ppf(0.975, clusters - 1) * math.sqrt(variance)
        yield {"values": values.tolist(), "clusters": ids, "mean": float(values.mean()),
               "standard_error": math.sqrt(variance), "student_low": float(values.mean() - half)}


def mcnemar_test():
    for b, c in [(1, 9), (0, 0), (3, 3), (0, 1), (5, 0), (10, 25), (700, 800), (40, 41), (2, 1000)]:
        n, tail = b + c, sum(math.comb(b + c, k) for k in range(min(b, c) + 1))
        exact = min(1.0, float(Fraction(2 * tail, 2**n)))
        assert math.isclose(exact, mcnemar([[0, b], [c, 0]], exact=True).pvalue, rel_tol=1e-9), (b, c)
        yield {"b": b, "c": c, "p": exact}
    for b, c in [(100_000, 101_000), (499_000, 501_000), (999_999, 1_000_000), (1_000_000, 1_000_000), (990_000, 1_000_000),
                 (0, 1_000_000)]:
        yield {"b": b, "c": c, "p": float(stats.binomtest(min(b, c), b + c).pvalue)}


def holm():
    for p in [[0.01, 0.04, 0.03, 0.005], [0.5], [0.9, 0.8, 0.02, 0.02, 1.0, 0.0], numpy.round(RANDOM.uniform(0, 0.3, 12), 4)]:
        yield {"p": [float(x) for x in p], "adjusted": [float(x) for x in multipletests(p, method="holm")[1]]}


def power():
    for n, deviation in [(1000, 0.5), (50, 1.3), (164, math.sqrt(0.7 * 0.3)), (20_000, 0.4)]:
        # statsmodels counts both tails, so the effect is smaller by about 1e-6. Its own solver stops too early.
        effect = brentq(lambda e: NormalIndPower().power(e, n, 0.05, ratio=0) - 0.8, 1e-9, 10, xtol=1e-14)
        yield {"n": n, "standard_deviation": deviation, "difference": float(effect) * deviation}


def wilson(rate, n):
    return proportion_confint(rate * n, n, method="wilson")


def paired_rates_ends(b, c, n):
    """The ends by a root finder on the equation of Newcombe 2016, and not in closed form."""
    m, rho = b + c, (b + c) / n
    r1, r2 = wilson(rho, n)
    if m == 0:
        return -r2, r2
    exact = stats.binomtest(c, m).proportion_ci(method="exact")

    def lower(theta, t1):
        def gap(d):
            spread = (1 / r1 - 1 / rho) if d > 0 else (1 / rho - 1 / r2)
            return theta - d / rho - math.hypot(theta - t1, d * spread)
        return 0.0 if gap(0) == 0 else brentq(gap, -1.5, theta * rho, xtol=1e-15) if gap(theta * rho) < 0 else theta * rho
    theta = (c - b) / m
    return lower(theta, 2 * exact.low - 1), -lower(-theta, 1 - 2 * exact.high)


def paired_rates():
    for b, c, n in [(0, 0, 4), (0, 0, 250), (2, 12, 50), (0, 5, 41), (0, 6, 41), (7, 1, 21), (3, 3, 9), (100, 140, 1000), (0, 30, 30),
                    (1, 0, 1), (40, 90, 200)]:
        low, high = map(float, paired_rates_ends(b, c, n))
        assert (low > 0 or high < 0) == (b + c > 0 and stats.binomtest(b, b + c).pvalue < 0.05), (b, c, n)
        yield {"both": n - b - c, "b": b, "c": c, "neither": 0, "low": low, "high": high}
    for n in (5, 12, 30, 60):
        tables = [(b, c) for b in range(n + 1) for c in range(n + 1 - b)]
        ends = numpy.array([paired_rates_ends(b, c, n) for b, c in tables])
        for rho in (0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0):
            for theta in (0, 0.1, 0.3, 0.6, 0.9, 1):
                chances = [rho * (1 - theta) / 2, rho * (1 + theta) / 2, 1 - rho]
                weights = stats.multinomial.pmf([[b, c, n - b - c] for b, c in tables], n, chances)
                holds = (ends[:, 0] - 1e-9 <= rho * theta) & (rho * theta <= ends[:, 1] + 1e-9)
                assert 0.9475 < weights[holds].sum() <= 1 + 1e-9, (n, rho, theta, weights[holds].sum())


def weighted_rate():
    for questions, turns in [(12, 1), (9, 2), (40, 2), (3, 4), (2, 1)]:
        ids = numpy.repeat(numpy.arange(questions), turns)
        values = RANDOM.choice([0.0, 0.5, 1.0], len(ids), p=[0.3, 0.2, 0.5])
        values[0], values[-1] = 1.0, 0.0
        weights = RANDOM.choice([1.0, 3.0], len(ids))
        fit = sm.WLS(values, numpy.ones(len(ids)), weights=weights).fit(cov_type="cluster", cov_kwds={"groups": ids})
        rate, error = float(fit.params[0]), float(fit.bse[0])
        n = weights.sum() ** 2 / (weights**2).sum()
        shrink = stats.t.ppf(0.975, max(n - 1, 1)) / stats.t.ppf(0.975, questions - 1)
        degrees = max(n - 1, 1)
        effective = min(rate * (1 - rate) / error**2 * (degrees + 1) / degrees * shrink**2, n)
        low, high = wilson(rate, effective)
        # The corrections of statsmodels are G / (G - 1) and (N - 1) / (N - 1).
        yield {"values": values.tolist(), "weights": weights.tolist(), "clusters": ids.tolist(), "mean": rate,
               "standard_error": error, "low": float(low), "high": float(high)}


def logistic_points(tallies, models, anchor):
    """Strengths relative to the anchor by iteratively reweighted least squares on points won and lost."""
    points = numpy.array([[w + t / 2, l + t / 2] for _, _, w, t, l in tallies])
    design = numpy.zeros((len(tallies), len(models)))
    for row, (first, second, *_) in enumerate(tallies):
        design[row, models.index(first)], design[row, models.index(second)] = 1, -1
    free = [m for m in models if m != anchor]
    kept, columns = points.sum(axis=1) > 0, [models.index(m) for m in free]
    fit = sm.GLM(points[kept], design[kept][:, columns], family=sm.families.Binomial()).fit(tol=1e-14, maxiter=200)
    return {anchor: 0.0} | dict(zip(free, map(float, fit.params)))


def bradley_terry():
    cases = [
        ([("a", "b", 7, 0, 3)], "a"),
        ([("a", "b", 10, 4, 6), ("b", "c", 9, 1, 5), ("c", "a", 3, 2, 12), ("d", "a", 1, 0, 19), ("c", "d", 15, 3, 4)], "c"),
        # A cycle without any other connection, and a link of two comparisons between strong groups.
        ([("a", "b", 5, 0, 0), ("b", "c", 2, 0, 0), ("c", "a", 1, 0, 0)], "b"),
        ([("a", "b", 60_000, 0, 40_000), ("b", "c", 1, 0, 1), ("c", "d", 30_000, 5, 70_000)], "d"),
        # One pair in two tallies and both orders.
        ([("a", "b", 3, 0, 1), ("b", "a", 2, 2, 4), ("b", "c", 3, 1, 3)], "a"),
    ]
    names = [f"model-{i:02}" for i in range(12)]
    skill = RANDOM.normal(scale=1.2, size=12)
    many = []
    for i in range(12):
        for j in range(i):
            tie, win = 0.2, 0.8 / (1 + math.exp(skill[j] - skill[i]))
            many.append((names[i], names[j], *map(int, RANDOM.multinomial(25, [win, tie, 1 - win - tie]))))
    cases.append((many, names[5]))
    for tallies, anchor in cases:
        models = sorted({name for first, second, *_ in tallies for name in (first, second)})
        strengths = logistic_points(tallies, models, anchor)
        ratings = {m: 1000 + 400 / math.log(10) * s for m, s in strengths.items()}
        yield {"tallies": tallies, "anchor": anchor, "ratings": ratings}


def bradley_terry_bootstrap():
    """Resamples of whole clusters: single comparisons, and questions whose votes agree."""
    single = [("a", "b", 30, 10, 20), ("b", "c", 40, 5, 25), ("c", "a", 20, 8, 45)]
    apart = [[(first, second, *(int(i == k) for i in range(3)))]
             for first, second, *counts in single for k in range(3) for _ in range(counts[k])]
    questions = []
    for _ in range(60):
        skill = RANDOM.normal(size=3)
        votes = [(x, y, int(3 * (skill[i] > skill[j])), 0, int(3 * (skill[i] <= skill[j])))
                 for (x, i), (y, j) in [(("a", 0), ("b", 1)), (("c", 2), ("b", 1))]]
        questions.append(votes)
    random = numpy.random.default_rng(3)
    for clusters in (apart, questions):
        drawn = {"a": [], "c": []}
        for resample in random.multinomial(len(clusters), numpy.full(len(clusters), 1 / len(clusters)), size=4000):
            sums = {}
            for cluster, count in zip(clusters, resample):
                for first, second, *outcome in cluster:
                    sums[first, second] = sums.get((first, second), 0) + count * numpy.array(outcome)
            strengths = logistic_points([(*pair, *counts) for pair, counts in sums.items()], ["a", "b", "c"], "b")
            for model in drawn:
                drawn[model].append(1000 + 400 / math.log(10) * strengths[model])
        yield {"clusters": clusters, "anchor": "b",
               "intervals": {m: [float(x) for x in numpy.percentile(d, [2.5, 97.5])] for m, d in drawn.items()}}


def length_controlled():
    for n, kind in [(40, "wins"), (60, "ties"), (50, "probabilities")]:
        baseline = RANDOM.integers(20, 400, n)
        length = RANDOM.integers(20, 700, n)
        difference = (length - baseline).astype(float)
        feature = numpy.tanh(difference / difference.std(ddof=1))
        chance = 1 / (1 + numpy.exp(0.4 - 1.1 * feature))
        won = (RANDOM.uniform(size=n) < chance).astype(float)
        if kind == "ties":
            won[RANDOM.uniform(size=n) < 0.3] = 0.5
        preference = numpy.round(RANDOM.beta(4 * chance, 4 - 4 * chance), 3) if kind == "probabilities" else won
        design = sm.add_constant(feature)
        fit = sm.GLM(preference, design, family=sm.families.Binomial()).fit(tol=1e-14, maxiter=200)
        # White's sandwich, as matrices.
        p = fit.predict(design)
        bread = numpy.linalg.inv(design.T @ (design * (p * (1 - p))[:, None]))
        meat = design.T @ (design * ((preference - p) ** 2)[:, None])
        error = math.sqrt((bread @ meat @ bread)[0, 0] * n / (n - 2))
        intercept, slope = map(float, fit.params)
        low, rate, high = (1 / (1 + math.exp(-intercept - k * stats.norm.ppf(0.975) * error)) for k in (-1, 0, 1))
        yield {"preference": preference.tolist(), "length": length.tolist(), "baseline_length": baseline.tolist(),
               "raw": float(preference.mean()), "win_rate": rate, "length_coefficient": slope,
               "standard_error": rate * (1 - rate) * error, "low": float(low), "high": float(high)}


def win_rate():
    for wins, ties, losses in [(7, 2, 1), (0, 4, 0), (3, 0, 0), (120, 31, 90)]:
        n = wins + ties + losses
        scores = numpy.repeat([1, 0.5, 0], [wins, ties, losses])
        # Wilson's interval inverts the score test: its ends are the rates whose test statistic is the normal quantile.
        z = stats.norm.ppf(0.975)
        a, b, c = 1 + z * z / n, -(2 * scores.mean() + z * z / n), scores.mean() ** 2
        low, high = sorted(numpy.roots([a, b, c]).real)
        yield {"wins": wins, "ties": ties, "losses": losses, "mean": float(scores.mean()),
               "standard_error": float(scores.std() / math.sqrt(n)), "low": float(low), "high": float(high)}


def pass_at_k():
    for n, c, k in [(10, 3, 1), (10, 3, 5), (10, 3, 8), (10, 0, 4), (10, 10, 1), (200, 7, 100), (200, 150, 2), (1, 1, 1), (1, 0, 1),
                    (100_000, 3, 10)]:
        yield {"n": n, "c": c, "k": k, "pass": float(1 - Fraction(math.comb(n - c, k), math.comb(n, k)))}


def correlation():
    a = numpy.round(RANDOM.normal(size=30), 2)
    b = numpy.round(a + RANDOM.normal(size=30), 1)
    grades = RANDOM.integers(1, 5, 40)
    again = numpy.clip(grades + RANDOM.integers(-1, 2, 40), 1, 5)
    for x, y in [(a, b), (grades, again), (a * 1e180, b * 1e-180), (a + 1e6, -b), (numpy.array([1.0, 2]), numpy.array([3.0, 5]))]:
        scale = numpy.abs(x).max(), numpy.abs(y).max()
        yield {"left": x.tolist(), "right": y.tolist(), "pearson": float(stats.pearsonr(x / scale[0], y / scale[1]).statistic),
               "spearman": float(stats.spearmanr(x, y).statistic)}


def calibration():
    for n, bins in [(200, 10), (37, 15), (5, 1)]:
        p = numpy.round(RANDOM.uniform(size=n), 2)
        correct = RANDOM.uniform(size=n) < p**1.5
        edges = [Fraction(m, bins) for m in range(1, bins)]
        # Two decimals fall on edges; the count is exact there.
        index = [sum(Fraction(str(x)) > edge for edge in edges) for x in p.tolist()]
        accuracy, confidence = calibration_curve(correct, p, n_bins=bins)
        counts = numpy.bincount(index, minlength=bins)
        error = float(numpy.sum(counts[counts > 0] / n * numpy.abs(accuracy - confidence)))
        yield {"probabilities": p.tolist(), "correct": correct.tolist(), "bins": bins, "counts": counts.tolist(),
               "confidence": confidence.tolist(), "accuracy": accuracy.tolist(), "error": error}


def paired():
    ones = numpy.array([1, 0, 1, 1, 0, 1, 1, 1, 0, 1, 1, 0.0])
    zeros = numpy.array([0, 0, 1, 0, 0, 1, 0, 0, 1, 0, 0, 0.0])
    for before, after in [(zeros, ones), (ones, zeros), *((numpy.round(RANDOM.normal(size=n), 2),
                                                           numpy.round(RANDOM.normal(0.4, 1, size=n), 2)) for n in (3, 10, 16))]:
        test = stats.ttest_rel(after, before)
        low, high = test.confidence_interval()
        yield {"before": before.tolist(), "after": after.tolist(), "t_p": float(test.pvalue), "t_low": float(low),
               "t_high": float(high)}


def student_t():
    for t, degrees in [(0.0, 3), (1e-6, 5), (2.5, 1), (-2.5, 1), (2.0, 30), (8.0, 12), (40.0, 100), (1.96, 10_000), (3.3, 1_000_000),
                       (2.2, 100_000_000)]:
        yield {"t": t, "degrees": degrees, "p": float(2 * stats.t.sf(abs(t), degrees))}


CASES = [group, cluster, mcnemar_test, holm, power, paired_rates, weighted_rate, bradley_terry, bradley_terry_bootstrap, length_controlled, win_rate,
         pass_at_k, correlation, calibration, paired, student_t]

versions = {"python": platform.python_version()} | {
    name: version(name) for name in ["numpy", "scipy", "statsmodels", "scikit-learn"]}
values = {case.__name__: list(case()) for case in CASES}
rows = ",\n".join(f'  "{name}": [\n' + ",\n".join(f"   {json.dumps(case)}" for case in cases) + "\n  ]" for name, cases in values.items())
text = f'{{\n "producer": "statistics.py",\n "versions": {json.dumps(versions)},\n "values": {{\n{rows}\n }}\n}}\n'
json.loads(text)
(HERE / "statistics.json").write_text(text)
