#!/usr/bin/env python3
"""tools/linear_times, on results written by hand. usage: linear_times.py [unittest argument ...]"""
import json
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def line(run, **more):
    return {'id': run, 'device': 'a GPU', 'dtypes': {'weight': 'bf16'}, 'claim': {'variant': 'sml'},
            'params': {'out_features': 4000, 'in_features': 2500, 'tokens': 2}, **more}


class LinearTimes(unittest.TestCase):
    def table(self, *lines):
        with tempfile.NamedTemporaryFile('w', suffix='.jsonl') as file:
            file.write(''.join(json.dumps(each) + '\n' for each in ({'format': 1}, *lines)))
            file.flush()
            done = subprocess.run([ROOT / 'tools/linear_times', file.name, '--beside', 'none'], capture_output=True, text=True)
        return done.returncode, done.stdout.splitlines(), done.stderr.replace(file.name, 'FILE')

    def test_has_a_line_for_each_run_of_skinny_gemm_that_was_timed(self):
        code, out, err = self.table(
            line('skinny_gemm/bench/bench/model=m,layer=o,tokens=2/normal/auto:compute_units=2', device_ns=9e4, device_ns_median=5e4),
            line('skinny_gemm/edges/one/normal/sml', device_ns=4e4, claim={}),
            line('skinny_gemm/edges/two/normal/sml', verdict='SKIP'),
            line('gqa_av/llm/one/normal/gqa', device_ns=1e4))
        # 4000 * 2500 * 2 bytes: 20 MB, in 50 us 400 GB/s, in 40 us 500
        self.assertEqual((0, '', ['etalon on a GPU', '', '| matrix | M x K | N | etalon | us | GB/s |', '|---|---|---|---|---|---|',
                                  '| m o | 4000 x 2500 | 2 | auto:compute_units=2 (sml) | 50.0 | 400 |',
                                  '| one | 4000 x 2500 | 2 | sml | 40.0 | 500 |']), (code, err, out))

    def test_says_where_there_is_none(self):
        self.assertEqual((1, [], 'linear_times: FILE has no run of skinny_gemm with a time\n'),
                         self.table(line('skinny_gemm/edges/two/normal/sml')))


if __name__ == '__main__':
    unittest.main()
