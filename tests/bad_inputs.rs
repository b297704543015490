//! What a newcomer gets wrong, and what a stranger sends: each input ends with one error line, the right exit
//! code and nothing half-written.
//!
//! Every case runs in the folder of a finished tiny pipeline (`life`), after its own files were written
//! there.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::harness::Scratch;
use crate::training::copied;

/// One bad input.
struct Case {
    /// The arguments, split at spaces; in a template, `_` stands for a space.
    line: &'static str,
    /// Files that are written first.
    files: &'static [(&'static str, &'static str)],
    code: i32,
    /// What the error line must hold.
    words: &'static [&'static str],
}

const fn case(
    line: &'static str,
    files: &'static [(&'static str, &'static str)],
    code: i32,
    words: &'static [&'static str],
) -> Case {
    Case { line, files, code, words }
}

const SFT: &str = "out = 'run'\n[model]\npath = 'life/base/final'\n[data]\ntrain = 'life/data/sft.parquet'\nmax_length = 128\n\
                   [train]\nsteps = 1\nmicro_batch_size = 2\n";
const RM: &str = "out = 'run'\n[model]\npath = 'life/sft/final'\n[data]\ntrain = 'life/data/preference.parquet'\n\
                  max_length = 128\n[train]\nsteps = 1\nmicro_batch_size = 2\n";
const PPO: &str = "out = 'run'\n[model]\npath = 'life/sft/final'\n[data]\ntrain = 'life/data/prompts.parquet'\nmax_length = 128\n\
                   [train]\nmicro_batch_size = 2\n[ppo]\nreward_model = 'life/rm/final'\niterations = 1\n\
                   rollout_batch_size = 2\nmini_batch_size = 2\nmax_new_tokens = 4\n";

const FILES: &[(&str, &str)] = &[("sft.toml", SFT), ("rm.toml", RM), ("ppo.toml", PPO)];

/// Words that are no command, and settings that cannot be.
const USAGE: &[Case] = &[
    case("sfft", &[], 2, &["sfft", "'sft'"]),
    case("sft", &[], 2, &["--config"]),
    case("sft --config none.toml", &[], 2, &["none.toml"]),
    case("sft --config life", &[], 2, &["life"]),
    case("sft --config bad.toml", &[("bad.toml", "out = [\n")], 2, &["bad.toml:1"]),
    case("sft --config sft.toml --set train.lr", FILES, 2, &["KEY=VALUE"]),
    case("sft --config sft.toml --set train.learning_rate=1", FILES, 2, &["train.learning_rate", "train.lr"]),
    case("sft --config sft.toml --set train.lr=fast", FILES, 2, &["train.lr"]),
    case("sft --config sft.toml --set train.lr=nan", FILES, 2, &["lr"]),
    case("sft --config sft.toml --set out=''", FILES, 2, &["out"]),
    case("sft --config sft.toml --set model.dtype='float8'", FILES, 2, &["model.dtype", "float32"]),
    case("sft --config sft.toml --set data.max_length=1", FILES, 2, &["data.max_length", "at least 2"]),
    case(
        "sft --config sft.toml --set train.micro_batch_size=4611686018427387904",
        FILES,
        2,
        &["micro_batch_size"],
    ),
    case("sft --config sft.toml --set parallel.data=3", FILES, 2, &["3"]),
    case(
        "sft --config sft.toml --set parallel.tensor.mode='2d' --set parallel.tensor.size=4",
        FILES,
        2,
        &["parallel.tensor.mode", "1d"],
    ),
    case(
        "plan sft --config sft.toml --nproc 8 --set parallel.tensor.mode='3d' --set parallel.tensor.size=8",
        FILES,
        2,
        &["parallel.tensor.mode", "1d"],
    ),
    case("sft --config sft.toml --nproc 0", FILES, 2, &["--nproc"]),
    case("sft --config sft.toml --nproc 64", FILES, 2, &["--nproc"]),
    case("--threads 0 sft --config sft.toml", FILES, 2, &["--threads"]),
    case("pipeline --config life.toml --nproc 0", &[], 2, &["--nproc"]),
    case(
        "ppo --config ppo.toml --set ppo.rollout_batch_size=9223372036854775807 --set ppo.samples_per_prompt=4",
        FILES,
        2,
        &["rollout_batch_size"],
    ),
    case("ppo --config ppo.toml --set ppo.reward_model=''", FILES, 2, &["ppo.reward_model"]),
    case("generate --model life/sft/final --prompt x --temperature -1", &[], 2, &["temperature"]),
    case("generate --model life/sft/final --prompt x --temperature nan", &[], 2, &["temperature"]),
    case(
        "generate --model life/sft/final --prompt x --temperature 1e-40",
        &[],
        2,
        &["temperature", "millionth"],
    ),
    case("data convert life/data/sft.parquet --output -", &[], 2, &["--output -", "standard output"]),
    case("generate --model life/sft/final --prompt x --top-p 2", &[], 2, &["top"]),
    case("generate --model life/sft/final --prompt x --max-new-tokens 0", &[], 2, &["--max-new-tokens"]),
    case("data tokenizer life/data/text.parquet --vocab-size 3 --out tok", &[], 2, &["3"]),
];

/// Folders of runs.
const RUNS: &[Case] = &[
    case("sft --config mine/run.toml --set out=mine", &[("mine/run.toml", SFT)], 2, &["mine"]),
    case("sft --config sft.toml --set out=life/sft", FILES, 2, &["life/sft", "--resume"]),
    case("sft --config sft.toml --set out=sft.toml", FILES, 2, &["sft.toml"]),
    case("pipeline --config life.toml", &[], 2, &["life", "--resume"]),
];

/// Keys without effect, places that cannot be used, and paths of others.
const SETTINGS: &[Case] = &[
    case("sft --config sft.toml --set train.epochs=2", FILES, 2, &["`train.epochs` has no effect on sft"]),
    case(
        "sft --config sft.toml --set train.warmup_steps=2",
        FILES,
        2,
        &["--set train.warmup_steps=2", "warm-up"],
    ),
    case(
        "sft --config sft.toml --set eval.limit=2 --dry-run",
        FILES,
        2,
        &["`eval.limit` has no effect on sft"],
    ),
    case(
        "sft --config sft.toml --set out=/proc/run --dry-run",
        FILES,
        2,
        &["\"/proc/run\" cannot be used", "choose another folder"],
    ),
    case(
        "pipeline --config life.toml --set out=/proc/run --dry-run",
        &[],
        2,
        &["/proc/run", "cannot be written"],
    ),
    case("sft --config sft.toml --set out=~nobody/run", FILES, 2, &["`out`", "./~nobody/run"]),
    case("demo --out=~nobody/demo", &[], 2, &["--out <DIR>", "./~nobody/demo"]),
    case(
        "sft --config sft.toml --set eval.every=1 --set eval.tasks=humaneval --dry-run",
        FILES,
        2,
        &["humaneval", "allow_code_execution"],
    ),
    case(
        "pipeline --config life.toml --resume --dry-run --set eval.tasks=humaneval --set pipeline.stages=['eval']",
        &[],
        2,
        &["humaneval", "allow_code_execution"],
    ),
    case(
        "sft --config sft.toml --dry-run --set gemini.device_memory='900MiB' --set gemini.disk_path=absent",
        FILES,
        2,
        &["`gemini.disk_path`", "absent"],
    ),
    case(
        "pipeline --config life.toml --set out=new --dry-run --set gemini.device_memory='900MiB' --set gemini.disk_path=absent",
        &[],
        2,
        &["stage base", "`gemini.disk_path`", "absent"],
    ),
    case(
        "eval --model life/sft/final --tasks t --include-path t.toml",
        &[("t.toml", ROOT_TASK)],
        2,
        &["t.toml", "dataset.hub"],
    ),
    case(
        "eval --model life/sft/final --tasks t --include-path t.toml",
        &[("t.toml", UP_TASK)],
        2,
        &["t.toml", "dataset.config"],
    ),
];

const ROOT_TASK: &str = "task = 't'\noutput_type = 'generate_until'\ndoc_to_target = 'a'\nmetric_list = [{ metric = 'exact_match' }]\n\
                         [dataset]\nfolder = 't'\nsplit = 'test'\nhub = '/etc'\n";
const UP_TASK: &str = "task = 't'\noutput_type = 'generate_until'\ndoc_to_target = 'a'\nmetric_list = [{ metric = 'exact_match' }]\n\
                       [dataset]\nfolder = 't'\nsplit = 'test'\nhub = 'a/b'\nconfig = '../..'\n";

/// Rows.
const ROWS: &[Case] = &[
    case("sft --config sft.toml --set data.train='none.jsonl'", FILES, 3, &["none.jsonl"]),
    case("data check rows.txt", &[("rows.txt", "x\n")], 3, &["rows.txt", ".jsonl"]),
    case("data check rows.jsonl", &[("rows.jsonl", "")], 3, &["rows.jsonl", "no rows"]),
    case("data check rows.jsonl", &[("rows.jsonl", "{\"text\": \"a\"}\n{\"text\": \n")], 3, &["rows.jsonl"]),
    case("data check rows.jsonl", &[("rows.jsonl", "[1, 2]\n")], 3, &["rows.jsonl"]),
    case("data check rows.jsonl", &[("rows.jsonl", "{\"question\": \"x\"}\n")], 3, &["question", "messages"]),
    case("data check rows.jsonl", &[("rows.jsonl", "{\"messages\": []}\n")], 3, &["rows.jsonl"]),
    case("data check rows.parquet", &[("rows.parquet", "PAR1 not really PAR1")], 3, &["rows.parquet"]),
    case("data check rows.parquet", &[("rows.parquet", "")], 3, &["rows.parquet"]),
    case(
        "data check rows.jsonl.gz",
        &[("rows.jsonl.gz", "{\"text\": \"a\"}\n")],
        3,
        &["rows.jsonl.gz", "gzip"],
    ),
    case("data check rows.csv", &[("rows.csv", "text,answer\n\"one\"\n")], 3, &["rows.csv"]),
    case("data check rows.csv", &[("rows.csv", "text,answer\none,two\nthree\n")], 3, &["rows.csv"]),
    case("data check rows.csv", &[("rows.csv", "text\n")], 3, &["rows.csv", "no rows"]),
    case("data check life/data", &[], 3, &["life/data", "no file"]),
    case(
        "data convert rows.jsonl --output out.parquet",
        &[("rows.jsonl", "{\"messages\": [{\"role\": \"robot\", \"content\": \"x\"}]}\n")],
        3,
        &["rows.jsonl", "robot"],
    ),
    case(
        "data convert rows.jsonl --output out.parquet --map x",
        &[("rows.jsonl", "{\"text\": \"a\"}\n")],
        2,
        &["\"x\""],
    ),
    case(
        "sft --config sft.toml --set data.train='rows.jsonl'",
        &[("sft.toml", SFT), ("rows.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}\n")],
        3,
        &["rows.jsonl", "assistant"],
    ),
    case(
        "sft --config sft.toml --set data.train='rows.jsonl'",
        &[
            ("sft.toml", SFT),
            (
                "rows.jsonl",
                "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}, {\"role\": \"assistant\", \"content\": \"\"}]}\n",
            ),
        ],
        3,
        &["rows.jsonl", "assistant turn without text"],
    ),
    case(
        "sft --config sft.toml --set data.train='rows.jsonl'",
        &[("sft.toml", SFT), ("rows.jsonl", "{\"prompt\": \"a\", \"completion\": \"b\", \"label\": true}\n")],
        3,
        &["rows.jsonl", "label"],
    ),
    case(
        "sft --config sft.toml --set data.train='rows.jsonl'",
        &[("sft.toml", SFT), ("rows.jsonl", "{\"input_ids\": [1, 99999]}\n")],
        3,
        &["rows.jsonl", "99999"],
    ),
    case(
        "sft --config sft.toml --set data.train='rows.jsonl'",
        &[("sft.toml", SFT), ("rows.jsonl", "{\"input_ids\": [1, 2], \"labels\": [1]}\n")],
        3,
        &["rows.jsonl", "labels"],
    ),
    case(
        "sft --config sft.toml --set data.train='rows.jsonl' --set data.max_length=2",
        &[("sft.toml", SFT), ("rows.jsonl", "{\"text\": \"a long text that does not fit\"}\n")],
        3,
        &["max_length"],
    ),
    case(
        "rm --config rm.toml --set data.train='rows.jsonl'",
        &[("rm.toml", RM), ("rows.jsonl", "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"b\"}\n")],
        3,
        &["rm"],
    ),
    case(
        "rm --config rm.toml --set data.train='rows.jsonl'",
        &[
            ("rm.toml", RM),
            (
                "rows.jsonl",
                "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\", \"margin\": \"NaN\"}\n",
            ),
        ],
        3,
        &["rows.jsonl", "margin"],
    ),
    case(
        "rm --config rm.toml --set data.train='rows.jsonl'",
        &[
            ("rm.toml", RM),
            (
                "rows.jsonl",
                "{\"chosen_input_ids\": [1, 2], \"rejected_input_ids\": [1, 3], \"prompt_length\": 2}\n",
            ),
        ],
        3,
        &["rows.jsonl", "prompt_length"],
    ),
    case(
        "reward --model life/rm/final --input rows.jsonl",
        &[("rows.jsonl", "{\"text\": 3}\n")],
        3,
        &["rows.jsonl", "text"],
    ),
    case("logprobs --model life/sft/final --input none.jsonl", &[], 3, &["none.jsonl"]),
];

const LLAMA: &str = "{\"model_type\": \"llama\", \"vocab_size\": 300, \"hidden_size\": 16, \"intermediate_size\": 32, \
                     \"num_hidden_layers\": LAYERS, \"num_attention_heads\": 4}";

/// Folders of models.
const MODELS: &[Case] = &[
    case("model info none", &[], 2, &["none"]),
    case("model info life", &[], 2, &["life", "life/sft/final"]),
    case("model info empty", &[("empty/notes.txt", "x")], 3, &["config.json"]),
    case("model info m", &[("m/config.json", "{")], 3, &["m/config.json"]),
    case("model info m", &[("m/config.json", "{\"model_type\": \"mamba\"}")], 3, &["mamba"]),
    case("chat --model life/rm/final", &[], 3, &["life/rm/final", "reward model"]),
    case("generate --model life/rm/final --prompt x", &[], 3, &["life/rm/final", "reward model"]),
    case(
        "sft --config sft.toml --set model.path='life/rm/final'",
        FILES,
        3,
        &["life/rm/final", "reward model"],
    ),
    case(
        "reward --model life/sft/final --input rows.jsonl",
        &[("rows.jsonl", "{\"text\": \"a\"}\n")],
        3,
        &["life/sft/final"],
    ),
    case("generate --model owner/model --prompt x", &[], 2, &["owner/model", "HF_HUB_OFFLINE"]),
    case("generate --model lfe/sft/final --prompt x", &[], 2, &["lfe/sft/final"]),
    case("generate --model life/sft/final --prompt x --template nonsense", &[], 2, &["nonsense", "chatml"]),
    case("generate --model life/sft/final --prompt x --template {%for", &[], 3, &["template"]),
    case(
        "generate --model life/sft/final --prompt x --template {%for_i_in_range(1000000000)%}{%for_j_in_range(1000000000)%}x{%endfor%}{%endfor%}",
        &[],
        3,
        &["template"],
    ),
    case("generate --model life/sft/final --prompt x --template {{'x'*9000000000}}", &[], 3, &["template"]),
];

#[test]
fn wrong_usage_is_refused() {
    run_all(USAGE);
}

#[test]
fn settings_that_cannot_be_meant() {
    run_all(SETTINGS);
}

#[test]
fn runs_of_others_are_left_alone() {
    run_all(RUNS);
}

#[test]
fn bad_rows_are_refused() {
    run_all(ROWS);
}

#[test]
fn bad_models_are_refused() {
    run_all(MODELS);
}

#[test]
fn absurd_sizes_are_refused_before_anything_is_allocated() {
    let scratch = copied();
    std::fs::create_dir(scratch.path("m")).unwrap();
    for layers in ["0", "-1", "1.5", "\"two\"", "1000000000000", "4611686018427387904", "1e300"] {
        scratch.write("m/config.json", &LLAMA.replace("LAYERS", layers));
        let before = everything(&scratch);
        for line in ["model info m", "model init m/config.json --tokenizer life/tokenizer --out made"] {
            scratch.run(line).fails(3, &["num_hidden_layers"]);
        }
        assert_eq!(everything(&scratch), before, "{layers}");
    }
}

#[test]
fn damaged_weights_are_refused() {
    let scratch = copied();
    let weights = scratch.path("life/sft/final/model.safetensors");
    let whole = std::fs::read(&weights).unwrap();
    let absurd = [&u64::MAX.to_le_bytes()[..], &whole[8..]].concat();
    let cut = whole[..whole.len() - 9].to_vec();
    let header = u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    let no_header = [&whole[..8], &vec![b' '; header], &whole[8 + header..]].concat();
    let mut not_a_number = whole.clone();
    let last = not_a_number.len() - 4;
    not_a_number[last..].copy_from_slice(&f32::NAN.to_le_bytes());

    for (name, bytes) in [("absurd", absurd), ("cut", cut), ("no header", no_header), ("empty", Vec::new())] {
        std::fs::write(&weights, bytes).unwrap();
        let outcome = scratch.run("generate --model life/sft/final --prompt x --max-new-tokens 1");
        assert_eq!(outcome.code, 3, "{name}: {outcome:#?}");
        outcome.fails(3, &["model.safetensors"]);
    }
    std::fs::write(&weights, not_a_number).unwrap();
    scratch.write("texts.jsonl", "{\"ids\": [1, 2, 3]}\n");
    let outcome = scratch.run("logprobs --model life/sft/final --input texts.jsonl --output out.jsonl");
    assert!([3, 5].contains(&outcome.code) && outcome.stderr.contains("NaN"), "{outcome:#?}");
    assert!(!scratch.path("out.jsonl").exists());
}

/// Runs every case and says of all of them at once what was not as it should be.
#[track_caller]
fn run_all(cases: &[Case]) {
    let problems: Vec<String> = cases.iter().filter_map(problem).collect();
    assert!(problems.is_empty(), "{} of {} cases:\n{}", problems.len(), cases.len(), problems.join("\n"));
}

fn problem(case: &Case) -> Option<String> {
    let scratch = copied();
    for (name, text) in case.files {
        std::fs::create_dir_all(scratch.path(name).parent().expect("a parent")).unwrap();
        scratch.write(name, text);
    }
    let before = everything(&scratch);
    // A template is one argument with spaces inside.
    let word = |word: &str| if word.contains('{') { word.replace('_', " ") } else { word.to_owned() };
    let words: Vec<String> = case.line.split(' ').map(word).collect();
    let outcome = scratch.run_with(&words.iter().map(String::as_str).collect::<Vec<_>>(), "");

    let mut problems = Vec::new();
    if outcome.code != case.code {
        problems.push(format!("code {} for {}", outcome.code, case.code));
    }
    if outcome.stderr.lines().filter(|line| line.starts_with("error: ")).count() != 1 {
        problems.push("not one error line".to_owned());
    }
    problems.extend(
        case.words.iter().filter(|word| !outcome.stderr.contains(**word)).map(|word| format!("no {word:?}")),
    );
    let after = everything(&scratch);
    problems.extend(after.symmetric_difference(&before).map(|path| format!("changed {}", path.display())));
    (!problems.is_empty())
        .then(|| format!("{}: {}\n    {}", case.line, problems.join("; "), outcome.stderr.trim()))
}

/// Every file below the scratch folder.
fn everything(scratch: &Scratch) -> BTreeSet<PathBuf> {
    fn walk(folder: &Path, found: &mut BTreeSet<PathBuf>) {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                walk(&path, found);
            }
            found.insert(path);
        }
    }
    let mut found = BTreeSet::new();
    walk(&scratch.path(""), &mut found);
    found
}
