//! The sources themselves: every tensor is placed on a device on purpose, and comments name their nouns.
//!
//! A tensor that is made from host values, or on the CPU by name, fails on a GPU as soon as it meets a tensor
//! of the model. `parallel::upload` is the one way to the device; the exceptions are listed here with the
//! reason.

use std::path::{Path, PathBuf};

/// What makes a tensor of the CPU, or names the CPU.
const UNPLACED: [&str; 6] =
    ["Tensor::from_slice", "Tensor::from(", "Device::Cpu", "FLOAT_CPU", "INT64_CPU", "DOUBLE_CPU"];

/// Files that may do so.
const ALLOWED: [(&str, &str); 42] = [
    ("chat/src/command/doctor.rs", "checks libtorch on the CPU"),
    ("chat/src/command/doctor/bench.rs", "measures the CPU"),
    ("chat/src/command/model.rs", "writes a new model to disk"),
    ("chat/src/command/model/adapter.rs", "writes a merged model to disk"),
    ("chat/src/command/model/gguf.rs", "writes a merged model to disk"),
    ("chat/src/command/model/layers.rs", "lists layers without values"),
    ("chat/src/device.rs", "chooses the device"),
    ("chat/src/stage/context.rs", "limits the memory of the CPU only"),
    ("chat/src/stage/model_memory.rs", "limits the memory of the CPU only"),
    ("chat/src/stage/predict.rs", "predicts for the CPU alone"),
    ("gemini/src/chunk/manager.rs", "opens the driver of a device"),
    ("gemini/src/chunk/manager/budget.rs", "manages memory of the host and of devices"),
    ("gemini/src/chunk/manager/tensors.rs", "counts tensors of the host and of devices"),
    ("gemini/src/chunk/store.rs", "keeps chunks of the host in an arena"),
    ("gemini/src/chunk/store/memory.rs", "chooses the memory of weights"),
    ("gemini/src/engine.rs", "reads losses"),
    ("gemini/src/engine/params.rs", "refuses what only the host can do"),
    ("gemini/src/optimizer.rs", "chooses the kernel of the host"),
    ("inference/src/draw.rs", "samples on the host if the model is there"),
    ("inference/src/logprobs.rs", "reads log-probabilities"),
    ("inference/src/ranks.rs", "exchanges drawn tokens"),
    ("inference/src/sample.rs", "reads sampled tokens"),
    ("models/src/activations.rs", "predicts the memory of the CPU only"),
    ("models/src/gguf_model/export.rs", "writes files"),
    ("models/src/gguf_model/import.rs", "reads files"),
    ("models/src/gguf_model/rope.rs", "writes and compares the divisors of a file"),
    ("models/src/decoder/load.rs", "refuses to quantise on other devices"),
    ("models/src/head/chunk.rs", "chooses the rows of a chunk"),
    ("models/src/initialize.rs", "draws initial weights, the same on every device"),
    ("models/src/lora/eva.rs", "reads a model and writes an adapter"),
    ("models/src/lora/rebase.rs", "rewrites files"),
    ("models/src/quantize/folder.rs", "writes files"),
    ("models/src/quantize/matrix.rs", "holds codes on the host"),
    ("models/src/stored_model.rs", "lists parameters without values"),
    ("parallel/src/comm.rs", "exchanges host values"),
    ("parallel/src/comm/staged.rs", "stages tensors in host memory"),
    ("parallel/src/device.rs", "copies host values to the device"),
    ("parallel/src/safetensors_file/read.rs", "reads files"),
    ("parallel/src/safetensors_file/write.rs", "writes files"),
    ("parallel/src/sequence/tile_attention.rs", "chooses the kernel of the CPU"),
    ("parallel/src/world.rs", "connects the backend for CPU tensors"),
    ("rlhf/src/check.rs", "reads vectors"),
];

#[test]
fn tensors_are_placed_on_purpose() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut used = Vec::new();
    for crate_name in ["parallel", "gemini", "models", "inference", "serve", "rlhf", "eval", "chat"] {
        for file in sources(&root.join(crate_name).join("src")) {
            let name = file.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
            let text = std::fs::read_to_string(&file).unwrap();
            // Unit tests compute on the CPU. They are the end of a file, or files of their own.
            let code = text.split("#[cfg(test)]").next().unwrap_or_default();
            let mut lines = code.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//"));
            let Some((index, line)) = lines.find(|(_, line)| UNPLACED.iter().any(|word| line.contains(word)))
            else {
                continue;
            };
            assert!(
                ALLOWED.iter().any(|(allowed, _)| *allowed == name),
                "{name}:{}: `{}` makes a tensor that is not placed: use `parallel::upload`, or give a device",
                index + 1,
                line.trim()
            );
            used.push(name);
        }
    }
    for (allowed, reason) in ALLOWED {
        assert!(used.iter().any(|name| name == allowed), "{allowed} ({reason}) needs no exception any more");
    }
}

/// Files that name a stage although they are not its own.
const STAGES_NAMED: [(&str, &str); 7] = [
    ("chat/src/stage/on_policy.rs", "names the section of the stages on rollouts"),
    ("chat/src/config/resolved.rs", "reads the section [rm] under its old name"),
    ("chat/src/command/reject/schema.rs", "reads the section of the stages on rollouts"),
    ("chat/src/command/eval/judge/reward.rs", "reads the section [ppo] of a saved file"),
    ("chat/src/config/no_effect.rs", "reads the sections of algorithms"),
    (
        "chat/src/config/run_config.rs",
        "lists the sections of algorithms, which have the names of their stages",
    ),
    ("chat/src/config/section.rs", "has the parts of a pipeline that names none"),
];

/// A stage is one file: what others know of it they read there.
#[test]
fn a_stage_is_named_in_its_own_file_alone() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let stages = root.join("chat/src/stage");
    let stage = |file: &PathBuf| {
        let text = std::fs::read_to_string(file).unwrap();
        text.contains("static STAGE: Stage").then(|| file.file_stem().unwrap().to_str().unwrap().to_owned())
    };
    let own: Vec<PathBuf> = sources(&stages).into_iter().filter(|file| stage(file).is_some()).collect();
    // `base` is also the name of a section, which the pipeline reads.
    let names: Vec<String> = own.iter().filter_map(stage).filter(|name| name != "base").collect();
    assert!(names.len() >= 9, "{names:?}");
    let mut used = Vec::new();
    for file in ["chat", "tui"].iter().flat_map(|name| sources(&root.join(name).join("src"))) {
        let path = file.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
        let is_test = path.ends_with("tests.rs") || path.contains("/tests/");
        let text = std::fs::read_to_string(&file).unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        let named = names.iter().find(|name| code.contains(&format!("\"{name}\"")));
        let Some(name) = named.filter(|_| !is_test && !own.contains(&file)) else { continue };
        let is_allowed = STAGES_NAMED.iter().any(|(allowed, _)| *allowed == path);
        assert!(is_allowed, "{path} names the stage {name:?}: let the stage say what this file needs");
        used.push(path);
    }
    for (allowed, reason) in STAGES_NAMED {
        assert!(used.iter().any(|path| path == allowed), "{allowed} ({reason}) needs no exception any more");
    }
}

/// What a comment begins with, or holds, that leaves its noun to the reader.
const RIDDLES: [&str; 4] = ["That of ", "Those of ", "of so many", "stands for this one"];

#[test]
fn comments_name_their_nouns() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut found = Vec::new();
    for crate_name in [
        "parallel",
        "gemini",
        "models",
        "inference",
        "datasets",
        "serve",
        "rlhf",
        "eval",
        "gguf",
        "text",
        "tui",
        "chat",
    ] {
        for file in sources(&root.join(crate_name).join("src")) {
            let text = std::fs::read_to_string(&file).unwrap();
            for (index, line) in text.lines().enumerate() {
                let Some((_, comment)) = line.split_once("//") else { continue };
                // "there is none" has its noun in the sentence before it.
                let is_none = comment.contains(" is none.") && !comment.contains("there is none.");
                if is_none || RIDDLES.iter().any(|riddle| comment.contains(riddle)) {
                    found.push(format!("{}:{}: {}", file.display(), index + 1, line.trim()));
                }
            }
        }
    }
    assert!(found.is_empty(), "write the noun out:\n{}", found.join("\n"));
}

/// The Rust files below `folder`, without those of unit tests.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") && !path.ends_with("tests.rs") {
            files.push(path);
        }
    }
    files
}
