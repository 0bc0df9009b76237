#!/usr/bin/env python3
"""What `meson install` puts in place is all that a program or a person outside needs.

usage: install.py BUILD CC [flag ...]      exits 77 where meson or pkg-config is not installed
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
BUILD, *CC = sys.argv[1:]
HEADERS = ['dtype.h', 'etalon.h', 'etalon_port.h', 'fmath.h', 'rng.h', 'softmax.h']
# docs/library.md has it.
PROGRAM = re.search(r'^```c\n(.*?)^```', (ROOT / 'docs/library.md').read_text(), re.M | re.S).group(1)


def run(*args, **env):
    return subprocess.run([str(arg) for arg in args], capture_output=True, text=True, timeout=300,
                          env={**os.environ, **env})


class Installed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory(prefix='etalon-install-')
        cls.addClassCleanup(cls.scratch.cleanup)
        cls.root = Path(cls.scratch.name) / 'root'
        done = run('meson', 'install', '-C', BUILD, '--no-rebuild', '--quiet', '--destdir', cls.root)
        assert done.returncode == 0, done.stdout + done.stderr
        cls.pc = next(cls.root.rglob('etalon.pc'))
        cls.prefix = next(cls.root.rglob('bin/etalon')).parent.parent
        cls.etalon = cls.prefix / 'bin/etalon'

    def flags(self, *what):
        done = run('pkg-config', *what, 'etalon', PKG_CONFIG_PATH=str(self.pc.parent), PKG_CONFIG_SYSROOT_DIR=str(self.root))
        self.assertEqual((0, ''), (done.returncode, done.stderr))
        return done.stdout.split()

    def test_has_every_part_in_its_place(self):
        for path in ('share/etalon/cases/models.json', 'share/etalon/cases/case.schema.json', 'share/etalon/mutants',
                     'share/man/man1/etalon.1', 'share/bash-completion/completions/etalon',
                     'share/zsh/site-functions/_etalon', 'share/doc/etalon/README.md', 'share/doc/etalon/docs/cases.md',
                     *(f'include/etalon/{name}' for name in HEADERS)):
            self.assertTrue((self.prefix / path).exists(), path)

    def test_has_the_version_of_the_command(self):
        done = run(self.etalon, '--version')
        self.assertEqual(f'etalon {self.flags("--modversion")[0]}\n', done.stdout)

    def test_lets_a_program_call_an_oracle(self):
        self.assertLess(PROGRAM.count('\n'), 30)
        source, program = Path(self.scratch.name) / 'program.c', Path(self.scratch.name) / 'program'
        source.write_text(PROGRAM)
        done = run(*CC, '-std=c11', '-Wall', '-Wextra', '-Wpedantic', '-Werror', source, '-o', program,
                   *self.flags('--cflags', '--libs'))
        self.assertEqual((0, ''), (done.returncode, done.stderr))
        # 0.5 * 1 + 0.25 * 2 + 0.25 * 4, and the same of the second channel's 8, 16 and 32.
        self.assertEqual('2 16\n', run(program).stdout)

    def test_has_headers_that_are_c_and_cxx_alone(self):
        compilers = [[*CC, '-std=c11', '-x', 'c']]
        if shutil.which('g++'):
            compilers += [['g++', f'-std={standard}', '-x', 'c++'] for standard in ('c++11', 'c++17', 'c++20')]
        for compiler in compilers:
            for name in HEADERS:
                if name in ('fmath.h', 'softmax.h') and '-std=c++11' in compiler:
                    continue  # their constants are hexadecimal, as in C and OpenCL C
                # Included, as a user has it: of a file itself clang counts functions that are not called.
                source = Path(self.scratch.name) / 'alone'
                source.write_text(f'#include <etalon/{name}>\n')
                done = run(*compiler, '-Wall', '-Wextra', '-Wpedantic', '-Werror', '-fsyntax-only',
                           f'-I{self.prefix}/include', source)
                self.assertEqual((0, ''), (done.returncode, done.stderr), f'{compiler} {name}')

    def without_the_tree(self, *args):
        """Run where nothing of the source tree can be reached by accident."""
        return run('env', '-C', self.scratch.name, self.etalon, *args)

    def test_finds_its_own_cases_and_mutants(self):
        case = self.prefix / 'share/etalon/cases/gqa_av/only_here.json'
        self.addCleanup(lambda: case.unlink(missing_ok=True))
        case.write_text('{"format": 1, "operator": "gqa_av", "cases": [{"name": "a", "params": '
                        '{"q_heads": 1, "kv_heads": 1, "head_dim": 4, "context": 5}}]}')
        done = self.without_the_tree('run', '--dry-run', '-k', 'gqa_av/only_here/*')
        self.assertEqual(0, done.returncode, done.stderr)
        self.assertIn('gqa_av/only_here/a/normal/gqa\n', done.stdout)
        shutil.rmtree(self.prefix / 'share/etalon/mutants/gqa_av')
        done = self.without_the_tree('mutate', '--dry-run', '--operator', 'gqa_av')
        self.assertIn('no mutant of ', done.stderr)
        self.assertIn('share/etalon/mutants', done.stderr)

    def test_passes_the_smoke_tier(self):
        done = self.without_the_tree('run', '--tier', 'smoke')
        if done.returncode == 3:
            self.skipTest(done.stderr)
        self.assertEqual(0, done.returncode, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r'\d+ passed, 0 failed')


if __name__ == '__main__':
    lacking = [name for name in ('meson', 'pkg-config') if not shutil.which(name)]
    if lacking:
        print(f'skipped: {", ".join(lacking)} not installed')
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])
