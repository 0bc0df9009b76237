#!/usr/bin/env python3
"""Bad case files and models.json, and cases that ask for too much. usage: malformed.py ETALON

tests/malformed/*.json are sound but for one damage, and so are the models.json in tests/malformed/models. The file
`expected` has a line for each: name, line:column and the whole sentence, tabs between. No device is needed.
"""
import os
import re
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


if __name__ == '__main__':
    unittest.main(argv=sys.argv[:1])
