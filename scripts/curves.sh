#!/usr/bin/env bash
# Loss curves of one training run in float32, bfloat16 and FP8, with the same seed and data: 1,000 steps of train_gpt, a
# GPT with the sizes of the sweep's small preset. Writes FILE: the commands, the loss of every 25th step as a mean of
# 25, the validation losses, and the difference of the last one from float32's.
#
#   scripts/curves.sh BUILD FILE
set -eu
program=$(cd "$1" && pwd)/examples/train_gpt
sizes="--layers 6 --width 256 --heads 8 --kv-heads 8 --hidden 1024 --seq 256"
options="$sizes --batch 4 --steps 1000 --threads 1 --policy none --eval-tokens 32768 --eval-every 1000 --sample 0"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
kinds=("f32" "bf16" "fp8" "fp8 --scaling delayed")
for i in 0 1 2 3; do
    "$program" $options --dtype ${kinds[$i]} --log "$dir/$i.log" >"$dir/$i.txt" 2>&1 ||
        { tail -n 3 "$dir/$i.txt"; exit 1; }
done
python3 - "$dir" "$options" "${kinds[@]}" >"$2" <<'PY'
import json, sys
folder, options, kinds = sys.argv[1], sys.argv[2], sys.argv[3:]
losses, last = [], []
for i in range(len(kinds)):
    losses.append([x['loss'] for x in map(json.loads, open(f'{folder}/{i}.log')) if 'loss' in x])
    last.append(float([line for line in open(f'{folder}/{i}.txt') if 'validation loss' in line][-1].split()[-1]))
for kind in kinds: print(f'train_gpt {options} --dtype {kind}')
names = [kind.replace(' --scaling ', ' ') for kind in kinds]
print('\n' + 'step'.rjust(6) + ''.join(name.rjust(14) for name in names))
for at in range(0, len(losses[0]), 25):
    print(str(at + 25).rjust(6) + ''.join(f'{sum(x[at:at + 25]) / 25:14.4f}' for x in losses))
print('\nvalidation' + ''.join(f'{name}: {x:.4f}'.rjust(24) for name, x in zip(names, last)))
for name, x in zip(names[1:], last[1:]):
    off = abs(x - last[0]) / last[0]
    print(f'final loss of {name} off float32\'s, {off:.4g} of it, at most 0.01, {"met" if off <= 0.01 else "missed"}')
PY
tail -n 3 "$2"
