#!/usr/bin/env python3
"""What other libraries call causal or a window, in flash_attn's params: docs/operators/flash_attn.md, a test a row.

Each convention is written down as its library defines it, and decides key by key. The case beside it has q = 0 and V the
unit matrix: the output is 1 / n at each of the n keys that a row sees, 0 at the others, and both the oracle and the port
must have it. Usage, skipping and exit status: as of cli.py.
"""
import json
import re
import sys
import unittest

import cli

PAGE = cli.ROOT / 'docs/operators/flash_attn.md'
# Query rows and keys: fewer, more, as many; and what whole steps of 32 keys end in.
SHAPES = ((5, 17), (17, 5), (7, 7), (1, 12), (3, 70), (40, 33))
SIZES = (1, 2, 3, 4, 7, 16, 32, 33)
CAUSAL = {'causal': 'bottom_right'}


def convention(there):
    """Marks a test as that of the page's row."""

    def mark(test):
        test.there = there
        return test
    return mark


def at_the_end(queries, keys, i):
    """Positions of libraries that think of the query rows as the last ones of the context."""
    return i + keys - queries


def case(name, queries, keys, params, seen, **more):
    """seen(i, j): whether row i sees key j."""
    rows = [[bool(seen(i, j)) for j in range(keys)] for i in range(queries)]
    unit = [float(i == j) for i in range(keys) for j in range(keys)]
    out = [1 / sum(row) if there else 0 for row in rows for there in row]
    return {'name': f'{name}-{queries}-{keys}',
            'params': {'q_heads': 1, 'kv_heads': 1, 'head_dim': 1, 'v_head_dim': keys, 'query_length': queries,
                       'kv_length': keys, **params},
            'data': {'q': {'constant': 0}, 'v': {'values': unit}, **more.pop('data', {})},
            'expect': {'out': {'values': out}}, **more}


def masked(name, queries, keys, seen):
    """The same as a mask, for what no flags can say."""
    values = [0 if seen(i, j) else '-inf' for i in range(queries) for j in range(keys)]
    return case(name, queries, keys, {'mask': 'data'}, seen, data={'mask': {'values': values}})


class Windows(unittest.TestCase):
    def holds(self, cases):
        path = cli.fresh() / 'windows.json'
        path.write_text(json.dumps({'format': 1, 'operator': 'flash_attn', 'cases': cases,
                                    'defaults': {'dtypes': {'k': 'f16', 'v': 'f16'}}}))
        ran = cli.judged(path)
        self.assertEqual(0, ran.code, ran.out + ran.err)
        self.assertEqual(len(cases), len(ran.of))
        for id, line in ran.of.items():
            self.assertEqual('PASS', line['verdict'], id)
            self.assertEqual('held', line['checks']['expect']['outcome'], id)

    def test_every_row_of_the_page_has_a_test(self):
        part = re.search(r'^## What others call a window\n(.*?)^## ', PAGE.read_text(), re.M | re.S).group(1)
        rows = [line.split(' | ')[0].strip('| ') for line in part.splitlines() if line.startswith('| ')]
        tested = [test.there for name in dir(self) if hasattr(test := getattr(self, name), 'there')]
        self.assertEqual(sorted(rows[1:]), sorted(tested))

    @convention('HF `sliding_window=W`, causal')
    def test_hf_sliding_window(self):
        def seen(W, p, j):
            return j > p - W and j <= p
        self.holds([case(f'w{W}', q, k, {**CAUSAL, 'window': W}, lambda i, j: seen(W, at_the_end(q, k, i), j))
                    for q, k in SHAPES for W in SIZES])

    @convention('HF `sliding_window=W`, bidirectional')
    def test_hf_bidirectional_window(self):
        self.holds([case(f'w{W}', q, k, {'window': W + 1, 'window_right': W},
                         lambda i, j: abs(at_the_end(q, k, i) - j) <= W) for q, k in SHAPES for W in SIZES])

    @convention('HF `attention_chunk_size=n`, causal')
    def test_hf_chunks(self):
        def seen(n, p, j):
            return j // n == p // n and j <= p
        self.holds([masked(f'n{n}', q, k, lambda i, j: seen(n, at_the_end(q, k, i), j))
                    for q, k in SHAPES for n in SIZES])

    @convention('llama.cpp `STANDARD`, n_swa = n, causal')
    def test_llama_standard(self):
        def is_masked(n, p, j):
            return p - j >= n or j > p
        self.holds([case(f'n{n}', q, k, {**CAUSAL, 'window': n}, lambda i, j: not is_masked(n, at_the_end(q, k, i), j))
                    for q, k in SHAPES for n in SIZES])

    @convention('llama.cpp `STANDARD`, n_swa = n, not causal')
    def test_llama_standard_not_causal(self):
        self.holds([case(f'n{n}', q, k, {'window': n}, lambda i, j: not at_the_end(q, k, i) - j >= n)
                    for q, k in SHAPES for n in SIZES])

    @convention('llama.cpp `CHUNKED`, n_swa = n, causal')
    def test_llama_chunked(self):
        def is_masked(n, p, j):
            # Positions are not negative there; C divides towards 0.
            return p < 0 or j < p // n * n or j > p
        self.holds([masked(f'n{n}', q, k, lambda i, j: not is_masked(n, at_the_end(q, k, i), j))
                    for q, k in SHAPES for n in SIZES])

    @convention('llama.cpp `SYMMETRIC`, n_swa = n')
    def test_llama_symmetric(self):
        def is_masked(n, p, j):
            half = n // 2
            return p - j < -half or p - j > half
        self.holds([case(f'n{n}', q, k, {'window': n // 2 + 1, 'window_right': n // 2},
                         lambda i, j: not is_masked(n, at_the_end(q, k, i), j)) for q, k in SHAPES for n in SIZES])

    @staticmethod
    def of_flash_attn(q, k, left, right, causal):
        """Keys [i + k - q - left, i + k - q + right], -1: without end; causal: right is 0."""
        right = 0 if causal else right
        low = (lambda i: 0) if left < 0 else lambda i: i + k - q - left
        high = (lambda i: k - 1) if right < 0 else lambda i: i + k - q + right
        return lambda i, j: low(i) <= j <= high(i)

    @convention('flash-attn `window_size=(l, r)`')
    def test_flash_attn(self):
        self.holds([case(f'l{left}r{right}'.replace('-', 'm'), q, k, {'window': left + 1, 'window_right': right},
                         self.of_flash_attn(q, k, left, right, False))
                    for q, k in SHAPES for left in (-1, 0, 1, 15, 32) for right in (-1, 0, 2, 31)])

    @convention('flash-attn `window_size=(l, r), causal=True`')
    def test_flash_attn_causal(self):
        self.holds([case(f'l{left}r{right}'.replace('-', 'm'), q, k, {**CAUSAL, 'window': left + 1},
                         self.of_flash_attn(q, k, left, right, True))
                    for q, k in SHAPES for left in (-1, 0, 1, 15, 32) for right in (-1, 0, 3)])

    @convention('gpt-oss `sliding_window=W`')
    def test_gpt_oss(self):
        """-Inf above the diagonal, and in the lower triangle from diagonal -W on; of the whole square the last rows."""
        def is_masked(W, row, column):
            return column - row >= 1 or column - row <= -W
        self.holds([case(f'w{W}', q, k, {**CAUSAL, 'window': W}, lambda i, j: not is_masked(W, k - q + i, j))
                    for q, k in SHAPES if q <= k for W in (*SIZES, 128)])

    @convention('PyTorch `is_causal=True`, `causal_upper_left`')
    def test_pytorch_is_causal(self):
        """tril(ones(q, k))."""
        self.holds([case('q', q, k, {'causal': 'top_left'}, lambda i, j: j - i <= 0)
                    for q, k in SHAPES])

    @convention('PyTorch `causal_lower_right`')
    def test_pytorch_lower_right(self):
        """tril(ones(q, k), diagonal=k - q)."""
        self.holds([case('q', q, k, CAUSAL, lambda i, j: j - i <= k - q) for q, k in SHAPES])

    @convention('ONNX `Attention` `is_causal=1`, no cache')
    def test_onnx_without_cache(self):
        self.holds([case('q', q, k, {'causal': 'top_left'}, lambda i, j: j <= i + 0) for q, k in SHAPES])

    @convention('ONNX `Attention` `is_causal=1`, `past_key` of n')
    def test_onnx_with_past(self):
        """Keys are the n cached ones and those of the block."""
        self.holds([case(f'n{past}', q, past + q, CAUSAL, lambda i, j: j <= i + past)
                    for q in (1, 5, 33) for past in (0, 1, 12, 32)])

    @convention('ONNX `Attention` `is_causal=1`, `nonpad_kv_seqlen` = n')
    def test_onnx_with_a_cache_outside(self):
        """Of a cache of 40 n are there: kv_length; the offset may be negative."""
        self.holds([case(f'n{n}', q, n, CAUSAL, lambda i, j: j <= i + n - q and j < n,
                         layout={'k': {'pad': {'kv_length': [0, 40 - n]}}, 'v': {'pad': {'kv_length': [0, 40 - n]}}})
                    for q in (1, 5, 20) for n in (3, 17, 33)])

    @convention('oneDNN Graph, implicit causal mask')
    def test_onednn(self):
        self.holds([case('q', q, k, {'causal': 'top_left'}, lambda i, j: i >= j) for q, k in SHAPES])

    @convention('no window: 0, -1 or absent')
    def test_no_window(self):
        self.holds([case('q', q, k, {'window': 0, 'window_right': -1}, lambda i, j: True) for q, k in SHAPES])


if __name__ == '__main__':
    sys.exit(cli.main())
