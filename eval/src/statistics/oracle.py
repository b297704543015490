"""Prints the expected numbers of statistics/tests.rs from scipy, statsmodels and numpy.

Run with: pip install scipy statsmodels numpy; python oracle.py
"""
import numpy, scipy, statsmodels
from scipy import stats
from statsmodels.stats.proportion import proportion_confint

print("numpy", numpy.__version__, "scipy", scipy.__version__, "statsmodels", statsmodels.__version__)
for k, n in [(8, 10), (0, 20), (20, 20), (1, 1), (450, 1000)]:
    low, high = proportion_confint(k, n, method="wilson")
    print("wilson", k, n, repr(float(low)), repr(float(high)))
for p, v in [(0.975, 1), (0.975, 4), (0.975, 30), (0.9, 2.5), (0.995, 1000), (0.025, 7)]:
    print("t", p, v, repr(float(stats.t.ppf(p, v))))
for p in [0.5, 0.8, 0.9, 0.975, 0.9999, 0.01]:
    print("normal", p, repr(float(stats.norm.ppf(p))))
means = [0.0, 0.25, 0.5, 1.0, 0.75]
print("t interval", *map(repr, map(float, stats.t.interval(0.95, 4, loc=numpy.mean(means), scale=stats.sem(means)))))
before = numpy.array([0, 0, 1, 1, 0, 0.5, 0.25, 1, 0, 0.75] * 4)
after = numpy.array([1, 0, 1, 0.5, 1, 0.5, 0.5, 1, 0.25, 0.5] * 4)
d = after - before
print("paired", repr(float(d.mean())), repr(float(stats.sem(d))))
for result in (stats.ttest_rel(after, before), stats.ttest_1samp([0.1, 0.2, 0.3], 0)):
    print("t test", *map(repr, map(float, [result.pvalue, *result.confidence_interval()])))
