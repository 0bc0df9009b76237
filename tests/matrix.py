#!/usr/bin/env python3
"""tools/matrix: PoCL, Oclgrind and rusticl give the same bytes, and what it must tell of it tells.

usage: matrix.py ETALON        exits 77 where Oclgrind or PoCL is not installed
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
ETALON = sys.argv[1]
OCLGRIND = pathlib.Path('/usr/lib/oclgrind/liboclgrind-rt-icd.so')
POCL = pathlib.Path('/etc/OpenCL/vendors/pocl.icd')
RUN = 'gqa_av/llm/smoke/normal/gqa'


def matrix(*arguments, **env):
    return subprocess.run([sys.executable, ROOT / 'tools/matrix', '--etalon', ETALON, '--no-fetch', *arguments],
                          env={**os.environ, **env}, stdin=subprocess.DEVNULL, capture_output=True, text=True)


class Matrix(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = pathlib.Path(tempfile.mkdtemp(prefix='etalon matrix-'))
        cls.addClassCleanup(shutil.rmtree, cls.scratch)
        cls.whole = matrix('--only', 'pocl', '--only', 'rusticl', '--only', 'oclgrind', '-o', cls.scratch / 'results')

    def edited(self, edit):
        """PoCL's results with the line of RUN and the header changed."""
        path = self.scratch / 'edited.jsonl'
        lines = [json.loads(line) for line in (self.scratch / 'results/pocl.jsonl').read_text().splitlines()]
        edit(lines[0], next(line for line in lines[1:] if line['id'] == RUN))
        path.write_text(''.join(json.dumps(line) + '\n' for line in lines))
        return matrix('--only', 'pocl', '--against', path)

    def test_the_implementations_give_the_same_bytes_and_oclgrinds_log_is_empty(self):
        print(self.whole.stdout)
        self.assertEqual(0, self.whole.returncode, self.whole.stdout + self.whole.stderr)
        for name in 'pocl', 'oclgrind':
            results = [json.loads(line) for line in (self.scratch / f'results/{name}.jsonl').read_text().splitlines()]
            self.assertGreater(len(results), 1)
            self.assertIn(RUN, [line.get('id') for line in results])
            for line in results[1:]:
                self.assertEqual('PASS', line['verdict'], line)
                for check in 'replay', 'identical':
                    self.assertEqual('held', line.get('checks', {}).get(check, {}).get('outcome', 'held'), line)

    def test_a_kernel_that_races_fills_oclgrinds_log(self):
        """Each barrier of the tree alone: before its first level, and after each."""
        text = (ROOT / 'ocl/gqa_av.cl').read_text()
        before, between, after = text.split('barrier(CLK_LOCAL_MEM_FENCE);')
        for name, racing in ('first', before + between + 'barrier(CLK_LOCAL_MEM_FENCE);' + after), \
                            ('level', before + 'barrier(CLK_LOCAL_MEM_FENCE);' + between + after):
            with self.subTest(name):
                kernels = self.scratch / f'kernels {name}'
                kernels.mkdir()
                (kernels / 'gqa_av.cl').write_text(racing)
                done = matrix('--only', 'oclgrind', '--', '--port', f'ocl:{kernels}', '-k', 'gqa_av/edges/one-hot/*')
                self.assertEqual(1, done.returncode, done.stdout + done.stderr)
                self.assertIn('oclgrind: its log is not empty:', done.stdout)
                self.assertIn('data race', done.stdout)

    def test_results_that_are_the_same_are(self):
        done = self.edited(lambda header, line: None)
        self.assertEqual(0, done.returncode, done.stdout + done.stderr)
        self.assertIn('No difference, no failure.', done.stdout)

    def test_another_digest_is_a_difference(self):
        done = self.edited(lambda header, line: line.update(outputs=['0' * 32]))
        self.assertEqual(1, done.returncode, done.stdout + done.stderr)
        self.assertIn(f'edited.jsonl: {RUN}: other outputs than on pocl\n', done.stdout)

    def test_other_inputs_are_a_difference(self):
        done = self.edited(lambda header, line: line.update(inputs=['0' * 32]))
        self.assertEqual(1, done.returncode, done.stdout + done.stderr)
        self.assertIn(f'edited.jsonl: {RUN}: other inputs than on pocl\n', done.stdout)

    def test_a_skipped_replay_needs_a_probe_that_says_why(self):
        def skip(header, line):
            line['checks']['replay'] = {'outcome': 'skipped', 'text': 'probe: fma 4095/4096'}

        def skip_with_reason(header, line):
            skip(header, line)
            header['devices'][0]['probe'] = 'fma 4095/4096, add 1024/1024'
            line['outputs'] = ['0' * 32]  # no longer owed

        done = self.edited(skip)
        self.assertEqual(1, done.returncode, done.stdout + done.stderr)
        self.assertIn(f'edited.jsonl: {RUN}: replay skipped: probe: fma 4095/4096\n', done.stdout)
        done = self.edited(skip_with_reason)
        self.assertEqual(0, done.returncode, done.stdout + done.stderr)
        self.assertIn('differs: fma 4095/4096', done.stdout)

    def test_a_verdict_that_is_bad_in_a_file_is_a_failure(self):
        done = self.edited(lambda header, line: line.update(verdict='FAIL'))
        self.assertEqual(1, done.returncode, done.stdout + done.stderr)
        self.assertIn(f'edited.jsonl: {RUN}: FAIL\n', done.stdout)

    def test_nothing_to_run_on_is_status_3(self):
        done = matrix('--only', 'intel', XDG_CACHE_HOME=str(self.scratch))
        self.assertEqual(3, done.returncode, done.stdout + done.stderr)
        self.assertIn('| intel | not here | intel-opencl-rt ', done.stdout)


if __name__ == '__main__':
    if not OCLGRIND.exists() or not POCL.exists():
        print('skipped: Oclgrind or PoCL is not installed')
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])
