# The two commands of the README are `make demo` and `make test`. Each fetches libtorch by itself the first time.

CARGO ?= cargo
DEMO_DIR ?= colossal-demo
SEED ?= 1
DEVICE ?=

.PHONY: demo test build libtorch check clean

demo: build
	target/release/colossal-chat demo --out $(DEMO_DIR) --seed $(SEED)

# Every crate is tested, even after one has failed; the command fails in the end.
test: libtorch
	$(CARGO) test --release --workspace --no-fail-fast

build: libtorch
	$(CARGO) build --release --bin colossal-chat

# Sets `.libtorch`, the link that .cargo/config.toml points the build at. DEVICE=cuda adds the libraries for GPUs.
libtorch:
	@DEVICE=$(DEVICE) python3 setup/libtorch.py

check: libtorch
	$(CARGO) fmt --all --check
	$(CARGO) clippy --release --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --release --workspace --no-deps

clean:
	$(CARGO) clean
