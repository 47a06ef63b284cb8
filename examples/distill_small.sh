#!/usr/bin/env bash
# Both stages in full for LoLCATs and LAWCAT on the small teacher, and what they then know: ten minutes of one CPU thread a student.
# Everything lands in $OUT.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${OUT:-build-output/small}
teacher=${TEACHER:-examples/teacher}
export HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1

for spec in ${SPECS:-lolcats lawcat}; do
    compose build "examples/$spec-small.yaml" --from "$teacher" -o "$out/$spec" --force
    compose distill "$out/$spec" --data stories,samples=1500 --data passkey,samples=4000 --data recall,samples=1200 \
        -o "$out/$spec-distilled" --force
    students+=("$out/$spec-distilled")
done
compose eval "$teacher" "${students[@]}" --tasks stories,passkey,recall --lengths 256,512,1024 --samples 100 -o "$out/scores" --force
