#!/usr/bin/env bash
# From YAML to a distilled model: two papers, one teacher, a minute or two of training each. Everything lands in $OUT.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${OUT:-build-output}
teacher=${TEACHER:-examples/teacher}
export HF_HUB_OFFLINE=1 OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}

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
    run compose build "examples/$spec-quick.yaml" --from "$teacher" -o "$out/$spec" --force
    run compose explain "examples/$spec-quick.yaml" --from "$teacher" --seq 4096
    run compose generate "$out/$spec" --prompt "once upon a time" --max-new-tokens 24
    run compose calibrate "$out/$spec" --data stories,samples=200 -o "$out/$spec-calibrated" --force
    run compose generate "$out/$spec-calibrated" --prompt "once upon a time" --max-new-tokens 24
    run compose distill "$out/$spec" --data stories,samples=1000 -o "$out/$spec-distilled" --force
    run compose verify "$out/$spec-distilled"
    run compose generate "$out/$spec-distilled" --prompt "once upon a time" --max-new-tokens 24
done

cat <<'TEXT'

Each student began with the teacher's weights and untrained heads, which write no text that makes sense or little. calibrate computes a
start from a few thousand tokens, without training: the second text is readable. Then the heads learned the teacher's attention, and the
whole student the stories, for a minute. The losses above are those of stories that it had not seen, before and after, beside the
teacher's.
LoLCATs weighs the error of its attention by 1,000, as its paper does, so its losses of transfer have other sizes than LAWCAT's.
The recipes in full, with passkeys and recall, and scores: examples/distill_small.sh, ten minutes a student.
TEXT
