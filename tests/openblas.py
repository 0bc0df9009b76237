#!/usr/bin/env python3
"""--port openblas, with OpenBLAS and with libraries that stand in for it. usage: openblas.py ETALON CC [flag ...]

Exit status 77 where etalon was built without OpenBLAS, or there is none.
"""
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ETALON, *CC = sys.argv[1:]
ETALON = Path(ETALON).resolve()
ANY = ('gqa_av/llm/smoke', '-v')  # one run
# A library of one kernel, by the definition of cblas_sgemm in row-major order.
STAND_IN = '''
void cblas_sgemm(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a, int lda, const float *b, int ldb,
                 float beta, float *c, int ldc);
void cblas_sgemm(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a, int lda, const float *b, int ldb,
                 float beta, float *c, int ldc)
{
    for (int i = 0; i < m && order == 101 && ta == 111 && beta == 0; i++)
        for (int j = 0; j < n; j++) {
            float sum = 0;
            for (int l = 0; l < k; l++)
                sum += a[i * lda + l] * (tb == 111 ? b[l * ldb + j] : b[j * ldb + l]);
            c[i * ldc + j] = alpha * sum;
        }
}
void openblas_set_num_threads(int n);
void openblas_set_num_threads(int n)
{
    (void)n;
}
char *openblas_get_config(void);
char *openblas_get_config(void)
{
    return (char *)"stand-in 1.0";
}
char *openblas_get_corename(void);
char *openblas_get_corename(void)
{
    return (char *)"plain";
}
'''


def ran(line):
    """Not a refusal by the operator itself."""
    return line.get('variant') == 'sgemm' and line['verdict'] != 'SKIP'


def run(*args, **env):
    return subprocess.run([ETALON, *map(str, args)], text=True, capture_output=True, timeout=500,
                          stdin=subprocess.DEVNULL, env={**os.environ, **env})


class OpenBlas(unittest.TestCase):
    def setUp(self):
        made = tempfile.TemporaryDirectory(prefix='etalon-openblas-')
        self.addCleanup(made.cleanup)
        self.folder = Path(made.name)

    def judged(self, *args, **env):
        """(exit status, head, lines of results, what was run)"""
        results = self.folder / 'results.jsonl'
        done = run('run', '--port', 'openblas', '-o', results, *args, **env)
        head, *lines = [json.loads(line) for line in results.read_text().splitlines()]
        return done.returncode, head, lines, done

    def stand_in(self, *edits):
        """The environment in which it is the OpenBLAS that there is, with each (old, new) replaced."""
        text = STAND_IN
        for old, new in edits:
            self.assertEqual(1, text.count(old), old)
            text = text.replace(old, new)
        (self.folder / 'blas.c').write_text(text)
        subprocess.run([*CC, '-std=c11', '-O2', '-Wall', '-Wextra', '-Werror', '-ffp-contract=off', '-fPIC', '-shared',
                        self.folder / 'blas.c', '-o', self.folder / 'libopenblas.so.0'], check=True)
        return {'LD_LIBRARY_PATH': str(self.folder)}


class ThePort(OpenBlas):
    def test_passes_the_smoke_tier(self):
        status, _, lines, done = self.judged('--tier', 'smoke')
        self.assertEqual((0, ''), (status, done.stderr), done.stdout)
        self.assertEqual(OPERATORS, {line['id'].split('/')[0] for line in lines if ran(line)})

    def test_fails_nothing_of_the_default_tier_in_no_order_that_is_told(self):
        status, head, lines, done = self.judged()
        self.assertEqual((0, ''), (status, done.stderr), done.stdout)
        self.assertLessEqual({line['verdict'] for line in lines}, {'PASS', 'SKIP'}, done.stdout)
        self.assertRegex(head['devices'][0]['version'], r'\AOpenBLAS [0-9]')
        passed = [line for line in lines if ran(line) and line['verdict'] == 'PASS']
        self.assertEqual(OPERATORS, {line['id'].split('/')[0] for line in passed})
        for line in passed:
            self.assertEqual('none', line['claim']['order'], line['id'])
            self.assertNotIn('replay', line['checks'], line['id'])
            self.assertEqual('held', line['checks']['guards']['outcome'], line['id'])

    def test_is_one_device_with_its_variants(self):
        done = run('list', 'operators', '--port', 'openblas')
        self.assertEqual(len(OPERATORS), done.stdout.count('  sgemm '), done.stdout + done.stderr)
        done = run('list', 'devices', '--port', 'openblas')
        self.assertRegex(done.stdout, r'\A0:0   OpenBLAS \(CPU; .*\n\Z')

    def test_prints_a_line_that_repeats_a_failure(self):
        lost = self.stand_in(('l < k;', 'l + 1 < k;'))
        _, _, _, done = self.judged(*ANY, **lost)
        again = re.search(r'^    reproduce: etalon (.*)$', done.stdout, re.M).group(1)
        done = subprocess.run(['/bin/sh', '-c', f'exec {ETALON} {again}'], text=True, capture_output=True, timeout=300,
                              env={**os.environ, **lost})
        self.assertEqual((1, ''), (done.returncode, done.stderr), done.stdout)

    def test_is_not_mapped_by_the_judge(self):
        judge = subprocess.Popen([ETALON, 'run', '--port', 'openblas', *ANY], stdout=subprocess.DEVNULL,
                                 stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
                                 env={**os.environ, 'LD_DEBUG': 'files', 'LD_DEBUG_OUTPUT': str(self.folder / 'loaded')})
        self.assertEqual(0, judge.wait(timeout=300))
        loaded = {path.suffix: 'libopenblas' in path.read_text() for path in self.folder.glob('loaded.*')}
        self.assertFalse(loaded[f'.{judge.pid}'])
        self.assertEqual(1, sum(loaded.values()), loaded)

    def test_runs_one_thread_whatever_the_environment_says(self):
        digests = [self.judged(*ANY, OPENBLAS_NUM_THREADS=n)[2][0]['outputs'] for n in ('1', '7')]
        self.assertEqual(digests[0], digests[1])


class SkinnyGemm(OpenBlas):
    def test_passes_every_type_bias_and_more_rows_than_a_block(self):
        floats = [{'weight': t, 'act': t, 'bias': out, 'out': out} for t in ('f32', 'f16', 'bf16') for out in {t, 'f32'}]
        f8 = [{'weight': t, 'act': t, 'act_scale': 'f32', 'weight_scale': 'f32', 'bias': 'bf16', 'out': 'bf16'}
              for t in ('f8e4m3fn', 'f8e4m3fnuz')]
        i8 = [{'weight': 'i8', 'act': t, 'weight_scale': 'f32', 'bias': t, 'out': t} for t in ('f32', 'f16', 'bf16')]
        i4 = [{**types, 'weight': 'i4', 'weight_scale': types['act']} for types in i8]
        shape = {'tokens': 3, 'out_features': 70, 'in_features': 1000}
        cases = [{'name': 'types', 'params': shape, 'sweep': {'bias': ['none', 'm', '1xm', 'nx1', 'nxm'],
                                                              'dtypes': [*floats, *f8, *i8]}},
                 {'name': 'int4', 'params': {**shape, 'in_features': 384},
                  'sweep': {'group': [32, 64, 128], 'zero_points': [False, True], 'dtypes': i4}},
                 {'name': 'blocks', 'params': {'tokens': 2, 'out_features': 4100, 'in_features': 1030}}]
        (self.folder / 'case.json').write_text(json.dumps({'format': 1, 'operator': 'skinny_gemm', 'cases': cases}))
        status, _, lines, done = self.judged(self.folder / 'case.json')
        self.assertEqual((0, ''), (status, done.stderr), done.stdout)
        self.assertEqual({'PASS'}, {line['verdict'] for line in lines if ran(line)})


class AnotherLibrary(OpenBlas):
    def test_that_is_right_passes(self):
        status, head, lines, done = self.judged('--tier', 'smoke', **self.stand_in())
        self.assertEqual((0, ''), (status, done.stderr), done.stdout)
        self.assertEqual(('stand-in 1.0', 'plain'), (head['devices'][0]['version'], head['devices'][0]['driver']))

    def test_with_a_bug_fails(self):
        for old, new in (('l < k;', 'l + 1 < k;'),  # the last term lost
                         ('alpha * sum;', '0.999F * alpha * sum;'),
                         ('b[l * ldb + j] : b[j * ldb + l]', 'b[j * ldb + l] : b[l * ldb + j]'),  # transposed
                         ('j < n; j++', 'j + 1 < n; j++')):  # the last column lost
            for op in 'gqa_av', 'flash_attn':
                with self.subTest(op, bug=new):
                    status, _, lines, done = self.judged('--tier', 'smoke', '--operator', op, **self.stand_in((old, new)))
                    self.assertEqual(1, status, done.stdout + done.stderr)
                    self.assertIn('FAIL', {line['verdict'] for line in lines})

    def test_that_dies_is_an_error_with_the_signal(self):
        dies = self.stand_in(('            float sum = 0;', '            float sum = 0;\n            __builtin_abort();'))
        status, _, lines, _ = self.judged(*ANY, **dies)
        self.assertEqual((1, 'ERROR'), (status, lines[0]['verdict']))
        self.assertTrue(lines[0]['reason'].startswith('the runner died by signal 6 (Aborted)'), lines[0]['reason'])

    def test_that_lacks_a_function_is_refused_by_its_name(self):
        done = run('run', '--port', 'openblas', *ANY, **self.stand_in(
            ('char *openblas_get_corename(void);\nchar *openblas_get_corename', 'char *corename(void);\nchar *corename')))
        self.assertEqual((3, 'etalon: --port openblas: OpenBLAS, libopenblas.so.0, has no openblas_get_corename\n'),
                         (done.returncode, done.stderr))

    def test_that_is_none_is_refused(self):
        (self.folder / 'libopenblas.so.0').write_text('text')
        done = run('run', '--port', 'openblas', *ANY, LD_LIBRARY_PATH=str(self.folder))
        self.assertEqual(3, done.returncode)
        self.assertRegex(done.stderr, r'\Aetalon: --port openblas: OpenBLAS cannot be opened: .*libopenblas\.so\.0.*\n\Z')


class Refused(OpenBlas):
    def test_by_what_needs_kernels(self):
        done = run('mutate', '--port', 'openblas')
        self.assertEqual((2, "etalon: mutate takes no --port openblas: its bugs are planted in etalon's own kernels\n"),
                         (done.returncode, done.stderr))

    def test_by_what_has_no_runner(self):
        for command in 'dump', 'check':
            done = run(command, 'x', '-o', 'x', '--port', 'openblas')
            self.assertEqual(2, done.returncode)
            self.assertIn(f'{command} takes no --port', done.stderr)
        done = run('worker', '--list', '--port', 'openblas')
        self.assertEqual((2, 'etalon: worker takes no --list of --port openblas, which is one device\n'),
                         (done.returncode, done.stderr))


OPERATORS = {'gqa_av', 'skinny_gemm', 'flash_attn'}

if __name__ == '__main__':
    there = run('list', 'devices', '--port', 'openblas')
    if there.returncode == 3 and re.search('there is no OpenBLAS|OpenBLAS cannot be opened', there.stderr):
        print(there.stderr, end='')
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])
