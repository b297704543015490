"""Golden values of `is_equiv` of lm_eval 0.4.13's minerva_math: which of many answers sympy calls equal.

Run:  pip install sympy==1.14.0 antlr4-python3-runtime==4.11.0 && python minerva_equality.py
It writes minerva_equality.json beside it: groups of texts, and for each group the pairs that are equal. `is_equiv` below is that
of lm_eval/tasks/minerva_math/utils.py without its logging; every pair not listed is not equal.
"""

import json
import platform
import signal
from functools import cache
from importlib.metadata import version
from itertools import combinations
from pathlib import Path

import sympy
from sympy.parsing.latex import parse_latex

GROUPS = {
    "tuples, lists and intervals": [
        "1,-2", "-2,1", "1", "-2", "1,3", "(1,-2)", "(-2,1)", "(1,2)", "[1,2]", "(1,2]", r"\left(1,2\right)", "[0,1)", r"\{1,2\}",
        r"\{2,1\}", "{1,2}", "2,34", "2,345", "2345", "2,3456", "1,2,3", r"(-\infty,2)", r"[-\infty,2)", r"(-5,5)\cup(7,9)", "(3)", "3",
        "[3]", r"\{3\}", "|3|", "|{-3}|", "(1,2),(3,4)", r"\pi,\pi", r"\pi", "x,y", "x", "1,", ",1", r"1\text{and}-2"],
    "numbers": [
        "0.5", r"\frac{1}{2}", r"\dfrac12", "1/2", ".5", "50\\%", "2/4", "2^{-1}", r"\frac{2}{4}", "0.50", "5/10", r"-\frac{-1}{2}", "--0.5",
        "0.3", "0.1+0.2", "0.1*3", r"\frac{3}{10}", "1/3", "0.333333", "0.3333333333333333", "2\\frac{1}{2}", "1", "2.5", "5/2", "007", "7", "7.0",
        "1.1*3", "3.3", "10^{100}", "10^{100}+1", "2^{10}", "1024", "1,024", "2 3", "23", "2.", "5!", "120", r"\binom{5}{2}", "10", "3:4", "0.75", r"\frac{3}{4}",
        r"\frac{2.4}{3}", "0.8", r"\lfloor2.5\rfloor", "2", r"\lceil1.5\rceil", "1/0", "2/0", "0", "-0"],
    "roots and functions": [
        r"\sqrt{12}", r"2\sqrt{3}", r"\sqrt{3}\sqrt{4}", r"2\cdot3^{1/2}", r"\frac{6}{\sqrt{3}}", "3.4641", r"\sqrt[3]{8}", "2", r"\sqrt{4}", r"\sqrt{3+2\sqrt{2}}",
        r"1+\sqrt{2}", r"\frac{1}{\sqrt{2}-1}", r"\frac{1}{\sqrt{2}}", r"\frac{\sqrt{2}}{2}", r"0.5\sqrt{2}", r"\sqrt{0.5}", r"3\sqrt[4]{4}", r"3\sqrt{2}", r"\sqrt{-4}",
        r"2\sqrt{-1}", "2i", r"\sqrt2", r"\log_2 8", "3", r"\ln(e)", "1", r"\sin(\pi)", "0", r"\log_2(3)", r"\frac{\ln(3)}{\ln(2)}", r"\sin^2x+\cos^2x", r"\tan x",
        r"\frac{\sin x}{\cos x}", r"\sin x\cos x", r"\frac{\sin(2x)}{2}", r"\frac{1}{2}\sin2x", "e^{x}e^{y}", "e^{x+y}", "e^{xy}", r"\cot x", r"\frac{1}{\tan x}", r"\tan^{-1}x",
        r"\arctan x", r"\sqrt{2}\pm1", r"1\pm\sqrt{2}", r"\pm\sqrt{2}+1"],
    "algebra": [
        "x^2+2x+1", "(x+1)^2", "(x+1)(x+1)", "1+2x+x^2", "x(x+2)+1", "x^{2}+2x+1", r"\frac{x^3+3x^2+3x+1}{x+1}", "x^2+2x", "(x+1)^3/(x+1)", "y=x^2+2x+1", "x^2+2x+1=0", "x<1",
        r"\sqrt{x^2}", "x", "|x|", "-x", "2x", "x2", "x+x", "x*2", r"2\cdotx", r"\frac{4x}{2}", "0.5x", r"\frac{x}{2}", "x/2", "2x3", "6", "2xy", "2yx", "xy2", "f(x)", "f(1x)", "fx",
        "a(b+c)", "ab+ac", "(b+c)a", "x_1", "x_{1}", "x_2", "x'", "x^-1", r"\frac{1}{x}", "x^{-1}", "x^2^3", "x^{2^3}", "x^6", "x^{8}", "-x^2", "(-x)^2", "x^2", "p-q", "-q+p", "q-p"],
    "words": [
        "Tuesday", "yadseuT", "yaesduT", "east", "seat", "eats", "text{a}", r"\text{a}", r"\text{east}", "odd", "ddo", "dod", "even", "neev", "A", "a", "B", r"\angleABC", r"\angleCBA", "ABC", "CBA",
        "90^circ", r"90\circ", "5cm", "5mc", "12:30", "2/5", "0.4", r"\emptyset", r"\varnothing", "$5", "5%", "5", "", "é", r"x\inR", r"R\inx", r"\begin{pmatrix}1\\2\end{pmatrix}",
        r"\left[1\right]", "1", r"x\in(1,2)", "undefined", "none", "dx", "xd", r"\infty", r"-\infty", r"2\infty", r"\mathbf{a}", "i", "i^2", "-1", "2+(1,2)", "2", "2+", "3x(", "3x", r"2\sqrt"],
}


@cache
def parsed(text):
    return parse_latex(text)


def is_equiv(x1, x2):
    if x1 and x1 == x2:
        return True
    signal.setitimer(signal.ITIMER_REAL, 5)
    try:
        return bool(sympy.simplify(parsed(x1) - parsed(x2)) == 0)
    except Exception:
        return False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def timed_out(*_):
    raise TimeoutError


if __name__ == "__main__":
    signal.signal(signal.SIGALRM, timed_out)
    groups = []
    for name, texts in GROUPS.items():
        texts = list(dict.fromkeys(texts))
        equal = [[i, j] for i, j in combinations(range(len(texts)), 2) if is_equiv(texts[i], texts[j])]
        groups.append({"name": name, "texts": texts, "equal": equal})
    versions = {"python": platform.python_version()} | {name: version(name) for name in ("sympy", "antlr4-python3-runtime")}
    whole = {"producer": "minerva_equality.py", "versions": versions, "groups": groups}
    Path(__file__).with_suffix(".json").write_text(json.dumps(whole, ensure_ascii=False, indent=1) + "\n")
