#!/usr/bin/env python3
"""In the runner's seat for one on another machine: jobs are copied there, outputs back, and lines passed on.

usage: etalon run --port 'exec:exec tools/ports/remote.py adb FOLDER COMMAND'
       etalon run --port 'exec:exec tools/ports/remote.py ssh:HOST FOLDER COMMAND'

FOLDER is one there that may be written to; COMMAND, a line for the shell there, is any runner: `etalon worker --port ocl
--device 0:0`, `etalon worker --port plugin:./mine.so`, a program of yours. docs/cross.md
"""
import json
import os
import subprocess
import sys


class Adb:
    def shell(self, command):
        return ['adb', 'shell', '-T', command]

    def push(self, here, there):
        return ['adb', 'push', here, there]

    def pull(self, there, here):
        return ['adb', 'pull', there, here]


class Ssh:
    def __init__(self, host):
        self.host = host

    def shell(self, command):
        return ['ssh', '-T', self.host, command]

    def push(self, here, there):
        return ['scp', '-rq', here, f'{self.host}:{there}']

    def pull(self, there, here):
        return ['scp', '-q', f'{self.host}:{there}', here]


def run(command):
    """What it prints is for people: standard output is the protocol's."""
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=sys.stderr)


def main():
    if len(sys.argv) < 4 or not (sys.argv[1] == 'adb' or sys.argv[1].startswith('ssh:')):
        sys.exit(__doc__)
    way = Adb() if sys.argv[1] == 'adb' else Ssh(sys.argv[1][4:])
    there = f'{sys.argv[2]}/etalon-{os.getpid()}'
    runner = subprocess.Popen(way.shell(f'cd {sys.argv[2]} && {" ".join(sys.argv[3:])}'), stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, text=True)
    hello = runner.stdout.readline()
    if not hello:
        sys.exit(f'the runner there ended: exit status {runner.wait()}')
    print(hello, end='', flush=True)
    try:
        for line in sys.stdin:
            request = json.loads(line)
            job, out = request['job'], request['out']
            run(way.shell(f'rm -rf {there} && mkdir {there}'))
            run(way.push(job, f'{there}/job'))
            run(way.push(out, f'{there}/out'))
            request.update(job=f'{there}/job', out=f'{there}/out')
            runner.stdin.write(json.dumps(request) + '\n')
            runner.stdin.flush()
            reply = runner.stdout.readline()
            if not reply:
                sys.exit(f'the runner there ended: exit status {runner.wait()}')
            for name in os.listdir(out):
                run(way.pull(f'{there}/out/{name}', f'{out}/{name}'))
            print(reply, end='', flush=True)
    finally:
        runner.stdin.close()
        runner.wait()
        run(way.shell(f'rm -rf {there}'))


if __name__ == '__main__':
    main()
