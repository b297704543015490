//! Damaged and foreign model folders are refused with an error that names file, tensor and shapes.

#![expect(clippy::unwrap_used, reason = "a test ends at the first thing that is not as it should be")]

use std::path::Path;

use models::Error;
use models::causal_lm::{CausalLm, LoadOptions};
use models::model_parallel::ModelParallel;
use models::scalar_model::ScalarModel;
use parallel::safetensors_file;
use tch::{Device, Kind, Tensor};
use tempfile::TempDir;

const OPTIONS: LoadOptions = LoadOptions {
    kind: Kind::Float,
    device: Device::Cpu,
    trainable: false,
    model_parallel: ModelParallel::NONE,
    memory: None,
    quantize: None,
};

/// A copy of a golden model whose tensors `change` may change.
fn changed(name: &str, change: impl FnOnce(&mut Vec<(String, Tensor)>)) -> TempDir {
    let source = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden")).join(name);
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(source.join("config.json"), folder.path().join("config.json")).unwrap();
    let mut tensors = Tensor::read_safetensors(source.join("model.safetensors")).unwrap();
    change(&mut tensors);
    Tensor::write_safetensors(&tensors, folder.path().join("model.safetensors")).unwrap();
    folder
}

fn position(tensors: &[(String, Tensor)], name: &str) -> usize {
    tensors.iter().position(|(held, _)| held == name).unwrap()
}

fn refused(folder: &TempDir) -> Error {
    CausalLm::load(folder.path(), &OPTIONS).unwrap_err()
}

#[test]
fn a_truncated_file() {
    let folder = changed("llama", |_| ());
    let path = folder.path().join("model.safetensors");
    let size = std::fs::metadata(&path).unwrap().len();
    for left in [size - 1, 100, 9, 3] {
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(left).unwrap();
        let error = refused(&folder);
        assert!(
            matches!(error, Error::File(safetensors_file::Error::Truncated { got, .. }) if got == left),
            "{error}"
        );
    }
}

#[test]
fn a_file_of_another_format() {
    let folder = changed("llama", |_| ());
    std::fs::write(folder.path().join("model.safetensors"), vec![0xff; 64]).unwrap();
    let error = refused(&folder);
    assert!(matches!(error, Error::File(safetensors_file::Error::Malformed { .. })), "{error}");
}

#[test]
fn a_missing_tensor() {
    let name = "model.layers.1.mlp.up_proj.weight";
    let folder = changed("llama", |tensors| drop(tensors.remove(position(tensors, name))));
    let error = refused(&folder);
    assert!(matches!(&error, Error::MissingTensor { name: missing, .. } if missing == name), "{error}");
}

#[test]
fn a_missing_head_is_not_invented() {
    let folder = changed("llama", |tensors| drop(tensors.remove(position(tensors, "lm_head.weight"))));
    assert!(refused(&folder).to_string().contains("`lm_head.weight` is missing"));
}

#[test]
fn a_wrong_shape() {
    let name = "model.norm.weight";
    let folder = changed("llama", |tensors| {
        let index = position(tensors, name);
        tensors[index].1 = Tensor::zeros([5], (Kind::Float, Device::Cpu));
    });
    let error = refused(&folder);
    assert!(
        matches!(&error, Error::File(safetensors_file::Error::Shape { expected, got, .. }) if expected == &[24] && got == &[5]),
        "{error}"
    );
}

#[test]
fn a_wrong_kind_of_number() {
    let folder = changed("llama", |tensors| {
        let index = position(tensors, "model.norm.weight");
        tensors[index].1 = tensors[index].1.to_kind(Kind::Int64);
    });
    let error = refused(&folder);
    assert!(
        matches!(&error, Error::File(safetensors_file::Error::Dtype { dtype, .. }) if dtype == "I64"),
        "{error}"
    );
}

#[test]
fn a_tensor_that_nothing_uses() {
    let stray = "model.layers.0.self_attn.q_norm.weight";
    let folder = changed("llama", |tensors| {
        tensors.push((stray.to_owned(), Tensor::ones([6], (Kind::Float, Device::Cpu))));
    });
    let error = refused(&folder);
    assert!(matches!(&error, Error::UnexpectedTensor { name, .. } if name == stray), "{error}");
}

#[test]
fn old_buffers_and_a_bare_trunk_are_no_error() {
    let folder = changed("gpt2", |tensors| {
        for (name, _) in tensors.iter_mut() {
            *name = name.trim_start_matches("transformer.").to_owned();
        }
        tensors.push(("h.0.attn.bias".to_owned(), Tensor::ones([1, 1, 32, 32], (Kind::Float, Device::Cpu))));
    });
    CausalLm::load(folder.path(), &OPTIONS).unwrap();
}

#[test]
fn a_classifier_with_two_labels_is_no_reward_model() {
    let folder = changed("llama-score", |_| ());
    let path = folder.path().join("config.json");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("\"0\": \"LABEL_0\"", "\"0\": \"LABEL_0\", \"1\": \"LABEL_1\""))
        .unwrap();
    let error = ScalarModel::load(folder.path(), &OPTIONS).unwrap_err().to_string();
    assert!(error.contains("`id2label` = 2 labels is not supported"), "{error}");
}

#[test]
fn weights_that_are_no_numbers_are_named() {
    for (value, word) in [(f64::NAN, "NaN"), (f64::INFINITY, "infinity"), (f64::NEG_INFINITY, "infinity")] {
        let name = "model.layers.1.mlp.up_proj.weight";
        let folder = changed("llama", |tensors| {
            let index = position(tensors, name);
            let _ = tensors[index].1.get(3).narrow(0, 2, 1).fill_(value);
        });
        let error = refused(&folder).to_string();
        assert!(error.contains(&format!("the tensor `{name}` holds {word}")), "{error}");
    }
}

#[test]
fn a_head_that_differs_from_the_embedding_it_is_tied_to_is_named() {
    for (name, embedding) in [("gpt2", "transformer.wte.weight"), ("qwen2", "model.embed_tokens.weight")] {
        let with_head = |change: f64| {
            changed(name, |tensors| {
                let head = &tensors[position(tensors, embedding)].1 + change;
                tensors.push(("lm_head.weight".to_owned(), head));
            })
        };
        assert!(CausalLm::load(with_head(0.0).path(), &OPTIONS).is_ok());
        let error = refused(&with_head(0.5)).to_string();
        assert!(error.contains("the tensor `lm_head.weight` differs from the embedding"), "{error}");
    }
}

#[test]
fn a_reward_model_is_no_language_model_and_the_other_way_round() {
    let folder = changed("llama-score", |_| ());
    let error = refused(&folder).to_string();
    assert!(error.contains("names LlamaForSequenceClassification; give a language model"), "{error}");
    let folder = changed("llama", |tensors| {
        tensors.push(("score.weight".to_owned(), Tensor::ones([1, 24], (Kind::Float, Device::Cpu))));
    });
    assert!(refused(&folder).to_string().contains("its weights hold the tensor `score.weight`"));
    let error = ScalarModel::from_causal_lm(folder.path(), 1, &OPTIONS).unwrap_err().to_string();
    assert!(error.contains("hold a trained score"), "{error}");
    let error = ScalarModel::load(changed("llama", |_| ()).path(), &OPTIONS).unwrap_err().to_string();
    assert!(error.contains("hold no tensor `score.weight`; train one from it with `rm`"), "{error}");
}

#[test]
fn what_is_no_file_is_refused_and_links_are_followed() {
    let folder = changed("llama", |_| ());
    let (weights, elsewhere) = (folder.path().join("model.safetensors"), folder.path().join("blob"));
    std::fs::rename(&weights, &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &weights).unwrap();
    CausalLm::load(folder.path(), &OPTIONS).unwrap();
    std::fs::remove_file(&weights).unwrap();
    std::fs::create_dir(&weights).unwrap();
    assert!(refused(&folder).to_string().contains("it is a folder, a pipe or a device"));
    std::fs::remove_file(folder.path().join("config.json")).unwrap();
    std::fs::create_dir(folder.path().join("config.json")).unwrap();
    assert!(refused(&folder).to_string().contains("it is a folder, a pipe or a device"));
}

#[test]
fn a_folder_without_weights() {
    let folder = changed("llama", |_| ());
    std::fs::remove_file(folder.path().join("model.safetensors")).unwrap();
    assert!(matches!(refused(&folder), Error::Io { .. }));
    std::fs::write(folder.path().join("pytorch_model.bin"), "").unwrap();
    assert!(refused(&folder).to_string().contains("save the model as safetensors"));
}
