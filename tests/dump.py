#!/usr/bin/env python3
"""etalon dump and etalon check. Usage: dump.py ETALON [unittest argument ...]

Outputs are made here of the oracle's values, without any package and any device.
"""
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

import again
import built

ROOT = Path(__file__).resolve().parent.parent
ETALON = Path(sys.argv[1]).resolve()
CASES = {'format': 1, 'operator': 'gqa_av', 'cases': [
    {'name': 'plain', 'params': {'q_heads': 4, 'kv_heads': 2, 'head_dim': 8, 'context': 70}, 'fills': ['normal', 'exact']},
    {'name': 'padded', 'params': {'q_heads': 4, 'kv_heads': 2, 'head_dim': 8, 'context': 5},
     'layout': {'out': {'pad': {'head_dim': [1, 2]}}, 'v': {'pad': {'kv_heads': [0, 1]}}}},
    {'name': 'half', 'params': {'q_heads': 2, 'kv_heads': 1, 'head_dim': 4, 'context': 9},
     'dtypes': {'w': 'f16', 'v': 'f16', 'out': 'f16'}},
    {'name': 'brain', 'params': {'q_heads': 2, 'kv_heads': 1, 'head_dim': 4, 'context': 9},
     'dtypes': {'w': 'bf16', 'v': 'bf16', 'out': 'bf16'}},
    {'name': 'steps', 'params': {'q_heads': 2, 'kv_heads': 1, 'head_dim': 4, 'context': 9},
     'steps': [{}, {'params': {'context': 7}}], 'twins': [{'poison': 'large'}]},
    {'name': 'none', 'params': {'q_heads': 0, 'kv_heads': 1, 'head_dim': 4, 'context': 9},
     'expect': {'refused': 'q_heads is 0, must be at least 1'}}]}
PLAIN, EXACT, PADDED, HALF, BRAIN, STEPS = range(6)  # their folders
RUNS = 6


def load(path):
    """(shape, values) of an .npy file of f64."""
    data = path.read_bytes()
    length = struct.unpack_from('<H', data, 8)[0]
    header = eval(data[10:10 + length], {'__builtins__': {}})  # it was written here
    assert header['descr'] == '<f8' and not header['fortran_order'] and (10 + length) % 64 == 0
    return header['shape'], list(struct.unpack(f'<{(len(data) - 10 - length) // 8}d', data[10 + length:]))


def npy(descr, shape, data, version=1, order='False'):
    header = f"{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}\n".encode()
    length = struct.pack('<H' if version == 1 else '<I', len(header))
    return b'\x93NUMPY' + bytes([version, 0]) + length + header + data


def safetensors(tensors):
    header, data = {}, b''
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {'dtype': dtype, 'shape': shape, 'data_offsets': [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    text += b' ' * (-len(text) % 8)
    return struct.pack('<Q', len(text)) + text + data


def brain(value):
    """Bits of a bf16, ties to even."""
    bits = struct.unpack('<I', struct.pack('<f', value))[0]
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16


def packed(kind, values):
    return struct.pack(f'<{len(values)}H', *map(brain, values)) if kind == 'bf16' else \
        struct.pack(f'<{len(values)}{kind}', *values)


KINDS = {HALF: ('<f2', 'e'), BRAIN: ('<u2', 'bf16')}


class Dump(unittest.TestCase):
    def setUp(self):
        made = tempfile.TemporaryDirectory()
        self.addCleanup(made.cleanup)
        self.folder = Path(made.name)
        (self.folder / 'c.json').write_text(json.dumps(CASES))
        self.dump = self.folder / 'dump'

    def etalon(self, *args):
        env = {key: value for key, value in os.environ.items() if not key.startswith('ETALON')}
        return subprocess.run([ETALON, *map(str, args)], cwd=self.folder, text=True, capture_output=True, timeout=120,
                              stdin=subprocess.DEVNULL, env=env)

    def dumped(self, *args):
        done = self.etalon('dump', 'c.json', '-o', self.dump, *args)
        self.assertEqual((0, '', ''), (done.returncode, done.stdout, done.stderr))
        return json.loads((self.dump / 'manifest.json').read_text())

    def fill(self):
        """Outputs that are the oracle's, rounded once."""
        for oracle in self.dump.glob('*/*.oracle.npy'):
            shape, values = load(oracle)
            descr, kind = KINDS.get(int(oracle.parent.name), ('<f4', 'f'))
            (oracle.parent / oracle.name.replace('.oracle', '')).write_bytes(npy(descr, shape, packed(kind, values)))

    def check(self, *args, code=0):
        """{case/fill: line}, and what was printed."""
        done = self.etalon('check', self.dump, 'c.json', '-o', 'results.jsonl', *args)
        self.assertEqual(code, done.returncode, done.stdout + done.stderr)
        self.printed = done.stdout
        if code in (2, 3):
            return done.stderr
        lines = [json.loads(line) for line in (self.folder / 'results.jsonl').read_text().splitlines()[1:]]
        return {'/'.join(line['id'].split('/')[2:4]): line for line in lines}


    def assert_not_whole(self):
        self.assertEqual(f'etalon: {self.dump}/manifest.json is not there: {self.dump} is no dump, or not a whole one\n',
                         self.check(code=2))


class AFolder(Dump):
    def test_has_jobs_truth_and_a_manifest_of_every_run_that_has_outputs(self):
        manifest = self.dumped()
        self.assertEqual([f'gqa_av/c/{name}/outputs' for name in (
            'plain/normal', 'plain/exact', 'padded/normal', 'half/normal', 'brain/normal', 'steps/normal')],
            [run['id'] for run in manifest['runs']])
        self.assertEqual([*range(RUNS)], [run['folder'] for run in manifest['runs']])
        self.assertEqual(['0.out.oracle.npy', '0.out.tolerance.npy', '0.safetensors', '1.out.oracle.npy',
                          '1.out.tolerance.npy', '1.safetensors', 'job.json'],
                         sorted(path.name for path in (self.dump / str(STEPS)).iterdir()))
        # tiled: a chain of 70 sums; a product is rounded with each
        self.assertEqual(140, manifest['runs'][PLAIN]['steps'][0]['claim']['arith']['depth_sum'])

    def test_has_inputs_that_share_memory_by_their_names(self):
        """w is [8, 4, 8], v [8, 2, 4]; of a view the first elements of each row."""
        shape = {'q_heads': 8, 'kv_heads': 2, 'head_dim': 4, 'context': 8}
        joined = {'w': {'buffer': 'b', 'shift': 1}, 'v': {'buffer': 'b', 'pad': {'head_dim': [1, 2]}}}
        (self.folder / 'c.json').write_text(json.dumps({'format': 1, 'operator': 'gqa_av', 'cases': [
            {'name': 'apart', 'params': shape}, {'name': 'joined', 'params': shape, 'layout': joined},
            {'name': 'view', 'params': shape, 'layout': {'v': {'view_of': 'w'}}, 'steps': [{}, {'params': {'context': 3}}]}]}))
        manifest = self.dumped()
        files = [(self.dump / str(i) / '0.safetensors').read_bytes() for i in range(3)]
        # Rows 1 to 3 of a head of w are poison, which follows the place in the buffer that it was made in.
        values = [struct.unpack_from('<320f', file, len(file) - 320 * 4) for file in files]
        for head in range(8):
            self.assertEqual(values[0][head * 32:head * 32 + 8], values[1][head * 32:head * 32 + 8])
        self.assertEqual(values[0][256:], values[1][256:])
        w, v = values[2][:256], values[2][256:]
        self.assertEqual([w[c * 32 + h * 8 + d] for c in range(8) for h in range(2) for d in range(4)], list(v))
        for i in range(3):
            job = json.loads((self.dump / str(i) / 'job.json').read_text())
            self.assertEqual({'w': [32, 8, 1], 'v': [8, 4, 1], 'out': [32, 4, 1]},
                             {name: tensor['stride'] for name, tensor in job['steps'][0]['tensors'].items()})
            self.assertNotIn('"buffer"', json.dumps(job))
        self.assertEqual(manifest['runs'][0]['steps'], manifest['runs'][1]['steps'])
        self.fill()
        self.assertEqual({'PASS'}, {line['verdict'] for line in self.check().values()})

    def test_has_oracle_values_and_tolerances_of_every_element(self):
        self.dumped()
        job = json.loads((self.dump / str(PLAIN) / 'job.json').read_text())
        self.assertEqual(70, job['steps'][0]['params']['context'])
        for what in 'oracle', 'tolerance':
            shape, values = load(self.dump / str(PADDED) / f'0.out.{what}.npy')
            self.assertEqual(((1, 4, 8), 32), (shape, len(values)))
        # half an ulp of f16 at least, of values below 1
        shape, tolerance = load(self.dump / str(HALF) / '0.out.tolerance.npy')
        self.assertTrue(all(0 < x < 2 ** -9 for x in tolerance), tolerance)

    def test_is_not_written_over(self):
        self.dump.mkdir()
        (self.dump / 'mine').write_text('')
        done = self.etalon('dump', 'c.json', '-o', self.dump)
        self.assertEqual(2, done.returncode)
        self.assertIn('is not empty', done.stderr)
        self.assertEqual(['mine'], os.listdir(self.dump))

    def test_needs_a_name(self):
        self.assertIn('-o DIR', self.etalon('dump', 'c.json').stderr)
        self.assertEqual(2, self.etalon('dump', 'c.json', '-o', self.dump, '--port', 'exec:true').returncode)

    def test_of_an_interrupted_dump_has_no_manifest(self):
        dump = subprocess.Popen([ETALON, 'dump', '-o', self.dump], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                text=True)
        while dump.poll() is None and not (self.dump / '3').exists():
            time.sleep(0.01)
        dump.send_signal(signal.SIGINT)
        self.assertEqual(('', f'etalon: interrupted: {self.dump} has no manifest\n'), dump.communicate(timeout=60))
        self.assertEqual(130, dump.returncode)
        self.assertFalse((self.dump / 'manifest.json').exists())
        self.assert_not_whole()

    def test_is_listed_without_being_written(self):
        done = self.etalon('dump', 'c.json', '-o', self.dump, '--dry-run', '-v', '-k', '*/half/*')
        self.assertEqual((0, 'gqa_av/c/half/normal/outputs\n'), (done.returncode, done.stdout))
        self.assertFalse(self.dump.exists())


class Outputs(Dump):
    def test_that_are_the_oracles_pass(self):
        self.dumped()
        self.fill()
        lines = self.check()
        self.assertEqual(['PASS'] * RUNS, [line['verdict'] for line in lines.values()])
        held = {name for line in lines.values() for name, check in line['checks'].items() if check['outcome'] == 'held'}
        self.assertEqual({'nmse', 'bound', 'gain', 'exact'}, held)

    def test_pass_with_another_seed_and_as_built_in_cases(self):
        self.dumped('--seed', 7)
        self.fill()
        self.assertEqual({7}, {line['seed'] for line in self.check().values()})
        shutil.rmtree(self.dump)
        self.assertEqual(0, self.etalon('dump', 'gqa_av/llm/smoke', '-o', self.dump).returncode)
        self.fill()
        self.assertEqual(0, self.etalon('check', self.dump).returncode)

    def test_may_lie_in_another_folder_and_be_some_of_all(self):
        self.dumped()
        self.fill()
        (self.folder / 'made').mkdir()
        shutil.move(self.dump / str(HALF), self.folder / 'made' / str(HALF))
        line = self.check('--outputs', 'made', '-k', '*/half/*')
        self.assertEqual({'half/normal': 'PASS'}, {name: line['verdict'] for name, line in line.items()})

    def test_that_are_off_fail_at_their_place_and_say_how_to_see_it_again(self):
        self.dumped()
        self.fill()
        path = self.dump / str(PLAIN) / '0.out.npy'
        data = bytearray(path.read_bytes())
        struct.pack_into('<f', data, len(data) - 4, struct.unpack_from('<f', data, len(data) - 4)[0] + 1e-4)
        path.write_bytes(data)
        lines = self.check(code=1)
        self.assertEqual({'plain/normal'}, {name for name, line in lines.items() if line['verdict'] != 'PASS'})
        self.assertIn('(query_length 0, q_heads 3, head_dim 7)', lines['plain/normal']['checks']['bound']['text'])
        again = re.search('reproduce: etalon (check .*)', self.printed).group(1)
        done = subprocess.run(f"'{ETALON}' {again}", shell=True, cwd=self.folder, capture_output=True, text=True)
        self.assertEqual(1, done.returncode)
        self.assertIn('0 passed, 1 failed', done.stdout)

    def test_may_be_safetensors(self):
        self.dumped()
        self.fill()
        for folder, dtype in ((PLAIN, 'F32'), (PADDED, 'F32'), (HALF, 'F16'), (BRAIN, 'BF16')):
            shape, values = load(self.dump / str(folder) / '0.out.oracle.npy')
            os.remove(self.dump / str(folder) / '0.out.npy')
            (self.dump / str(folder) / '0.outputs.safetensors').write_bytes(safetensors(
                {'out': (dtype, shape, packed({'F32': 'f', 'F16': 'e', 'BF16': 'bf16'}[dtype], values))}))
        self.check()

    def error_of(self, folder, name, data):
        path = self.dump / str(folder) / name
        path.write_bytes(data)
        lines = self.check(code=1)
        bad = [line for line in lines.values() if line['verdict'] != 'PASS']
        self.assertEqual(['ERROR'], [line['verdict'] for line in bad])
        return bad[0]['reason']

    def test_in_npy_that_are_not_right_are_an_error(self):
        self.dumped()
        self.fill()
        shape, good = (1, 4, 8), bytes(4 * 32)
        for data, why in (
                (b'', 'does not begin as an .npy file does'),
                (b'\x93NUMPY\x01\x00', 'does not begin as an .npy file does'),
                (npy('<f4', shape, good)[:-1], 'has 127 bytes of data, which is not what its shape takes'),
                (npy('<f4', shape, good + b'x'), 'has 129 bytes of data'),
                (npy('<f4', (4, 8), good), 'out is not of shape [1, 4, 8] and type f32'),
                (npy('<f4', (4611686018427387905, 4, 1), good), 'which is not what its shape takes'),
                (npy('<f4', (99999999999999999999,), good), 'its header is not'),
                (npy('<f4', '(1, 4, 8', good), 'its header is not'),
                (npy('<f4', (1, 1, 1, 1, 4, 8), good), 'its header is not'),
                (npy('>f4', shape, good), 'has elements ">f4"'),
                (npy('|O', shape, good), 'has elements "|O"'),
                (npy('<u2', shape, bytes(64)), 'stand for bf16 only, not for f32'),
                (npy('<f8', shape, struct.pack('<32d', *[0.1] * 32)), 'element 0 is 0.10000000000000001, which is no f32'),
                (npy('<f4', shape, good, order='True'), 'is in Fortran order'),
                (npy('<f4', shape, good, version=4), 'has version 4.0 of the format'),
                (b'\x93NUMPY\x02\x00\xff\xff\xff\xff' + bytes(200), 'its header has 4294967295 bytes')):
            with self.subTest(why):
                self.assertIn(why, self.error_of(PLAIN, '0.out.npy', data))

    def test_in_every_kind_and_version_of_npy_are_read(self):
        self.dumped()
        self.fill()
        zeros = {'<f8': 8, '<f4': 4, '<f2': 2, '<i4': 4}
        for version in 1, 2, 3:
            for descr, width in zeros.items():
                (self.dump / str(PLAIN) / '0.out.npy').write_bytes(npy(descr, (1, 4, 8), bytes(32 * width), version))
                self.assertEqual('FAIL', self.check(code=1)['plain/normal']['verdict'])

    def test_in_safetensors_that_are_not_right_are_an_error(self):
        self.dumped()
        self.fill()
        out = ('F32', [1, 4, 8], bytes(128))
        good = safetensors({'out': out})
        for data, why in (
                (good[:-1], 'out'),
                (struct.pack('<Q', 1 << 63) + good[8:], 'its header has 9223372036854775808 bytes'),
                (good.replace(b'[0, 128]', b'[4, 132]'), 'data_offsets'),
                (safetensors({'out': ('F16', [1, 4, 8], bytes(64))}), 'out is not of shape [1, 4, 8] and type f32'),
                (safetensors({'out': ('F32', [4, 8], bytes(128))}), 'out is not of shape [1, 4, 8] and type f32'),
                (safetensors({'our': out}), 'has no tensor out'),
                (safetensors({'out': out, 'more': ('F32', [0], b'')}), 'has 2 tensors, gqa_av has 1 outputs'),
                (safetensors({'out': out, 'more': ('F32', [1], bytes(4))}), 'has 132 bytes of data, at most 128'),
                (good.replace(b'[0, 128]', b'[0, 64] '), 'out has 64 bytes')):
            with self.subTest(why):
                self.assertIn(why, self.error_of(PLAIN, '0.outputs.safetensors', data))

    def test_that_are_a_pipe_are_an_error_as_is_such_a_manifest(self):
        self.dumped()
        self.fill()
        for name, code in (f'{PLAIN}/0.out.npy', 1), ('manifest.json', 2):
            (self.dump / name).unlink()
            os.mkfifo(self.dump / name)
            told = self.check(code=code)
            self.assertIn(f'{name} is not a file', told if code == 2 else told['plain/normal']['reason'])

    def test_that_are_missing_are_an_error(self):
        self.dumped()
        self.fill()
        os.remove(self.dump / str(STEPS) / '1.out.npy')
        lines = self.check(code=1)
        self.assertRegex(lines['steps/normal']['reason'], r'5/1\.out\.npy is not there, and neither is 1\.outputs')

    def test_of_a_case_that_changed_are_an_error(self):
        self.dumped()
        self.fill()
        changed = json.loads(json.dumps(CASES))
        changed['cases'][0]['seed'] = 1
        (self.folder / 'c.json').write_text(json.dumps(changed))
        lines = self.check(code=1)
        self.assertIn('the case or its seed changed', lines['plain/normal']['reason'])


class AManifest(Dump):
    def check_edited(self, edit):
        manifest = self.dumped()
        self.fill()
        edited = edit(manifest)
        (self.dump / 'manifest.json').write_text(edited if isinstance(edited, str) else json.dumps(manifest))
        why = self.check(code=2)
        shutil.rmtree(self.dump)
        return why

    def test_that_is_not_right_ends_the_command(self):
        for edit, why in (
                (lambda m: '', 'manifest.json:1:1'),
                (lambda m: '[]', 'a manifest is a list, not an object'),
                (lambda m: json.dumps(m)[:-9], 'manifest.json:1:'),
                (lambda m: m['runs'][0].update(folder='../0'), 'folder is "../0", not a whole number'),
                (lambda m: m['runs'][0].update(folder=-1), 'folder is -1'),
                (lambda m: m.update(runs=[]), 'a manifest has 1 to'),
                (lambda m: m['runs'].append(m['runs'][PLAIN]), 'outputs is there twice'),
                (lambda m: m.update(format=2), 'format is 2'),
                (lambda m: m.update(tier='all'), 'there is no tier all'),
                (lambda m: m.update(seed=1.5), 'seed is 1.5'),
                (lambda m: m['runs'][0].update(id='gqa_av/c/other/normal/outputs'), 'no case that was read has the run'),
                (lambda m: m['runs'][0]['steps'][0].pop('claim'), 'a step has no claim'),
                (lambda m: m['runs'][0]['steps'][0]['claim'].pop('arith'), 'a claim has no arith'),
                (lambda m: m.update(more=1), 'more')):
            with self.subTest(why):
                self.assertIn(why, self.check_edited(edit))

    def test_with_other_steps_is_an_error_of_the_run(self):
        manifest = self.dumped()
        self.fill()
        manifest['runs'][PLAIN]['steps'] = []
        (self.dump / 'manifest.json').write_text(json.dumps(manifest))
        self.assertIn('has no such run of 1 steps', self.check(code=1)['plain/normal']['reason'])

    def test_may_claim_otherwise(self):
        manifest = self.dumped()
        self.fill()
        manifest['runs'][PLAIN]['steps'][0]['claim'] = {
            **manifest['runs'][PLAIN]['steps'][0]['claim'], 'order': {'name': 'serial', 'arg': [0] * 8}}
        (self.dump / 'manifest.json').write_text(json.dumps(manifest))
        line = self.check(code=1)['plain/normal']
        self.assertEqual({'replay'}, {name for name, check in line['checks'].items() if check['outcome'] == 'broken'})

    def test_is_needed(self):
        for _ in range(2):
            self.assert_not_whole()
            self.dump.mkdir(exist_ok=True)
        self.assertIn('check needs the folder', self.etalon('check').stderr)
        self.assertIn('takes no', self.etalon('check', self.dump, '--repeat', 3).stderr)


class AnOutputOfCheck(Dump):
    def test_that_is_a_file_of_the_dump_is_refused_and_stays_what_it_is(self):
        self.dumped()
        self.fill()
        elsewhere = self.folder / 'elsewhere'
        shutil.copytree(self.dump, elsewhere)
        (self.folder / 'link').symlink_to(self.dump / '0/0.out.npy')
        files = {"the dump's file": [self.dump / '0/0.out.npy', self.dump / '4/0.safetensors', self.dump / '5/job.json',
                                     elsewhere / '0/0.out.npy'],
                 'the manifest': [self.dump / 'manifest.json'], 'the case file': [self.folder / 'c.json']}
        for what, paths in files.items():
            for path in paths:
                before = path.read_bytes()
                named = 'c.json' if what == 'the case file' else path
                for option in '--results', '--junit':
                    done = self.etalon('check', self.dump, 'c.json', '--outputs', elsewhere, option, path)
                    self.assertEqual((2, '', f'etalon: {option} {path} and {what} {named} are one file\n'),
                                     (done.returncode, done.stdout, done.stderr))
                self.assertEqual(before, path.read_bytes())
        self.assertEqual(2, self.etalon('check', self.dump, 'c.json', '-o', 'link').returncode)
        for _ in range(2):
            self.assertEqual(0, self.etalon('check', self.dump, 'c.json', '-o', self.dump / 'results.jsonl').returncode)


# descr of .npy, struct's letter, and the type of safetensors
STORED = {'f32': ('<f4', 'f', 'F32'), 'f16': ('<f2', 'e', 'F16'), 'bf16': ('<u2', 'bf16', 'BF16')}


class BuiltIn(Dump):
    """Runs of the built-in cases: outputs are the oracle's values, but for what is put into the first of them."""

    def dumped_of(self, *selection):
        done = self.etalon('dump', *selection, '-o', self.dump)
        self.assertEqual((0, '', ''), (done.returncode, done.stdout, done.stderr))
        return json.loads((self.dump / 'manifest.json').read_text())['runs']

    def outputs(self, run):
        """(step, name, type, shape, values) of each output of a run."""
        folder = self.dump / str(run['folder'])
        for i, step in enumerate(json.loads((folder / 'job.json').read_text())['steps']):
            for name, layout in step['tensors'].items():
                if layout['role'] == 'output':
                    yield i, name, layout['dtype'], *load(folder / f'{i}.{name}.oracle.npy')

    def write(self, run, files=False, edit=lambda values: values):
        folder = self.dump / str(run['folder'])
        steps = {}
        for i, name, dtype, shape, values in self.outputs(run):
            descr, kind, stored = STORED[dtype]
            data = packed(kind, values if steps else edit(values))
            steps.setdefault(i, {})[name] = stored, shape, data
            if not files:
                (folder / f'{i}.{name}.npy').write_bytes(npy(descr, shape, data))
        for i, tensors in steps.items() if files else ():
            (folder / f'{i}.outputs.safetensors').write_bytes(safetensors(tensors))

    def checked(self, *args):
        done = self.etalon('check', self.dump, '-o', 'results.jsonl', *args)
        return done, [json.loads(line) for line in (self.folder / 'results.jsonl').read_text().splitlines()[1:]]


class EveryOperator(BuiltIn):
    def assert_passes(self, runs, files):
        for run in runs:
            self.write(run, files)
        done, lines = self.checked()
        self.assertEqual(0, done.returncode, done.stdout + done.stderr)
        self.assertEqual([run['id'] for run in runs], [line['id'] for line in lines])
        self.assertEqual({'PASS'}, {line['verdict'] for line in lines})

    def test_is_dumped_and_passes_with_the_oracles_values(self):
        runs = self.dumped_of('--tier', 'smoke')
        self.assertEqual(set(built.operators(ETALON)), {run['id'].split('/')[0] for run in runs})
        self.assert_passes(runs, files=False)

    def test_has_twice_the_roundings_of_a_chain_claimed_of_scores_and_of_sums(self):
        run, = self.dumped_of('-k', 'flash_attn/llm/smoke/normal/*', '-t', 'smoke')
        arith = run['steps'][0]['claim']['arith']
        self.assertEqual((2 * 64, 2 * 197), (arith['depth_qk'], arith['depth_sum']))  # 64 channels, 197 keys

    def test_of_every_storage_type_passes_with_the_oracles_values(self):
        runs = self.dumped_of('-k', '*/types/*')
        filed, types = set(), set()
        for run in runs:
            folder = self.dump / str(run['folder'])
            data = (folder / '0.safetensors').read_bytes()
            filed |= {entry['dtype'] for entry in json.loads(data[8:8 + struct.unpack_from('<Q', data)[0]]).values()}
            types |= {layout['dtype'] for layout in json.loads((folder / 'job.json').read_text())['steps'][0]['tensors'].values()}
        self.assertEqual({'F32', 'F16', 'BF16', 'F8_E4M3', 'F8_E4M3FNUZ', 'I8', 'U8'}, filed)
        self.assertEqual({'f32', 'f16', 'bf16', 'f8e4m3fn', 'f8e4m3fnuz', 'i8', 'u8', 'i4'}, types)
        self.assert_passes(runs, files=True)

    def test_with_wrong_outputs_gets_its_verdict_and_a_reproduce_line_that_prints_the_same(self):
        bugs = {'an element off': (lambda x: [*x[:-1], x[-1] * 1.05 + 0.01], 'FAIL'),
                'zeros': (lambda x: [0] * len(x), 'FAIL'),
                'negated': (lambda x: [-value for value in x], 'FAIL'),
                'moved by one': (lambda x: [*x[1:], x[0]], 'FAIL'),
                'no number': (lambda x: [*x[:-1], float('nan')], 'FAIL'),
                'cut': (lambda x: x[:-1], 'ERROR')}
        runs = {run['id'].split('/')[0]: run for run in self.dumped_of('-k', '*/smoke/normal/*', '-t', 'smoke')}
        self.assertEqual(set(built.operators(ETALON)), set(runs))
        for op, run in runs.items():
            for files in False, True:
                self.write(run, files)
                for bug, (edit, verdict) in bugs.items():
                    with self.subTest(op, bug=bug, safetensors=files):
                        self.write(run, files, edit)
                        done, (line,) = self.checked('-k', run['id'])
                        self.assertEqual((1, verdict), (done.returncode, line['verdict']), done.stdout)
                        before, code, after = again.again(ETALON, done.stdout, run['id'], self.folder)
                        self.assertEqual((1, before), (code, after))
            self.write(run, files=True)


class WeightsOfFourBits(BuiltIn):
    def test_lie_two_to_a_byte_as_the_page_has_it(self):
        run, = self.dumped_of('-k', 'skinny_gemm/types/int4-padded/normal/*')
        folder = self.dump / str(run['folder'])
        step, = json.loads((folder / 'job.json').read_text())['steps']
        data = (folder / '0.safetensors').read_bytes()
        begin = 8 + struct.unpack_from('<Q', data)[0]
        header = json.loads(data[8:begin])

        def stored(name):
            """Elements of the buffer, and where each of the shape lies in it."""
            at, end = (begin + offset for offset in header[name]['data_offsets'])
            layout = step['tensors'][name]
            kind = {'f32': 'f', 'f16': 'e', 'u8': 'B', 'i4': 'B'}[layout['dtype']]
            content = struct.unpack(f'<{(end - at) // struct.calcsize(kind)}{kind}', data[at:end])
            return content, lambda i, k: layout['offset'] + i * layout['stride'][0] + k * layout['stride'][1]

        def value(name, i, k):
            content, place = stored(name)
            return content[place(i, k)]

        weight, place = stored('weight')
        self.assertEqual(('U8', [step['tensors']['weight']['elements'] // 2]),
                         (header['weight']['dtype'], header['weight']['shape']))
        params = step['params']
        _, oracle = load(folder / '0.out.oracle.npy')
        for m in range(0, params['out_features'], 8):
            total = 0
            for k in range(params['in_features']):
                nibble = weight[place(m, k) // 2] >> 4 * (place(m, k) % 2) & 15
                g = k // params['group']
                total += value('act', 0, k) * (nibble - value('zero_points', m, g)) * value('weight_scale', m, g)
            self.assertAlmostEqual(oracle[m], total + value('bias', 0, m), delta=1e-9)


class ThePage(Dump):
    def test_shows_what_is_printed(self):
        if subprocess.run([sys.executable, '-c', 'import numpy'], capture_output=True).returncode:
            self.skipTest('NumPy is missing')
        page = (ROOT / 'docs/porting.md').read_text()
        program = re.search(r'; made\.py:\n\n```python\n(.*?)^```$', page, re.S | re.M).group(1)
        program = program.replace("'tools/ports'", repr(str(ROOT / 'tools/ports')))
        right, wrong = (block.splitlines() for block in re.findall(
            r'^```\n(\$ etalon dump .*?|FAIL  gqa_av/llm/smoke/normal/outputs .*?)^```$', page, re.S | re.M))
        commands = [line[2:].split() for line in right if line.startswith('$ ')]
        self.assertEqual(0, self.etalon(*commands[0][1:]).returncode)
        for text, shown in ((program, right[len(commands):]),
                            (program.replace(":p['context']]", ":p['context'] - 1]"), wrong)):
            (self.folder / 'made.py').write_text(text)
            subprocess.run([sys.executable, 'made.py'], cwd=self.folder, check=True)
            pattern = ''.join(r'(?:.*\n)*?' if line == '...' else re.escape(line).replace(re.escape('...'), '.*') + r'\n'
                              for line in shown)
            self.assertRegex(self.etalon(*commands[2][1:]).stdout, rf'\A{pattern}')


if __name__ == '__main__':
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
