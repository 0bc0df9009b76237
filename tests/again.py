"""What a run printed on a failure, and the same of its reproduce line. Used by the tests of each way in."""
import shlex
import subprocess


def block(text, id):
    """The lines on one run, its reproduce line the last; but for how it agrees with other runs, which are not repeated."""
    lines = text.splitlines()
    first = next(i for i, line in enumerate(lines) if f' {id} on ' in line)
    last = next(i for i in range(first, len(lines)) if lines[i].startswith('    reproduce: etalon '))
    return [line for line in lines[first:last + 1] if not line.startswith('    agrees: ')]


def again(etalon, text, id, cwd):
    """(what was printed on a run, exit status and what was printed of its reproduce line)"""
    before = block(text, id)
    command = f'{shlex.quote(str(etalon))} {before[-1].split("reproduce: etalon ")[1]}'
    done = subprocess.run(['sh', '-c', command], cwd=cwd, text=True, capture_output=True, timeout=500,
                          stdin=subprocess.DEVNULL)
    try:
        return before, done.returncode, block(done.stdout, id)
    except StopIteration:
        raise AssertionError(f'{command}\n{done.stdout}{done.stderr}') from None
