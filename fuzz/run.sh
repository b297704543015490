#!/bin/sh
# Runs every fuzz target for SECONDS each (default 60), with the seeds that the program itself makes.
# Needs cargo-fuzz (`cargo install cargo-fuzz`). A panic, an abort, a hang of 10 s or more than 1 GiB ends it with an error.
set -eu
cd "$(dirname "$0")/.."
seconds=${SECONDS_EACH:-60}
targets=${TARGETS:-jsonl parquet template safetensors codes config_json tokenizer_json gguf}
export LD_LIBRARY_PATH="$PWD/.libtorch/lib"
export RUSTC_BOOTSTRAP=1    # cargo-fuzz asks for instrumentation that the stable compiler has behind this switch

seeds=$(mktemp -d)
trap 'rm -rf "$seeds"' EXIT
program=$PWD/target/release/colossal-chat
"$program" data synth --out "$seeds/world" --train 20 --preferences 10 --prompts 10 --pretraining 10 --heldout 5 \
    --heldout-preferences 5 2> /dev/null
"$program" data tokenizer "$seeds/world/text.parquet" --vocab-size 300 --out "$seeds/tokenizer" 2> /dev/null
cat > "$seeds/config.json" <<'END'
{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 300, "hidden_size": 8, "intermediate_size": 16,
 "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64,
 "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": true}
END
"$program" model init "$seeds/config.json" --tokenizer "$seeds/tokenizer" --out "$seeds/model" 2> /dev/null
"$program" model export "$seeds/model" --gguf "$seeds/model.gguf" 2> /dev/null
# The rows of a matrix have to be a multiple of 32 to become blocks, and a seed may have 64 KiB.
sed 's/"hidden_size": 8, "intermediate_size": 16/"hidden_size": 32, "intermediate_size": 32/' "$seeds/config.json" > "$seeds/wide.json"
"$program" model init "$seeds/wide.json" --tokenizer "$seeds/tokenizer" --out "$seeds/wide" 2> /dev/null
for dtype in q8_0 bf16; do
    "$program" model export "$seeds/wide" --gguf "$seeds/wide-$dtype.gguf" --dtype "$dtype" 2> /dev/null
done
for kind in nf4 int8; do
    "$program" model quantize "$seeds/wide" --quantize "$kind" --out "$seeds/$kind" 2> /dev/null
done

for target in $targets; do
    corpus=fuzz/corpus/$target
    mkdir -p "$corpus"
    case $target in
        parquet) cp "$seeds"/world/*.parquet "$corpus" ;;
        jsonl) cp fuzz/seeds/*.jsonl "$corpus" ;;
        template) cp fuzz/seeds/*.jinja "$corpus" ;;
        safetensors) cp "$seeds/model/model.safetensors" "$corpus" ;;
        codes) for kind in nf4 int8; do cp "$seeds/$kind/model.safetensors" "$corpus/$kind"; done ;;
        config_json) cp "$seeds/model/config.json" fuzz/seeds/*.config.json "$corpus" ;;
        gguf) cp "$seeds"/*.gguf "$corpus" ;;
        tokenizer_json) cp "$seeds/tokenizer/tokenizer.json" "$corpus" ;;
    esac
    echo "== $target, $seconds s"
    cargo fuzz run --fuzz-dir fuzz --sanitizer none "$target" -- \
        -max_total_time="$seconds" -timeout=10 -rss_limit_mb=1024 -max_len=65536 -print_final_stats=1
done
