//! A model that several ranks share is the whole model: logits, losses, gradients, files, and the
//! bytes that it takes.

#![expect(clippy::unwrap_used, reason = "a test ends at the first thing that is not as it should be")]

#[path = "golden/folder.rs"]
mod folder;
#[path = "../../tests/on_mesh/mod.rs"]
mod on_mesh;
#[path = "split/outcome.rs"]
mod outcome;

use std::path::Path;
use std::sync::Arc;

use folder::{golden_folder, with_aux_loss};
use models::batch::Batch;
use models::causal_lm::CausalLm;
use models::head;
use models::model_parallel::{ModelParallel, PipelineParallel, SequenceParallel};
use models::scalar_model::ScalarModel;
use outcome::{
    FAMILIES, MOE_FAMILIES, ROWS, close, flat, full_grad, on_every_mesh, on_mesh, on_ranks, on_whole_mesh,
    options, outcome, same, sequence_parallel_of, step, step_with_experts, written,
};
use parallel::pipeline::ScheduleKind;
use parallel::safetensors_file::TensorFile;
use parallel::{Axis, ForwardPass, Mesh, Placement, ProcessGroups, Segmented, Transport};
use planner::layout::{Layout, SequenceMode};
use planner::segment::{Part, Segment};
use planner::traffic::Traffic;
use tch::{Device, Kind, Tensor};

#[test]
fn a_split_model_has_the_logits_and_gradients_of_the_whole() {
    for name in FAMILIES {
        let whole = outcome(&CausalLm::load(&golden_folder(name), &options(None)).unwrap(), false);
        // Four ranks share two key-value heads where queries share them.
        for (size, transport) in [(2, Transport::Shared), (4, Transport::Shared), (2, Transport::Gloo)] {
            on_ranks(size, transport, |model_parallel| {
                let model = CausalLm::load(&golden_folder(name), &options(Some(model_parallel))).unwrap();
                same(&format!("{name} on {size}"), &whole, &outcome(&model, size == 4));
            });
        }
    }
}

#[test]
fn heads_columns_and_tokens_need_not_be_a_multiple_of_the_ranks() {
    let whole = outcome(&CausalLm::load(&golden_folder("gpt2"), &options(None)).unwrap(), false);
    on_ranks(3, Transport::Shared, |model_parallel| {
        // Four heads on three ranks, and 48 tokens and 96 columns evenly.
        let model = CausalLm::load(&golden_folder("gpt2"), &options(Some(model_parallel))).unwrap();
        same("gpt2 on 3", &whole, &outcome(&model, false));
        let error =
            CausalLm::load(&golden_folder("llama"), &options(Some(model_parallel))).unwrap_err().to_string();
        let wanted =
            "[parallel.tensor] size = 3: 4 query heads with 2 key-value heads cannot be split this way";
        assert!(error.starts_with(wanted), "{error}");
    });
}

#[test]
fn ranks_with_different_tokens_have_the_gradients_of_the_whole() {
    let ways = [
        ("megatron", [1, 2]),
        ("megatron", [1, 4]),
        ("ulysses", [2, 1]),
        ("ulysses", [4, 1]),
        ("ulysses", [2, 2]),
        ("ring", [2, 1]),
        ("ring", [3, 1]),
        ("ring", [2, 2]),
    ];
    for name in FAMILIES {
        let whole = outcome(&CausalLm::load(&golden_folder(name), &options(None)).unwrap(), false);
        for (mode, mesh) in ways {
            on_mesh(mesh, Transport::Shared, |groups| {
                let model_parallel = sequence_parallel_of(groups, mode);
                let what = format!("{name}, {mode} {mesh:?}");
                match CausalLm::load(&golden_folder(name), &options(Some(&model_parallel))) {
                    Ok(model) => same(&what, &whole, &outcome(&model, mesh == [2, 2])),
                    Err(error) => {
                        let (error, uneven) = (error.to_string(), name == "bloom-normed");
                        let by_distance =
                            mode == "ring" && ["mistral", "bloom", "bloom-normed"].contains(&name);
                        assert!(by_distance || uneven, "{what}: {error}");
                        assert!(error.contains("ALiBi") || error.contains(" query heads"), "{error}");
                    }
                }
            });
        }
    }
}

#[test]
fn ranks_with_different_layers_have_the_losses_gradients_and_replies_of_the_whole() {
    for name in FAMILIES {
        let model = CausalLm::load(&golden_folder(name), &options(None)).unwrap();
        let (loss, gradients) = step(&model, &ModelParallel::NONE);
        let batch = Batch::new(&ROWS, Device::Cpu);
        let logits =
            flat(&tch::no_grad(|| model.head().logits(&model.forward_no_grad(&batch).unwrap())).unwrap());
        let replies = written(&model);
        for (schedule_kind, mesh) in [
            (ScheduleKind::GPipe, [2, 1]),
            (ScheduleKind::OneForwardOneBackward, [2, 2]),
            (ScheduleKind::OneForwardOneBackward, [4, 1]),
            (ScheduleKind::Interleaved, [2, 1]),
            (ScheduleKind::ZeroBubbleH1, [2, 1]),
            (ScheduleKind::ZeroBubbleH1, [3, 1]),
            (ScheduleKind::ZeroBubbleV, [2, 2]),
        ] {
            on_whole_mesh([mesh[0], 1, mesh[1]], Transport::Shared, |groups| {
                let embedding_group = groups.embedding_group().cloned();
                let layers = PipelineParallel {
                    group: Arc::clone(groups.pipeline_parallel()),
                    schedule_kind,
                    virtual_stages: 2,
                    embedding_group,
                };
                let model_parallel = ModelParallel {
                    pipeline_parallel: Some(layers),
                    ..ModelParallel::tensor_parallel_only(groups.tensor_parallel())
                };
                let what = format!("{name}, {schedule_kind:?} {mesh:?}");
                let model = CausalLm::load(&golden_folder(name), &options(Some(&model_parallel))).unwrap();
                let (local_loss, local_grads) = step(&model, &model_parallel);
                let [total] = groups.pipeline_parallel().all_reduce_sum([local_loss]).unwrap();
                close(&what, &[loss], &[total]);
                assert!(local_grads.len() < gradients.len(), "{what}: a rank has some of the layers");
                for (parameter, local) in &local_grads {
                    let (_, whole) = gradients.iter().find(|(name, _)| name == parameter).unwrap();
                    close(&format!("{what}: the gradient of {parameter}"), whole, local);
                }
                let batch = Batch::new(&ROWS, Device::Cpu);
                let hidden = model.forward_no_grad(&batch).unwrap();
                close(&what, &logits, &flat(&tch::no_grad(|| model.head().logits(&hidden)).unwrap()));
                assert_eq!(written(&model), replies, "{what}");
            });
        }
    }
}

#[test]
fn ranks_with_different_experts_have_the_gradients_and_replies_of_the_whole() {
    for name in MOE_FAMILIES {
        let folder = with_aux_loss(name);
        let model = CausalLm::load(folder.path(), &options(None)).unwrap();
        assert!(model.config().router_aux_loss_coef() > 0.3, "the auxiliary loss is on");
        let (loss, gradients) = step_with_experts(&model, &ProcessGroups::single());
        let replies = written(&model);
        // Sizes of data, expert, sequence and tensor; the last mesh has more ranks than there are rows.
        for (mesh, mode) in [
            ([1, 2, 1, 1], ""),
            ([2, 2, 1, 1], ""),
            ([1, 2, 1, 2], ""),
            ([1, 2, 1, 2], "megatron"),
            ([1, 1, 2, 1], "ring"),
            ([1, 2, 2, 1], "ulysses"),
            ([1, 1, 1, 2], ""),
            ([1, 4, 1, 1], ""),
        ] {
            on_every_mesh([1, mesh[0], mesh[1], mesh[2], mesh[3]], Transport::Shared, |groups| {
                let what = format!("{name}, {mesh:?} {mode}");
                let sequence_parallel = if mode.is_empty() {
                    SequenceParallel::Replicated
                } else {
                    sequence_parallel_of(groups, mode).sequence_parallel
                };
                let expert_parallel = (mesh[1] > 1).then(|| Arc::clone(groups.expert_parallel()));
                let model_parallel = ModelParallel {
                    sequence_parallel,
                    expert_parallel,
                    ..ModelParallel::tensor_parallel_only(groups.tensor_parallel())
                };
                let model = CausalLm::load(folder.path(), &options(Some(&model_parallel))).unwrap();
                let (local_loss, local_grads) = step_with_experts(&model, groups);
                let [total] = groups.loss_group().all_reduce_sum([local_loss]).unwrap();
                close(&what, &[loss], &[total]);
                for (parameter, local) in &local_grads {
                    let (_, whole) = gradients.iter().find(|(name, _)| name == parameter).unwrap();
                    close(&format!("{what}: the gradient of {parameter}"), whole, local);
                }
                assert_eq!(local_grads.len() < gradients.len(), mesh[1] > 1, "{what}");
                assert_eq!(written(&model), replies, "{what}");
            });
        }
    }
}

#[test]
fn the_bytes_of_expert_parallel_all_to_all_match_the_formula() {
    // Every token takes all four experts, of which two are on the other rank.
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        let bytes = std::fs::read(golden_folder("mixtral").join(file)).unwrap();
        std::fs::write(folder.path().join(file), bytes).unwrap();
    }
    let config = std::fs::read_to_string(folder.path().join("config.json")).unwrap();
    let config = config.replace("\"num_experts_per_tok\": 2", "\"num_experts_per_tok\": 4");
    std::fs::write(folder.path().join("config.json"), config).unwrap();
    on_every_mesh([1, 1, 2, 1, 1], Transport::Shared, |groups| {
        let (rank, expert) = (groups.expert_parallel().rank(), groups.expert_parallel());
        let model_parallel =
            ModelParallel { expert_parallel: Some(Arc::clone(expert)), ..ModelParallel::NONE };
        let model = CausalLm::load(folder.path(), &options(Some(&model_parallel))).unwrap();
        let batch = Batch::new(&[ROWS[rank]], Device::Cpu);
        let before = expert.sent_bytes();
        let forward = ForwardPass::run(&model, &batch, false).unwrap();
        let targets = Tensor::zeros([batch.num_tokens()], (Kind::Int64, Device::Cpu));
        let loss = head::cross_entropy(forward.hidden(), model.head(), &targets, None).unwrap();
        forward.backward::<parallel::Error>(&loss, &mut |_, _, _| Ok(())).unwrap();
        // In each of two layers: the counts of four experts, gathered; rows of width 24 to the experts and
        // back, forward and backward: this rank's own tokens go and their gradients come back, and the other
        // way round for those of the other rank.
        let [local_tokens, remote_tokens] = [rank, 1 - rank].map(|rank| ROWS[rank].len() as u64);
        let (counts, row) = (4 * 8, 24 * 4);
        assert_eq!(
            expert.sent_bytes() - before,
            2 * (counts + (2 * 2 * local_tokens + 2 * 2 * remote_tokens) * row)
        );
    });
}

#[test]
fn experts_of_several_ranks_are_saved_as_one_model() {
    for name in MOE_FAMILIES {
        let [one, many] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        CausalLm::load(&golden_folder(name), &options(None)).unwrap().save(one.path()).unwrap();
        on_every_mesh([1, 1, 2, 1, 2], Transport::Shared, |groups| {
            let (expert_parallel, pipeline_expert_group) = (
                Some(Arc::clone(groups.expert_parallel())),
                Some(Arc::clone(groups.pipeline_expert_group())),
            );
            let model_parallel = ModelParallel {
                expert_parallel,
                pipeline_expert_group,
                ..ModelParallel::tensor_parallel_only(groups.tensor_parallel())
            };
            CausalLm::load(&golden_folder(name), &options(Some(&model_parallel)))
                .unwrap()
                .save(many.path())
                .unwrap();
        });
        assert!(tensors(one.path()) == tensors(many.path()), "{name}");
    }
}

/// The tensors of a saved model.
fn tensors(folder: &Path) -> Vec<(String, Vec<f32>)> {
    let file = TensorFile::open(&folder.join("model.safetensors")).unwrap();
    let names: Vec<String> = file.names().map(str::to_owned).collect();
    let read = |name: &String| {
        let shape = file.shape(name).unwrap().to_vec();
        (name.clone(), flat(&file.read(name, &shape, &Placement::Replicate).unwrap()))
    };
    names.iter().map(read).collect()
}

#[test]
fn layers_of_several_ranks_are_saved_as_one_model() {
    for name in ["llama-tied", "gpt2", "neox"] {
        let [one, many] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        CausalLm::load(&golden_folder(name), &options(None)).unwrap().save(one.path()).unwrap();
        on_whole_mesh([2, 1, 2], Transport::Shared, |groups| {
            let (group, embedding_group) =
                (Arc::clone(groups.pipeline_parallel()), groups.embedding_group().cloned());
            let pipeline_parallel = Some(PipelineParallel {
                group,
                schedule_kind: ScheduleKind::Interleaved,
                virtual_stages: 2,
                embedding_group,
            });
            let pipeline_expert_group = Some(Arc::clone(groups.pipeline_expert_group()));
            let model_parallel = ModelParallel {
                pipeline_parallel,
                pipeline_expert_group,
                ..ModelParallel::tensor_parallel_only(groups.tensor_parallel())
            };
            CausalLm::load(&golden_folder(name), &options(Some(&model_parallel)))
                .unwrap()
                .save(many.path())
                .unwrap();
        });
        assert!(tensors(one.path()) == tensors(many.path()), "{name}");
    }
}

#[test]
fn ranks_with_different_tokens_train_the_score_of_the_whole() {
    let gradients = |model: &ScalarModel| {
        let batch = Batch::new(&ROWS, Device::Cpu);
        let forward = ForwardPass::run(model, &batch, false).unwrap();
        let last = forward.hidden().index_select(0, &Tensor::from_slice(&batch.last_indices()));
        let values = model.values(&last).unwrap();
        let loss = (&values * Tensor::from_slice(&[0.3f32, -1.0, 2.0])).sum(Kind::Float);
        let mut found = vec![flat(&values)];
        forward
            .backward::<parallel::Error>(&loss, &mut |_, index, grad| {
                found.push(full_grad(&model.parameters()[index], &grad, model.decoder().model_parallel()));
                Ok(())
            })
            .unwrap();
        found
    };
    for name in ["llama-score", "gpt2-score", "opt-score"] {
        let whole = gradients(&ScalarModel::load(&golden_folder(name), &options(None)).unwrap());
        for (mode, mesh) in [("megatron", [1, 2]), ("ulysses", [2, 2]), ("ring", [2, 1]), ("whole", [1, 2])] {
            on_mesh(mesh, Transport::Shared, |groups| {
                let model_parallel = match mode {
                    "whole" => ModelParallel::tensor_parallel_only(groups.tensor_parallel()),
                    _ => sequence_parallel_of(groups, mode),
                };
                let model = ScalarModel::load(&golden_folder(name), &options(Some(&model_parallel))).unwrap();
                let found = gradients(&model);
                assert_eq!(whole.len(), found.len());
                for (whole, found) in whole.iter().zip(&found) {
                    close(&format!("{name}, {mode} {mesh:?}"), whole, found);
                }
            });
        }
    }
}

#[test]
fn a_split_reward_model_gives_the_values_of_the_whole() {
    for name in ["llama-score", "gpt2-score", "opt-score"] {
        let batch = || Batch::new(&ROWS, Device::Cpu);
        let values =
            |model: &ScalarModel| flat(&model.values(&model.forward_no_grad(&batch()).unwrap()).unwrap());
        let whole = values(&ScalarModel::load(&golden_folder(name), &options(None)).unwrap());
        on_ranks(2, Transport::Shared, |model_parallel| {
            let model = ScalarModel::load(&golden_folder(name), &options(Some(model_parallel))).unwrap();
            close(name, &whole, &values(&model));
        });
    }
}

#[test]
fn a_split_model_is_saved_whole() {
    for name in ["llama", "gpt2", "neox"] {
        let [one, many] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        CausalLm::load(&golden_folder(name), &options(None)).unwrap().save(one.path()).unwrap();
        on_ranks(2, Transport::Shared, |model_parallel| {
            let model = CausalLm::load(&golden_folder(name), &options(Some(model_parallel))).unwrap();
            assert!(model.parameters()[0].tensor.numel() < model.parameters()[0].num_elements());
            model.save(many.path()).unwrap();
        });
        for file in ["model.safetensors", "config.json"] {
            let read = |folder: &Path| std::fs::read(folder.join(file)).unwrap();
            assert!(read(one.path()) == read(many.path()), "{name}: {file}");
        }
    }
}

#[test]
fn a_new_model_begins_with_the_same_values_however_it_is_split() {
    let config = || models::config::Config::from_folder(&golden_folder("gpt2")).unwrap();
    let values = |model: &CausalLm| -> Vec<Vec<f32>> {
        let whole =
            |parameter: &parallel::Parameter| parameter.placement.full_tensor(&parameter.tensor).unwrap();
        model.parameters().iter().map(|parameter| flat(&whole(parameter))).collect()
    };
    let whole = values(&CausalLm::random(config(), 5, &options(None)).unwrap());
    on_ranks(2, Transport::Shared, |model_parallel| {
        assert!(whole == values(&CausalLm::random(config(), 5, &options(Some(model_parallel))).unwrap()));
    });
}

/// What each rank sends for a step of the golden GPT-2: two layers, 12 tokens, width 24, four heads of 6.
fn sent(mesh: [usize; 2], way: impl Fn(&ProcessGroups) -> ModelParallel + Sync) -> Vec<u64> {
    on_mesh(mesh, Transport::Shared, |groups| {
        let model = CausalLm::load(&golden_folder("gpt2"), &options(Some(&way(groups)))).unwrap();
        let batch = Batch::new(&ROWS, Device::Cpu);
        let bytes = || groups.tensor_parallel().sent_bytes() + groups.sequence_parallel().sent_bytes();
        let before = bytes();
        let forward = ForwardPass::run(&model, &batch, false).unwrap();
        let targets = Tensor::zeros([12], (Kind::Int64, Device::Cpu));
        let loss = head::cross_entropy(forward.hidden(), model.head(), &targets, None).unwrap();
        forward.backward::<parallel::Error>(&loss, &mut |_, _, _| Ok(())).unwrap();
        bytes() - before
    })
}

/// What the planner counts of such a step.
fn planned(axes: &[(Axis, usize)], sequence: SequenceMode) -> u64 {
    let ranks = axes.iter().map(|(_, size)| size).product();
    let layout = Layout { mesh: Mesh::new(axes, 0, ranks).unwrap(), sequence, ..Layout::single() };
    let hidden_bytes = 24.0 * 4.0;
    let block = Part::Block { query_bytes: hidden_bytes, key_bytes: hidden_bytes, routed_bytes: 0.0 };
    let segments = [Part::Embedding, block, block, Part::Head].map(|part| Segment::empty(part, 24.0));
    let model = planner::segment::Model {
        segments: segments.to_vec(),
        hidden_bytes,
        dtype: planner::hardware::Dtype::Float32,
        vocabulary: None,
        partitions: planner::segment::Partitions::default(),
        tied: planner::Divided::default(),
    };
    let rows = planner::segment::RowTokens { tokens: 12.0, squares: 60.0, predicted: 12.0 };
    let traffic = Traffic { model: &model, layout: &layout, rows };
    let of_segment = |segment| traffic.forward(segment).into_iter().chain(traffic.backward(segment));
    model.segments.iter().flat_map(of_segment).map(|exchange| exchange.bytes_sent()).sum::<f64>() as u64
}

#[test]
fn the_planner_counts_what_a_pass_sends() {
    // Beside it are single numbers: the head's log sums and log-probabilities, or the loss.
    let all_reduce = |bytes: u64, ranks: u64| 2 * bytes * (ranks - 1) / ranks;
    for ranks in [2, 4] {
        let of_head = 12 * 4 * (ranks - 1) + all_reduce(12 * 4, ranks);
        let tensor = [(Axis::Tensor, ranks as usize)];
        let mesh = [1, ranks as usize];
        let one = sent(mesh, |groups| ModelParallel::tensor_parallel_only(groups.tensor_parallel()))[0];
        assert_eq!(one, planned(&tensor, SequenceMode::None) + of_head);
        let one = sent(mesh, |groups| sequence_parallel_of(groups, "megatron"))[0];
        assert_eq!(one, planned(&tensor, SequenceMode::Megatron) + of_head);

        let sequence = [(Axis::Sequence, ranks as usize)];
        let one = sent([ranks as usize, 1], |groups| sequence_parallel_of(groups, "ulysses"))[0];
        assert_eq!(one, planned(&sequence, SequenceMode::Ulysses) + all_reduce(4, ranks));
    }
}

#[test]
fn a_pass_over_shared_tokens_sends_as_much_as_the_formulas_say() {
    let (layers, hidden) = (2, 12 * 24 * 4);
    for ranks in [2, 4] {
        let local_bytes = hidden / ranks;
        let all_reduce = |bytes: u64| 2 * bytes * (ranks - 1) / ranks;
        // Each all-reduce of the split model as a gather and a scatter, which together are as much; the head
        // as there. The last gather of the forward pass is there beside the copy into the head.
        let one = sent([1, ranks as usize], |groups| sequence_parallel_of(groups, "megatron"))[0];
        assert_eq!(
            one,
            (4 * layers + 2) * 2 * local_bytes * (ranks - 1) + 12 * 4 * (ranks - 1) + all_reduce(12 * 4)
        );
        // Queries, keys, values and the result exchanged twice a layer; the last hidden states gathered and
        // their gradient scattered; the loss of each rank's rows.
        let one = sent([ranks as usize, 1], |groups| sequence_parallel_of(groups, "ulysses"))[0];
        assert_eq!(
            one,
            layers * 2 * 4 * local_bytes * (ranks - 1) / ranks
                + 2 * local_bytes * (ranks - 1)
                + all_reduce(4)
        );
    }
    // Chunks of 2, 1 and 1 tokens: eight on each of two ranks. Keys and values go round once and back, their
    // gradients home.
    let one = sent([2, 1], |groups| sequence_parallel_of(groups, "ring"))[0];
    let local_bytes = 8 * 24 * 4;
    assert_eq!(one, layers * (1 + 1 + 2) * 2 * local_bytes + 2 * local_bytes + 4);
}

#[test]
fn a_pass_sends_as_much_as_the_formula_says() {
    let sent = sent([1, 4], |groups| ModelParallel::tensor_parallel_only(groups.tensor_parallel()));
    // Hidden states [12, 24] in fp32, summed once by the embedding, four times a block (out of attention and
    // MLP going forward, into them coming back) and once by the head; the head's 12 log sums gathered, and
    // its 12 log-probabilities summed.
    let (ranks, layers) = (4, 2);
    let all_reduce = |bytes: u64| 2 * bytes * (ranks - 1) / ranks;
    let wanted = (4 * layers + 2) * all_reduce(12 * 24 * 4) + 12 * 4 * (ranks - 1) + all_reduce(12 * 4);
    assert_eq!(sent, [wanted; 4]);
}

#[test]
fn a_grown_vocabulary_keeps_its_logits_and_begins_with_their_mean() {
    for name in ["llama", "llama-tied", "gpt2", "opt-after", "bloom"] {
        let old = outcome(&CausalLm::load(&golden_folder(name), &options(None)).unwrap(), false).logits;
        let model = CausalLm::load_resized(&golden_folder(name), 51, &options(None)).unwrap();
        assert_eq!(model.config().vocab_size(), 51);
        let whole = outcome(&model, false);
        for (old, new) in old.chunks(48).zip(whole.logits.chunks(51)) {
            close(name, old, &new[..48]);
            // A head is linear: the logit of the mean row is the mean of the logits.
            let mean = old.iter().sum::<f32>() / 48.0;
            close(name, &[mean; 3], &new[48..]);
        }
        // What is saved has the new size everywhere.
        let folder = tempfile::tempdir().unwrap();
        model.save(folder.path()).unwrap();
        same(name, &whole, &outcome(&CausalLm::load(folder.path(), &options(None)).unwrap(), false));
        on_ranks(2, Transport::Shared, |model_parallel| {
            let model =
                CausalLm::load_resized(&golden_folder(name), 51, &options(Some(model_parallel))).unwrap();
            same(&format!("{name} on 2"), &whole, &outcome(&model, false));
        });
    }
}
