#!/usr/bin/env python3
"""aarch64 gives the bytes that this machine gives: types, random numbers, fmath.h, fills and replays; and the same
oracles to 2^-44 of a row's largest number.

usage: aarch64.py DIGEST        tests/digest.c as built for this machine; exits 77 where the cross compiler, its C
                                library or qemu-user is not installed
"""
import itertools
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
DIGEST = sys.argv[1]
CC = 'aarch64-linux-gnu-gcc'
FLAGS = ['-std=c11', '-O3', '-ffp-contract=off', '-static']
# Files of ocl/ that need OpenCL's headers or the embedded kernels; absent.c stands in for them.
OF_DEVICES = {'build', 'cl', 'device', 'driver', 'port', 'probe', 'shuffle', 'source'}


def missing():
    """What is not installed, or None."""
    for program in CC, 'qemu-aarch64':
        if not shutil.which(program):
            return f'{program} is not installed'
    done = subprocess.run([CC, '-include', 'math.h', '-fsyntax-only', '-x', 'c', '/dev/null'], capture_output=True)
    return None if done.returncode == 0 else f'{CC} has no C library'


def sources():
    return [ROOT / 'tests/digest.c', *sorted((ROOT / 'ref').glob('*.c')),
            *(path for path in sorted((ROOT / 'ocl').glob('*.c')) if path.stem not in OF_DEVICES)]


def differs(here, there):
    """Whether two lines that should say the same do not."""
    a, b = here.split(), there.split()
    if a[:2] != b[:2] or a[0] != 'row':
        return a != b
    values, others = ([float.fromhex(x) for x in line[2:]] for line in (a, b))
    if len(values) != len(others):
        return True
    scale = max(map(abs, values), default=0) * 2**-44
    return not all(x == y or abs(x - y) <= scale for x, y in zip(values, others))


class Aarch64(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory(prefix='etalon-aarch64-') as scratch:
            program = pathlib.Path(scratch) / 'digest'
            subprocess.run([CC, *FLAGS, *sources(), '-o', program, '-lm'], check=True)
            cls.here, cls.there = (
                subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
                for command in ([DIGEST], ['qemu-aarch64', program]))

    def test_gives_the_same_bytes_and_oracles(self):
        pairs = itertools.zip_longest(self.here, self.there, fillvalue='')
        found = [f'{a[:200]}\n{b[:200]}' for a, b in pairs if differs(a, b)]
        self.assertEqual([], found[:10])

    def test_of_everything_that_owes_them(self):
        names = [line.split()[1] for line in self.here if line.startswith('bytes ')]
        operators = [path.stem for path in (ROOT / 'docs/operators').glob('*.md')]
        for kind in 'widen', 'narrow', 'philox', 'fill', 'fmath', *operators:
            self.assertIn(kind, [name.split('/')[0] for name in names])
        rows = [line.split()[1] for line in self.here if line.startswith('row ')]
        for op in operators:
            self.assertIn(op, [name.split('/')[0] for name in rows])


class ADifference(unittest.TestCase):
    def test_of_one_bit_of_a_hash_is_seen(self):
        self.assertFalse(differs('bytes a/b 00f0', 'bytes a/b 00f0'))
        self.assertTrue(differs('bytes a/b 00f0', 'bytes a/b 00f1'))
        self.assertTrue(differs('bytes a/b 00f0', ''))

    def test_of_an_oracle_is_seen_beside_the_largest_of_its_row(self):
        self.assertFalse(differs('row a 0x1p+0 0x1p-40', 'row a 0x1p+0 0x1.08p-40'))
        self.assertTrue(differs('row a 0x1p+0 0x1p-40', 'row a 0x1p+0 0x1.2p-40'))
        self.assertTrue(differs('row a 0x1p+0', 'row a nan'))
        self.assertTrue(differs('row a 0x1p+0', 'row a 0x1p+0 0x1p+0'))


if __name__ == '__main__':
    reason = missing()
    if reason:
        print(f'skipped: {reason}')
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])
