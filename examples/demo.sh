#!/usr/bin/env bash
# From YAML to generated text: two papers, one teacher, four commands each. Everything lands in $OUT.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${OUT:-build-output}
teacher=${TEACHER:-examples/teacher}
export HF_HUB_OFFLINE=1

run() {
    local argument
    printf '\n$'
    for argument in "$@"; do
        if [[ $argument == *' '* ]]; then printf ' "%s"' "$argument"; else printf ' %s' "$argument"; fi
    done
    printf '\n'
    "$@"
}

for spec in lawcat lolcats; do
    run compose build "specs/$spec.yaml" --from "$teacher" -o "$out/$spec" --force
    run compose explain "specs/$spec.yaml" --from "$teacher" --seq 4096
    run compose verify "$out/$spec"
    run compose generate "$out/$spec" --prompt "once upon a time" --max-new-tokens 24
done

cat <<'TEXT'

The fresh parameters of these students are untrained. They carry the teacher's weights, but compute attention in their own way: the
LoLCATs student says what its teacher says until its window of 64 tokens overflows, the LAWCAT student never does. Training
them is what the recipe in each spec is for.
TEXT
