#!/usr/bin/env python3
"""Bad case files and models.json, and cases that ask for too much. usage: malformed.py ETALON

tests/malformed/*.json are sound but for one damage, and so are the models.json in tests/malformed/models. The file
`expected` has a line for each: name, line:column and the whole sentence, tabs between. No device is needed.
"""
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CORPUS = ROOT / 'tests/malformed'
ETALON = str(Path(sys.argv[1]).resolve())
EXPECTED = [line.split('\t') for line in (CORPUS / 'expected').read_text().splitlines()]
SOUND = '{"format": 1, "operator": "gqa_av", "cases": [{"name": "a", "model": "m", "params": {"context": 5}}]}'
MODEL = '{"m": {"q_heads": 4, "kv_heads": 2, "head_dim": 8, %s "source": "ours"}}'


def etalon(*args, cwd):
    return subprocess.run([ETALON, *args], cwd=cwd, capture_output=True, stdin=subprocess.DEVNULL, timeout=300)


def strings_of(source, name):
    """The strings of a table of the reader."""
    return re.findall(r'"(\w+)"', re.search(rf'{name}\[\]\s*=\s*{{(.*?)}};', (ROOT / source).read_text(), re.S)[1])


class InAFolder(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix='etalon-malformed-'))
        self.addCleanup(shutil.rmtree, self.folder)
        (self.folder / 'f.json').write_text(SOUND)

    def refused(self, sentence, *args, cwd=None):
        done = etalon(*args, cwd=cwd or self.folder)
        self.assertEqual((2, b'', f'etalon: {sentence}\n'), (done.returncode, done.stdout, done.stderr.decode()))


class ADamagedFile(InAFolder):
    def test_is_refused_with_status_2_at_its_line_and_column_in_one_sentence(self):
        for name, place, sentence in EXPECTED:
            with self.subTest(name):
                if name.startswith('models/'):
                    shutil.copy(CORPUS / name, self.folder / 'models.json')
                    self.refused(f'./models.json:{place}: {sentence}', 'run', 'f.json')
                else:
                    self.refused(f'{name}:{place}: {sentence}', 'run', name, cwd=CORPUS)

    def test_has_its_line_in_the_table(self):
        files = {str(path.relative_to(CORPUS)) for path in CORPUS.rglob('*.json')} - {'models.json'}
        self.assertEqual(files, {name for name, *_ in EXPECTED})
        self.assertEqual(len(files), len(EXPECTED))

    def test_is_there_for_every_key(self):
        names = {name for name, *_ in EXPECTED}
        keys = [key + '.' for key in strings_of('harness/case_read.c', 'file_keys') if key != 'note']
        keys += [key + '.' for key in strings_of('harness/case_read.c', 'const keys')]
        keys += ['checks.' + key for key in strings_of('harness/case_lists.c', 'et_check_keys')]
        keys += ['data.constant', 'data.values', 'data.fill', 'data.file',
                 'data.tensor', 'data.seed', 'layout.pad', 'layout.order', 'layout.shift', 'layout.view', 'expect.atol']
        self.assertGreater(len(keys), 40)
        for key in keys:
            self.assertTrue(any(name.startswith(key) for name in names), key)

    def test_may_have_it_in_any_value_of_a_model(self):
        for key in strings_of('harness/models.c', 'known'):
            if key in ('q_heads', 'kv_heads', 'head_dim'):
                continue
            with self.subTest(key):
                (self.folder / 'models.json').write_text(MODEL % f'"{key}": [],')
                column = (MODEL % f'"{key}": ').index(f'"{key}"') + len(key) + 5
                self.refused(f'./models.json:1:{column}: {key} of model m is a list, not a number, a string, '
                             'true or false', 'run', 'f.json')

    def test_is_refused_by_the_list_of_models_too(self):
        shutil.copy(CORPUS / 'models/list.json', self.folder / 'models.json')
        self.refused(f'{self.folder}/models.json:1:1: the file is a list, not an object', 'list', 'models', '--cases',
                     str(self.folder))

    def test_that_is_no_file_is_named(self):
        (self.folder / 'models.json').mkdir()
        self.refused('./models.json: cannot be read: Is a directory', 'run', 'f.json')
        (self.folder / 'models.json').rmdir()
        self.refused('none.json: cannot be read: No such file or directory', 'run', 'none.json')
        (self.folder / 'loop.json').symlink_to('loop.json')
        self.refused('loop.json: cannot be read: Too many levels of symbolic links', 'run', 'loop.json')

    def test_that_never_ends_is_cut_off(self):
        self.refused('/dev/zero: more than 67108864 bytes', 'run', '/dev/zero')

    def test_without_its_damage_is_none(self):
        (self.folder / 'models.json').write_text(MODEL % '')
        self.assertEqual(0, etalon('run', '--dry-run', 'f.json', cwd=self.folder).returncode)


class ACaseThatAsksForTooMuch(InAFolder):
    """2^62 elements and more, or what makes as many: told with the numbers, without memory and without time."""

    SIZES = {'q_heads': 1, 'kv_heads': 1, 'head_dim': 1, 'context': 5}
    MOST = 2**53 - 1

    def write(self, **keys):
        case = {'name': 'a', **keys, 'params': {**self.SIZES, **keys.get('params', {})}}
        (self.folder / 'f.json').write_text(
            '{"format": 1, "operator": "gqa_av", "cases": [\n%s]}' % json.dumps(case))

    @staticmethod
    def end_what_looks_at_every_element():
        resource.setrlimit(resource.RLIMIT_CPU, (100, 100))

    def assert_small(self, code, *sentences, args=('--dry-run',)):
        """Ends with that status and one of the sentences, having held less than 200 MB (ASan: its shadow as well)."""
        with tempfile.TemporaryFile() as out:
            child = subprocess.Popen([ETALON, 'run', *args, 'f.json'], cwd=self.folder, stdin=subprocess.DEVNULL,
                                     stdout=out, stderr=out, preexec_fn=self.end_what_looks_at_every_element)
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
            out.seek(0)
            text = out.read().decode()
        self.assertEqual(code, child.returncode, text)
        self.assertTrue(any(re.search(sentence, text, re.M) for sentence in sentences), text)
        self.assertLess(usage.ru_maxrss, 200_000, text)

    def test_by_its_shape(self):
        self.write(params={'context': self.MOST, 'head_dim': 65536})
        self.assert_small(2, r'^etalon: f.json:2:1: gqa_av/f/a: v of 9007199254740991 x 1 x 65536 f32 elements and its '
                             r'padding are beyond 2\^63 - 1 bytes\n$')

    def test_by_its_capacity(self):
        self.write(params={'capacity': self.MOST, 'head_dim': 65536})
        self.assert_small(2, r'gqa_av/f/a: v of 9007199254740991 x 1 x 65536 f32 elements')

    def test_by_a_twin(self):
        self.write(twins=[{'params': {'capacity': self.MOST}}], params={'head_dim': 65536})
        self.assert_small(2, r'gqa_av/f/a: twin 0: v of 9007199254740991 x 1 x 65536 f32 elements')

    def test_by_padding(self):
        self.write(layout={'v': {'pad': {'capacity': [0, self.MOST], 'head_dim': [4096, 4096]}}})
        self.assert_small(2, r'gqa_av/f/a: v of 5 x 1 x 1 f32 elements and its padding are beyond 2\^63 - 1 bytes')

    def test_by_a_sweep(self):
        self.write(sweep={'context': list(range(1, 257)), 'seed': list(range(257))})
        self.assert_small(2, r'f.json:2:1: shapes and sweep make 256 x 257 cases, more than 65536')

    def test_by_a_sweep_as_large_as_they_may_be_it_is_listed(self):
        """65536 cases of all variants: finding a run by its id must not look at all others."""
        self.write(sweep={'context': list(range(1, 257)), 'seed': list(range(256))})
        (self.folder / 'ids').write_text('')
        with (self.folder / 'ids').open('w') as ids:
            done = subprocess.run([ETALON, 'run', '--dry-run', 'f.json'], cwd=self.folder, stdout=ids, timeout=600,
                                  preexec_fn=self.end_what_looks_at_every_element)
        self.assertEqual(0, done.returncode)
        lines = (self.folder / 'ids').read_text().splitlines()
        self.assertEqual(len(lines), len(set(lines)))
        self.assertGreaterEqual(len(lines), 65536)

    def test_by_sixteen_axes(self):
        axes = {'context': [3, 5], 'capacity': [6, 7], 'seed': [1, 2], 'poison': ['nan', 'large'],
                'query_length': list(range(1, 9999)), 'q_heads': list(range(1, 9999)), 'kv_heads': list(range(1, 9999)),
                'head_dim': list(range(1, 9999)), 'dtypes': [{}] * 9999, 'layout': [{}] * 9999}
        self.write(sweep=axes)
        self.assert_small(2, r'make 2 x 2 x 2 x 2 x 9998 x 9998 x 9998 x 9998 x 9999 x 9999 cases, more than 65536')

    def test_by_the_knobs_of_a_variant(self):
        self.write(variants=[{'name': 'auto', 'override': list(range(-1, 4)) * 300}])
        self.assert_small(2, 'variants asks for the same auto twice', 'more than 1024 runs')

    def test_by_steps(self):
        self.write(steps=[{}] * 100_000)
        self.assert_small(2, r'steps has 100000 entries, at most 4096 are allowed')

    def test_by_a_list_over_a_large_tensor(self):
        self.write(params={'capacity': 2**31 - 8}, data={'v': {'values': [1, 2, 3]}})
        self.assert_small(2, r'3 values for v of 2147483640 elements; above 2\^26 a list has 1')
        self.write(params={'context': 2**28}, data={'w': {'values': [1, 2, 3]}})
        self.assert_small(2, r'3 values for w of 1073741824 elements; above 2\^26 a list has 1')

    def test_by_rows_it_is_one_with_all_rows(self):
        self.write(rows=self.MOST)
        self.assert_small(0, r'^gqa_av/f/a/normal/per_head\n', args=('--dry-run', '-v'))

    def test_of_disk_is_told_what_there_is(self):
        """--dry-run -v makes inputs for a device without limits."""
        for keys in ({'params': {'capacity': 2**53 - 8}}, {'layout': {'v': {'pad': {'capacity': [0, 2**50]}}}},
                     {'layout': {'w': {'shift': self.MOST}}}, {'params': {'query_length': 2**40}}):
            self.write(**keys)
            self.assert_small(2, r'^etalon: .*\.safetensors of \d{12,} bytes cannot be made: its file system has \d+ free',
                              args=('--dry-run', '-v'))


if __name__ == '__main__':
    unittest.main(argv=sys.argv[:1])
