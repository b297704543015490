"""Copy the task YAMLs of the installed lm_eval, and their Python files, so that they read WORK/data.

Writes WORK/tasks. A YAML stays as it is, but for three lines: `dataset_path: X` becomes `dataset_path: json`,
`dataset_name` is dropped, and a leaf task gets `dataset_kwargs: {data_files: ...}`. The group lists of
AGIEval lose the subsets that the data lacks.
"""
import json
import re
import shutil
from pathlib import Path

import workfolder

import lm_eval

SOURCE = Path(lm_eval.__file__).parent / "tasks"
TASKS = workfolder.WORK / "tasks"
DATA = workfolder.WORK / "data"

SINGLE = {
    "arc/arc_easy.yaml": "arc_easy", "arc/arc_challenge.yaml": "arc_challenge",
    "hellaswag/hellaswag.yaml": "hellaswag", "winogrande/default.yaml": "winogrande",
    "piqa/piqa.yaml": "piqa", "openbookqa/openbookqa.yaml": "openbookqa",
    "commonsense_qa/default.yaml": "commonsense_qa", "siqa/siqa.yaml": "social_iqa",
    "super_glue/boolq/default.yaml": "boolq", "truthfulqa/truthfulqa_mc1.yaml": "truthfulqa",
    "truthfulqa/truthfulqa_mc2.yaml": "truthfulqa", "lambada/lambada_openai.yaml": "lambada_openai",
    "gsm8k/gsm8k.yaml": "gsm8k", "gsm8k/gsm8k-cot.yaml": "gsm8k", "gsm8k/gsm8k-cot-zeroshot.yaml": "gsm8k",
    "ifeval/ifeval.yaml": "ifeval", "humaneval/humaneval.yaml": "humaneval", "mbpp/mbpp.yaml": "mbpp",
    "wikitext/wikitext.yaml": "wikitext", "aime/aime24.yaml": "aime24",
    "hendrycks_math/hendrycks_math500.yaml": "math500", "minerva_math/minerva_math500.yaml": "math500",
}
UNCHANGED = [
    "hellaswag/utils.py", "winogrande/preprocess_winogrande.py", "truthfulqa/utils.py", "humaneval/utils.py",
    "mbpp/utils.py", "ifeval/utils.py", "wikitext/preprocess_wikitext.py", "aime/utils.py",
    "hendrycks_math/utils.py", "minerva_math/utils.py", "agieval/utils.py", "bbq/utils.py",
    "crows_pairs/utils.py", "bbh/zeroshot/utils.py", "blimp/_blimp.yaml", "bbh/zeroshot/_bbh_zeroshot.yaml",
    "bbh/cot_fewshot/_bbh_cot_fewshot.yaml", "hendrycks_math/hendrycks_math.yaml", "longbench/metrics.py",
]
ABSENT_AGIEVAL = ("jec_qa_ca", "jec_qa_kd", "logiqa_zh", "logiqa_en")


def write(name, text):
    target = TASKS / name
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8")


def copy(name, data=None):
    """One YAML without its place on the hub; with `data`, a leaf task that reads that folder."""
    text = (SOURCE / name).read_text(encoding="utf-8")
    text = re.sub(r'(?m)^("?dataset_path"?):.*$', r"\1: json", text)
    text = re.sub(r'(?m)^"?dataset_name"?:.*\n', "", text)
    if data is not None:
        files = {path.stem: str(path) for path in sorted((DATA / data).glob("*.jsonl"))}
        text = text.rstrip("\n") + "\ndataset_kwargs:\n  data_files: " + json.dumps(files) + "\n"
    write(name, text)


def leaves(folder, data, skip=lambda name: name.startswith("_")):
    """Every YAML of a folder; its `dataset_name` is the name of the data folder."""
    for path in sorted((SOURCE / folder).glob("*.yaml")):
        if not skip(path.name):
            subset = re.search(r'(?m)^"?dataset_name"?: *"?([^"\n]+)"?', path.read_text(encoding="utf-8"))
            copy(f"{folder}/{path.name}", f"{data}/{subset.group(1).strip()}")


def agieval():
    held = {path.name for path in (DATA / "agieval").iterdir()}
    for path in sorted((SOURCE / "agieval").glob("*.yaml")):
        if path.stem in held:
            copy(f"agieval/{path.name}", f"agieval/{path.stem}")
        elif path.stem.startswith("agieval"):
            text = path.read_text(encoding="utf-8")
            for subset in ABSENT_AGIEVAL:
                text = re.sub(rf"(?m)^  - agieval_{subset}\n", "", text)
            write(f"agieval/{path.name}", text)


def main():
    workfolder.arguments(__doc__).parse_args()
    shutil.rmtree(TASKS, ignore_errors=True)
    for name, data in SINGLE.items():
        copy(name, data)
    for name in UNCHANGED:
        write(name, (SOURCE / name).read_text(encoding="utf-8"))

    copy("blimp/_template_yaml")
    leaves("blimp", "blimp")
    copy("mmlu/default/_default_template_yaml")
    leaves("mmlu/default", "mmlu")
    for path in sorted((SOURCE / "mmlu/default").glob("_*.yaml")):
        write(f"mmlu/default/{path.name}", path.read_text(encoding="utf-8"))
    for kind in ("zeroshot", "cot_fewshot"):
        copy(f"bbh/{kind}/_{kind}_template_yaml")
        leaves(f"bbh/{kind}", "bbh")
    for family in ("hendrycks_math", "minerva_math"):
        leaves(family, "math", skip=lambda name: "math500" in name or "_math_" not in name)
    agieval()
    for name in ("multiple_choice", "multiple_choice_ambig", "multiple_choice_disambig", "generate"):
        copy(f"bbq/bbq_{name}.yaml", "bbq")
    for path in sorted((SOURCE / "crows_pairs").glob("crows_pairs_english*.yaml")):
        if "autre" not in path.name:
            copy(f"crows_pairs/{path.name}", "crows_pairs")
    leaves("longbench", "longbench")
    print(len(list(TASKS.rglob("*.yaml"))), "YAML files")


if __name__ == "__main__":
    main()
