"""Every family beside transformers: there and back, and with random configurations.

    python tests/families_transformers.py [BINARY]                        there and back
    python tests/families_transformers.py [BINARY] --configs 200 [--seed 1]   random configurations
    python tests/families_transformers.py [BINARY] --replies 50 [--seed 1]    greedy replies

There and back: for each family a small random model is made in transformers with a tokenizer. Then the log-probabilities of six rows are
compared three times: (made) transformers against ours; (trained) ours after 5 steps of `sft` against the same 5 steps of torch's AdamW in
transformers; (saved) our saved model in transformers against ours. The largest difference of each is printed; above 1e-4 the script fails.

Random configurations: keys of `config.json` are present, absent, null or unusual at random (`tests/families_configs.py` draws them). Those
that transformers refuses, or makes no finite number of, are counted aside. Each of the others must give the log-probabilities of
transformers within 1e-4, or be refused with a message that names one of its keys. The script prints a table of the families and the reasons
of the refusals, and fails otherwise.

Greedy replies: prompts of 1 to 200 random tokens, of which every other one begins with the same 100 tokens, are answered in one batch, so
that prompts share pages and are computed in pieces beside replies. Each reply must have the tokens of `generate` in transformers, which
answers one prompt after the other. Where a token differs, the script prints how far the two logits are apart, and fails.

Used with torch 2.11.0 and transformers 5.23.0; there and back also needs pyarrow.
"""

import argparse
import collections
import json
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from families_configs import draw
from tokenizers import Tokenizer, models
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging

HERE = Path(__file__).resolve().parent
LIMIT = 1e-4
VOCABULARY, LONGEST, STEPS, ROWS = 96, 40, 5, 4
LONGEST_PROMPT, NEW_TOKENS = 200, 16
LLAMA = dict(hidden_size=48, intermediate_size=80, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2)
FAMILIES = {
    "llama": LLAMA,
    "mistral": {**LLAMA, "sliding_window": 8},
    "qwen2": {**LLAMA, "tie_word_embeddings": True},
    "qwen3": {**LLAMA, "head_dim": 16},
    "mixtral": {**LLAMA, "num_local_experts": 4},
    "qwen2_moe": {**LLAMA, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
                  "shared_expert_intermediate_size": 40},
    "qwen3_moe": {**LLAMA, "head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
                  "norm_topk_prob": True},
    "gpt2": dict(n_embd=48, n_layer=3, n_head=4, n_positions=64, attn_pdrop=0, embd_pdrop=0, resid_pdrop=0),
    "opt": dict(hidden_size=48, ffn_dim=80, num_hidden_layers=3, num_attention_heads=4, dropout=0),
    "bloom": dict(hidden_size=48, n_layer=3, n_head=4),
    "gpt_neox": dict(hidden_size=64, intermediate_size=80, num_hidden_layers=3, num_attention_heads=4),
}


def rows():
    generator = torch.Generator().manual_seed(7)
    lengths = torch.randint(8, LONGEST, (STEPS * ROWS + 6,), generator=generator)
    return [torch.randint(3, VOCABULARY, (length,), generator=generator).tolist() for length in lengths]


def make(family, settings, folder):
    torch.manual_seed(1)
    config = AutoConfig.for_model(family, vocab_size=VOCABULARY, bos_token_id=1, eos_token_id=2, pad_token_id=0, **settings)
    return save(config, folder)


def save(config, folder):
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            # Away from the usual start, so that no part is zero or one by chance.
            parameter += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    tokenizer = Tokenizer(models.WordLevel({f"w{token}": token for token in range(VOCABULARY)}, unk_token="w0"))
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="w1", eos_token="w2", pad_token="w0")
    wrapped.save_pretrained(folder)
    return model


def logprobs(binary, folder, rows, scratch):
    (scratch / "rows.jsonl").write_text("".join(json.dumps({"ids": row}) + "\n" for row in rows))
    files = ["--input", scratch / "rows.jsonl", "--output", scratch / "out.jsonl", "--force"]
    command = [binary, "logprobs", "--model", folder, *files]
    return subprocess.run(command, capture_output=True, text=True)


def ours(binary, folder, rows, scratch):
    logprobs(binary, folder, rows, scratch).check_returncode()
    return [json.loads(line)["logprobs"][1:] for line in (scratch / "out.jsonl").read_text().splitlines()]


def theirs(model, rows):
    def of(row):
        ids = torch.tensor([row])
        with torch.no_grad():
            logprobs = model(ids).logits.log_softmax(-1)[0, :-1]
        return logprobs.gather(1, ids[0, 1:, None])[:, 0].tolist()

    return [of(row) for row in rows]


def difference(left, right):
    return max(abs(one - other) for pair in zip(left, right, strict=True) for one, other in zip(*pair, strict=True))


def train_here(binary, folder, rows, scratch):
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table({"input_ids": rows}), scratch / "rows.parquet")
    (scratch / "run.toml").write_text(
        f"""
out = "{scratch / 'run'}"
[model]
path = "{folder}"
[data]
train = "{scratch / 'rows.parquet'}"
shuffle = false
[train]
steps = {STEPS}
micro_batch_size = {ROWS // 2}
gradient_accumulation_steps = 2
lr = 1e-3
scheduler = "constant"
"""
    )
    subprocess.run([binary, "sft", "--config", scratch / "run.toml"], check=True, stderr=subprocess.DEVNULL)
    return scratch / "run/final"


def train_there(model, rows):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
    for step in range(STEPS):
        batch = rows[step * ROWS : (step + 1) * ROWS]
        tokens = sum(len(row) - 1 for row in batch)
        for row in batch:
            ids = torch.tensor([row])
            logprobs = model(ids).logits[0, :-1].log_softmax(-1)
            (-logprobs.gather(1, ids[0, 1:, None]).sum() / tokens).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def there_and_back(binary):
    every, worst = rows(), 0.0
    train, held = every[:-6], every[-6:]
    print("family     made      trained   saved     moved")
    for family, settings in FAMILIES.items():
        with tempfile.TemporaryDirectory() as scratch:
            scratch = Path(scratch)
            model = make(family, settings, scratch / "made")
            before = ours(binary, scratch / "made", held, scratch)
            made = difference(theirs(model, held), before)
            final = train_here(binary, scratch / "made", train, scratch)
            after = ours(binary, final, held, scratch)
            train_there(model, train)
            trained = difference(theirs(model, held), after)
            again = AutoModelForCausalLM.from_pretrained(final, dtype=torch.float32, attn_implementation="eager").eval()
            saved = difference(theirs(again, held), after)
            print(f"{family:9}  {made:.1e}   {trained:.1e}   {saved:.1e}   {difference(before, after):.2f}", flush=True)
            worst = max(worst, made, trained, saved)
    return worst <= LIMIT


def prompts(count, seed):
    generator = torch.Generator().manual_seed(seed)
    drawn = [torch.randint(3, VOCABULARY, (LONGEST_PROMPT,), generator=generator).tolist() for _ in range(count)]
    common = drawn[0][: LONGEST_PROMPT // 2]
    lengths = torch.randint(1, LONGEST_PROMPT + 1, (count,), generator=generator).tolist()
    return [
        (common + prompt if index % 2 else prompt)[:length]
        for index, (prompt, length) in enumerate(zip(drawn, lengths, strict=True))
    ]


def replies_here(binary, folder, prompts, scratch):
    (scratch / "prompts.jsonl").write_text("".join(json.dumps({"ids": prompt}) + "\n" for prompt in prompts))
    command = [binary, "generate", "--raw", "--model", folder, "--input", scratch / "prompts.jsonl"]
    command += ["--output", scratch / "replies.jsonl", "--temperature", "0", "--max-new-tokens", str(NEW_TOKENS)]
    subprocess.run([*command, "--batch-size", str(len(prompts))], check=True, capture_output=True)
    return [json.loads(line)["ids"] for line in (scratch / "replies.jsonl").read_text().splitlines()]


def reply_there(model, prompt):
    ids = torch.tensor([prompt])
    made = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=NEW_TOKENS)
    return made[0, len(prompt) :].tolist()


def gap(model, prompt, here, there):
    """How far apart the logits of the first two tokens that differ are."""
    same = next((index for index, pair in enumerate(zip(here, there)) if pair[0] != pair[1]), None)
    if same is None:
        return float("inf")  # One reply goes on where the other one ends.
    with torch.no_grad():
        logits = model(torch.tensor([prompt + there[:same]])).logits[0, -1]
    return abs(logits[here[same]] - logits[there[same]]).item()


def greedy_replies(binary, count, seed):
    good = True
    print("family     replies  equal  tokens  prompts of")
    for family, settings in FAMILIES.items():
        with tempfile.TemporaryDirectory() as scratch:
            scratch = Path(scratch)
            settings = {**settings, "n_positions": 256} if family == "gpt2" else settings
            model, asked = make(family, settings, scratch / "made"), prompts(count, seed)
            here = replies_here(binary, scratch / "made", asked, scratch)
            there = [reply_there(model, prompt) for prompt in asked]
            equal = sum(one == other for one, other in zip(here, there, strict=True))
            tokens, given = sum(map(len, there)), sum(map(len, asked))
            print(f"{family:9}  {count:7}  {equal:5}  {tokens:6}  {given} tokens", flush=True)
            for prompt, one, other in zip(asked, here, there):
                if one != other:
                    print(f"  another token, {gap(model, prompt, one, other):.1e} apart")
            good &= equal == count
    return good


def outcome(binary, config, scratch):
    """What became of one configuration: `equal`, `refused`, `theirs` (transformers refuses it) or `WRONG`; and why."""
    made = scratch / "made"
    made.mkdir()
    (made / "config.json").write_text(json.dumps(config))
    longest = min(LONGEST, config.get("max_position_embeddings") or config.get("n_positions") or LONGEST)
    held = [torch.randint(3, VOCABULARY, (length,)).tolist() for length in (longest, longest // 2, 5)]
    try:
        model = save(AutoConfig.from_pretrained(made), made)
        wanted = theirs(model, held)
    except Exception as error:  # Whatever transformers makes of a value that it cannot take.
        return "theirs", f"{type(error).__name__}: {error}".splitlines()[0][:100]
    if not all(torch.isfinite(torch.tensor(row)).all() for row in wanted):
        return "theirs", "not finite"
    (made / "config.json").write_text(json.dumps(config))
    done = logprobs(binary, made, held, scratch)
    if done.returncode:
        named = re.search(r"`([a-z_.0-9]+)`", done.stderr)
        known = named and (named[1].split(".")[0] in config or "tensor" not in done.stderr)
        return ("refused", named[1]) if known and done.returncode in (2, 3) else ("WRONG", done.stderr.strip())
    found = [json.loads(line)["logprobs"][1:] for line in (scratch / "out.jsonl").read_text().splitlines()]
    apart = difference(wanted, found)
    return ("equal", "") if apart <= LIMIT else ("WRONG", f"{apart:.1e} apart")


def random_configs(binary, count, seed):
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    generator = random.Random(seed)
    kinds, reasons, wrong = collections.defaultdict(collections.Counter), collections.Counter(), []
    index = 0
    while index - sum(of["theirs"] for of in kinds.values()) < count:
        family = list(FAMILIES)[index % len(FAMILIES)]
        config = draw(generator, family, VOCABULARY)
        torch.manual_seed(1000 * seed + index)
        index += 1
        with tempfile.TemporaryDirectory() as scratch:
            kind, why = outcome(binary, config, Path(scratch))
        kinds[family][kind] += 1
        if kind == "WRONG":
            wrong.append(config)
            print(f"{family} {why}\n  {json.dumps(config)}", flush=True)
        elif why:
            reasons[kind, why] += 1
    print("family       equal  refused  refused by transformers  WRONG")
    for family, of in kinds.items():
        print(f"{family:12} {of['equal']:5}  {of['refused']:7}  {of['theirs']:23}  {of['WRONG']:5}")
    for (kind, why), times in sorted(reasons.items()):
        print(f"{'refused here' if kind == 'refused' else 'refused by transformers'}: {why} ({times})")
    return not wrong


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary", nargs="?", type=Path, default=HERE.parent / "target/release/colossal-chat")
    parser.add_argument("--configs", type=int)
    parser.add_argument("--replies", type=int)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    binary = arguments.binary.resolve()
    if arguments.configs:
        good = random_configs(binary, arguments.configs, arguments.seed)
    elif arguments.replies:
        good = greedy_replies(binary, arguments.replies, arguments.seed)
    else:
        good = there_and_back(binary)
    sys.exit(not good)


if __name__ == "__main__":
    main()
