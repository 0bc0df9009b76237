#!/usr/bin/env python3
"""5,000 runs in one process tree leave memory and descriptors flat. Usage, skipping and exit status: as of cli.py.

Small runs of every variant, sampled from /proc while they go on; the figures are printed.
"""
import subprocess
import sys
import time
import unittest
from pathlib import Path

import cli



def resident(pid):
    """KiB, or None for what is gone."""
    lines = [line.split() for line in cli.read_proc(pid, 'status').splitlines() if line.startswith('VmRSS:')]
    return int(lines[0][1]) if lines else None


def descriptors(pid):
    try:
        return len(list(Path(f'/proc/{pid}/fd').iterdir()))
    except OSError:
        return None


class Samples:
    def __init__(self):
        self.at = []  # (runs done, KiB, descriptors)

    def take(self, done, pid):
        memory, files = resident(pid), descriptors(pid)
        if memory and files:
            self.at.append((done, memory, files))

    def median(self, first, last, what):
        """Of the samples taken in that part of the runs; what: 1 memory, 2 descriptors."""
        runs = self.at[-1][0]
        part = sorted(sample[what] for sample in self.at if first * runs <= sample[0] <= last * runs)
        return part[len(part) // 2]


class FiveThousandRuns(unittest.TestCase):
    def run_all(self):
        shape = {'kv_heads': 2, 'q_heads': 6, 'head_dim': 16}
        cases = [{'name': f'c{i}', 'params': shape, 'sweep': {'context': list(range(1, 101))},
                  'fills': ['normal', 'uniform']} for i in range(7)]
        results = cli.fresh() / 'r.jsonl'
        results.touch()
        judge = subprocess.Popen([cli.ETALON, 'run', cli.case_file('f', *cases), '-o', results], env=cli.ENV,
                                 stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        own, runners, lines = Samples(), {}, 0
        with results.open() as file:
            while judge.poll() is None:
                lines += file.read().count('\n')
                own.take(lines, judge.pid)
                for runner in cli.children(judge.pid):
                    runners.setdefault(runner, Samples()).take(lines, runner)
                time.sleep(0.05)
        self.out = judge.stdout.read().splitlines()
        judge.stdout.close()
        self.assertEqual(0, judge.returncode, self.out[-20:])
        self.assertRegex(self.out[-1], r'^([5-9]\d|\d{3})\d\d passed, 0 failed in ')
        self.assertLess(len(runners), 3, 'one lists the devices, one runs')
        return own, max(runners.values(), key=lambda samples: len(samples.at))

    def test_leave_memory_and_descriptors_of_judge_and_runner_flat(self):
        judge, runner = self.run_all()
        print('\n' + self.out[-1])
        for name, samples in ('judge', judge), ('runner', runner):
            begin, end = samples.median(0.1, 0.2, 1), samples.median(0.9, 1, 1)
            files = samples.median(0.1, 0.2, 2), samples.median(0.9, 1, 2)
            print(f'{name}: {begin} KiB after a tenth of the runs, {end} KiB at the end; '
                  f'{files[0]} and {files[1]} descriptors; {len(samples.at)} samples')
            self.assertEqual(*files)
            self.assertLess(end - begin, 1024, name)


if __name__ == '__main__':
    sys.exit(cli.main())
