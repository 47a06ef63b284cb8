#!/usr/bin/env bash
# From YAML to generated text: two papers, one teacher, four commands each. Everything lands in $OUT.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${OUT:-build-output}
teacher=examples/teacher
export HF_HUB_OFFLINE=1

run() {
    printf '\n$ %s\n' "$*"
    "$@"
}

for spec in lawcat lolcats; do
    run compose build "specs/$spec.yaml" --from "$teacher" -o "$out/$spec" --force
    run compose explain "specs/$spec.yaml" --from "$teacher" --seq 4096
    run compose verify "$out/$spec"
    run compose generate "$out/$spec" --prompt "once upon a time" --max-new-tokens 24
done

cat <<'TEXT'

The fresh parameters of these students are untrained: they hold the teacher's weights and compute attention their own way, so
what they write is not yet the teacher's. Training them is what the recipe in each spec is for.
TEXT
