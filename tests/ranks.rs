//! Several processes: the same numbers as one, and a clear end when one of them fails.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use serde_json::Value;

use parallel::c10d::{Secret, Store};

use crate::harness::{SECRET, Scratch, Stranger, children, free_port, names, signal};
use crate::training::{back_to_step, copied, life, whole_ppo};

/// The numbers of a safetensors file in fp32, by tensor.
fn weights(path: &Path) -> Vec<(String, Vec<f32>)> {
    let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: serde_json::Map<String, Value> = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let tensors = header.iter().filter(|(name, _)| *name != "__metadata__");
    tensors
        .map(|(name, tensor)| {
            let place = |index: usize| tensor["data_offsets"][index].as_u64().unwrap() as usize;
            let data = &bytes[8 + length + place(0)..8 + length + place(1)];
            (
                name.clone(),
                data.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect(),
            )
        })
        .collect()
}

/// The largest difference between two files of weights.
pub(crate) fn worst(left: &Path, right: &Path) -> f32 {
    let (left, right) = (weights(left), weights(right));
    assert_eq!(left.len(), right.len());
    let pairs = left.iter().flat_map(|(name, values)| {
        let other = &right.iter().find(|(other, _)| other == name).unwrap().1;
        assert!(other.iter().all(|value| value.is_finite()), "{name}");
        values.iter().zip(other).map(|(left, right)| (left - right).abs())
    });
    pairs.fold(0.0, f32::max)
}

pub(crate) fn column(scratch: &Scratch, folder: &str, name: &str) -> Vec<f64> {
    let rows = scratch.read(&format!("{folder}/metrics.jsonl"));
    rows.lines().map(|row| serde_json::from_str::<Value>(row).unwrap()[name].as_f64().unwrap()).collect()
}

/// A stage on several processes ends as it does on one: losses and weights within 1e-5 after twenty steps.
///
/// Adam divides a gradient by its own size, so one that is zero but for rounding would move a weight by as
/// much as any other: an `eps` above the rounding keeps it still.
pub(crate) fn equals_one_process(stage: &str, metrics: &[&str], ways: &[(usize, &str)]) {
    equals_one_process_with(stage, &[], metrics, ways);
}

/// The same, with more settings.
pub(crate) fn equals_one_process_with(stage: &str, more: &[&str], metrics: &[&str], ways: &[(usize, &str)]) {
    let scratch = copied();
    let length = if stage == "ppo" { "ppo.iterations=5" } else { "train.steps=20" };
    let micro = if stage == "ppo" {
        "--set train.micro_batch_size=2"
    } else {
        "--set train.micro_batch_size=2 --set train.gradient_accumulation_steps=4"
    };
    let run = |processes: usize, settings: &str| {
        let out = format!("{stage}-{processes}-{}", settings.replace([' ', '\''], "-"));
        let mesh = settings.split_whitespace().map(|setting| format!(" --set parallel.{setting}"));
        let sets: String = more.iter().map(|setting| format!(" --set {setting}")).chain(mesh).collect();
        let sets = format!("--set {length} --set train.eps=1e-4 {micro} --set out={out}{sets}");
        scratch.run(&format!("{stage} --config life/{stage}/run.toml --nproc {processes} {sets}")).succeeds();
        out
    };
    let alone = run(1, "");
    for &(processes, settings) in ways {
        let out = run(processes, settings);
        for metric in metrics {
            let (one, many) = (column(&scratch, &alone, metric), column(&scratch, &out, metric));
            assert_eq!(one.len(), many.len());
            for (one, many) in one.iter().zip(&many) {
                assert!(
                    (one - many).abs() < 1e-5 * one.abs().max(1.0),
                    "{out}: {metric} {many}, alone {one}"
                );
            }
        }
        let difference = worst(&weight_file(&scratch, &alone), &weight_file(&scratch, &out));
        assert!(difference < 1e-5, "{out}: weights differ by {difference}");
    }
}

/// The file with what a run has trained: a model, or an adapter.
fn weight_file(scratch: &Scratch, out: &str) -> PathBuf {
    let file = |name: &str| scratch.path(&format!("{out}/final/{name}"));
    let adapter = file("adapter_model.safetensors");
    if adapter.exists() { adapter } else { file("model.safetensors") }
}

#[test]
fn sft_on_several_processes_equals_sft_on_one() {
    equals_one_process("sft", &["loss", "grad_norm", "tokens"], &[(2, ""), (3, ""), (2, "transport=gloo")]);
}

#[test]
fn sft_of_a_split_model_equals_sft_on_one() {
    let ways = [(2, "tensor.size=2"), (4, "tensor.size=2 transport=gloo"), (4, "tensor.size=4")];
    equals_one_process("sft", &["loss", "grad_norm", "tokens"], &ways);
}

#[test]
fn sft_of_layers_on_several_processes_equals_sft_on_one() {
    let ways = [
        (2, "pipeline.size=2"),
        (2, "pipeline.size=2 pipeline.schedule='gpipe'"),
        (2, "pipeline.size=2 pipeline.schedule='interleaved'"),
        (2, "pipeline.size=2 pipeline.schedule='zb-h1'"),
        (2, "pipeline.size=2 pipeline.schedule='zb-v' transport=gloo"),
        (4, "pipeline.size=2 tensor.size=2 sequence.mode='megatron'"),
    ];
    equals_one_process("sft", &["loss", "grad_norm", "tokens"], &ways);
}

#[test]
fn sft_of_split_rows_equals_sft_on_one() {
    let ways = [
        (2, "tensor.size=2 sequence.mode='megatron'"),
        (2, "sequence.mode='ulysses' sequence.size=2"),
        (2, "sequence.mode='ring' sequence.size=2"),
        (4, "sequence.mode='ring' sequence.size=2 transport=gloo"),
    ];
    equals_one_process("sft", &["loss", "grad_norm", "tokens"], &ways);
}

#[test]
fn a_reward_model_on_several_processes_equals_that_of_one() {
    equals_one_process(
        "rm",
        &["loss", "grad_norm", "accuracy", "tokens"],
        &[
            (2, ""),
            (4, "transport=gloo"),
            (2, "tensor.size=2"),
            (4, "tensor.size=2 sequence.mode='ulysses' sequence.size=2"),
            (4, "pipeline.size=2 pipeline.schedule='zb-h1'"),
        ],
    );
}

#[test]
fn ppo_on_several_processes_equals_ppo_on_one() {
    let metrics = ["objective/scores", "objective/kl", "loss/value_avg", "grad_norm", "response_length/mean"];
    equals_one_process(
        "ppo",
        &metrics,
        &[
            (2, ""),
            (3, "transport=gloo"),
            (2, "tensor.size=2"),
            (4, "tensor.size=2 sequence.mode='ring' sequence.size=2"),
            (4, "pipeline.size=2"),
        ],
    );
}

#[test]
fn grpo_on_several_processes_equals_grpo_on_one() {
    let sets = ["ppo.advantage_estimator=grpo", "ppo.rollout_batch_size=3", "ppo.samples_per_prompt=4"];
    let metrics = ["objective/scores", "objective/kl", "loss", "grad_norm", "response_length/mean"];
    // Three processes share the prompts evenly; two cut a group of replies in the middle.
    equals_one_process_with("ppo", &sets, &metrics, &[(2, ""), (3, ""), (2, "tensor.size=2")]);
}

#[test]
fn a_run_resumes_on_another_mesh() {
    let file = "life/sft/final/model.safetensors";
    let forget = |scratch: &Scratch| {
        for gone in ["final", "checkpoints/step-4", "checkpoints/step-6"] {
            std::fs::remove_dir_all(scratch.path(&format!("life/sft/{gone}"))).unwrap();
        }
    };
    for mesh in [" --set parallel.tensor.size=2", " --set parallel.pipeline.size=2", ""] {
        let scratch = copied();
        forget(&scratch);
        scratch.run(&format!("sft --config life/sft/run.toml --resume --nproc 2{mesh}")).succeeds();
        assert!(worst(&scratch.path(file), &life().path(file)) < 1e-5, "{mesh}");
        // What that mesh has saved, goes on by itself.
        forget(&scratch);
        let alone = "--set parallel.tensor.size=1 --set parallel.pipeline.size=1";
        scratch.run(&format!("sft --config life/sft/run.toml --resume {alone}")).succeeds();
        assert!(worst(&scratch.path(file), &life().path(file)) < 1e-5, "{mesh}, then alone");
    }
}

#[test]
fn a_ppo_resumes_on_another_mesh() {
    let scratch = copied();
    whole_ppo(&scratch, "whole");
    let mut out = "whole".to_owned();
    // From the second on, each goes on from what the mesh before it has saved.
    for (number, mesh) in [
        "--nproc 2 --set parallel.tensor.size=2",
        "--nproc 2 --set parallel.pipeline.size=2",
        "--nproc 2",
        "--nproc 1",
    ]
    .iter()
    .enumerate()
    {
        let next = format!("next{number}");
        let status = Command::new("cp").arg("-r").args([scratch.path(&out), scratch.path(&next)]).status();
        assert!(status.unwrap().success());
        back_to_step(if number == 0 { 2 } else { 3 }, &scratch, &next);
        scratch.run(&format!("ppo --config whole/run.toml --resume --set out={next} {mesh}")).succeeds();
        for file in ["final/model.safetensors", "checkpoints/step-4/critic/model.safetensors"] {
            let file = |out: &str| scratch.path(&format!("{out}/{file}"));
            assert!(worst(&file(&next), &file("whole")) < 1e-5, "{mesh}");
        }
        out = next;
    }
}

/// A long run on three processes, once it trains; with the processes of ranks 0 to 2.
fn long_run(scratch: &Scratch) -> (Child, Vec<u32>) {
    let words = "sft --config life/sft/run.toml --nproc 3 --set out=long --set train.steps=1000000 --set checkpoint.every=20";
    let child = scratch.command(&words.split(' ').collect::<Vec<_>>()).spawn().unwrap();
    scratch.wait_for_rows("long/metrics.jsonl", 25);
    let ranks = children(child.id());
    assert_eq!(ranks.len(), 3);
    (child, ranks)
}

#[test]
fn a_rank_that_dies_ends_the_job_and_the_last_checkpoint_resumes() {
    let scratch = copied();
    let (child, ranks) = long_run(&scratch);
    signal("KILL", ranks[1]);
    let started = Instant::now();
    let output = child.wait_with_output().unwrap();
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("rank 1 was ended by signal 9"), "{told}");
    assert_eq!(output.status.code(), Some(1), "{told}");
    for rank in ranks {
        assert!(!Path::new(&format!("/proc/{rank}")).exists(), "rank process {rank} is left");
    }
    let line = "sft --config long/run.toml --resume --nproc 2 --set log.every=1";
    // The schedule of a million steps goes on from the checkpoint: a few of them are enough.
    let words: Vec<&str> = line.split(' ').collect();
    let mut child = scratch.command(&words).spawn().unwrap();
    let before = scratch.read("long/metrics.jsonl").lines().count();
    scratch.wait_for_rows("long/metrics.jsonl", before + 5);
    signal("INT", child.id());
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

#[test]
fn a_rank_that_dies_on_one_machine_ends_the_ranks_of_the_other() {
    let scratch = copied();
    let port = free_port();
    // The log of an earlier run stays, and its last words are not taken for those of this one.
    let earlier = "error: of an earlier run\n";
    std::fs::create_dir(scratch.path("logs1")).unwrap();
    std::fs::write(scratch.path("logs1/rank-1.log"), earlier).unwrap();
    // Both machines are this one. Rank 0 is stopped, so that it hears of the death from its launcher alone.
    let launch = |node: usize| {
        let line = format!(
            "launch --nnodes 2 --node-rank {node} --nproc 1 --master-addr 127.0.0.1 --master-port {port} --logs logs{node} -- \
             sft --config life/sft/run.toml --set out=apart --set train.steps=1000000 --set parallel.pipeline.size=2"
        );
        scratch.command(&line.split(' ').collect::<Vec<_>>()).spawn().unwrap()
    };
    let launchers = [0, 1].map(launch);
    scratch.wait_for_rows("apart/metrics.jsonl", 5);
    let [first, second] = launchers.each_ref().map(|launcher| children(launcher.id())[0]);
    signal("STOP", first);
    signal("KILL", second);
    let started = Instant::now();
    let told = launchers.map(|launcher| {
        let output = launcher.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8_lossy(&output.stderr).into_owned()
    });
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    assert!(told[1].contains("rank 1 was ended by signal 9"), "{}", told[1]);
    assert!(told[0].contains("machine 1: rank 1 was ended by signal 9"), "{}", told[0]);
    assert!(!told.concat().contains(earlier.trim()), "{told:?}");
    assert!(std::fs::read_to_string(scratch.path("logs1/rank-1.log")).unwrap().starts_with(earlier));
    assert!(!Path::new(&format!("/proc/{first}")).exists(), "rank 0 is left");
}

#[test]
fn ctrl_c_ends_every_rank_after_the_same_step() {
    let scratch = copied();
    let (child, ranks) = long_run(&scratch);
    signal("INT", child.id());
    let output = child.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{told}");
    assert!(told.contains("--resume continues from it"), "{told}");
    for rank in ranks {
        assert!(!Path::new(&format!("/proc/{rank}")).exists(), "rank process {rank} is left");
    }
}

#[test]
fn a_launcher_that_is_killed_leaves_no_rank_behind() {
    let scratch = copied();
    let (mut child, ranks) = long_run(&scratch);
    child.kill().unwrap();
    child.wait().unwrap();
    let started = Instant::now();
    while ranks.iter().any(|rank| Path::new(&format!("/proc/{rank}")).exists()) {
        assert!(started.elapsed() < Duration::from_secs(10), "a rank is left behind");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The ranks of a job that another launcher starts, here by hand.
fn by_hand(scratch: &Scratch, port: u16, lines: &[&str]) -> Vec<(Option<i32>, String)> {
    let children: Vec<Child> = lines
        .iter()
        .enumerate()
        .map(|(rank, line)| {
            let mut command = scratch.command(&line.split(' ').collect::<Vec<_>>());
            for (name, value) in [
                ("RANK", rank.to_string()),
                ("WORLD_SIZE", lines.len().to_string()),
                ("MASTER_ADDR", "127.0.0.1".to_owned()),
                ("MASTER_PORT", port.to_string()),
            ] {
                command.env(name, value);
            }
            command.spawn().unwrap()
        })
        .collect();
    children
        .into_iter()
        .map(|child| {
            let output = child.wait_with_output().unwrap();
            (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
        })
        .collect()
}

#[test]
fn the_variables_of_torchrun_and_a_secret_are_enough() {
    let scratch = copied();
    let line = "sft --config life/sft/run.toml --set out=torchrun";
    for (code, told) in by_hand(&scratch, free_port(), &[line, line]) {
        assert_eq!(code, Some(0), "{told}");
    }
    let file = "final/model.safetensors";
    assert!(
        worst(&scratch.path(&format!("torchrun/{file}")), &life().path(&format!("life/sft/{file}"))) < 1e-5
    );
}

#[test]
fn ranks_with_different_settings_are_refused() {
    let scratch = copied();
    let line = "sft --config life/sft/run.toml --set out=mixed";
    let other = format!("{line} --set train.lr=0.5");
    let ended = by_hand(&scratch, free_port(), &[line, &other]);
    assert_eq!(ended[1].0, Some(2), "{}", ended[1].1);
    assert!(ended[1].1.contains("rank 1 has `train.lr` = 0.5, and rank 0 has 0.001"), "{}", ended[1].1);
    assert_eq!(ended[0].0, Some(2), "{}", ended[0].1);
    assert!(!scratch.path("mixed/final").exists());
}

#[test]
fn ranks_that_would_call_different_collectives_are_refused_before_the_first_one() {
    let scratch = copied();
    let line = "sft --config life/sft/run.toml --set out=mixed";
    for (more, wanted) in [
        ("--set checkpoint.every=1", "rank 1 has `checkpoint.every` = 1"),
        ("--set parallel.tensor.size=2", "rank 1 has `parallel.tensor.size` = 2"),
        ("--set parallel.transport='gloo'", "rank 1 has `parallel.transport` = \"gloo\""),
        ("--resume", "rank 1 has `command.resume` = true, and rank 0 has false"),
    ] {
        let started = Instant::now();
        let ended = by_hand(&scratch, free_port(), &[line, &format!("{line} {more}")]);
        for (code, said) in ended {
            assert_eq!(code, Some(2), "{said}");
            assert!(said.contains(wanted), "{said}");
        }
        assert!(started.elapsed() < Duration::from_secs(10), "{more}");
    }
    // Nobody waits for a rank that cannot take part.
    let started = Instant::now();
    let ended = by_hand(&scratch, free_port(), &[line, &format!("{line} --threads 1000")]);
    assert!(ended[0].1.contains("rank 1: 1000 threads in each of 2 processes"), "{}", ended[0].1);
    assert!(ended.iter().all(|(code, _)| *code == Some(2)), "{ended:?}");
    assert!(started.elapsed() < Duration::from_secs(10));
    // Where the logs lie and how many threads work changes nothing that others hear of.
    let ended = by_hand(&scratch, free_port(), &[line, &format!("{line} --set threads=1")]);
    assert!(ended.iter().all(|(code, _)| *code == Some(0)), "{ended:?}");
}

#[test]
fn a_mesh_that_does_not_fit_the_processes_is_refused() {
    let scratch = copied();
    let line = "sft --config life/sft/run.toml --set out=x --nproc 2 --set parallel.data=3";
    scratch.run(line).fails(2, &["data 3", "but 2 are running"]);
    let line = "sft --config life/sft/run.toml --set out=x --nproc 2 --set parallel.expert.size=2";
    scratch.run(line).fails(2, &["`parallel.expert.size`: 2: no model of this stage has experts"]);
    let line = "sft --config life/sft/run.toml --set out=x --nproc 3 --set parallel.tensor.size=3";
    scratch.run(line).fails(2, &["[parallel.tensor] size = 3", "4 query heads with 2 key-value heads"]);
    for (settings, wanted) in [
        ("sequence.size=2", "`parallel.sequence.size`: 2: needs mode"),
        ("sequence.mode='megatron'", "`parallel.tensor.size`: 1: must be above 1"),
        ("tensor.depth=2", "`parallel.tensor.depth`: 2: has no effect on mode = \"1d\""),
        ("tensor.size=0", "`parallel.tensor.size`: 0: must be at least 1"),
    ] {
        let line = format!("sft --config life/sft/run.toml --set out=x --nproc 2 --set parallel.{settings}");
        scratch.run(&line).fails(2, &[wanted]);
    }
}

#[test]
fn a_plan_says_where_each_process_stands() {
    let scratch = copied();
    let line = "plan sft --config life/sft/run.toml --nproc 8";
    let outcome = scratch.run(&format!("{line} --set parallel.tensor.size=2 --set parallel.pipeline.size=2"));
    let told = outcome.succeeds();
    assert!(told.contains("8 processes: pipeline 2 x data 2 x tensor 2"), "{told}");
    assert!(told.contains("rank 6: pipeline 1, data 1, tensor 0"), "{told}");
    assert!(!scratch.path("x").exists());
    // As data.
    let line = "plan sft --config life/sft/run.toml --nproc 4 --set parallel.pipeline.size=2";
    let text = scratch.run(line);
    assert!(text.succeeds().contains("4 processes: pipeline 2 x data 2"), "{text:?}");
    let plan: Value = serde_json::from_str(scratch.run(&format!("{line} --json")).succeeds()).unwrap();
    assert_eq!(plan["mesh"]["sizes"]["pipeline"], 2);
    assert_eq!(plan["mesh"]["ranks"][3]["pipeline"], 1);
    assert_eq!(plan["mesh"]["ranks"][3]["data"], 1);
    // What the run would refuse, the plan refuses.
    let line = "sft --config life/sft/run.toml --set out=x --dry-run --nproc 3 --set parallel";
    scratch.run(&format!("{line}.tensor.size=3")).fails(2, &["4 query heads with 2 key-value heads"]);
    scratch.run(&format!("{line}.pipeline.size=3 --set parallel.pipeline.chunks=4 --set parallel.pipeline.schedule='interleaved'"))
        .fails(2, &["layers with an embedding and a head in 12 stages"]);
}

#[test]
fn a_port_in_use_is_named() {
    let scratch = copied();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let mut command = scratch.command(&["sft", "--config", "life/sft/run.toml", "--set", "out=x"]);
    for (name, value) in [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1")] {
        command.env(name, value);
    }
    let output = command.env("MASTER_PORT", port.to_string()).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(told.contains(&format!("the ranks cannot meet at 127.0.0.1:{port}")), "{told}");
}

/// Ten seconds, and time for a busy machine to start several processes at once.
const ERROR_DEADLINE: Duration = Duration::from_secs(20);

/// The outcome of rank 1 of a job of two, and of the launcher of its second host, with the store at `host`,
/// and how long both took.
fn second_of_two(host: &str, port: u16) -> ([(Option<i32>, String); 2], Duration) {
    let scratch = copied();
    let started = Instant::now();
    let line = format!(
        "launch --nnodes 2 --node-rank 1 --master-addr {host} --master-port {port} -- sft --config \
         life/sft/run.toml"
    );
    let launcher = scratch.command(&line.split(' ').collect::<Vec<_>>());
    let mut rank = scratch.command(&["sft", "--config", "life/sft/run.toml", "--set", "out=x"]);
    for (name, value) in [("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", host)] {
        rank.env(name, value);
    }
    rank.env("MASTER_PORT", port.to_string());
    let ended = [launcher, rank].map(|mut command| command.spawn().unwrap()).map(|child| {
        let output = child.wait_with_output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    });
    (ended, started.elapsed())
}

#[test]
fn what_is_at_the_address_and_is_no_store_is_named_at_once() {
    std::thread::scope(|scope| {
        for (stranger, wanted) in [
            (Stranger::Silent, "does not answer"),
            (Stranger::Closing, "closes every connection"),
            (Stranger::Http, "answers, but not as a store does"),
        ] {
            scope.spawn(move || {
                let port = stranger.listen();
                let (ended, took) = second_of_two("127.0.0.1", port);
                for (code, told) in ended {
                    assert_eq!(code, Some(2), "{stranger:?}: {told}");
                    assert!(told.contains(&format!("the server at 127.0.0.1:{port} is not the rendezvous store of this job: it {wanted}")), "{told}");
                    assert_eq!(told.lines().count(), 1, "{told}");
                }
                assert!(took < ERROR_DEADLINE, "{stranger:?}: {took:?}");
            });
        }
    });
}

#[test]
fn a_host_that_cannot_be_reached_is_named_at_once() {
    // A listener whose queue is full drops what comes, as a host that is switched off does.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let connect = || std::net::TcpStream::connect_timeout(&address, Duration::from_millis(300)).ok();
    let queue: Vec<_> = std::iter::from_fn(connect).take(10_000).collect();
    assert!(queue.len() < 10_000, "the queue is never full");
    // A name that is too long for a name server, which therefore is not asked.
    let nowhere = "nowhere".repeat(10);
    for (host, port) in [("127.0.0.1", address.port()), (nowhere.as_str(), 1)] {
        let (ended, took) = second_of_two(host, port);
        for (code, told) in ended {
            assert_eq!(code, Some(2), "{told}");
            assert!(told.contains(&format!("{host}:{port} cannot be reached")), "{told}");
        }
        assert!(took < ERROR_DEADLINE, "{took:?}");
    }
}

#[test]
fn ranks_of_no_launcher_of_ours_need_a_secret() {
    let scratch = copied();
    let launch = "launch --nnodes 2 --node-rank 1 --master-addr 127.0.0.1 -- sft --config life/sft/run.toml";
    for (words, value) in [(launch, None), (launch, Some("short")), ("sft --config life/sft/run.toml", None)]
    {
        let mut command = scratch.command(&words.split(' ').collect::<Vec<_>>());
        if !words.starts_with("launch") {
            command.envs([
                ("RANK", "1"),
                ("WORLD_SIZE", "2"),
                ("MASTER_ADDR", "127.0.0.1"),
                ("MASTER_PORT", "1"),
            ]);
        }
        command.env_remove("COLOSSAL_JOB_SECRET").envs(value.map(|value| ("COLOSSAL_JOB_SECRET", value)));
        let output = command.output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert!(told.contains("COLOSSAL_JOB_SECRET") && told.contains("openssl rand -hex 32"), "{told}");
    }
}

/// A stranger who reaches the store at `port` and knows everything but the secret.
fn stranger(port: u16) -> Store {
    Store::connect("127.0.0.1", port, &Secret::random().unwrap(), Duration::from_secs(20)).unwrap()
}

#[test]
fn a_stranger_at_the_store_is_refused_by_name() {
    let scratch = copied();
    let port = free_port();
    let mut command = scratch.command(&["sft", "--config", "life/sft/run.toml", "--set", "out=x"]);
    command.envs([("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1")]);
    let child = command.env("MASTER_PORT", port.to_string()).spawn().unwrap();
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
        std::thread::sleep(Duration::from_millis(20));
    }
    // What rank 1 would say, written by somebody else.
    let host = r#"{"host": "here", "pid": 1, "cores": [0]}"#;
    stranger(port).set("/host/1", host.as_bytes()).unwrap();
    let started = Instant::now();
    let output = child.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("`host` of rank 1 was not written by a rank of this job"), "{told}");
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    assert!(!scratch.path("x").exists());
}

/// The local addresses, as `/proc/net/tcp` writes them, at which something listens on `port`.
fn listening(port: u16) -> Vec<String> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"];
    let text: String = tables.map(|table| std::fs::read_to_string(table).unwrap_or_default()).concat();
    let port = format!(":{port:04X}");
    text.lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|fields| fields.get(3) == Some(&"0A") && fields[1].ends_with(&port))
        .map(|fields| fields[1].trim_end_matches(&port).to_owned())
        .collect()
}

#[test]
fn a_stranger_at_a_running_job_of_one_host_changes_nothing() {
    let scratch = copied();
    let (child, ranks) = long_run(&scratch);
    let environment = std::fs::read_to_string(format!("/proc/{}/environ", ranks[1])).unwrap();
    let value = |name: &str| {
        environment.split('\0').find_map(|entry| entry.strip_prefix(&format!("{name}="))).unwrap().to_owned()
    };
    // The launcher has made the secret by itself.
    assert!(value("COLOSSAL_JOB_SECRET").len() == 64 && value("COLOSSAL_JOB_SECRET") != SECRET);
    let port: u16 = value("MASTER_PORT").parse().unwrap();
    assert_eq!(listening(port), ["0100007F"]);
    let mapped = || {
        ranks
            .iter()
            .map(|rank| {
                std::fs::read_to_string(format!("/proc/{rank}/maps")).unwrap().matches("memfd:").count()
            })
            .sum::<usize>()
    };
    let before = mapped();
    let own = std::process::id();
    let stranger = stranger(port);
    for key in
        ["shared//world/0", "/host/1", "/problem/1", "/start/1", "launcher/failed", "launcher/done/0", "job"]
    {
        stranger.set(key, format!("{own}:0").as_bytes()).unwrap();
    }
    let rows = scratch.read("long/metrics.jsonl").lines().count();
    scratch.wait_for_rows("long/metrics.jsonl", rows + 20);
    assert_eq!(mapped(), before);
    signal("INT", child.id());
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(130));
}

#[test]
fn a_closed_terminal_reaches_the_ranks_and_the_launcher_waits_for_them() {
    if parallel::process::is_signal_ignored(1) {
        eprintln!("skipped: these tests ignore SIGHUP themselves, as under nohup");
        return;
    }
    let scratch = copied();
    let (child, ranks) = long_run(&scratch);
    signal("HUP", child.id());
    let output = child.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    // The launcher tells how its ranks ended, and is not ended itself.
    assert!(output.status.code().is_some(), "{told}");
    for rank in ranks {
        assert!(!Path::new(&format!("/proc/{rank}")).exists(), "rank process {rank} is left");
    }
}

#[test]
fn sigusr1_saves_a_checkpoint_and_the_run_continues() {
    for processes in ["", " --nproc 2"] {
        let scratch = copied();
        let sets = "--set out=long --set train.steps=100000 --set checkpoint.every=0";
        let line = format!("sft --config life/sft/run.toml {sets}{processes}");
        let child = scratch.command(&line.split(' ').collect::<Vec<_>>()).spawn().unwrap();
        scratch.wait_for_rows("long/metrics.jsonl", 3);
        assert!(!scratch.path("long/checkpoints").exists());

        signal("USR1", child.id());
        let rows = scratch.read("long/metrics.jsonl").lines().count();
        scratch.wait_for_rows("long/metrics.jsonl", rows + 20);
        let saved = names(&scratch.path("long/checkpoints"));
        assert!((1..=2).contains(&saved.len()), "{processes}: {saved:?}");

        signal("INT", child.id());
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(130), "{}", String::from_utf8_lossy(&output.stderr));
        let last = names(&scratch.path("long/checkpoints"));
        assert!(last.iter().any(|name| !saved.contains(name)), "{saved:?} {last:?}");
    }
}

#[test]
fn a_launcher_under_nohup_goes_on_when_the_terminal_closes() {
    let scratch = copied();
    let words = "sft --config life/sft/run.toml --nproc 2 --set out=long --set train.steps=1000000";
    let binary = scratch.command(&words.split(' ').collect::<Vec<_>>());
    // A shell starts the background jobs of a script with SIGINT ignored; `kill -INT` still stops the job.
    let mut command = Command::new("sh");
    command
        .args(["-c", "trap '' HUP INT; exec \"$0\" \"$@\""])
        .arg(binary.get_program())
        .args(binary.get_args());
    command.current_dir(binary.get_current_dir().unwrap()).env("HF_HUB_OFFLINE", "1");
    command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::piped());
    let child = command.spawn().unwrap();
    scratch.wait_for_rows("long/metrics.jsonl", 3);
    signal("HUP", child.id());
    let rows = scratch.read("long/metrics.jsonl").lines().count();
    scratch.wait_for_rows("long/metrics.jsonl", rows + 20);
    signal("INT", child.id());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn no_processes_no_threads_and_far_too_many_are_usage_errors() {
    let scratch = copied();
    let cores = parallel::launch::cores();
    let many = 50 * cores;
    let launch = "launch --nnodes 1 --node-rank 0 --master-addr 127.0.0.1";
    for command in [
        "sft --config life/sft/run.toml --set out=x",
        "sft --config life/sft/run.toml --set out=x --dry-run",
        "rm --config life/rm/run.toml --set out=x",
        "ppo --config life/ppo/run.toml --set out=x",
        "pipeline --config life.toml --set out=x",
        "pipeline --config life.toml --set out=x --dry-run",
        "demo --out x",
        "plan sft --config life/sft/run.toml",
        launch,
    ] {
        let tail = if command == launch { " -- sft --config life/sft/run.toml --set out=x" } else { "" };
        scratch.run(&format!("{command} --nproc 0{tail}")).fails(2, &["--nproc", "at least 1"]);
        scratch.run(&format!("{command} --nproc x{tail}")).fails(2, &["--nproc", "a whole number"]);
        scratch.run(&format!("{command} --threads 0{tail}")).fails(2, &["--threads", "at least 1"]);
        if !command.starts_with("plan") {
            let words = format!("use --nproc {cores}, or at most {}", 4 * cores);
            let outcome = scratch.run(&format!("{command} --nproc {many}{tail}"));
            outcome.fails(2, &["--nproc", &format!("{many} processes on {cores} cores"), &words]);
        }
        assert!(!scratch.path("x").exists(), "{command}");
    }
    scratch.run("doctor --threads 0").fails(2, &["--threads", "at least 1"]);
    for command in [
        "sft --config life/sft/run.toml",
        "pipeline --config life.toml",
        "demo --out x",
        "plan sft --config life/sft/run.toml",
    ] {
        scratch.run(&format!("{command} --set threads=0")).fails(2, &["`threads`: 0: must be at least 1"]);
    }
    assert!(!scratch.path("x").exists());
}

#[test]
fn layers_in_two_and_three_dimensions_are_refused_before_anything_is_started() {
    let scratch = copied();
    for mode in ["2d", "2.5d", "3d"] {
        for command in [
            "sft --config life/sft/run.toml --set out=x --nproc 4",
            "sft --config life/sft/run.toml --set out=x --nproc 4 --dry-run",
            "plan sft --config life/sft/run.toml --nproc 4",
            "rm --config life/rm/run.toml --set out=x",
            "pipeline --config life.toml --set out=x --nproc 4",
            "pipeline --config life.toml --set out=x --dry-run",
            "demo --out x --nproc 4",
        ] {
            let line = format!("{command} --set parallel.tensor.size=4 --set parallel.tensor.mode='{mode}'");
            scratch
                .run(&line)
                .fails(2, &["`parallel.tensor.mode`: layers in two and three dimensions are not there yet"]);
        }
    }
    assert!(!scratch.path("x").exists());
}

/// A new model, trained on meshes of several processes, ends as it does on one.
pub(crate) fn new_model_equals_one_process(config: &str, ways: &[(usize, &str)]) {
    let scratch = copied();
    scratch.write("new.json", config);
    scratch.run("model init new.json --tokenizer life/tokenizer --seed 3 --out new").succeeds();
    let run = |out: &str, processes: usize, settings: &str| {
        let sets = "--set model.path=new --set train.steps=20 --set train.eps=1e-4 --set train.micro_batch_size=2 \
                    --set train.gradient_accumulation_steps=4";
        let settings: Vec<String> =
            settings.split_whitespace().map(|setting| format!("--set parallel.{setting}")).collect();
        let line = format!(
            "sft --config life/sft/run.toml {sets} --nproc {processes} --set out={out} {}",
            settings.join(" ")
        );
        scratch.run(line.trim_end()).succeeds();
        scratch.path(&format!("{out}/final/model.safetensors"))
    };
    let alone = run("alone", 1, "");
    for (index, &(processes, settings)) in ways.iter().enumerate() {
        let difference = worst(&alone, &run(&format!("way-{index}"), processes, settings));
        assert!(difference < 1e-5, "{settings}: weights differ by {difference}");
        let size = |out: &str| {
            let plan = scratch.read(&format!("{out}/plan.json"));
            serde_json::from_str::<Value>(&plan).unwrap()["parameters"].clone()
        };
        assert_eq!(size(&format!("way-{index}")), size("alone"), "{settings}");
    }
}

#[test]
fn gpt2_on_several_processes_equals_gpt2_on_one() {
    let config = r#"{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 300, "n_embd": 16, "n_layer": 2,
        "n_head": 2, "n_positions": 128, "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new"}"#;
    let ways = [
        (4, ""),
        (2, "tensor.size=2"),
        (2, "tensor.size=2 sequence.mode='megatron'"),
        (2, "sequence.mode='ring' sequence.size=2"),
        (2, "pipeline.size=2 pipeline.schedule='zb-v'"),
    ];
    new_model_equals_one_process(config, &ways);
}

#[test]
fn experts_on_several_processes_equal_those_on_one() {
    let config = r#"{"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "vocab_size": 300, "hidden_size": 16,
        "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "num_local_experts": 4, "num_experts_per_tok": 2, "max_position_embeddings": 128, "output_router_logits": true,
        "router_aux_loss_coef": 0.02}"#;
    let ways = [
        (2, "expert.size=2"),
        (4, "expert.size=2 transport=gloo"),
        (4, "expert.size=2 tensor.size=2"),
        (4, "expert.size=2 pipeline.size=2"),
        (2, ""),
    ];
    new_model_equals_one_process(config, &ways);
}

/// Two network namespaces with a cable between them; they go away with this.
struct Hosts([String; 2]);

impl Hosts {
    /// None where this system does not let us.
    fn new() -> Option<Self> {
        let hosts = Self([0, 1].map(|host| format!("cc{host}-{}", std::process::id())));
        let [first, second] = &hosts.0;
        let made = hosts.0.iter().all(|host| ip(&format!("netns add {host}")))
            && ip(&format!("link add cable0 netns {first} type veth peer name cable1 netns {second}"));
        made.then(|| {
            for (index, host) in hosts.0.iter().enumerate() {
                assert!(ip(&format!("-n {host} addr add 10.77.0.{}/24 dev cable{index}", index + 1)));
                assert!(
                    ip(&format!("-n {host} link set cable{index} up"))
                        && ip(&format!("-n {host} link set lo up"))
                );
            }
        })?;
        Some(hosts)
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for host in &self.0 {
            ip(&format!("netns del {host}"));
        }
    }
}

fn ip(line: &str) -> bool {
    Command::new("ip").args(line.split(' ')).output().is_ok_and(|output| output.status.success())
}

#[test]
fn two_hosts_that_share_no_network_but_a_cable_equal_one_process() {
    let Some(hosts) = Hosts::new() else {
        eprintln!("skipped: network namespaces need root and `ip`");
        return;
    };
    let scratch = copied();
    let sets = "--set train.steps=20 --set train.eps=1e-4";
    scratch.run(&format!("sft --config life/sft/run.toml {sets} --set out=alone")).succeeds();
    let launched: Vec<Child> = hosts
        .0
        .iter()
        .enumerate()
        .map(|(node, host)| {
            let line = format!(
                "launch --nnodes 2 --node-rank {node} --nproc 2 --master-addr 10.77.0.1 --logs logs{node} -- sft --config \
                 life/sft/run.toml {sets} --set out=cable"
            );
            let binary = scratch.command(&line.split_whitespace().collect::<Vec<_>>());
            let mut command = Command::new("ip");
            command.args(["netns", "exec", host]).arg(binary.get_program());
            // The ranks read their settings anew, and a number of threads is the whole machine's.
            command.args(binary.get_args().skip(2)).current_dir(binary.get_current_dir().unwrap());
            command.env("GLOO_SOCKET_IFNAME", format!("cable{node}")).env("HF_HUB_OFFLINE", "1");
            command.env("COLOSSAL_JOB_SECRET", SECRET);
            command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::piped());
            command.spawn().unwrap()
        })
        .collect();
    for launcher in launched {
        let output = launcher.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let file = |out: &str| scratch.path(&format!("{out}/final/model.safetensors"));
    let difference = worst(&file("alone"), &file("cable"));
    assert!(difference < 1e-5, "weights differ by {difference}");
}
