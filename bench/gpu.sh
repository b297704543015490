#!/bin/sh
# Everything that a GPU of NVIDIA has to prove, each step with a time limit of its own, into one JSON file.
#
#     bench/gpu.sh --binary FILE --tests FILE [--torch DIR] [STEP...]     on a machine with a GPU
#     bench/gpu.sh --stand-in [STEP...]                                   here, on the accelerator of the tests
#
# CONTRIBUTING.md says where the two files come from. A failed step does not end the others. A second call for
# other steps adds them to the same file, and with the same --work it uses the models that the first one has made.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
all="doctor parity stages ranks nccl budgets zero decode sft-1b sft-1b-budget peers ppo-4x1b kernels sft-8b"

usage() {
    cat <<USAGE
usage: bench/gpu.sh [OPTION...] [STEP...]
  --stand-in      run on the accelerator of the tests, with tiny models
  --binary FILE   the colossal-chat to test, which may be an .xz (default: target/release/colossal-chat)
  --tests FILE    the integration tests, likewise (default: the newest target/release/deps/integration-*)
  --torch DIR     the folder lib of torch 2.11 for CUDA 13 (default: that of \`python3 -c 'import torch'\`)
  --name NAME     write bench/results/gpu-NAME.json (default: the name of the GPU)
  --out FILE      write this file instead
  --commit REV    the commit of the two programs (default: that of this folder)
  --work DIR      keep models and logs here (default: a temporary folder)
  --minutes N     start no step after so many minutes (default: 25)
steps: $all
USAGE
}

fail() {
    echo "gpu.sh: $1" >&2
    exit 2
}

# ---- steps: each runs in a process of its own, in $work, and writes to its log

program() { LD_PRELOAD=$accelerator "$binary" "$@"; }

train() { # STAGE OUT DEVICE SETTING...
    stage=$1 out=$2 device=$3
    shift 3
    for setting in "$@"; do
        shift
        set -- "$@" --set "$setting"
    done
    program "$stage" --config "life/$stage/run.toml" --set out="$out" --device "$device" --set log.every=1 \
        --set checkpoint.every=0 --nproc "${nproc:-1}" "$@"
}

report() { # COMMAND ARGUMENT...: adds figures to those of this step
    verb=$1
    shift
    python3 "$here/gpu.py" "$verb" "$figures" "$@"
}

tests() { # FILTER ARGUMENT...
    COLOSSAL_TEST_DEVICE=$ranks_device COLOSSAL_TEST_BINARY=$binary "$integration" --nocapture --test-threads "$threads" "$@" \
        2>&1 | tee tests.log
    grep -q '^test result: ok. [1-9]' tests.log
}

model() { # NAME: a model of this shape with random weights, made once
    test ! -d "model-$1" || return 0
    python3 "$here/gpu.py" tokenizer life/tokenizer "$here/gpu/$1.json" "tokenizer-$1"
    program model init "$here/gpu/$1.json" --tokenizer "tokenizer-$1" --out "model-$1"
}

life() { # a pipeline on the CPU: tokenizer, rows, and the models of every stage
    test -d life/ppo/final || program pipeline --config "$here/gpu/pipeline.toml" --set out=life --set model.device=cpu
}

rows() { # LENGTH COUNT: rows of token ids that count upwards
    awk -v length_="$1" -v count="$2" 'BEGIN { for (row = 0; row < count; row++) { printf "{\"input_ids\": ["
        for (at = 0; at < length_; at++) printf "%s%d", at ? ", " : "", (row * 37 + at * (row % 7 + 1)) % 290
        print "]}" } }' >"rows-$1.jsonl"
}

step_doctor() {
    program doctor >doctor.txt
    cat doctor.txt
    test "$stand_in" = yes || ! grep -q '^GPU *none' doctor.txt
}

step_parity() {
    tests device:: --skip device::every_budget --skip device::ranks_that_share_a_model_have --skip device::zero_ \
        --skip device::a_device_that_is_not_there
}

step_budgets() { tests device::every_budget device::ranks_that_share_a_model_have; }

step_zero() { tests device::zero_; }

step_nccl() {
    test "$stand_in" = no || return 77 # a GPU and its NCCL
    tests nccl::
    ! grep -q '^skipped' tests.log
}

step_stages() {
    for name in cpu "$device"; do
        rm -rf "stages-$name"
        program pipeline --config "$here/gpu/pipeline.toml" --set "out=stages-$name" --set "model.device=$name"
    done
    bad=0
    for stage in base sft rm ppo; do
        report compare "$stage" "stages-cpu/$stage" "stages-$device/$stage" --tolerance 1e-3 || bad=1
    done
    return $bad
}

step_ranks() {
    life
    bad=0
    for stage in sft rm ppo; do
        train "$stage" "ranks-1-$stage" cpu train.eps=1e-4
        nproc=2
        train "$stage" "ranks-2-$stage" "$ranks_device" train.eps=1e-4 "parallel.transport='gloo'"
        nproc=1
        report compare "$stage, two ranks over Gloo" "ranks-1-$stage" "ranks-2-$stage" --tolerance 1e-3 || bad=1
    done
    return $bad
}

step_decode() {
    life
    model "$small"
    for batch in $batches; do
        decode "batch $batch" --batch "$batch" --new "$new"
    done
    # A few tokens in fp32, which hardly round: the peer must have the same ones.
    decode "batch $exact_batch, fp32" --batch "$exact_batch" --new "$exact_new" --dtype float32 --rounds 0
}

decode() { # NAME OPTION...
    name=$1
    shift
    report decode "$name" "$binary" "model-$small" "$device" --preload "$accelerator" "$@"
}

sft() { # NAME MODEL SETTING...: a few steps of SFT in bf16
    name=$1 shape=$2
    shift 2
    life
    model "$shape"
    rows "$row" 64
    rm -rf "$name"
    train sft "$name" "$device" "model.path='model-$shape'" "model.dtype='bfloat16'" "data.train=['rows-$row.jsonl']" \
        "data.max_length=$row" data.shuffle=false train.steps=8 train.lr=1e-5 train.eps=1e-8 "train.scheduler='constant'" \
        "train.micro_batch_size=$micro" "$@"
    report training "$name" "$name" "model-$shape"
    rm -rf "$name/final"
}

step_sft_1b() { sft sft-1b "$small"; }

step_sft_1b_budget() {
    test -f sft-1b/metrics.jsonl || sft sft-1b "$small"
    sft sft-1b-budget "$small" "gemini.device_memory='$small_budget'" train.activation_checkpointing=true
    report compare "within $small_budget" sft-1b sft-1b-budget --tolerance 5e-2
}

step_peers() {
    python3 -c 'import torch, transformers as peer; torch.cuda.init(); print("transformers", peer.__version__)' || return 77
    test -f sft-1b/metrics.jsonl || sft sft-1b "$small"
    test -f "replies-$exact_batch-float32.jsonl" || step_decode
    report peers "$binary" "model-$small" sft-1b "rows-$row.jsonl" --micro "$micro" --exact-batch "$exact_batch" --batches $batches
}

step_kernels() { # the time of each kernel of a step of decoding and of SFT, by CUPTI
    cupti=$(find -L "$torch/../.." /usr/local/cuda -name cupti.h 2>/dev/null | head -n 1)
    library=$(find -L "$torch/../.." /usr/local/cuda -name 'libcupti.so.1[3-9]' 2>/dev/null | head -n 1)
    command -v cc && test -n "$cupti" -a -n "$library" || return 77
    cc -shared -fPIC -I "$(dirname "$cupti")" -I /usr/local/cuda/include "$here/gpu/kernels.c" -o libkernels.so "$library"
    ln -sf "$library" lib/
    life
    model "$small"
    accelerator=./libkernels.so KERNELS_OUT=decode.tsv
    export KERNELS_OUT
    decode "batch 1, with the profiler" --batch 1 --new "$new"
    KERNELS_OUT=sft.tsv
    sft sft-kernels "$small"
    for run in decode sft; do
        report kernels "$run" "$run.tsv" >>kernels.txt
    done
}

step_ppo_4x1b() {
    life
    model "$small"
    rm -rf reward ppo-4x1b
    train rm reward "$device" "model.path='model-$small'" "model.dtype='bfloat16'" train.steps=2
    train ppo ppo-4x1b "$device" "model.path='model-$small'" "model.dtype='bfloat16'" "ppo.reward_model='reward/final'" \
        "gemini.device_memory='$ppo_budget'" "ppo.rollout_batch_size=$rollout" "ppo.rollout_micro_batch_size=$rollout" \
        "ppo.mini_batch_size=$rollout" ppo.epochs=1 "ppo.max_new_tokens=$reply" ppo.iterations=3 train.micro_batch_size=4 \
        train.activation_checkpointing=true train.lr=1e-6
    report training ppo-4x1b ppo-4x1b
    rm -rf reward ppo-4x1b/final
}

step_sft_8b() {
    sft sft-8b "$large" "gemini.device_memory='$large_budget'" train.activation_checkpointing=true train.steps=4
    rm -rf "model-$large"
}

limit_of() { # STEP: its seconds
    case $1 in
        doctor | nccl) echo 60 ;;
        parity) echo 420 ;;
        budgets | zero | ppo-4x1b | peers) echo 300 ;;
        sft-8b) echo 540 ;;
        *) echo 180 ;;
    esac
}

# ---- what the steps need

unpacked() { # FILE NAME: the path of a program, unpacked if need be
    case $1 in
        *.xz)
            python3 -c 'import lzma, shutil, sys; shutil.copyfileobj(lzma.open(sys.argv[1]), open(sys.argv[2], "wb"))' "$1" "$work/$2"
            chmod +x "$work/$2"
            echo "$work/$2"
            ;;
        *) readlink -f "$1" ;;
    esac
}

find_torch() {
    if [ -z "$torch" ]; then
        torch=$(python3 -c 'import os, torch; print(os.path.dirname(torch.__file__) + "/lib")' 2>/dev/null) ||
            fail "python3 has no torch: name its folder lib with --torch"
    fi
    for library in libtorch_cpu.so libtorch_cuda.so; do
        test -f "$torch/$library" || fail "$torch has no $library: --torch names the folder lib of torch 2.11 for CUDA 13"
    done
    # Where the file is missing, this is a libtorch without Python.
    version=$(sed -n "s/^__version__ = '\(.*\)'/\1/p" "$torch/../version.py" 2>/dev/null || true)
    case $version in
        2.11.* | "") ;;
        *) fail "$torch is torch $version, and this program is built for 2.11" ;;
    esac
    # NCCL is looked up by a name that Python's package does not have.
    mkdir -p "$work/lib"
    for nccl in "$torch"/../../nvidia/nccl/lib/libnccl.so.2 "$torch"/libnccl.so.2 "$torch"/cuda/libnccl.so.2; do
        test ! -f "$nccl" || ln -sf "$(readlink -f "$nccl")" "$work/lib/libnccl.so"
    done
    LD_LIBRARY_PATH="$torch:$work/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
    export LD_LIBRARY_PATH
}

prepare_gpu() {
    device=cuda ranks_device=cuda:0 threads=4 small=1b large=8b row=2048 new=128 batches="1 32 256" exact_batch=32 exact_new=32
    micro=4 reply=128 rollout=32
    small_budget=14GiB
    command -v nvidia-smi >/dev/null || fail "there is no nvidia-smi: this machine has no GPU of NVIDIA, use --stand-in"
    mebibytes=$(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits | head -n 1)
    ppo_budget=$((mebibytes / 2))MiB large_budget=$((mebibytes * 85 / 100))MiB
    find_torch
}

prepare_stand_in() {
    device=mps ranks_device=mps threads=1 small=tiny large=tiny row=128 new=8 batches="1 4" exact_batch=4 exact_new=4
    micro=4 reply=8 rollout=8
    small_budget=8MiB ppo_budget=16MiB large_budget=8MiB
    accelerator=$(ls -t "$root"/target/release/build/accelerator-*/out/libaccelerator.so 2>/dev/null | head -n 1)
    test -n "$accelerator" || fail "the accelerator is not built: run cargo test --release -p colossal-chat --test integration --no-run"
}

# ---- the command line

stand_in=no accelerator= binary= integration= torch= name= out= commit= work= minutes=25 steps= inside=
while [ $# -gt 0 ]; do
    case $1 in
        --stand-in) stand_in=yes ;;
        -h | --help) usage && exit ;;
        --binary | --tests | --torch | --name | --out | --commit | --work | --minutes | --inside)
            test $# -gt 1 || fail "$1 needs a value"
            case $1 in
                --binary) binary=$2 ;;
                --tests) integration=$2 ;;
                --torch) torch=$2 ;;
                --name) name=$2 ;;
                --out) out=$2 ;;
                --commit) commit=$2 ;;
                --work) work=$2 ;;
                --minutes) minutes=$2 ;;
                --inside) inside=$2 ;;
            esac
            shift
            ;;
        -*) fail "no option $1: see bench/gpu.sh --help" ;;
        *)
            case " $all " in
                *" $1 "*) steps="$steps $1" ;;
                *) fail "no step $1: there are $all" ;;
            esac
            ;;
    esac
    shift
done
case $minutes in '' | *[!0-9]*) fail "--minutes is $minutes, and must be a number" ;; esac

: "${binary:=$root/target/release/colossal-chat}"
: "${integration:=$(ls -t "$root"/target/release/deps/integration-* 2>/dev/null | grep -v '\.' | head -n 1)}"
test -f "$binary" || fail "there is no program $binary: build it, or name it with --binary"
test -f "$integration" || fail "there are no integration tests ${integration:-in target/release/deps}: build them, or name them with --tests"
command -v python3 >/dev/null || fail "there is no python3, which writes the results"
: "${work:=$(mktemp -d)}"
mkdir -p "$work"
work=$(cd "$work" && pwd)
binary=$(unpacked "$binary" colossal-chat) integration=$(unpacked "$integration" integration)
if [ "$stand_in" = yes ]; then prepare_stand_in; else prepare_gpu; fi

if [ -n "$inside" ]; then
    cd "$work"
    figures=$work/$inside.figures
    "step_$(echo "$inside" | tr - _)"
    exit
fi

out=$(python3 "$here/gpu.py" machine --out "$out" --name "$name" --stand-in "$stand_in" --torch "${version:-}" --root "$root" \
    --commit "$commit")
end=$(($(date +%s) + minutes * 60))
set -- --binary "$binary" --tests "$integration" --work "$work"
test "$stand_in" = no || set -- "$@" --stand-in
test -z "$torch" || set -- "$@" --torch "$torch"
for step in ${steps:-$all}; do
    started=$(date +%s)
    limit=$(limit_of "$step")
    test $((end - started)) -ge "$limit" || limit=$((end - started))
    rm -f "$work/$step.figures"
    rc=0
    if [ "$limit" -le 0 ]; then
        rc=124
        echo "no time was left of the $minutes minutes" >"$work/$step.log"
    else
        echo "gpu.sh: $step" >&2
        timeout -k 10 "$limit" "$0" "$@" --inside "$step" >"$work/$step.log" 2>&1 || rc=$?
    fi
    python3 "$here/gpu.py" record "$out" "$step" "$rc" "$(($(date +%s) - started))" "$limit" "$work"
done
test ! -f "$work/kernels.txt" || mv "$work/kernels.txt" "${out%.json}-kernels.txt"
python3 "$here/gpu.py" summary "$out" ${steps:-$all}
