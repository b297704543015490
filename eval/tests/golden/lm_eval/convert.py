"""Turn public evaluation files into the columns that lm_eval's task YAMLs read.

Reads DATA/eval/*.gz and DATA/text/alice_11.txt.gz, writes WORK/data/<folder>/<split>.jsonl. If a task draws
its few-shot examples from a split that is not there (`train`), the last 100 rows of the evaluation file stand
in for it; the evaluation file itself stays whole. PROTOCOL.md, "Data of the recordings", lists what else
differs from the hub.
"""
import csv
import gzip
import io
import json
import re
from pathlib import Path

import workfolder

from longbench_cases import LONGBENCH

LETTERS = "ABCDEFGHIJ"
SOURCE = Path()  # set by main


def text(name):
    with gzip.open(SOURCE / "eval" / f"{name}.gz", "rt", encoding="utf-8", newline="") as file:
        return file.read()


def rows_of(name):
    return [json.loads(line) for line in text(f"{name}.jsonl").split("\n") if line]


def put(folder, **splits):
    target = workfolder.folder(f"data/{folder}")
    for split, rows in splits.items():
        with open(target / f"{split}.jsonl", "w", encoding="utf-8", newline="") as file:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def put_groups(folder, split, groups, name=lambda key: key):
    for key, rows in groups.items():
        put(f"{folder}/{name(key)}", **{split: rows})
    print(folder, split, len(groups), "subsets")


def grouped(rows, key, fields):
    """Rows by the value of `key`, in file order, each row cut to `fields` (new name: old name)."""
    groups = {}
    for row in rows:
        groups.setdefault(row[key], []).append({new: row[old] for new, old in fields.items()})
    return groups


def cut(string, prefix, suffix):
    assert string.startswith(prefix) and string.endswith(suffix), string
    return string[len(prefix):len(string) - len(suffix)]


def question(row):
    return cut(row["query"], "Question: ", "\nAnswer:")


def tail(rows, count=100):
    return rows[-count:]


def arc(name):
    rows = [{"id": row["id"], "question": question(row),
             "choices": {"text": row["choices"], "label": list(LETTERS[:len(row["choices"])])},
             "answerKey": LETTERS[row["gold"]]} for row in rows_of(f"{name}_test")]
    put(name, test=rows, train=tail(rows))


def hellaswag_preprocess(string):
    """lm_eval's own preprocessing, to check that the raw text made below gives the same prompt."""
    string = string.strip().replace(" [title]", ". ")
    return re.sub("\\[.*?\\]", "", string).replace("  ", " ")


def hellaswag_raw(string):
    """A raw text whose preprocessing gives `string`: the local file holds preprocessed text."""
    raw = string.replace("  ", "    ")
    if string != string.lstrip():
        raw = "[header]" + raw
    if string != string.rstrip():
        raw += "[step]"
    return raw


def hellaswag():
    rows = []
    for row in rows_of("hellaswag_val_1000"):
        label, context = row["query"].split(": ", 1)
        context, endings = hellaswag_raw(context), [hellaswag_raw(choice) for choice in row["choices"]]
        rows.append({"ind": row["id"], "activity_label": label, "ctx_a": context, "ctx_b": "", "ctx": context,
                     "endings": endings, "label": str(row["gold"])})
        assert hellaswag_preprocess(f"{label}: {context} ") == row["query"], row["id"]
        assert [hellaswag_preprocess(ending) for ending in endings] == row["choices"], row["id"]
    put("hellaswag", validation=rows, train=tail(rows))


def winogrande():
    rows = [{"sentence": row["sentence"], "option1": row["choices"][0], "option2": row["choices"][1],
             "answer": str(row["gold"] + 1)} for row in rows_of("winogrande_val")]
    put("winogrande", validation=rows, train=tail(rows))


def piqa():
    rows = [{"goal": cut(row["query"], "Goal: ", "\nAnswer:"), "sol1": row["choices"][0],
             "sol2": row["choices"][1],
             "label": row["gold"]} for row in rows_of("piqa_val")]
    put("piqa", validation=rows, train=tail(rows))


def openbookqa():
    rows = [{"id": row["id"], "question_stem": question(row),
             "choices": {"text": row["choices"], "label": list(LETTERS[:4])},
             "answerKey": LETTERS[row["gold"]]}
            for row in rows_of("openbookqa_test")]
    put("openbookqa", test=rows, train=tail(rows))


def commonsense_qa():
    rows = [{"id": row["id"], "question": question(row),
             "choices": {"label": list(LETTERS[:5]), "text": row["choices"]},
             "answerKey": LETTERS[row["gold"]]}
            for row in rows_of("commonsenseqa_val")]
    put("commonsense_qa", validation=rows, train=tail(rows))


def social_iqa():
    rows = []
    for row in rows_of("socialiqa_val"):
        body = question(row)
        # The local file joined context and question with a space. The cut is a guess, the last end of a
        # sentence; the prompt joins them again, so it does not depend on the guess.
        ends = list(re.finditer(r"(?<=[.!?'\"]) (?=[A-Z])", body))
        at = ends[-1].start() if ends else body.index(" ")
        rows.append({"context": body[:at], "question": body[at + 1:], "answerA": row["choices"][0],
                     "answerB": row["choices"][1], "answerC": row["choices"][2],
                     "label": str(row["gold"] + 1)})
    put("social_iqa", validation=rows, train=tail(rows))


def boolq():
    rows = []
    for index, row in enumerate(rows_of("boolq_val")):
        passage, asked = cut(row["query"], "", "?\nAnswer:").rsplit("\nQuestion: ", 1)
        rows.append({"question": asked, "passage": passage, "idx": index,
                     "label": 1 if row["choices"][row["gold"]] == "yes" else 0})
    put("boolq", validation=rows, train=tail(rows))


def truthfulqa():
    rows = []
    for row in json.loads(text("truthfulqa_mc_task.json")):
        targets = {key: {"choices": list(row[key].keys()), "labels": list(row[key].values())}
                   for key in ("mc1_targets", "mc2_targets")}
        rows.append({"question": row["question"], **targets})
    put("truthfulqa", validation=rows)


def lambada():
    put("lambada_openai", test=rows_of("lambada_test"))


def blimp():
    fields = {"sentence_good": "good", "sentence_bad": "bad", "UID": "uid"}
    put_groups("blimp", "train", grouped(rows_of("blimp"), "uid", fields))


def mmlu():
    fields = {"question": "question", "subject": "subject", "choices": "choices", "answer": "gold"}
    for split in ("dev", "test"):
        put_groups("mmlu", split, grouped(rows_of(f"mmlu_{split}"), "subject", fields))


def gsm8k():
    put("gsm8k", train=rows_of("gsm8k_train"), test=rows_of("gsm8k_test"))


def math():
    fields = {key: key for key in ("problem", "level", "type", "solution")}
    for subject, rows in grouped(rows_of("math_test"), "type", fields).items():
        name = subject.lower().replace(" & ", "_and_").replace(" ", "_")
        put(f"math/{name}", test=rows, train=tail(rows, 50))
    put("math500", test=json.loads(text("math500_test.json")))


def bbh():
    put_groups("bbh", "test", grouped(rows_of("bbh"), "task", {"input": "input", "target": "target"}))


def ifeval():
    put("ifeval", train=rows_of("ifeval_input_data"))


def code():
    put("humaneval", test=rows_of("HumanEval"))
    put("mbpp", test=[row for row in rows_of("mbpp") if 11 <= row["task_id"] <= 510])


ENGLISH_CHOICE = {"lsat-ar", "lsat-lr", "lsat-rc", "logiqa-en", "sat-math", "sat-en", "aqua-rat",
                  "sat-en-without-passage", "gaokao-english"}


def agieval_row(row):
    """The `query` column of hails/agieval-*: AGIEval's own zero-shot conversion."""
    task, passage, asked = row["task"], row["passage"] or "", row["question"]
    if task == "math":
        return {"query": f"{passage}Q: {asked}\nA: The answer is", "answer": row["answer"]}
    if task == "gaokao-mathcloze":
        return {"query": f"{passage}问题：{asked}\n答案：", "answer": row["answer"]}

    options, last = " ".join(row["options"]), LETTERS[len(row["options"]) - 1]
    if task in ENGLISH_CHOICE:
        query = f"{passage}Q: {asked} Answer Choices: {options}\nA: Among A through {last}, the answer is"
    else:
        query = f"{passage}问题：{asked} 选项：{options}\n答案：从A到{last}, 我们应选择"
    gold = [LETTERS.index(letter) for letter in row["label"] if letter in LETTERS]
    return {"query": query, "choices": row["options"], "gold": gold}


def agieval():
    groups = {}
    for row in rows_of("agieval_permissive"):
        groups.setdefault(row["task"], []).append(agieval_row(row))
    put_groups("agieval", "test", groups)


def bbq():
    rows = []
    for index, row in enumerate(rows_of("bbq")):
        rows.append({"example_id": index, "question_polarity": row["polarity"],
                     "context_condition": row["condition"], "category": row["category"],
                     "answer_info": row["answer_info"],
                     "additional_metadata": {"stereotyped_groups": row["groups"]}, "context": row["context"],
                     "question": row["question"], "ans0": row["choices"][0], "ans1": row["choices"][1],
                     "ans2": row["choices"][2], "label": row["gold"]})
    put("bbq", test=rows)


def crows_pairs():
    rows = [{"id": int(row[""]), "sent_more": row["sent_more"], "sent_less": row["sent_less"],
             "stereo_antistereo": row["stereo_antistereo"], "bias_type": row["bias_type"]}
            for row in csv.DictReader(io.StringIO(text("crows_pairs.csv")))]
    put("crows_pairs", test=rows)


def aime():
    rows = [{"ID": row["id"], "Problem": row["problem"], "Solution": row["solution"],
             "Answer": int(row["answer"])}
            for row in rows_of("aime24")]
    put("aime24", train=rows)


def in_wikitext_spacing(paragraph):
    """ " , " and " @-@ " as WikiText writes them, so that the detokenizer has work."""
    paragraph = re.sub(r"\s+", " ", paragraph).strip()
    paragraph = re.sub(r"([,;:!?.])(?=\s|$)", r" \1", paragraph)
    paragraph = re.sub(r"(\w)-(\w)", r"\1 @-@ \2", paragraph)
    return " " + paragraph.replace("(", "( ").replace(")", " )") + " \n "


def wikitext():
    """Five pages in WikiText's form: three cut from Alice's Adventures in Wonderland, two made up."""
    with gzip.open(SOURCE / "text" / "alice_11.txt.gz", "rt", encoding="utf-8") as file:
        book = file.read().replace("\r\n", "\n")
    heading = "CHAPTER I."
    # The first occurrence is in the table of contents.
    start = book.index(heading,
                       book.index(heading) + 20) if book.count(heading) > 1 else book.index("CHAPTER I")
    pages = []
    for begin, end in ((0, 700), (3000, 6500), (9000, 10200)):
        paragraphs = book[start + begin:start + end].split("\n\n")
        body = "\n".join(in_wikitext_spacing(each) for each in paragraphs if each.strip())
        pages.append({"page": " = Down the Rabbit @-@ Hole = \n \n" + body})
    numbers = (" = = Numbers = = \n \n In 1865 about 2 @,@ 000 copies , at 7 @.@ 5 shillings each , were "
               "printed ; the title reads \" Alice 's Adventures \" . It was 20 ° that day . \n")
    pages += [{"page": numbers}, {"page": "Short page ."}]
    put("wikitext", test=pages, train=pages[:1])


def longbench():
    """Made-up rows for every subset: `../shared` has none of LongBench's."""
    for name, documents in LONGBENCH.items():
        put(f"longbench/{name.removeprefix('longbench_')}", test=[document for document, _ in documents])


def main():
    global SOURCE
    parser = workfolder.arguments(__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), metavar="DIR",
                        help="the folder with eval/ and text/ (default: ../shared/data)")
    SOURCE = parser.parse_args().data
    arc("arc_easy")
    arc("arc_challenge")
    for convert in (hellaswag, winogrande, piqa, openbookqa, commonsense_qa, social_iqa, boolq, truthfulqa,
                    lambada,
                    blimp, mmlu, gsm8k, math, bbh, ifeval, code, agieval, bbq, crows_pairs, aime, wikitext,
                    longbench):
        convert()


if __name__ == "__main__":
    main()
