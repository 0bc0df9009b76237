#!/usr/bin/env python3
"""`etalon mutate` on PoCL: every mutant is killed, no honest reordering is flagged, and both can fail.

usage: mutate.py ETALON [unittest argument ...]        exits 77 where there is no PoCL device
"""
import json
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ETALON = str(Path(sys.argv[1]).resolve())
QUICK = ('-k', 'gqa_av/teeth/packed/*')  # two runs

NOTHING = 'Adds 0.\nfile: gqa_av.cl\n-rest = context % 4;\n+rest = context % 4 + 0;\n'


def mutate(*args):
    return subprocess.run([ETALON, 'mutate', *map(str, args)], capture_output=True, text=True)


def hot_positions(job):
    """The context of a job's only step, and the positions to which some row gives its one weight of 1."""
    step, = json.loads((job / 'job.json').read_text())['steps']
    w, context = step['tensors']['w'], step['params']['context']
    data = (job / '0.safetensors').read_bytes()
    length, = struct.unpack_from('<Q', data)
    at = 8 + length + json.loads(data[8:8 + length])['w']['data_offsets'][0]
    letter, bytes_ = {'f32': ('f', 4), 'f16': ('e', 2), 'bf16': ('H', 2)}[w['dtype']]
    one = 0x3f80 if letter == 'H' else 1
    hot = set()
    for head in range(w['size'][0]):
        for row in range(step['params']['query_length']):
            first = w['offset'] + head * w['stride'][0] + row * w['stride'][1]
            weights = struct.unpack_from(f'<{context}{letter}', data, at + first * bytes_)
            if sorted(weights)[-2:] != [0, one]:
                raise AssertionError(f'{job}: head {head}, row {row} is not one-hot')
            hot.add(weights.index(one))
    return context, hot


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        (self.folder / 'gqa_av').mkdir()

    def add(self, name, text):
        (self.folder / 'gqa_av' / name).write_text(text)

    def quick(self, *args):
        return mutate('--mutants', self.folder, *QUICK, *args)


class AllMutants(Folder):
    def test_kills_all_and_flags_no_honest_one(self):
        for path in (ROOT / 'tools/mutants/gqa_av').iterdir():
            shutil.copy(path, self.folder / 'gqa_av')
        self.add('nothing-done', NOTHING)
        done = mutate('--mutants', self.folder, '-o', self.folder / 'results.jsonl')
        _, *lines = [json.loads(line) for line in (self.folder / 'results.jsonl').read_text().splitlines()]
        verdict = {line['mutant']: line['verdict'] for line in lines}
        # Planted, so that a table in which nothing survives means something.
        self.assertEqual('SURVIVED', verdict.pop('nothing-done'))
        self.assertIn('\nSURVIVED gqa_av/nothing-done: Adds 0.\n', done.stdout)
        self.assertEqual(1, done.returncode)
        for name, word in verdict.items():
            self.assertEqual('quiet' if name.startswith('honest-') else 'killed', word, name)
        honest = [name for name in verdict if name.startswith('honest-')]
        self.assertGreaterEqual(len(honest), 3)
        self.assertGreaterEqual(len(verdict) - len(honest), 15)
        self.assertRegex(done.stdout, r'\| tail-elsewhere +(\| +\. ){6}\| +\d+ ')  # only the replay can see it
        self.assertIn(f'{len(verdict) - len(honest)} of {len(verdict) - len(honest) + 1} mutants killed', done.stdout)

    def test_kills_all_of_every_other_operator(self):
        others = [path.name for path in (ROOT / 'tools/mutants').iterdir() if path.name != 'gqa_av']
        self.assertTrue(others)
        for operator in others:
            done = mutate('--operator', operator)
            self.assertEqual(0, done.returncode, done.stdout + done.stderr)
            killed, of, flagged, honest = re.search(
                r'(\d+) of (\d+) mutants killed, by nmse alone \d+; (\d+) of (\d+) honest', done.stdout).groups()
            self.assertEqual((of, '0'), (killed, flagged))
            self.assertGreaterEqual(int(of), 30)
            self.assertGreaterEqual(int(honest), 5)


class Mutate(Folder):
    def test_passes_where_all_is_as_it_must_be(self):
        done = mutate(*QUICK, 'tail-*', 'honest-serial')
        self.assertEqual(0, done.returncode, done.stdout + done.stderr)
        self.assertIn('3 of 3 mutants killed, by nmse alone 2; 0 of 1 honest reorderings flagged', done.stdout)

    def test_flags_an_honest_reordering_that_is_none(self):
        self.add('honest-not', 'Drops the tail.\nclaim: order none, depth_sum context+3\nfile: gqa_av.cl\n'
                               '-i == 0 && rest > 0\n+i == 0 && rest > 3\n')
        done = self.quick()
        self.assertEqual(1, done.returncode)
        self.assertIn('FALSE ALARM gqa_av/honest-not: Drops the tail.', done.stdout)

    def only_result(self):
        _, line = (self.folder / 'results.jsonl').read_text().splitlines()
        return json.loads(line)

    def test_does_not_count_what_does_not_build_as_killed(self):
        for name, edit in (('broken', '-rest = context % 4;\n+rest = ;\n'),
                           ('honest-broken', '-rest = context % 4;\n+rest = ;\n'),
                           ('nameless', '-kernel void gqa_av_per_head(\n+kernel void gqa_av_perhead(\n')):
            claim = 'claim: order none, depth_sum context+14\n' if name.startswith('honest-') else ''
            self.add(name, f'No C.\n{claim}file: gqa_av.cl\n{edit}')
            done = self.quick(name, '-o', self.folder / 'results.jsonl')
            self.assertEqual(1, done.returncode, done.stdout + done.stderr)
            self.assertRegex(done.stdout, rf'\| {name} .*\| DOES NOT BUILD \|')
            # The call that says so, and a log whose lines are none of the report's.
            self.assertRegex(done.stdout, rf'\ngqa_av/{name} does not build: cl.*\n(    .*\n)*0 of ')
            self.assertIn(f'\n0 of {int(not claim)} mutants killed', done.stdout)
            self.assertIn('0 of %d honest reorderings flagged' % bool(claim), done.stdout)
            result = self.only_result()
            # One of all runs tried: the others would fail likewise.
            self.assertEqual(('DOES NOT BUILD', 1, 0), (result['verdict'], result['runs'], result['errors']))

    def test_gives_up_a_mutant_that_hangs(self):
        self.add('hangs', 'Waits for nothing.\nfile: gqa_av.cl\n-const ulong quads = context / 4,\n'
                          '+for (volatile int wait = 1; wait;)\n+        ;\n+    const ulong quads = context / 4,\n')
        done = self.quick('--timeout', 5, '-o', self.folder / 'results.jsonl')
        self.assertEqual(0, done.returncode, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r'\| hangs .* 1 \| killed \|')
        result = self.only_result()
        self.assertEqual(('killed', 1, 1), (result['verdict'], result['runs'], result['errors']))

    def test_edits_the_kernels_of_the_port_given(self):
        kernels = self.folder / 'kernels'
        kernels.mkdir()
        text = (ROOT / 'ocl/gqa_av.cl').read_text()
        self.assertIn('rest = context % 4;', text)
        (kernels / 'gqa_av.cl').write_text(text.replace('rest = context % 4;', 'rest = context & 3;'))
        self.add('tail', 'No tail.\nfile: gqa_av.cl\n-rest = context & 3;\n+rest = 0;\n')
        self.assertEqual(0, self.quick('--port', f'ocl:{kernels}').returncode)
        self.assertEqual(2, self.quick().returncode)

    def test_says_when_the_kernels_as_they_are_do_not_pass(self):
        kernels = self.folder / 'kernels'
        kernels.mkdir()
        text = (ROOT / 'ocl/gqa_av.cl').read_text()
        (kernels / 'gqa_av.cl').write_text(text.replace('i == 0 && rest > 0', 'i == 0 && rest > 3'))
        self.add('tree', 'No tree.\nfile: gqa_av.cl\n-step = PARTIALS / 2;\n+step = 0;\n')
        done = self.quick('--port', f'ocl:{kernels}')
        self.assertEqual(1, done.returncode)
        self.assertIn("the kernels as they are do not pass: etalon run 'gqa_av/teeth/packed/normal/", done.stdout)

    def test_sees_a_window_of_4096_that_is_one_key_off_either_way(self):
        done = mutate('window-one-wider', 'window-one-narrower', '-k', 'flash_attn/teeth/window-4096/*')
        self.assertEqual(0, done.returncode, done.stdout + done.stderr)
        self.assertIn('2 of 2 mutants killed', done.stdout)

    def test_sees_a_lost_partial_and_a_lost_eighth_head_by_onehot_alone(self):
        mutants = 'partial-40-lost', 'split-partial-63-lost', 'tile2-eighth-head-misplaced', 'split-eighth-head-lost'
        done = mutate(*mutants, '-k', 'gqa_av/teeth/turns*', '-o', self.folder / 'results.jsonl')
        self.assertEqual(0, done.returncode, done.stdout + done.stderr)
        _, *lines = [json.loads(line) for line in (self.folder / 'results.jsonl').read_text().splitlines()]
        # Of per_head, gqa and gqa_tile2 the first; each other is of one variant.
        self.assertEqual({'partial-40-lost': 3, 'split-partial-63-lost': 1, 'tile2-eighth-head-misplaced': 1,
                          'split-eighth-head-lost': 1}, {line['mutant']: line['broken']['exact'] for line in lines})

    def test_judges_each_variant_by_a_onehot_run_of_every_partial_both_ends_and_the_tail(self):
        """Counted in the inputs of the committed cases, which --keep keeps of runs that fail: here all do."""
        kernels = self.folder / 'kernels'
        kernels.mkdir()
        text = (ROOT / 'ocl/gqa_av.cl').read_text()
        self.assertEqual(2, text.count('= 0.0f;'))  # where sums start
        (kernels / 'gqa_av.cl').write_text(text.replace('= 0.0f;', '= 1.0f;'))
        keep = self.folder / 'keep'
        done = subprocess.run([ETALON, 'run', '-k', 'gqa_av/teeth/*/onehot/*', '--port', f'ocl:{kernels}', '--keep', keep],
                              capture_output=True, text=True)
        self.assertEqual(1, done.returncode, done.stdout + done.stderr)
        complete = set()
        for run in keep.iterdir():
            context, hot = hot_positions(run / 'job0')
            tail = range(context - context % 4, context)
            partials = {c // 4 % 64 for c in hot if c not in tail}
            if context % 4 and {0, *tail} <= hot and len(partials) == 64:
                complete |= {path.name.split('@')[0] for path in run.iterdir() if '@' in path.name}
        self.assertEqual({'per_head', 'gqa', 'gqa_tile2', 'gqa_split', 'tiled'}, complete)

    def test_refuses_a_file_that_is_not_of_the_form(self):
        head = 'A bug.\nfile: gqa_av.cl\n'
        for text, sentence in (
            (head + '-no such text\n+\n', ':3: mutant m: gqa_av.cl has this text nowhere, must have it exactly once'),
            (head + '-context\n+\n', ':3: mutant m: gqa_av.cl has this text several times, must have it exactly once'),
            (head + '-rest = context % 4;\n', ':3: lines to be replaced (-) are followed by no replacement (+)'),
            (head + '+a\n', ':3: a replacement (+) follows no line to be replaced (-)'),
            (head + '-\n+a\n', ':3: the text to be replaced is empty'),
            (head, ':2: a mutant edits something'),
            ('A bug.\n', ':1: a mutant edits something'),
            ('A bug.\n-a\n+b\n', ':2: an edit needs a line "file: NAME" before it'),
            ('A bug.\nfile: none.cl\n', ':2: mutant m: there is no kernel file none.cl'),
            ('A bug.\nfiles: gqa_av.cl\n', ':2: must be "origin: " or "claim: "'),
            ('A bug.\nclaim: order none, depth_sum 2*contexts\n', ':2: a claim must read "order none, depth_sum'),
            ('A bug.\nclaim: order none, depth_sum context\n' + NOTHING.split('\n', 1)[1],
             ':5: honest-NAME has a claim, and no other mutant has'),
            ('', ': is empty or holds a NUL byte'),
        ):
            self.add('m', text)
            done = self.quick()
            self.assertEqual(2, done.returncode, text)
            self.assertIn(f'gqa_av/m{sentence}', done.stderr)

    def test_refuses_an_empty_selection(self):
        self.assertEqual(2, self.quick().returncode)
        self.assertEqual(2, mutate('no-such-*').returncode)


if __name__ == '__main__':
    listing = subprocess.run([ETALON, 'list', 'devices'], capture_output=True, text=True)
    if 'Portable Computing Language' not in listing.stdout:
        print('skipped: no PoCL device')
        sys.exit(77)
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
