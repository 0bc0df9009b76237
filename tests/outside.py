#!/usr/bin/env python3
"""A port of tools/ports passes the smoke tier, and each of its wrong variants is noticed. usage: outside.py ETALON PORT

Exit status 77 where the port's package is missing.
"""
import json
import subprocess
import sys
import tempfile
from pathlib import Path

PORTS = Path(__file__).resolve().parent.parent / 'tools/ports'


def judged(etalon, command):
    with tempfile.NamedTemporaryFile() as results:
        done = subprocess.run([etalon, 'run', '--tier', 'smoke', '--port', f'exec:{command}', '-o', results.name],
                              capture_output=True, text=True, timeout=500)
        lines = [json.loads(line) for line in Path(results.name).read_text().splitlines()[1:]]
    return done, [line for line in lines if line.get('variant') and not line['id'].endswith('/-/-')]


def main():
    etalon, port = Path(sys.argv[1]).resolve(), PORTS / sys.argv[2]
    command = f"exec '{sys.executable}' '{port}'"
    there = subprocess.run([sys.executable, port], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if there.returncode == 77:
        print(there.stderr, end='')
        sys.exit(77)

    done, lines = judged(etalon, command)
    print(done.stdout.splitlines()[-1])
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(line['verdict'] in ('PASS', 'SKIP') for line in lines), done.stdout
    variants = {line['variant'] for line in lines if line['verdict'] == 'PASS'}
    assert len(variants) == 2, f'variants that passed a run: {variants}'

    done, lines = judged(etalon, command + ' wrong')
    print(done.stdout.splitlines()[-1])
    assert done.returncode == 1, done.stdout + done.stderr
    for variant in {line['variant'] for line in lines}:
        ran = [line for line in lines if line['variant'] == variant and line['verdict'] != 'SKIP']
        failed = [line for line in ran if line['verdict'] == 'FAIL']
        print(f'{variant}: {len(failed)} of {len(ran)} runs fail')
        assert failed and all(line['verdict'] in ('PASS', 'FAIL') for line in ran), variant
        # What it does wrong shows in every context there is.
        assert variant != 'lost' or all(line['verdict'] == 'FAIL' for line in ran if line['params']['context'] > 0)


if __name__ == '__main__':
    main()
