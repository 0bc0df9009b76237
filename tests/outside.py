#!/usr/bin/env python3
"""A port of tools/ports passes the default tier, nothing MISTRUSTED, and each of its wrong variants is noticed in the smoke
tier, by a run that can be repeated.

usage: outside.py ETALON PORT [LIBETALON CC [flag ...]]: a port in C is built. Exit status 77 where the port's package
is missing.
"""
import json
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

PORTS = Path(__file__).resolve().parent.parent / 'tools/ports'


def judged(etalon, command, tier):
    with tempfile.NamedTemporaryFile() as results:
        done = subprocess.run([etalon, 'run', '--tier', tier, '--port', f'exec:{command}', '-o', results.name],
                              capture_output=True, text=True, timeout=500)
        lines = [json.loads(line) for line in Path(results.name).read_text().splitlines()[1:]]
    return done, [line for line in lines if line.get('variant') and not line['id'].endswith('/-/-')]


def built(source, folder, library, *compiler):
    (folder / 'etalon').symlink_to(PORTS.parent.parent / 'ref')
    flags = subprocess.run(['pkg-config', '--cflags', '--libs', 'libcjson'], check=True, capture_output=True, text=True)
    subprocess.run([*compiler, '-std=c11', '-O2', '-Wall', '-Wextra', '-Wpedantic', '-Werror', '-ffp-contract=off',
                    f'-I{folder}', source, Path(library).resolve(), *flags.stdout.split(), '-lm', '-o', folder / 'port'],
                   check=True)
    return [folder / 'port']


def repeated(etalon, done):
    """The first reproduce line of a failure does so."""
    line = next(line for line in done.stdout.splitlines() if line.startswith('    reproduce: etalon '))
    again = subprocess.run([etalon, *shlex.split(line)[2:]], capture_output=True, text=True, timeout=500)
    assert again.returncode == 1 and ' failed' in again.stdout, line + again.stdout + again.stderr


def main():
    with tempfile.TemporaryDirectory(prefix='etalon-outside-') as folder:
        sys.exit(judge(Path(sys.argv[1]).resolve(), PORTS / sys.argv[2], Path(folder), sys.argv[3:]))


def judge(etalon, port, folder, compiler):
    words = built(port, folder, *compiler) if port.suffix == '.c' else [sys.executable, port]
    command = 'exec ' + ' '.join(shlex.quote(str(word)) for word in words)
    there = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if there.returncode == 77:
        print(there.stderr, end='')
        return 77

    done, lines = judged(etalon, command, 'default')
    print(done.stdout.splitlines()[-1])
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(line['verdict'] in ('PASS', 'SKIP') for line in lines), done.stdout
    variants = {line['variant'] for line in lines if line['verdict'] == 'PASS'}
    assert variants and variants == {line['variant'] for line in lines}, f'variants that passed a run: {variants}'

    done, lines = judged(etalon, command + ' wrong', 'smoke')
    print(done.stdout.splitlines()[-1])
    assert done.returncode == 1, done.stdout + done.stderr
    repeated(etalon, done)
    for variant in {line['variant'] for line in lines}:
        ran = [line for line in lines if line['variant'] == variant and line['verdict'] != 'SKIP']
        failed = [line for line in ran if line['verdict'] == 'FAIL']
        print(f'{variant}: {len(failed)} of {len(ran)} runs fail')
        assert failed and all(line['verdict'] in ('PASS', 'FAIL') for line in ran), variant
        # What it does wrong shows in every context there is.
        assert variant != 'lost' or all(line['verdict'] == 'FAIL' for line in ran if line['params']['context'] > 0)
    return 0


if __name__ == '__main__':
    main()
