#!/usr/bin/env python3
"""A port of tools/ports passes the default tier, nothing MISTRUSTED, and each of its wrong variants is noticed in the smoke
tier and the cases of storage types, by a run that can be repeated. Each has every operator.

usage: outside.py ETALON PORT [LIBETALON CC [flag ...]]: a port in C is built. Exit status 77 where the port's package
is missing.
"""
import json
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import again
import built

PORTS = Path(__file__).resolve().parent.parent / 'tools/ports'


def judged(etalon, command, *selections):
    """(exit statuses, what was printed, the line of each run of a variant)"""
    codes, printed, lines = set(), '', []
    for selection in selections:
        with tempfile.NamedTemporaryFile() as results:
            done = subprocess.run([etalon, 'run', *selection, '--port', f'exec:{command}', '-o', results.name],
                                  capture_output=True, text=True, timeout=500)
            lines += [json.loads(line) for line in Path(results.name).read_text().splitlines()[1:]]
        codes.add(done.returncode)
        printed += done.stdout + done.stderr
        print(done.stdout.splitlines()[-1])
    return codes, printed, [line for line in lines if line.get('variant') and not line['id'].endswith('/-/-')]


def compiled(source, folder, library, *compiler):
    (folder / 'etalon').symlink_to(PORTS.parent.parent / 'ref')
    flags = subprocess.run(['pkg-config', '--cflags', '--libs', 'libcjson'], check=True, capture_output=True, text=True)
    subprocess.run([*compiler, '-std=c11', '-O2', '-Wall', '-Wextra', '-Wpedantic', '-Werror', '-ffp-contract=off',
                    f'-I{folder}', source, Path(library).resolve(), *flags.stdout.split(), '-lm', '-o', folder / 'port'],
                   check=True)
    return [folder / 'port']


def main():
    with tempfile.TemporaryDirectory(prefix='etalon-outside-') as folder:
        sys.exit(judge(Path(sys.argv[1]).resolve(), PORTS / sys.argv[2], Path(folder), sys.argv[3:]))


def judge(etalon, port, folder, compiler):
    words = compiled(port, folder, *compiler) if port.suffix == '.c' else [sys.executable, port]
    command = 'exec ' + ' '.join(shlex.quote(str(word)) for word in words)
    there = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if there.returncode == 77:
        print(there.stderr, end='')
        return 77

    codes, printed, lines = judged(etalon, command, ('--tier', 'default'))
    assert codes == {0}, printed
    assert all(line['verdict'] in ('PASS', 'SKIP') for line in lines), printed
    passed = {named(line) for line in lines if line['verdict'] == 'PASS'}
    assert passed and passed == {named(line) for line in lines}, f'variants that passed a run: {passed}'
    assert {op for op, _ in passed} == set(built.operators(etalon)), passed

    codes, printed, lines = judged(etalon, command + ' wrong', ('--tier', 'smoke'), ('--tier', 'default', '-k', '*/types/*'))
    assert codes == {1}, printed
    assert {op for op, _ in map(named, lines)} == {op for op, _ in passed}
    for wrong in sorted(set(map(named, lines))):
        ran = [line for line in lines if named(line) == wrong and line['verdict'] != 'SKIP']
        failed = [line for line in ran if line['verdict'] == 'FAIL' and by_itself(line)]
        print(f'{" ".join(wrong)}: {len(failed)} of {len(ran)} runs fail')
        assert failed and all(line['verdict'] in ('PASS', 'FAIL') for line in ran), wrong
        # What it does wrong shows in every context there is.
        assert wrong != ('gqa_av', 'lost') or all(line['verdict'] == 'FAIL' for line in ran if line['params']['context'] > 0)
        before, code, after = again.again(etalon, printed, failed[0]['id'], folder)
        assert (code, before) == (1, after), after
    return 0


def named(line):
    """(operator, variant)"""
    return line['id'].split('/')[0], line['variant']


def by_itself(line):
    """Whether a check breaks that would without the other variants, which are as wrong."""
    return any(check['outcome'] == 'broken' for name, check in line['checks'].items() if name != 'agrees')


if __name__ == '__main__':
    main()
