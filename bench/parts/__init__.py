"""The parts of the benchmark. Each module has `run(bench)`, which returns rows of the table."""
