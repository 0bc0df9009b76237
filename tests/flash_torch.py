#!/usr/bin/env python3
"""flash_attn's oracle against PyTorch's softmax in float64, on 300 problems drawn by lot. usage: flash_torch.py ORACLE

Written from docs/operators/flash_attn.md, not from ref/flash_attn.c. Exit status 77 without PyTorch or NumPy."""
import math
import pathlib
import re
import struct
import subprocess
import sys

try:
    import numpy as np
    import torch
except ImportError as error:
    print(error)
    sys.exit(77)

PROBLEMS = 300
LIMIT = 1e-12
F32, F16, BF16, F8 = 0, 1, 2, 3  # enum et_dtype
NONE, BOTTOM_RIGHT, TOP_LEFT = range(3)
DATA, MATERIALISED = 1, 2


def e4m3(byte):
    exponent, fraction = byte >> 3 & 15, byte & 7
    value = fraction * 2.0 ** -9 if exponent == 0 else (8 + fraction) * 2.0 ** (exponent - 10)
    return -value if byte >> 7 else value


E4M3 = np.array([e4m3(byte) for byte in range(256)])


def stored(x, kind):
    """x as the type has it: (bytes, values). e4m3 takes any bytes that are no NaN and not above 16."""
    if kind == F8:
        patterns = (np.abs(x) * 40).astype(np.int64) % 0x58 | (x < 0).astype(np.int64) << 7
        return patterns.astype(np.uint8).tobytes(), torch.from_numpy(E4M3[patterns])
    kept = torch.from_numpy(x).to((torch.float32, torch.float16, torch.bfloat16)[kind])
    raw = kept.view(torch.int32 if kind == F32 else torch.int16).numpy().tobytes()
    return raw, kept.double()


def visible(p):
    """[Lq, Lkv]: what causal and windows show."""
    i = torch.arange(p['query_length'])[:, None] + (0 if p['causal'] == TOP_LEFT else p['kv_length'] - p['query_length'])
    j = torch.arange(p['kv_length'])[None, :]
    seen = torch.ones(p['query_length'], p['kv_length'], dtype=torch.bool)
    if p['causal'] != NONE:
        seen &= j <= i
    if p['window'] > 0:
        seen &= j > i - p['window']
    if p['window_right'] >= 0:
        seen &= j <= i + p['window_right']
    return seen


def slopes(heads, max_bias):
    n2 = 1 << heads.bit_length() - 1
    m0, m1 = 2.0 ** (-max_bias / n2), 2.0 ** (-max_bias / 2 / n2)
    return torch.tensor([m0 ** (h + 1) if h < n2 else m1 ** (2 * (h - n2) + 1) for h in range(heads)], dtype=torch.float64)


def definition(p, q, k, v, mask, sinks):
    """(out, sum of p |v|), each [B, Lq, Hq, Dv]."""
    k, v = (x.repeat_interleave(p['batch'] // p['kv_batch'], 0).repeat_interleave(p['q_heads'] // p['kv_heads'], 2)
            for x in (k, v))
    scale = float(np.float32(p['scale'] or p['head_dim'] ** -0.5))
    scores = torch.einsum('bihc,bjhc->bhij', q, k) * scale
    if p['softcap'] > 0:
        cap = float(np.float32(p['softcap']))
        scores = cap * torch.tanh(scores / cap)
    if p['mask']:
        mask = mask.repeat(p['batch'] // p['mask_batches'], p['q_heads'] // p['mask_heads'], 1, 1)
        bias = float(np.float32(p['max_bias']))
        scores = scores + (slopes(p['q_heads'], bias)[:, None, None] * mask if bias else mask)
    if p['mask'] != MATERIALISED:
        scores = scores.masked_fill(~visible(p), -math.inf)
    if p['sinks']:
        column = sinks[None, :, None, None].expand(p['batch'], -1, p['query_length'], 1)
        scores = torch.cat([scores, column], -1)
    weights = torch.softmax(scores, -1).nan_to_num(0.0)[..., :p['kv_length']]
    return torch.einsum('bhij,bjhd->bihd', weights, v), torch.einsum('bhij,bjhd->bihd', weights, v.abs())


FIELDS = ('batch', 'kv_batch', 'q_heads', 'kv_heads', 'head_dim', 'v_head_dim', 'query_length', 'kv_length', 'causal', 'window',
          'window_right', 'sinks', 'mask', 'mask_batches', 'mask_heads')


def draw(lot):
    p = {'kv_batch': lot.integers(1, 3), 'kv_heads': lot.integers(1, 5), 'head_dim': lot.integers(1, 130),
         'v_head_dim': lot.integers(1, 130), 'query_length': lot.integers(1, 20), 'kv_length': lot.integers(1, 200),
         'causal': lot.integers(3), 'window': lot.choice([0, lot.integers(1, 60)]),
         'window_right': lot.choice([-1, lot.integers(0, 60)]), 'sinks': lot.integers(2), 'mask': lot.integers(3),
         'mask_batches': 1, 'mask_heads': 1, 'scale': lot.choice([0, 0.3]), 'softcap': lot.choice([0, 0.7, 30]), 'max_bias': 0}
    p['batch'] = p['kv_batch'] * lot.integers(1, 3)
    p['q_heads'] = p['kv_heads'] * lot.integers(1, 8)
    if p['mask']:
        p['mask_batches'] = lot.choice([1, p['batch']])
        p['mask_heads'] = lot.choice([1, p['q_heads'] // p['kv_heads'], p['q_heads']])
        p['max_bias'] = lot.choice([0, 0.3, 8])
    return {name: value.item() if isinstance(value, np.generic) else value for name, value in p.items()}


def main():
    lot = np.random.default_rng(8)
    source = (pathlib.Path(__file__).resolve().parent.parent / 'ref/dtype.h').read_text()
    assert re.search(r'ET_F32, ET_F16, ET_BF16, ET_F8E4M3FN,', source), 'the order of enum et_dtype'
    problems, requests = [], b''
    for _ in range(PROBLEMS):
        p = draw(lot)
        kinds = [int(lot.integers(3)), int(lot.integers(4)), int(lot.integers(4)), int(lot.integers(2))]
        keys = (p['kv_batch'], p['kv_length'], p['kv_heads'])
        shapes = [(p['batch'], p['query_length'], p['q_heads'], p['head_dim']), keys + (p['head_dim'],), keys + (p['v_head_dim'],),
                  (p['mask_batches'], p['mask_heads'], p['query_length'], p['kv_length']) if p['mask'] else (0,)]
        data = [lot.standard_normal(shape) for shape in shapes]
        data[3][lot.random(shapes[3]) < 0.3] = -math.inf
        sinks = lot.standard_normal(p['q_heads']) * 3
        sinks[lot.random(p['q_heads']) < 0.2] = -math.inf
        inputs = [stored(x, kind) for x, kind in zip(data, kinds)] + [stored(sinks[:p['q_heads'] * p['sinks']], F32)]
        requests += struct.pack('<19q3d', *(p[name] for name in FIELDS), *kinds, p['scale'], p['softcap'], p['max_bias'])
        requests += b''.join(raw for raw, _ in inputs)
        problems.append((p, *definition(p, *(values for _, values in inputs))))

    done = subprocess.run([sys.argv[1]], input=requests, capture_output=True, check=False)
    if done.returncode != 0:
        sys.exit(done.stderr.decode())
    got = torch.from_numpy(np.frombuffer(done.stdout).copy())
    at, worst, empty = 0, 0.0, 0
    for p, want, size in problems:
        part = got[at:at + want.numel()].reshape(want.shape)
        at += want.numel()
        off = (part - want).abs() / torch.where(size > 0, size, torch.ones_like(size))
        empty += int((size.sum(-1) == 0).sum())
        if not off.max() <= LIMIT:
            print(f'{float(off.max()):.3g} off: {p}')
        worst = max(worst, float(off.max()))
    print(f'{PROBLEMS} problems, {at} values, {empty} rows that see nothing: {worst:.2g} of sum p |v|')
    if at != got.numel() or not worst <= LIMIT:
        sys.exit(f'not within {LIMIT} of PyTorch')


if __name__ == '__main__':
    main()
