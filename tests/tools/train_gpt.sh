#!/usr/bin/env bash
# Compares runs of train_gpt with each other: 20 steps, and 10 steps that another run continues under another policy,
# save equal files; so does a run that is killed repeatedly. Tokens in llm.c's format are read, and mistakes are
# refused.
#
#   tests/tools/train_gpt.sh BUILD
set -eu
program=$(cd "$1" && pwd)/examples/train_gpt
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"

small="--layers 2 --width 64 --heads 2 --kv-heads 2 --hidden 96 --seq 24 --batch 2 --sample 0 --eval-tokens 48"
small="$small --lr 3e-3"
train() { "$program" $small "$@" >log 2>&1 || { echo "train_gpt $*:"; cat log; exit 1; }; }

# ends STATUS OPTIONS...
ends() {
    local wanted=$1 status=0
    shift
    "$program" $small "$@" >log 2>&1 || status=$?
    [ $status -eq "$wanted" ] || { echo "train_gpt $*: status $status, not $wanted"; cat log; exit 1; }
}

# same NAME OPTIONS -- BEFORE -- AFTER: the options common to the three runs, and those of the two halves
same() {
    local name=$1 common=$2 before=$3 after=$4
    rm -rf run whole halves
    train $common --policy none --steps 20 --save whole
    train $common $before --steps 10 --total-steps 20 --checkpoint run
    train $common $after --steps 20 --resume run --save halves
    grep -q "^going on from step 10 of " log || { echo "$name: did not go on"; cat log; exit 1; }
    cmp whole halves || { echo "$name: not the same bytes"; exit 1; }
    echo "$name: the same bytes"
}

same "GPT-2, f32" "--accum 2 --threads 2" "--policy full" "--policy budget:70%"
same "GPT-2, bf16, graph" "--dtype bf16" "--policy uniform:2 --graph --threads 1" "--policy none --threads 3"
same "Llama, f32" "--preset llama-tiny --optimizer lion" "--policy none" "--policy selective:mlp --graph"
same "Llama, clipped and updated inside" "--graph --preset llama-tiny" "--update-inside --policy full" "--policy none"
same "GPT-2, moments of bf16" "--moments bf16 --threads 2" "--graph --update-inside" "--policy none"
same "Llama, f16, sgd" "--preset llama-tiny --dtype f16 --optimizer sgd --schedule linear" "--policy full" ""
same "GPT-2, f16 updated inside" "--dtype f16 --threads 2" "--graph --update-inside --policy full" ""
same "GPT-2, fp8 of earlier steps" "--dtype fp8 --scaling delayed --accum 2 --threads 2" "--policy full" "--policy none"
same "GPT-2, delayed, updated inside" "--dtype fp8 --scaling delayed" "--graph --update-inside --policy full" ""
same "Llama, fp8 of blocks, graph" "--dtype fp8 --scaling 1x128 --preset llama-tiny" "--policy full --graph" ""

# A step that the scaler skips does not count for the schedule: with weights that are NaN all are skipped.
for graph in "" "--graph"; do
    rm -f left_out.jsonl
    ends 3 --dtype f16 --lr 50 --warmup 0 --clip 1000 --steps 12 --on loss_nonfinite=note --log left_out.jsonl $graph
    python3 - <<'PY'
import json
lines = [line for line in map(json.loads, open("left_out.jsonl")) if "memory" in line]
made = [i for i, line in enumerate(lines) if line["loss"] is not None]
rates = [line["lr"] for line in lines]
assert made and len(made) < 6, f"{len(made)} of 12 losses are numbers"
assert len(set(rates)) == len(made) + 1 and len(set(rates[len(made):])) == 1, rates
PY
done
echo "what is left out is no step of the schedule"

# Some hundred steps reduce the loss, call by call and as a graph; the two have the same steps.
for how in "--policy selective:mlp" "--policy full --graph"; do
    rm -f "long$how.jsonl"
    train --steps 300 --dropout 0 --log "long$how.jsonl" $how
done
python3 - "long--policy selective:mlp.jsonl" "long--policy full --graph.jsonl" <<'PY'
import json, sys
calls, graph = ([x["loss"] for x in map(json.loads, open(path)) if "loss" in x] for path in sys.argv[1:])
last = sum(calls[-50:]) / 50
assert len(calls) == 300 and calls == graph, "not the same losses"
assert 5.4 < calls[0] < 5.7 and 2 < last < 2.9, (calls[0], last)
PY
echo "three hundred steps: from the logarithm of 256 to less than 2.9"

# The time of an evaluation, here of as long as a hundred steps, is not part of the next step's.
train --steps 60 --eval-every 10 --eval-tokens 19200 --log evaluated.jsonl
python3 - <<'PY'
import json, statistics
ms = [x.get("step_ms", 0) for x in map(json.loads, open("evaluated.jsonl")) if "loss" in x]
least = min(ms[10::10])  # the machine may be late once
assert least < 20 * statistics.median(ms[1:]), f"{least} ms behind an evaluation"
PY
echo "an evaluation is no step"

# A run that is killed five times while it saves.
rm -rf run whole halves
train --steps 40 --policy none --save whole
for i in 1 2 3 4 5; do
    "$program" $small --steps 40 --resume run --resume-if-there --checkpoint run --save-every 1 >log 2>&1 &
    pid=$!
    for _ in $(seq 100); do ls run/*.safetensors >/dev/null 2>&1 && break; sleep 0.05; done
    sleep "0.$((i * 7 % 10))"
    kill -9 $pid 2>/dev/null || true
    wait $pid 2>/dev/null || true
done
train --steps 40 --resume run --checkpoint run --save halves
cmp whole halves || { echo "killed: not the same bytes"; exit 1; }
echo "killed five times: the same bytes"

# Weights with Hugging Face's names, converted from a run's own: GPT-2's products transposed, a Llama's q, k and v
# separate.
train --steps 0 --save gpt
train --steps 0 --save llama --preset llama-tiny
python3 - <<'PY'
import json, struct
def read(path):
    data = open(path, 'rb').read()
    n = struct.unpack('<Q', data[:8])[0]
    header = json.loads(data[8:8 + n])
    header.pop('__metadata__', None)
    return {k: (v['shape'], data[8 + n + v['data_offsets'][0]:8 + n + v['data_offsets'][1]]) for k, v in header.items()}
def write(path, tensors):
    header, at = {}, 0
    for k, (shape, data) in tensors.items():
        header[k] = {'dtype': 'F32', 'shape': shape, 'data_offsets': [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    open(path, 'wb').write(struct.pack('<Q', len(text)) + text + b''.join(d for _, d in tensors.values()))
def turned(tensor):
    (rows, columns), data = tensor
    cells = [data[4 * i:4 * i + 4] for i in range(rows * columns)]
    return [columns, rows], b''.join(cells[r * columns + c] for c in range(columns) for r in range(rows))
mine = {'norm1': 'ln_1', 'qkv': 'attn.c_attn', 'proj': 'attn.c_proj', 'norm2': 'ln_2', 'up': 'mlp.c_fc',
        'down': 'mlp.c_proj', 'norm': 'ln_f', 'table': 'wte', 'positions': 'wpe'}
def theirs(name):
    part, end = name.split('.'), '.weight'
    if part[-1] == 'bias': end, part = '.bias', part[:-1]
    layer = f'h.{part[1]}.' if part[0] == 'layer' else ''
    return 'transformer.' + layer + mine[part[-1]] + end
write('gpt.hf', {theirs(k): turned(v) if k.startswith('layer') and len(v[0]) == 2 else v
                 for k, v in read('gpt').items()})
mine = {'norm1': 'input_layernorm', 'proj': 'self_attn.o_proj', 'norm2': 'post_attention_layernorm',
        'gate': 'mlp.gate_proj', 'up': 'mlp.up_proj', 'down': 'mlp.down_proj'}
other = {'table': 'model.embed_tokens.weight', 'norm': 'model.norm.weight', 'head': 'lm_head.weight'}
out = {}
for k, (shape, data) in read('llama').items():
    if k in other:
        out[other[k]] = shape, data
        continue
    _, l, what = k.split('.')
    if what != 'qkv':
        out[f'model.layers.{l}.{mine[what]}.weight'] = shape, data
        continue
    third = len(data) // 3
    for i, name in enumerate('qkv'):
        part = data[i * third:(i + 1) * third]
        out[f'model.layers.{l}.self_attn.{name}_proj.weight'] = [shape[0] // 3, shape[1]], part
write('llama.hf', out)
PY
mkdir -p hf_gpt hf_llama
mv gpt.hf hf_gpt/; mv llama.hf hf_llama/
python3 - <<'PY'
import json
gpt = {'model_type': 'gpt2', 'n_embd': 64, 'n_layer': 2, 'n_head': 2, 'n_inner': 96, 'n_positions': 24,
       'vocab_size': 256, 'layer_norm_epsilon': 1e-5, 'activation_function': 'gelu_new'}
llama = {'model_type': 'llama', 'hidden_size': 64, 'num_hidden_layers': 2, 'num_attention_heads': 2,
         'num_key_value_heads': 2, 'intermediate_size': 96, 'rms_norm_eps': 1e-5, 'vocab_size': 256}
json.dump(gpt, open('hf_gpt/config.json', 'w'))
json.dump(llama, open('hf_llama/config.json', 'w'))
PY
train --steps 0 --seed 7 --load-hf hf_gpt/gpt.hf --save again
cmp gpt again || { echo "GPT-2 as Hugging Face names it: other weights"; exit 1; }
train --steps 0 --seed 7 --preset llama-tiny --load-hf hf_llama/llama.hf --save again
cmp llama again || { echo "Llama as Hugging Face names it: other weights"; exit 1; }
ends 2 --steps 0 --load-hf hf_llama/llama.hf
grep -q '"model_type" is "llama": --preset is a GPT-2' log || { cat log; exit 1; }
cp hf_gpt/config.json hf_llama/ # a config that does not belong to the file is detected when it is read
ends 1 --steps 0 --load-hf hf_llama/llama.hf
grep -q '"wte.weight" is not in the file' log || { cat log; exit 1; }
echo "Hugging Face's names: the same weights"

# 256 words, then tokens of 16 bits.
python3 - <<'PY'
import struct
tokens = [i * i % 300 for i in range(4000)]
head = [20240520, 1, len(tokens)] + [0] * 253
data = struct.pack('<256i', *head) + struct.pack(f'<{len(tokens)}H', *tokens)
open('tokens.bin', 'wb').write(data)
open('cut.bin', 'wb').write(data[:-2])
open('short.bin', 'wb').write(data[:100])
PY
train --data tokens.bin --val tokens.bin --vocab 300 --steps 3 --log steps.jsonl
train --data tokens.bin --val tokens.bin --vocab 300 --steps 2 --log steps.jsonl
python3 - <<'PY'
import json
rows = [x for x in map(json.loads, open('steps.jsonl')) if 'loss' in x]
assert [r['step'] for r in rows] == [0, 1, 2, 0, 1], rows
assert all(r['loss'] > 0 and r['grad_norm'] > 0 and r['memory']['peak'] > 0 and r['alerts'] == [] for r in rows), rows
PY
grep -q "4000 training tokens" log || { cat log; exit 1; }
# With FP8 data, a line and the page have each operand of each product.
train --dtype fp8 --scaling 1x128 --steps 2 --log sites.jsonl --dashboard sites.html
python3 - <<'PY'
import json
sites = json.loads(open('sites.jsonl').readlines()[-2])['sites']
assert {name.split('/')[1] for name in sites} == {'x', 'w', 'dy'} and len(sites) % 3 == 0, sites
assert all(s['amax'] > 0 and s['scale'] > 0 and 0 <= s['flushed'] < 1 and 'model.c:' in s['at']
           for s in sites.values()), sites
PY
grep -q "<tr><td>layer.0.qkv.*/dy</td>" sites.html || { echo "the page has no sites"; exit 1; }
train --dtype fp8 --steps 60 --dashboard sites.html
grep -Eq "<td>(site_scale_drop|site_scale_rise|flushed): layer.[01].[a-z]*/" sites.html ||
    { echo "the page does not say which operand"; exit 1; }

# The small trainer prints its progress, and draws it.
"${program%train_gpt}train_text" --quick --steps 12 --log text.jsonl --dashboard text.html >log 2>&1
grep -q "^step   10 of 12  loss .* 0:0[0-9] left$" log && [ "$(grep -c "\"memory\"" text.jsonl)" -eq 12 ] &&
    grep -q "\"validation_loss\"" text.jsonl && grep -q "class='validation'" text.html &&
    grep -q "aria-label='loss'" text.html && grep -q "ended 20" text.html || { cat log; exit 1; }

# refused OPTIONS...: with status 2 and a line with the reason
refused() {
    local status=0
    "$program" $small "$@" >log 2>&1 || status=$?
    [ $status -eq 2 ] && grep -q "train_gpt" log || { echo "not refused, status $status: $*"; cat log; exit 1; }
}
# A run that diverges repeatedly: each recovery is logged, and so is that it was given up. It depends on rounding
# whether the loss or a gradient overflows first; an update with such gradients makes the next loss NaN.
cp steps.jsonl good.jsonl
status=0
"$program" $small --steps 40 --lr 900 --decay 1000 --on grad_nonfinite=note --log wild.jsonl --good good.jsonl \
    --dashboard page.html --tensorboard tb --prometheus metrics --checkpoint wild --save-every 50 \
    --on loss_nonfinite=roll_back >log 2>&1 || status=$?
[ $status -eq 3 ] && [ "$(grep -c '"recovery":"roll_back"' wild.jsonl)" -eq 10 ] &&
    [ "$(grep -c '"recovery":"stop"' wild.jsonl)" -eq 1 ] && grep -q "rate halved to 450" wild.jsonl &&
    grep -q "rate halved to 0.879" page.html &&
    grep -q "known to be good" page.html && grep -q '^rewind_alerts_total{alert="loss_nonfinite"} 11$' metrics &&
    [ "$(ls tb | wc -l)" -eq 1 ] && [ ! -e page.html.part ] || { echo "gone wrong: status $status"; cat log; exit 1; }
refused --on loss_spike=jump
refused --on spike=stop
refused --on loss_spike=skip --graph
refused --on loss_spike=roll_back
refused --update-inside
# A graph's norms are in its lines and on its page as well.
train --graph --steps 12 --dashboard graph.html
grep -q "^step .* norm [0-9.]* " log || { cat log; exit 1; }
for chart in "loss" "norm of the gradients" "norm of the weights" "update over the weights" "learning rate"; do
    grep -q "aria-label='$chart'" graph.html || { echo "the page of a graph has no $chart"; exit 1; }
done
# A learning rate at which it diverges: the step is reported, and the run ends with status 3.
status=0
"$program" $small --steps 60 --schedule constant --warmup 0 --lr 900 --clip 1e9 --on grad_nonfinite=note \
    --log nan.jsonl >log 2>&1 || status=$?
[ $status -eq 3 ] && grep -q "^step .*loss_nonfinite" log &&
    grep -q " at .*train_gpt/[a-z]*.c:[0-9]*, which reads" log &&
    grep -q '"nonfinite":true' nan.jsonl || { echo "no NaN was found, status $status"; tail -5 log; exit 1; }

# A finite loss whose gradients are not: the op is named, whichever micro-batch it is in, and the update is skipped.
train --steps 0 --preset llama-tiny --save tame
python3 - <<'PY'
import json, struct
data = open('tame', 'rb').read()
n = struct.unpack('<Q', data[:8])[0]
header, body = json.loads(data[8:8 + n]), bytearray(data[8 + n:])
def scale(name, factor):
    begin, end = header[name]['data_offsets']
    numbers = struct.unpack(f'<{(end - begin) // 4}f', body[begin:end])
    body[begin:end] = struct.pack(f'<{len(numbers)}f', *(x * factor for x in numbers))
for name, factor in (('layer.0.norm2', 9e37), ('layer.0.up', 1e-37), ('layer.0.gate', 1e-37), ('head', 3e3)):
    scale(name, factor)
open('overflows', 'wb').write(data[:8 + n] + body)
scale('layer.0.norm2', 2)
open('hides', 'wb').write(data[:8 + n] + body)
PY
overflows="--preset llama-tiny --load overflows --dropout 0"
train $overflows --accum 2 --steps 2 --log left_out.jsonl --save untouched
named="of linear in block/mlp at .*model.c:[0-9]*, computed by matmul_add, which reads"
[ "$(grep -c "^gradient: .* $named" log)" -eq 2 ] &&
    [ "$(grep -c '"recovery":"skip","alerts":\["grad_nonfinite"' left_out.jsonl)" -eq 2 ] || { cat log; exit 1; }
cmp overflows untouched || { echo "an update that was to be left out"; exit 1; }
for weights in tame overflows; do # the search for it draws no random number
    train --preset llama-tiny --load $weights --dropout 0.01 --accum 2 --steps 1 --checkpoint looked_$weights
    head -c 3000 looked_$weights/*.safetensors | grep -ao '"rewind.generator":"42 [0-9]*"' >drawn_$weights
done
grep -q "^gradient: " log && ! grep -q "another loss" log && cmp drawn_tame drawn_overflows ||
    { cat log drawn_*; exit 1; }
for what in note lower; do # then the weights are not finite either, which stops it
    status=0
    lowered=$([ $what = lower ] && echo 1 || echo 0)
    "$program" $small $overflows --steps 2 --on grad_nonfinite=$what --log $what.jsonl >log 2>&1 || status=$?
    [ $status -eq 3 ] && [ "$(grep -c '"recovery":"lower"' $what.jsonl)" -eq "$lowered" ] &&
        [ "$(grep -c '"recovery":"stop"' $what.jsonl)" -eq 1 ] || { echo "$what: status $status"; cat log; exit 1; }
done
grep -q '"step":0,"recovery":"lower","alerts":\["grad_nonfinite"\],"note":"rate halved to 0.0015"' lower.jsonl &&
    grep -q '"step":1,.*"lr":0.000825,' lower.jsonl && grep -q '"step":1,.*"lr":0.00165,' note.jsonl ||
    { cat lower.jsonl note.jsonl; exit 1; }
status=0
"$program" $small $overflows --graph --steps 2 >log 2>&1 || status=$?
[ $status -eq 3 ] && grep -q "grad_nonfinite" log || { echo "a graph went on, status $status"; cat log; exit 1; }
# The FP8 data of an infinity are finite: neither the loss nor the norm shows it.
train --preset llama-tiny --load hides --dtype fp8 --accum 2 --steps 1 --log hides.jsonl
grep -q "^step *0  amax_nonfinite: loss [0-9.]*, norm [0-9.]*$" log &&
    grep -q "^forward value: -*inf, .* by rmsnorm in block at .*model.c:[0-9]*, which reads" log ||
    { cat log; exit 1; }
echo "gradients that are no numbers: found, and left out"
# For f16 the scale is logged, and which updates it has skipped.
for how in "" --graph; do
    rm -f scaled.jsonl
    train --dtype f16 --steps 8 --lr 0.5 --clip 1000 --schedule constant --log scaled.jsonl $how
    python3 - <<'PY'
import json
steps = [x for x in map(json.loads, open('scaled.jsonl')) if 'loss' in x]
assert any(s.get('skipped') for s in steps) and not all(s.get('skipped') for s in steps), steps
for a, b in zip(steps, steps[1:]):
    assert ('grad_nonfinite' in a['alerts']) == a.get('skipped', False), a
    assert b['loss_scale'] == a['loss_scale'] / (2 if a.get('skipped') else 1), (a, b)
PY
done

# Settings that a resumed run does not share with the one before are reported, or refused.
rm -rf run
train --steps 2 --checkpoint run
train --steps 3 --resume run --total-steps 2
grep -q "other bytes\|schedule goes on" log && { echo "the same run was taken for another"; cat log; exit 1; }
seq 5000 >text
for other in "--heads 1 --kv-heads 1" "--layers 1"; do
    refused --steps 3 --resume run --total-steps 2 $other
done
for other in "--seed 3" "--data text" "--dtype fp8"; do
    train --steps 3 --resume run --total-steps 2 $other
    grep -q "these are other bytes" log || { echo "taken for the same run: $other"; cat log; exit 1; }
done
train --steps 3 --resume run --lr 1
grep -q "schedule goes on, not the one asked for now: a rate of 0.003 to 0.0003 over 2" log || { cat log; exit 1; }
refused --steps 3 --dashboard /nowhere/page.html
refused --steps 3 --checkpoint /nowhere/run
refused --steps 3 --checkpoint log

refused --data cut.bin --vocab 300
refused --data short.bin --vocab 300
refused --data tokens.bin --vocab 200
refused --data /nowhere
refused --dtype fp9
refused --scaling mx
refused --moments f16
refused --moments bf16 --optimizer lion
refused --dtype fp8 --scaling 3
refused --preset gpt5
refused --steps 1.5
refused --heads 3
refused --graph --accum 2
refused --nonsense
refused surplus
echo "tokens and mistakes: as they should be"
