#!/usr/bin/env python3
"""Whatever fails once costs no more than it must. usage: faults.py ETALON_FAULTY STRIDE [unittest argument ...]

ETALON_FAULTY is etalon with tests/faulty.c linked in: the n-th allocation or OpenCL call of the judge, of the worker
that lists devices, or of the one that computes, fails (once), or the process ends there. For each operator one small
case, of which three runs are judged; n is every STRIDE-th from the first until nothing happens any more. So with a
worker as a program of others, with a dump of the case, and where that is checked.
Exit status: 0, 1, or 77 where there is no PoCL device.
"""
import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

import dump as files

ROOT = Path(__file__).resolve().parent.parent
FAULTY = str(Path(sys.argv[1]).resolve())
STRIDE = int(sys.argv[2])
WORK = Path(tempfile.mkdtemp(prefix='etalon-faults-'))
SANITIZER = re.compile(r'AddressSanitizer|LeakSanitizer|runtime error')


def etalon(*args, **env):
    return subprocess.run([FAULTY, *map(str, args)], cwd=WORK, env={**os.environ, **env}, text=True,
                          stdin=subprocess.DEVNULL, capture_output=True, timeout=600, errors='replace')


def numbers(node):
    """The sum of all numbers in it, which is how small cases are told from large ones."""
    if isinstance(node, dict):
        return sum(numbers(value) for value in node.values())
    if isinstance(node, list):
        return sum(numbers(value) for value in node)
    return abs(node) if isinstance(node, (int, float)) and not isinstance(node, bool) else 0


def small_case(op):
    """A file with the operator's smallest case of at least three runs that pass; and the ids of the three."""
    entries = []
    for path in sorted((ROOT / 'cases' / op).glob('*.json')):
        file = json.loads(path.read_text())
        for entry in file['cases']:
            if not {'model', 'steps', 'expect', 'limit'} & {*entry, *file.get('defaults', {})}:
                entries.append((numbers([entry, file.get('defaults', {}).get('params')]), len(entries), file, entry))
    for *_, file, entry in sorted(entries, key=lambda e: e[:2]):
        folder = WORK / op
        folder.mkdir(exist_ok=True)
        (folder / 'models.json').write_text('{}')
        path = folder / 'small.json'
        path.write_text(json.dumps({**file, 'cases': [entry]}))
        ids = etalon('run', '--dry-run', path).stdout.splitlines()[:3]
        if len(ids) == 3 and etalon('run', path, *sum((['-k', id] for id in ids), [])).returncode == 0:
            return path, ids
    raise AssertionError(f'cases/{op} has no small case of three runs that pass')


class Ran:
    def __init__(self, path, ids, fault, command=('run',), output=None):
        """output: the -o of a command that makes no results."""
        log, results = WORK / 'log', WORK / 'results.jsonl'
        log.unlink(missing_ok=True)
        results.unlink(missing_ok=True)
        done = etalon(*command, path, '-o', output or results, *sum((['-k', id] for id in ids), []),
                      ETALON_FAULT=fault, ETALON_FAULT_LOG=str(log))
        self.fault, self.code, self.text = fault, done.returncode, done.stdout + done.stderr
        self.struck = log.read_text() if log.exists() else None
        lines = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
        self.verdicts = [line['verdict'] for line in lines[1:]]
        self.reasons = [line.get('reason', '') for line in lines[1:]]

    def __str__(self):
        return f'ETALON_FAULT={self.fault} ({self.struck}): status {self.code}, {self.verdicts}\n{self.text}'


class AFault(unittest.TestCase):
    def assert_told(self, ran, said):
        """No crash, no leak; and where not all is as if nothing had been, a sentence that says what failed."""
        self.assertIn(ran.code, (0, 1, 2, 3), ran)
        self.assertNotRegex(ran.text, SANITIZER, ran)
        if ran.code == 0:
            self.assertEqual(['PASS'] * 3, ran.verdicts, ran)
        else:
            self.assertRegex(ran.text, said, ran)

    def each(self, what, said, *command):
        for op, (path, ids) in CASES.items():
            n = 0
            for n in range(1, 100_000, STRIDE):
                ran = Ran(path, ids, f'{what}:{n}:fail', ('run', *command))
                if not ran.struck:
                    break
                with self.subTest(f'{op} {what} {n}'):
                    self.assert_told(ran, said(ran.struck))
                    if what.startswith('worker'):
                        self.assert_one_run_lost(ran)
            self.assertGreater(n, 1, 'nothing was struck')
            self.assertEqual((0, ['PASS'] * 3), (ran.code, ran.verdicts), ran)
            print(f'{op}: {what}: {n - 1 if STRIDE == 1 else f"up to {n - 1}"}', flush=True)

    def assert_one_run_lost(self, ran):
        """Where the device opened, one run is lost and the others are judged; else all of them say why."""
        lost = [verdict for verdict in ran.verdicts if verdict != 'PASS']
        if len(lost) > 1:
            self.assertEqual([3, 1], [len(ran.verdicts), len(set(ran.reasons))], ran)

    MEMORY = r'out of memory|no memory|memory for|Cannot allocate memory'

    def test_of_an_allocation_of_the_judge_is_told(self):
        self.each('judge:alloc', lambda call: self.MEMORY)

    def test_of_an_allocation_of_the_judge_beside_a_program_of_others_is_told(self):
        self.each('judge:alloc', lambda call: self.MEMORY, '--port', f'exec:exec {FAULTY} worker --port ocl --device 0:0')

    def test_of_an_allocation_of_the_lister_is_told(self):
        self.each('list:alloc', lambda call: self.MEMORY + '|no device')

    def test_of_an_allocation_of_a_worker_is_told(self):
        self.each('worker:alloc', lambda call: self.MEMORY)

    def test_of_a_call_of_the_lister_is_told(self):
        self.each('list:cl', lambda call: rf'{call}: CL_OUT_OF_RESOURCES \(-5\)')

    def test_of_a_call_of_a_worker_is_told(self):
        self.each('worker:cl', lambda call: rf'{call}: CL_OUT_OF_RESOURCES \(-5\)')


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.glob('**/*') if path.is_file()}


class AFaultWithFiles(unittest.TestCase):
    """A dump of the whole case, whose outputs are then the oracle's, rounded once."""

    def each(self, op, what, path, command, output, result):
        """result(ran): what came of it; where it is not what comes of it else, a sentence says why."""
        unhurt = result(Ran(path, [], 'none', command, output))
        for n in range(1, 100_000, STRIDE):
            if output:
                shutil.rmtree(output, ignore_errors=True)
            ran = Ran(path, [], f'judge:alloc:{n}:fail', command, output)
            with self.subTest(f'{op} {what} {n}'):
                self.assertNotRegex(ran.text, SANITIZER, ran)
                self.assertIn(ran.code, (0, 1, 2), ran)
                if result(ran) != unhurt:
                    self.assertRegex(ran.text, AFault.MEMORY, ran)
                    self.assertNotEqual(0, ran.code, ran)
            if not ran.struck:
                break
        self.assertGreater(n, 1, 'nothing was struck')
        self.assertEqual(unhurt, result(ran), ran)
        print(f'{op}: {what}: {n - 1 if STRIDE == 1 else f"up to {n - 1}"}', flush=True)

    def test_of_an_allocation_is_told(self):
        for op, (path, _) in CASES.items():
            folder, again = WORK / f'{op}-dump', WORK / f'{op}-again'
            self.assertEqual(0, etalon('dump', path, '-o', folder).returncode)
            self.each(op, 'dump', path, ['dump'], again, lambda ran: [ran.code, contents(again)])
            for oracle in folder.glob('*/*.oracle.npy'):
                step, name = oracle.name.split('.')[:2]
                dtype = json.loads((oracle.parent / 'job.json').read_text())['steps'][int(step)]['tensors'][name]['dtype']
                shape, values = files.load(oracle)
                descr, kind = {'f32': ('<f4', 'f'), 'f16': ('<f2', 'e'), 'bf16': ('<u2', 'bf16')}[dtype]
                oracle.with_name(f'{step}.{name}.npy').write_bytes(files.npy(descr, shape, files.packed(kind, values)))
            self.each(op, 'check', path, ['check', folder], None, lambda ran: [ran.code, ran.verdicts])
            self.assertIn('PASS', Ran(path, [], 'none', ['check', folder]).verdicts)


class AWorkerThatIsKilled(unittest.TestCase):
    """What is in progress is one ERROR, what comes after is judged, and the exit status is 1."""

    def assert_one_error(self, ran, reason):
        self.assertEqual((1, ['ERROR', 'PASS', 'PASS']), (ran.code, sorted(ran.verdicts)), ran)
        self.assertRegex(''.join(ran.reasons), reason, ran)

    DIED = r'^the runner died by signal 9 \(Killed\)'

    def counts(self, op, what):
        """How many there are of it in a worker before its hello, and in all."""
        path, ids = CASES[op]
        total = 1
        while Ran(path, ids, f'{what}:{total}:kill').struck:
            total *= 2
        return total

    def test_at_any_call_or_allocation_of_a_run(self):
        dice = random.Random(1)
        for op, (path, ids) in CASES.items():
            for what in ('worker:cl', 'worker:alloc'):
                most, lost = self.counts(op, what), 0
                for _ in range(6 if STRIDE > 1 else 100):
                    ran = Ran(path, ids, f'{what}:{dice.randrange(1, most)}:kill')
                    with self.subTest(ran.fault):
                        self.assertNotRegex(ran.text, SANITIZER, ran)
                        if 'PASS' in ran.verdicts and 'ERROR' in ran.verdicts:
                            self.assert_one_error(ran, self.DIED)
                            lost += 1
                        elif ran.struck and ran.code != 0:  # before its hello: no run can have the device
                            self.assertEqual((1, ['ERROR'] * 3), (ran.code, ran.verdicts), ran)
                            self.assertRegex(ran.reasons[0], self.DIED, ran)
                        else:  # never, or idle at its end
                            self.assertEqual((0, ['PASS'] * 3), (ran.code, ran.verdicts), ran)
                print(f'{op}: {what}: {lost} of the kills were in a run', flush=True)

    def test_in_the_middle_of_its_answer(self):
        for path, ids in CASES.values():
            for answer in (2, 3, 4):
                self.assert_one_error(Ran(path, ids, f'worker:say:{answer}:half'), self.DIED)

    def test_after_its_answer_costs_nothing(self):
        for path, ids in CASES.values():
            ran = Ran(path, ids, 'worker:say:5:kill')
            self.assertEqual((0, ['PASS'] * 3), (ran.code, ran.verdicts), ran)

    def test_in_the_middle_of_its_hello_costs_the_device(self):
        for path, ids in CASES.values():
            ran = Ran(path, ids, 'worker:say:1:half')
            self.assertEqual((1, ['ERROR'] * 3), (ran.code, ran.verdicts), ran)
            self.assertRegex(ran.reasons[0], self.DIED)

    def test_at_any_time(self):
        """From outside, at seeded times after its start; runs are repeated so that there is something to hit."""
        dice = random.Random(2)
        for path, ids in CASES.values():
            hit = 0
            for _ in range(5 if STRIDE > 1 else 40):
                results = WORK / 'timed.jsonl'
                judge = subprocess.Popen([FAULTY, 'run', path, '--repeat', '300', '-o', results,
                                          *sum((['-k', id] for id in ids), [])], cwd=WORK, text=True,
                                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
                wait = dice.uniform(0, 1.5)
                time.sleep(wait)
                for pid in workers_of(judge.pid):
                    with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
                        os.kill(pid, signal.SIGKILL)
                text, _ = judge.communicate(timeout=600)
                if judge.returncode == 3:  # the lister was hit
                    self.assertIn('etalon: the runner died by signal 9 (Killed)', text)
                    continue
                verdicts = [json.loads(line)['verdict'] for line in results.read_text().splitlines()[1:]]
                self.assertEqual(3, len(verdicts), text)
                self.assertEqual(1 if 'ERROR' in verdicts else 0, judge.returncode, text)
                if 'PASS' in verdicts:
                    self.assertLessEqual(verdicts.count('ERROR'), 1, f'{wait}: {text}')
                hit += 'ERROR' in verdicts
            print(f'{hit} of the kills hit a run or an opening', flush=True)


def workers_of(pid):
    listing = subprocess.run(['ps', '--ppid', str(pid), '-o', 'pid=,args='], capture_output=True, text=True).stdout
    return [int(line.split()[0]) for line in listing.splitlines() if ' worker ' in line and '--list' not in line]


class AWorkerThatCutsItsOutputs(unittest.TestCase):
    def test_costs_that_run(self):
        for path, ids in CASES.values():
            ran = Ran(path, ids, 'worker:say:2:cut')
            self.assertEqual((1, ['ERROR', 'PASS', 'PASS']), (ran.code, sorted(ran.verdicts)), ran)
            self.assertRegex(''.join(ran.reasons), r'safetensors (has 0 bytes: too few for|was cut to \d+ bytes)')

    def test_under_the_eyes_of_the_judge_costs_no_more(self):
        """Which may have seen all by then; never a signal."""
        for path, ids in CASES.values():
            ran = Ran(path, ids, 'worker:say:2:late')
            self.assertIn((ran.code, sorted(ran.verdicts)), [(1, ['ERROR', 'PASS', 'PASS']), (0, ['PASS', 'PASS', 'PASS'])], ran)


def main():
    global CASES
    try:
        devices = etalon('list', 'devices').stdout.splitlines()
        if not devices or not all('Portable Computing Language' in line for line in devices):
            print('skipped: no PoCL device')
            return 77
        listing = etalon('list', 'operators').stdout
        CASES = {op: small_case(op) for op in re.findall(r'^(\w+)', listing, re.M)}
        result = unittest.main(argv=[sys.argv[0], *sys.argv[3:]], exit=False).result
    finally:
        shutil.rmtree(WORK, ignore_errors=True)
    return 0 if result.wasSuccessful() and result.testsRun else 1


if __name__ == '__main__':
    sys.exit(main())
