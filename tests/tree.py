#!/usr/bin/env python3
"""What must hold of the source tree itself. usage: tree.py ETALON CC"""
import pathlib
import re
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
ETALON, *CC = sys.argv[1:]


def sources(folder, *endings):
    return [p for p in sorted((ROOT / folder).iterdir()) if p.suffix in endings]


class Tree(unittest.TestCase):
    def test_every_operator_has_all_of_its_places(self):
        """docs/porting.md, "Places that a new operator touches"."""
        listing = subprocess.run([ETALON, "list", "operators"], check=True, capture_output=True, text=True).stdout
        operators = re.findall(r"^(\w+)", listing, re.M)
        self.assertTrue(operators)
        for op in operators:
            lines = re.search(rf"^{op} .*\n((?:  .*\n)*)", listing, re.M).group(1)
            variants = re.findall(r"^  (\w+)", lines, re.M)
            self.assertTrue(variants, op)
            for place in ("ref/{}.c", "ocl/{}.c", "ocl/{}.cl", "docs/operators/{}.md", "cases/regressions/{}.json",
                          "tests/{}.c", "tests/ocl_{}.c"):
                self.assertTrue((ROOT / place.format(op)).is_file(), place.format(op))
            self.assertTrue(list((ROOT / "cases" / op).glob("*.json")))
            self.assertTrue((ROOT / "cases" / op / "teeth.json").is_file(), op)
            self.assertTrue(list((ROOT / "tools/mutants" / op).iterdir()))
            page = (ROOT / f"docs/operators/{op}.md").read_text()
            for variant in variants:
                self.assertIn(variant, page)
                if variant != "auto":  # runs the kernel of another
                    self.assertIn(f"{op}_{variant}", (ROOT / f"ocl/{op}.cl").read_text())

    def test_layers_depend_downwards_only(self):
        allowed = {"ref": set(), "ocl": {"ref"}, "blas": {"ref"}, "harness": {"ref", "ocl", "blas"}}
        for folder, below in allowed.items():
            for path in sources(folder, ".c", ".h"):
                for other in re.findall(r'#include "\.\./(\w+)/', path.read_text()):
                    self.assertIn(other, below, path)

    def test_the_reference_needs_only_c_and_libm(self):
        standard = {"assert", "float", "math", "stdarg", "stdbool", "stddef", "stdint", "stdio", "string"}
        for path in sources("ref", ".c", ".h"):
            for header in re.findall(r"#include <(.+)\.h>", path.read_text()):
                self.assertIn(header, standard, path)
            self.assertNotRegex(path.read_text(), r"\b(malloc|calloc|printf|fopen|exit|abort)\(")

    def test_each_header_compiles_alone(self):
        for path in sources("ref", ".h") + sources("ocl", ".h") + sources("blas", ".h") + sources("harness", ".h"):
            done = subprocess.run([*CC, "-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-Wno-unused-function",
                                   "-DCL_TARGET_OPENCL_VERSION=120", "-fsyntax-only", "-x", "c", path],
                                  capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)

    def test_kernels_neither_contract_nor_approximate(self):
        for path in sources("ocl", ".cl", ".clh") + [ROOT / "ref/fmath.h"]:
            text = path.read_text()
            self.assertTrue("FP_CONTRACT OFF" in text or "#include" in text, path)
            code = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
            # Exchanges are asked for by an option, of devices on which a probe saw them work.
            code = re.sub(r"^#if TAIL == 1$.*^#endif$", "", code, flags=re.M | re.S)
            self.assertNotRegex(code, r"native_|half_(exp|divide|sqrt|recip|rsqrt)|cl_khr_|\bdouble\b", path)

    def test_what_the_pages_make_is_ignored(self):
        if subprocess.run(["git", "rev-parse"], cwd=ROOT, capture_output=True).returncode:
            self.skipTest("no git work tree")
        made = set()
        for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
            for language, text in re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.M | re.S):
                if not language:  # commands
                    made.update(re.findall(r"(?:-o|--skeleton|--keep|mkdir|tools/sysroot|meson setup .*) ([\w.-]+)$", re.sub(r"  .*", "", text), re.M))
            made.update(re.findall(r"(?<![/\w-])([\w-]+\.(?:json|py)):\n\n```", page.read_text()))
        self.assertLessEqual({"smoke", "tuned", "mine", "sysroot", "made.py", "report.json", "kills.jsonl"}, made)
        for name in sorted(made):
            # As a folder it may be, the slash says so.
            done = [subprocess.run(["git", "check-ignore", "-q", at], cwd=ROOT).returncode for at in (name, name + "/")]
            self.assertIn(0, done, name)

    def test_nothing_is_left_for_later(self):
        for folder in ("ref", "ocl", "blas", "harness"):
            for path in sources(folder, ".c", ".h", ".cl", ".clh"):
                self.assertNotRegex(path.read_text(), r"\b(TODO|FIXME|XXX)\b", path)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
