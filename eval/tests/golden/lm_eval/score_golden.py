"""Put the made-up replies and log-likelihoods of score_cases.py through lm_eval's filters and scoring.

Tiny models answer nothing right, so that their runs show the scoring rules on misses only. Writes
scores/<family>.json beside this script, one list of cases per family:
    task, doc         the made-up document, as process_docs leaves it
    target, choices   what the task computes from the document (choices: multiple choice only)
    requests          log-likelihood tasks and longbench: the arguments of the requests that the document
                      gives at 0 shots
    replies           generation: [reply, {filter: filtered reply}, {filter: metrics}]
    results           log-likelihood: [result per request, metrics]
A filtered reply that equals the reply is null. Metrics of bbq that belong to other categories than the
document's are left out: they are the same for every document. NaN is the string "NaN".
"""
import random
from pathlib import Path

import workfolder
from record import arguments_of, prepare

from datasets import Dataset
from lm_eval.api.instance import Instance

from longbench_cases import LONGBENCH
from score_cases import GENERATION, LIKELIHOOD, bbh

FAMILIES = {"hendrycks_math500": "hendrycks_math", "minerva_math500": "minerva_math", "aime24": "aime24",
            "agieval_math": "agieval", "agieval_gaokao_mathcloze": "agieval", "ifeval": "ifeval",
            "mbpp": "code", "humaneval": "code", "bbq_generate": "bbq", "bbq": "bbq"}


def family(name):
    for prefix in ("gsm8k", "bbh_zeroshot", "bbh_cot_fewshot", "longbench"):
        if name.startswith(prefix):
            return prefix
    return FAMILIES.get(name, "likelihood")


def processed(task, document):
    """The document after the task's process_docs, where it has one."""
    if task.config.process_docs is None:
        return document
    return task.config.process_docs(Dataset.from_list([document]))[0]


def metrics_of(task, document, results):
    try:
        metrics = task.process_results(document, results)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:200]}
    own = document.get("category")
    return {key: value for key, value in metrics.items()
            if own is None or "bias_score_" not in key or key.endswith(own)}


def score_reply(task, name, document, reply):
    instance = Instance(request_type="generate_until", doc=document, arguments=("", {}), idx=0,
                        metadata=(name, 0, 1))
    instance.resps = [reply]
    task._instances = [instance]
    task.apply_filters()
    filtered = instance.filtered_resps
    metrics = {key: metrics_of(task, document, [value]) for key, value in filtered.items()}
    return [reply, {key: None if value == reply else value for key, value in filtered.items()}, metrics]


def requests_of(task, document):
    context = task.fewshot_context(document, num_fewshot=0)
    instances = task.construct_requests(document, context, metadata=("", 0, 1))
    return [arguments_of(each) for each in (instances if isinstance(instances, list) else [instances])]


def as_tuples(result):
    """The pairs (ll, greedy flag) that lm_eval passes on; a rolling log-likelihood stays a number."""
    return [tuple(each) if isinstance(each, list) else each for each in result]


def cases(task, name, documents):
    for document, inputs in documents:
        document = processed(task, document)
        case = {"task": name, "doc": document, "target": task.doc_to_target(document)}
        if task.OUTPUT_TYPE == "generate_until":
            if family(name) == "longbench":
                case["requests"] = requests_of(task, document)
            case["replies"] = [score_reply(task, name, document, reply) for reply in inputs]
        else:
            if task.OUTPUT_TYPE == "multiple_choice":
                case["choices"] = task.doc_to_choice(document)
            case["requests"] = requests_of(task, document)
            case["results"] = [[result, metrics_of(task, document, as_tuples(result))] for result in inputs]
        yield case


def block(case):
    """A case with one reply or result a line."""
    lists = [key for key in ("replies", "results") if key in case]
    head = workfolder.json_text({key: value for key, value in case.items() if key not in lists})
    for key in lists:
        lines = [workfolder.json_text(each) for each in case[key]]
        head = head[:-1] + f', "{key}": [\n  ' + ",\n  ".join(lines) + "\n]}"
    return head


def main():
    workfolder.arguments(__doc__).parse_args()
    random.seed(0)
    tasks, target = workfolder.task_manager(), Path(__file__).with_name("scores")
    target.mkdir(exist_ok=True)
    names = sorted(name for name in tasks.all_subtasks if name.startswith(("bbh_zeroshot_",
                                                                           "bbh_cot_fewshot_")))
    jobs = {**GENERATION, **LONGBENCH, **LIKELIHOOD, **{name: bbh(name) for name in names}}
    blocks = {}
    for name, documents in jobs.items():
        task, _ = prepare(tasks, name, 0)
        blocks.setdefault(family(name), []).extend(block(case) for case in cases(task, name, documents))
    for name, lines in blocks.items():
        (target / f"{name}.json").write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")
        print(name, len(lines), "documents")


if __name__ == "__main__":
    main()
