#!/usr/bin/env python3
"""gdn_postconv's oracle against a NumPy definition in float64, on 200 geometries drawn by lot. usage: gdn_numpy.py ORACLE

Written from docs/operators/gdn_postconv.md, not from ref/gdn_postconv.c. Exit status 77 without NumPy."""
import pathlib
import struct
import subprocess
import sys

try:
    import numpy as np
except ImportError:
    print('NumPy is missing')
    sys.exit(77)

GEOMETRIES = 200
F32, F16, BF16 = 0, 1, 2  # enum et_dtype


def stored(x, kind):
    """x as the type has it, bf16 by dropping bits: (bytes, values)."""
    if kind == F16:
        half = x.astype(np.float16)
        return half.tobytes(), half.astype(np.float64)
    single = x.astype(np.float32)
    if kind == BF16:
        bits = single.view(np.uint32) >> 16
        return bits.astype(np.uint16).tobytes(), (bits << 16).astype(np.uint32).view(np.float32).astype(np.float64)
    return single.tobytes(), single.astype(np.float64)


def norm(x, eps):
    return x / np.sqrt(np.square(x).sum(axis=-1, keepdims=True) + eps)


def definition(conv, a, b, a_log, dt_bias, heads, eps, scale_q):
    tokens = conv.shape[0]
    k_heads, v_heads, k_dim, v_dim = heads
    q, k, v = np.split(conv, [k_heads * k_dim, 2 * k_heads * k_dim], axis=1)
    q = norm(q.reshape(tokens, k_heads, k_dim), eps)
    k = norm(k.reshape(tokens, k_heads, k_dim), eps)
    if scale_q:
        q = q * k_dim ** -0.5
    x = a + dt_bias
    softplus = np.where(x > 20, x, np.logaddexp(0, x))
    return [q, k, v.reshape(tokens, v_heads, v_dim), -np.exp(a_log) * softplus, 1 / (1 + np.exp(-b))]


def off(got, want):
    """The largest difference, in units of its row's largest value."""
    scale = np.abs(want).max(axis=-1, keepdims=True)
    return (np.abs(got - want) / np.where(scale > 0, scale, 1)).max()


def main():
    lot = np.random.default_rng(20)
    source = (pathlib.Path(__file__).resolve().parent.parent / 'ref/dtype.h').read_text()
    assert 'ET_F32, ET_F16, ET_BF16,' in source, 'the order of enum et_dtype'
    problems, requests = [], b''
    for _ in range(GEOMETRIES):
        tokens = int(lot.integers(1, 9))
        heads = tuple(int(lot.integers(1, most)) for most in (7, 9, 150, 70))
        k_heads, v_heads, k_dim, v_dim = heads
        eps, scale_q = float(lot.choice([1e-6, 1e-5, 1e-3])), int(lot.integers(2))
        kind, gate = int(lot.integers(3)), int(lot.choice([F32, BF16]))
        size = 2 * k_heads * k_dim + v_heads * v_dim
        conv = lot.standard_normal((tokens, size)) * 10.0 ** lot.integers(-4, 2, size=(tokens, 1))
        gates = (tokens, v_heads)
        raw = [stored(conv, kind), stored(lot.standard_normal(gates) * 12, gate), stored(lot.standard_normal(gates) * 12, gate),
               stored(lot.standard_normal(v_heads) - 2, F32), stored(lot.standard_normal(v_heads) * 0.1, F32)]
        requests += struct.pack('<8qd', tokens, k_heads, v_heads, k_dim, v_dim, scale_q, kind, gate, eps)
        requests += b''.join(data for data, _ in raw)
        problems.append((heads, definition(*(values for _, values in raw), heads, float(np.float32(eps)), scale_q)))

    done = subprocess.run([sys.argv[1]], input=requests, capture_output=True, check=False)
    if done.returncode != 0:
        sys.exit(done.stderr.decode())
    got = np.frombuffer(done.stdout)
    at, worst = 0, dict.fromkeys(('q', 'k', 'v', 'g', 'beta'), 0.0)
    for _, outputs in problems:
        for name, want in zip(worst, outputs):
            part = got[at:at + want.size].reshape(want.shape)
            at += want.size
            worst[name] = max(worst[name], off(part, want))
    print(f'{GEOMETRIES} geometries, {at} values:', ', '.join(f'{name} {x:.2g}' for name, x in worst.items()))
    if at != got.size or not all(x <= 1e-12 for x in worst.values()) or worst['v'] != 0:
        sys.exit('not within 1e-12 of the rows\' largest values')


if __name__ == '__main__':
    main()
