#!/usr/bin/env python3
"""fmath.h gives the bytes of C on PoCL, rusticl and Oclgrind, and where it does not, ocl_fmath says so.

usage: ocl_fmath.py OCL_FMATH        exits 77 where none of the three is installed
"""
import importlib.machinery
import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
OCL_FMATH = sys.argv[1]
LINE = re.compile(r'^(\w+): (\d+) of (\d+) equal, hash (0x\w{16})$', re.M)
FUNCTIONS = ['exp', 'log1p', 'sqrt', 'sigmoid', 'tanh', 'div']


def load_matrix():
    """tools/matrix knows where the implementations are and what each needs."""
    loader = importlib.machinery.SourceFileLoader('matrix_tool', str(ROOT / 'tools/matrix'))
    sys.dont_write_bytecode = True
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader('matrix_tool', loader))
    loader.exec_module(module)
    return module


MATRIX = load_matrix()


def on(driver, *arguments):
    """ocl_fmath where `driver` is the only one, and what Oclgrind logged."""
    with tempfile.TemporaryDirectory(prefix='etalon-fmath-') as scratch:
        folder = pathlib.Path(scratch)
        library, extra, _ = driver(False)
        (folder / 'vendors').mkdir()
        (folder / 'vendors/driver.icd').write_text(library + '\n')
        env = {key: value for key, value in os.environ.items() if key != 'OCL_ICD_FILENAMES'}
        env.update(extra, OCL_ICD_VENDORS=str(folder / 'vendors'), OCLGRIND_LOG=str(folder / 'log'))
        done = subprocess.run([OCL_FMATH, *arguments], env=env, stdin=subprocess.DEVNULL, capture_output=True,
                              text=True)
        return done, MATRIX.read_logs(folder) if driver is MATRIX.oclgrind else []


def here(driver):
    try:
        driver(False)
    except MATRIX.NotHere:
        return False
    return True


class Fmath(unittest.TestCase):
    def check(self, driver):
        if not here(driver):
            self.skipTest(f'{driver.__name__} is not installed')
        done, log = on(driver)
        if done.returncode == 77:
            self.skipTest(done.stderr)
        print(done.stdout)
        self.assertEqual(0, done.returncode, done.stdout + done.stderr)
        self.assertEqual([], log)
        lines = LINE.findall(done.stdout)
        self.assertEqual(FUNCTIONS, [name for name, *_ in lines])
        for name, equal, of, _ in lines:
            self.assertEqual(equal, of, name)
            self.assertGreater(int(of), 1 << (16 if driver is MATRIX.oclgrind else 22))
        # The page shows a run on all inputs; of fewer it gives the count.
        page = (ROOT / 'docs/fmath.md').read_text()
        if driver is MATRIX.oclgrind:
            self.assertIn(f'{lines[0][1]} of {lines[0][2]}.', page.replace('\n', ' '))
        else:
            self.assertEqual(LINE.findall(page), lines)
        return {name: hash for name, _, _, hash in lines}

    def test_pocl_gives_the_bytes_of_c(self):
        recorded = (ROOT / 'tests/fmath_sample.h').read_text()
        for name, hash in self.check(MATRIX.pocl).items():
            if name != 'div':
                self.assertRegex(recorded, rf'"{name}", [^}}]*, {hash},')

    def test_rusticl_gives_the_bytes_of_c(self):
        self.check(MATRIX.rusticl)

    def test_oclgrind_gives_the_bytes_of_c_and_logs_nothing(self):
        self.check(MATRIX.oclgrind)

    def test_one_unit_in_a_coefficient_is_seen(self):
        if not here(MATRIX.pocl):
            self.skipTest('pocl is not installed')
        text = (ROOT / 'ref/fmath.h').read_text()
        self.assertIn('0x1.110ceep-3f', text)
        with tempfile.NamedTemporaryFile('w', suffix='.h') as file:
            file.write(text.replace('0x1.110ceep-3f', '0x1.110cf0p-3f'))
            file.flush()
            done, _ = on(MATRIX.pocl, '-f', file.name)
        self.assertEqual(1, done.returncode, done.stdout + done.stderr)
        different = re.findall(r'^(\w+): (?!(\d+) of \2 equal)', done.stdout, re.M)
        self.assertEqual(['tanh'], [name for name, _ in different])
        self.assertRegex(done.stdout, r'  of 0x\w{8}, 0x\w{8}: 0x\w{8}, in C 0x\w{8}\n')


if __name__ == '__main__':
    if not any(map(here, (MATRIX.pocl, MATRIX.rusticl, MATRIX.oclgrind))):
        print('skipped: neither PoCL, rusticl nor Oclgrind is installed')
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])
