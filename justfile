# `just` lists these.
default:
    @just --list

# The product: two models profiled on this machine.
run *args:
    cargo run --release -- {{args}}

# Everything that must pass.
ci:
    .ci/run

# Format, lints, tests.
check:
    cargo fmt --all
    cargo clippy --workspace --all-targets -- -D warnings
    cargo test --workspace

# One example: `just example mlp`.
example name:
    cargo run --release -p schwann --example {{name}}

# Time something: `just bench ops --filter gemm`, `just bench circuits`.
bench *args:
    cargo run --release -- bench {{args}}

# The documentation, opened.
doc:
    cargo doc --workspace --no-deps --open

# Licences, duplicates and advisories of dependencies.
deny:
    cargo deny check
