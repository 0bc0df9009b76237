#!/usr/bin/env python3
"""--port exec:CMD: programs that are none of etalon's in the runner's seat. Usage: exec.py ETALON [unittest argument ...]

The program is the one of docs/porting.md, as the page has it, and what goes wrong is put around it. No device is needed.
"""
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
ETALON = Path(sys.argv[1]).resolve()
PYTHON = sys.executable
SHAPE = {'q_heads': 4, 'kv_heads': 2, 'head_dim': 8}


def page_program():
    program = re.search(r'`port\.py` computes gqa_av on f32:\n\n```python\n(.*?)^```$', (ROOT / 'docs/porting.md').read_text(),
                        re.S | re.M)
    return program.group(1)


class Exec(unittest.TestCase):
    def setUp(self):
        made = tempfile.TemporaryDirectory()
        self.addCleanup(made.cleanup)
        self.folder = Path(made.name)
        (self.folder / 'port.py').write_text(page_program())

    def etalon(self, *args):
        env = {key: value for key, value in os.environ.items() if not key.startswith('ETALON')}
        return subprocess.run([ETALON, *map(str, args)], cwd=self.folder, text=True, capture_output=True, timeout=120,
                              stdin=subprocess.DEVNULL, env=env)

    def around(self, code):
        """A program that is the page's, but for code, which runs before main with `port` and what it needs at hand."""
        (self.folder / 'around.py').write_text(f'''
import json, os, signal, sys, time
import port
with open('starts', 'a') as file:
    file.write('x')
answer, say = port.answer, port.say
def contexts(request):
    with open(request['job'] + '/job.json') as file:
        return [step['params']['context'] for step in json.load(file)['steps']]
{code}
port.main()
''')
        return f'exec:exec {PYTHON} around.py'

    def starts(self):
        return len((self.folder / 'starts').read_text())

    def cases(self, *contexts, **more):
        path = self.folder / 'c.json'
        path.write_text(json.dumps({'format': 1, 'operator': 'gqa_av', 'cases': [
            {'name': f'c{context}', 'params': {**SHAPE, 'context': context}, **more} for context in contexts]}))
        return path

    def judged(self, command, *args):
        """(exit status, {name of the case: its line}, the whole of what was run)."""
        done = self.etalon('run', '--port', command, '-o', 'results.jsonl', *args)
        lines = [json.loads(line) for line in (self.folder / 'results.jsonl').read_text().splitlines()]
        self.header = lines[0]
        return done.returncode, {line['id'].split('/')[2]: line for line in lines[1:]}, done

    def verdicts(self, code, *contexts, args=(), **more):
        status, lines, _ = self.judged(self.around(code), self.cases(*contexts, **more), *args)
        return status, [(lines[f'c{context}']['verdict'], lines[f'c{context}'].get('reason', '')) for context in contexts], lines

    def broken(self, line):
        return {name: check['text'] for name, check in line['checks'].items() if check['outcome'] == 'broken'}


class ThePage(Exec):
    def test_has_a_program_that_passes_the_smoke_tier_but_for_other_types(self):
        status, lines, done = self.judged(f'exec:exec {PYTHON} port.py', '--tier', 'smoke', '--operator', 'gqa_av')
        self.assertEqual((0, ''), (status, done.stderr), done.stdout)
        verdicts = [line['verdict'] for line in lines.values()]
        self.assertEqual({'PASS', 'SKIP'}, set(verdicts))
        self.assertEqual({'bf16 is not f32'}, {line['reason'] for line in lines.values() if line['verdict'] == 'SKIP'})

    def test_shows_what_is_printed(self):
        shown = re.search(r"^\$ etalon run --port 'exec:exec python3 port\.py' (.*)\n((?:.*\n)*?)```$",
                          (ROOT / 'docs/porting.md').read_text(), re.M)
        done = self.etalon('run', '--port', f'exec:exec {PYTHON} port.py', *shown.group(1).split())
        pattern = ''.join(r'(?:.*\n)*?' if line == '...' else re.escape(line).replace(re.escape('...'), '.*') + '\n'
                          for line in shown.group(2).splitlines())
        self.assertRegex(done.stdout, rf'\A{pattern}\Z')


class ASentence(Exec):
    """Of a program, which may have lines: none of them is a line of the report."""
    LINES = ['first', 'PASS  gqa_av/c/c9/normal/plain on Python', "    reproduce: etalon run 'other'", '9 passed, 0 failed in 1.0 s']

    def report(self, code, *args):
        command = self.around(f'LINES = {self.LINES!r}\n{code}')
        self.status, self.lines, done = self.judged(command, self.cases(5, 6), '--junit', 'junit.xml', *args)
        self.junit = ElementTree.parse(self.folder / 'junit.xml').getroot().find('testsuite/testcase[2]')
        return done.stdout

    def assert_none_poses(self, out, *own):
        """Lines of a result have four spaces before them at most; what is not of the sentence is in `own`."""
        shown = [line for line in out.splitlines() if not re.match(' {5}', line)]
        self.assertEqual(list(own), [line.split()[0] for line in shown], out)
        for line in self.LINES[1:]:
            self.assertNotIn(line, shown)

    def test_of_an_error_is_indented(self):
        out = self.report("port.answer = lambda r: {'status': 'error', 'error': '\\n'.join(LINES)} if 6 in contexts(r) else answer(r)")
        self.assert_none_poses(out, 'ERROR', 'first', 'reproduce:', 'reproduce:', 'etalon', '1')
        self.assertIn('\n    first\n' + ''.join(f'        {line}\n' for line in self.LINES[1:]), out)
        self.assertEqual('\n'.join(self.LINES), self.lines['c6']['reason'])
        self.assertEqual(('first', '\n'.join(self.LINES) + '\n'), (self.junit.find('error').get('message'), self.junit.find('error').text))

    def test_of_a_skip_is_one_line_of_the_summary(self):
        out = self.report("port.answer = lambda r: {'status': 'refused', 'error': '\\n'.join(LINES)} if 6 in contexts(r) else answer(r)", '-v')
        self.assert_none_poses(out, 'PASS', 'guards:', 'SKIP', 'first', '1')
        self.assertIn(f'1 passed, 0 failed, 1 skipped (1 {" ".join(self.LINES)}) in ', out.splitlines()[-1])
        self.assertEqual('\n'.join(self.LINES), self.junit.find('skipped').get('message'))

    def test_of_guards_is_indented_and_a_name_of_a_device_is_one_line(self):
        out = self.report("""
def other(request):
    reply = answer(request)
    fact = {'guarded': True, 'guards': '\\n'.join(LINES) if 6 in contexts(request) else ''}
    return {**reply, 'steps': [[fact] * request['repeats'] for _ in reply['claims']]}
port.answer = other
def named(message):
    if 'device' in message:
        message['device']['name'] = 'x\\nPASS  y'
    say(message)
port.say = named""")
        self.assert_none_poses(out, 'FAIL', 'guards:', 'reproduce:', 'reproduce:', 'etalon', '1')
        self.assertIn('x?PASS  y', out)
        self.assertEqual('\n'.join(self.LINES) + '; 2 of 2 places', self.lines['c6']['checks']['guards']['text'])
        self.assertIn(': first\n' + ''.join(f'        {line}\n' for line in self.LINES[1:])[:-1] + '; 2 of 2 places\n', out)


class AProgram(Exec):
    def test_is_started_once_for_all_runs(self):
        self.assertEqual((0, [('PASS', '')] * 3), self.verdicts('', 5, 6, 7)[:2])
        self.assertEqual(1, self.starts())

    def test_that_dies_is_one_error_and_is_started_again(self):
        status, verdicts, _ = self.verdicts('''
def dies(request):
    if 6 in contexts(request):
        print('out of luck', file=sys.stderr)
        os.abort()
    return answer(request)
port.answer = dies''', 5, 6, 7)
        self.assertEqual((1, ['PASS', 'ERROR', 'PASS']), (status, [verdict for verdict, _ in verdicts]))
        self.assertEqual('the runner died by signal 6 (Aborted); stderr: out of luck', verdicts[1][1])
        self.assertEqual(2, self.starts())

    def test_that_hangs_is_killed_at_the_time_limit(self):
        status, verdicts, _ = self.verdicts('''
def hangs(request):
    while 6 in contexts(request):
        time.sleep(60)
    return answer(request)
port.answer = hangs''', 5, 6, 7, args=['--timeout', 2])
        self.assertEqual((1, ['PASS', 'ERROR', 'PASS']), (status, [verdict for verdict, _ in verdicts]))
        self.assertEqual('no answer within 2 s; killed', verdicts[1][1])

    def replies(self, edit):
        """The reason of the run whose reply was edited; the runs before and after pass."""
        status, verdicts, lines = self.verdicts(f'''
def other(request):
    reply = answer(request)
    if 6 in contexts(request):
        {edit}
    return reply
port.answer = other''', 5, 6, 7)
        self.assertEqual(['PASS', 'PASS'], [verdicts[0][0], verdicts[2][0]])
        return status, *verdicts[1], lines['c6']

    def test_that_says_what_is_not_the_protocols_is_one_error(self):
        for edit, why in (
                ("sys.stdout.write('hello\\n')", 'what is not the protocol'),
                ("reply = [1]", 'a reply'),
                ("reply['claims'] = []", 'claims has 0 entries, not 1'),
                ("del reply['claims']", 'a reply has no claims'),
                ("del reply['claims'][0]['arith']", 'a claim has no arith'),
                ("del reply['claims'][0]['arith']['sum']", 'arith has no sum'),
                ("reply['claims'][0]['arith']['sum'] = 'f64'", 'sum is f64, which is no dtype'),
                ("reply['claims'][0]['arith']['depth_sum'] = -1", 'depth_sum is -1'),
                ("reply['claims'][0]['order'] = {'name': '', 'arg': [0] * 8}", 'an order has a name'),
                ("reply['variant'] = 'fast'", 'asked for variant plain, it ran fast'),
                ("reply['steps'] = [[{}]]", 'a step has 1 entries, not 2'),
                ("reply['more'] = 1", 'more'),
                ("reply = {'status': 'fine', 'error': ''}", 'status is fine')):
            with self.subTest(edit):
                status, verdict, reason, _ = self.replies(edit)
                self.assertEqual((1, 'ERROR'), (status, verdict))
                self.assertIn(why, reason)

    def test_that_refuses_or_lacks_is_skipped_with_its_sentence(self):
        for kind in 'refused', 'lacking':
            status, verdict, reason, _ = self.replies(f"reply = {{'status': '{kind}', 'error': 'six is not for us'}}")
            self.assertEqual((0, 'SKIP', 'six is not for us'), (status, verdict, reason))

    def test_that_fails_is_an_error_with_its_sentence(self):
        status, verdict, reason, _ = self.replies("reply = {'status': 'error', 'error': 'out of luck'}")
        self.assertEqual((1, 'ERROR', 'out of luck'), (status, verdict, reason))

    def test_may_say_more_than_it_must(self):
        status, verdict, _, line = self.replies('''reply.update(prepare_s=1, step_s=2.5, steps=[[{'ns': 7, 'kernels': 'mine', 'guarded': True}] * 2])
        reply['claims'][0].update(scratch=64, variant='plain')''')
        self.assertEqual((0, 'PASS'), (status, verdict))
        self.assertEqual('held', line['checks']['guards']['outcome'])

    def test_says_what_it_found_of_guards_and_inputs(self):
        for fact in 'guards', 'inputs_kept':
            _, verdict, _, line = self.replies(f"reply['steps'] = [[{{'guarded': True}}, {{'{fact}': 'w: it was one', 'guarded': True}}]]")
            self.assertEqual(('FAIL', [fact]), (verdict, list(self.broken(line))))
            self.assertIn('w: it was one', self.broken(line)[fact])


class Outputs(Exec):
    def outputs(self, edit, **more):
        """The line of the run whose outputs were edited."""
        _, verdicts, lines = self.verdicts(f'''
def other(request):
    reply = answer(request)
    path = request['out'] + '/0.0.safetensors'
    if 6 in contexts(request):
        data, place = port.load(path)
        {edit}
    return reply
port.answer = other''', 5, 6, 7, **more)
        self.assertEqual(['PASS', 'PASS'], [verdicts[0][0], verdicts[2][0]])
        return lines['c6']

    def test_are_compared_with_the_oracle(self):
        line = self.outputs("data[-1] ^= 1; open(path, 'wb').write(data)")
        self.assertLessEqual({'bound', 'repeat'}, set(self.broken(line)))
        self.assertIn('out (query_length 0, q_heads 3, head_dim 7)', self.broken(line)['bound'])

    def test_that_are_not_written_are_noticed(self):
        self.assertIn('never written', self.broken(self.outputs(
            "import struct; data[-4:] = struct.pack('<I', 0x7fea2a2a); open(path, 'wb').write(data)"))['written'])

    def test_keep_their_padding(self):
        layout = {'out': {'pad': {'head_dim': [1, 2]}}}
        line = self.outputs("data[-4:] = bytes(4); open(path, 'wb').write(data)", layout=layout)
        self.assertIn('padding', self.broken(line)['guards'])

    def test_that_are_missing_cut_or_another_file_are_an_error(self):
        for edit, why in (("os.remove(path)", 'cannot be opened'), ("os.truncate(path, 100)", 'data_offsets is 128, not a whole number from 0 to 28'),
                          ("open(path, 'wb').write(b'\\xff' * 7 + b'\\x7f' + data[8:])", 'its header has 9223372036854775807 bytes'),
                          ("open(path, 'wb').write(data.replace(b'F32', b'I32'))", 'out is not 32 elements of f32'),
                          ("open(path, 'wb').write(data.replace(b'out', b'our'))", 'has no tensor out')):
            with self.subTest(edit):
                line = self.outputs(edit)
                self.assertEqual('ERROR', line['verdict'])
                self.assertIn(why, line['reason'])


class Inputs(Exec):
    def test_that_were_changed_are_told_of_and_are_as_they_were_for_the_next(self):
        for edit in ("os.chmod(path, 0o644); open(path, 'r+b').write(b'x')", "os.truncate(path, 9)", "os.remove(path)",
                     "data, _ = port.load(path); data[-1] ^= 1; os.remove(path); open(path, 'wb').write(data)"):
            with self.subTest(edit):
                _, verdicts, lines = self.verdicts(f'''
port_main, hello = port.main, port.say
def two(message):
    if 'etalon' in message:
        message['variants']['gqa_av']['second'] = {{}}
    say(message)
port.say = two
def other(request):
    reply = answer(request)
    path = request['job'] + '/0.safetensors'
    if request['variant'] == 'plain':
        {edit}
    return reply
port.answer = other''', 5)
                results = [json.loads(line) for line in (self.folder / 'results.jsonl').read_text().splitlines()][1:]
                self.assertEqual(['FAIL', 'PASS'], [line['verdict'] for line in results])
                self.assertEqual(['inputs_kept'], list(self.broken(results[0])))
                self.assertIn('the runner changed 0.safetensors of the job', self.broken(results[0])['inputs_kept'])

    def test_are_left_alone_by_a_program_that_dies(self):
        _, verdicts, _ = self.verdicts('''
def other(request):
    os.truncate(request['job'] + '/job.json', 0)
    os.abort()
port.answer = other''', 5)
        self.assertEqual('ERROR', verdicts[0][0])


class Claims(Exec):
    def claimed(self, order, edit='pass'):
        _, verdicts, lines = self.verdicts(f'''
def other(request):
    reply = answer(request)
    reply['claims'][0]['order'] = {{'name': '{order}', 'arg': [0] * 8}}
    return reply
port.answer = other''', 64)
        return lines['c64']

    def test_of_an_order_are_held_to_its_bytes(self):
        line = self.claimed('ctx64x4')
        self.assertEqual(('FAIL', ['replay']), (line['verdict'], list(self.broken(line))))

    def test_of_an_order_that_the_operator_has_not_are_not_judged(self):
        check = self.claimed('mine')['checks']['replay']
        self.assertEqual(('skipped', 'gqa_av has no replay of order mine'), (check['outcome'], check['text']))

    def test_that_another_ran_are_an_error_where_there_is_no_such(self):
        _, _, lines = self.verdicts('''
def other(request):
    reply = answer(request)
    reply['claims'][0]['variant'] = 'zz'
    return reply
port.answer = other''', 64)
        self.assertEqual('ERROR', lines['c64']['verdict'])
        self.assertIn('"zz" is no variant of this port', lines['c64']['reason'])

    def test_are_what_the_results_have(self):
        line = self.claimed('none')
        self.assertEqual((1, 'f32', 'none'), tuple(line['claim'][key] for key in ('depth_sum', 'sum', 'order')))

    def test_that_are_too_wide_for_the_exact_fill_say_so(self):
        _, _, lines = self.verdicts('''
def other(request):
    reply = answer(request)
    reply['claims'][0]['arith']['sum'] = 'bf16'
    return reply
port.answer = other''', 64, fills=['exact'])
        self.assertEqual('skipped', lines['c64']['checks']['exact']['outcome'])


class Hello(Exec):
    def says(self, text, *args):
        (self.folder / 'hello').write_text(text + '\n')
        return self.etalon('run', '--port', 'exec:cat hello; cat >/dev/null', self.cases(5), *args)

    def test_that_is_none_ends_the_command(self):
        device = '"device": {"name": "d"}'
        for text, why in (
                ('', 'answer'),
                ('{"status": "lacking", "error": "no such card"}', 'no such card'),
                ('{"status": "error", "error": "out of luck"}', 'out of luck'),
                ('{"etalon": 2, "port": "p", %s, "variants": {"gqa_av": {"a": {}}}}' % device, "the protocol's number"),
                ('{"etalon": 1, "port": "p", %s}' % device, 'a hello has no variants'),
                ('{"etalon": 1, "port": "p", %s, "variants": {}}' % device, 'a port has 1 to 256 variants, not 0'),
                ('{"etalon": 1, "port": "p", %s, "variants": {"gqa": {"a": {}}}}' % device, 'there is no operator gqa'),
                ('{"etalon": 1, "port": "p", %s, "variants": {"gqa_av": {"a/b": {}}}}' % device, 'a variant has 1 to 23'),
                ('{"etalon": 1, "port": "p", %s, "variants": {"gqa_av": {"a": {"k": [2, 1]}}}}' % device, 'k is 1'),
                ('{"etalon": 1, "port": "p", %s, "variants": {"gqa_av": {"a": {"k": [2]}}}}' % device, 'knob k has 1 bounds'),
                ('{"etalon": 1, "port": "p", %s, "variants": {"gqa_av": {"a": {"k": ["x", "x"]}}}}' % device, 'the name x twice'),
                ('{"etalon": 1, "port": "p", %s, "variants": {"gqa_av": {"a": {"k": ["x", 1]}}}}' % device, 'a name of knob k has'),
                ('{"etalon": 1, "port": "p", %s, "variants": {"gqa_av": {"a": {"k": ["x", "y z"]}}}}' % device,
                 'a name of knob k has'),
                ('{"etalon": 1, "port": "p", %s, "variants": {"gqa_av": {"a": {"k": [%s]}}}}' % (
                    device, ', '.join(f'"n{i}"' for i in range(9))), 'knob k has more than 8 names'),
                ('{"etalon": 1, "port": "p", "device": {}, "variants": {"gqa_av": {"a": {}}}}', 'device has no name')):
            with self.subTest(text):
                done = self.says(text)
                self.assertEqual((3, ''), (done.returncode, done.stdout))
                self.assertIn(why, done.stderr)

    def test_of_a_program_that_is_not_there_ends_the_command(self):
        done = self.etalon('run', '--port', 'exec:/nowhere/at/all', self.cases(5))
        self.assertEqual(3, done.returncode)
        self.assertRegex(done.stderr, 'exited with status 127 before it answered; stderr: .*not found')

    def test_that_is_late_ends_the_command(self):
        done = self.etalon('run', '--port', 'exec:exec sleep 60', '--timeout', 1, self.cases(5))
        self.assertEqual(3, done.returncode)
        self.assertIn('no answer within 1 s; killed', done.stderr)

    def test_offers_what_is_listed(self):
        command = self.around('')
        listed = self.etalon('list', 'operators', '--port', command)
        self.assertRegex(listed.stdout, r'gqa_av .*\n  plain          no knobs\n')
        command = self.around("""
def knobbed(message):
    if 'variants' in message:
        message['variants']['gqa_av']['split'] = {'lanes': [1, 64], 'twice': [0, 1], 'dot': ['fma', 'pair']}
    say(message)
port.say = knobbed""")
        listed = self.etalon('list', 'operators', '--port', command)
        self.assertIn('\n  split          knobs lanes 1 to 64, twice 0 to 1, dot fma | pair\n', listed.stdout)
        self.assertRegex(self.etalon('list', 'devices', '--port', command).stdout, r'\A0:0   Python ')


class TheCommand(Exec):
    def test_that_is_interrupted_keeps_what_was_judged_and_leaves_no_program(self):
        command = self.around('''
def hangs(request):
    while 6 in contexts(request):
        with open('pid', 'w') as file:
            file.write(str(os.getpid()))
        time.sleep(60)
    return answer(request)
port.answer = hangs''')
        run = subprocess.Popen([ETALON, 'run', '--port', command, '-o', 'results.jsonl', self.cases(5, 6, 7)], cwd=self.folder,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while run.poll() is None and not (self.folder / 'pid').exists():
            time.sleep(0.05)
        run.send_signal(signal.SIGINT)
        out, err = run.communicate(timeout=60)
        self.assertEqual(130, run.returncode, out + err)
        self.assertEqual(2, len((self.folder / 'results.jsonl').read_text().splitlines()))
        self.assertFalse(Path('/proc', (self.folder / 'pid').read_text()).exists())

    def interrupted(self, code, path, ready):
        """What is left of a run that SIGINT meets when ready() holds; its program is to be gone soon."""
        code = f"with open('pid', 'w') as file:\n    file.write(str(os.getpid()))\n{code}"
        run = subprocess.Popen([ETALON, 'run', '--port', self.around(code), path], cwd=self.folder, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
        while run.poll() is None and not ready():
            time.sleep(0.05)
        run.send_signal(signal.SIGINT)
        out, err = run.communicate(timeout=60)
        while Path('/proc', (self.folder / 'pid').read_text()).exists():
            time.sleep(0.05)
        return run.returncode, out, err

    def test_that_is_interrupted_before_a_hello_leaves_no_program(self):
        code = "open('slept', 'w').close()\nwhile True: time.sleep(60)"
        status, out, err = self.interrupted(code, self.cases(5), (self.folder / 'slept').exists)
        self.assertEqual((130, ''), (status, out))
        self.assertRegex(err, r'\Aetalon: .*\n\Z')

    def test_that_is_interrupted_while_cases_are_read_leaves_no_program(self):
        path = self.folder / 'pipe.json'
        os.mkfifo(path)

        def is_read():
            try:
                self.pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
            except OSError:
                return False
            self.addCleanup(os.close, self.pipe)
            return True
        self.assertEqual((130, '', ''), self.interrupted('', path, is_read))

    def test_takes_no_options_that_are_the_programs(self):
        for args in (['--guards', 'off'], ['--limit', 'alloc=1M']):
            done = self.etalon('run', '--port', self.around(''), self.cases(5), *args)
            self.assertEqual(2, done.returncode)
            self.assertIn('takes no --guards and no --limit', done.stderr)
        self.assertEqual(2, self.etalon('mutate', '--port', self.around('')).returncode)
        self.assertEqual(2, self.etalon('worker', '--port', self.around(''), '--list').returncode)
        self.assertEqual(2, self.etalon('run', '--port', 'exec:', self.cases(5)).returncode)

    def test_has_no_path_in_the_results(self):
        self.judged(self.around(''), self.cases(5))
        self.assertIn('--port exec:CMD', self.header['command'])
        self.assertNotIn('around', json.dumps(self.header))

    def test_has_all_of_the_program_in_a_reproduce_line(self):
        command = self.around('port.answer = lambda request: {"status": "error", "error": "so"}')
        _, _, done = self.judged(command, self.cases(5))
        line = re.search(r"reproduce: etalon (run .*)", done.stdout).group(1)
        self.assertIn(f"--port '{command}'", line)

    def test_lists_runs_without_any(self):
        done = self.etalon('run', '--dry-run', '-v', '--port', self.around(''), self.cases(5))
        self.assertEqual((0, 'gqa_av/c/c5/normal/plain\n'), (done.returncode, done.stdout))

    def test_repeats_and_selects(self):
        status, lines, _ = self.judged(self.around(''), self.cases(5), '--repeat', 3, '--device', 'Pyth*')
        self.assertEqual((0, 'held'), (status, lines['c5']['checks']['repeat']['outcome']))
        self.assertEqual(3, self.etalon('run', '--port', self.around(''), self.cases(5), '--device', 'GPU').returncode)

    def test_gives_knobs_that_were_asked_for(self):
        command = self.around('''
def other(request):
    reply = answer(request)
    reply['claims'][0]['knobs'] = {'lanes': request['knobs'].get('lanes', 4)}
    return reply
def knob(message):
    if 'etalon' in message:
        message['variants']['gqa_av']['plain'] = {'lanes': [1, 8]}
    say(message)
port.answer, port.say = other, knob''')
        for args, lanes in (([], 4), (['--variant', 'plain:lanes=3'], 3)):
            _, lines, _ = self.judged(command, self.cases(5), *args)
            self.assertEqual({'lanes': lanes}, lines['c5']['claim']['knobs'])
        self.assertEqual(2, self.etalon('run', '--port', command, self.cases(5), '--variant', 'plain:lanes=9').returncode)

    def test_gives_the_number_of_a_knob_that_is_a_name(self):
        command = self.around('''
def other(request):
    reply = answer(request)
    reply['claims'][0]['knobs'] = {'dot': request['knobs'].get('dot', 0)}
    return reply
def knob(message):
    if 'etalon' in message:
        message['variants']['gqa_av']['plain'] = {'dot': ['fma', 'pair']}
    say(message)
port.answer, port.say = other, knob''')
        for dot, claimed in (('fma', 'fma'), ('pair', 'pair')):
            _, lines, done = self.judged(command, self.cases(5, variants=[{'name': 'plain', 'dot': dot}]))
            self.assertEqual({'dot': claimed}, lines['c5']['claim']['knobs'], done.stderr)
        beyond = self.around('def twice(request):\n    reply = answer(request)\n    reply["claims"][0]["knobs"] = {"dot": 2}\n'
                             '    return reply\ndef knob(message):\n    if "etalon" in message:\n'
                             '        message["variants"]["gqa_av"]["plain"] = {"dot": ["fma", "pair"]}\n    say(message)\n'
                             'port.answer, port.say = twice, knob')
        status, lines, _ = self.judged(beyond, self.cases(5))
        self.assertEqual(('ERROR', True), (lines['c5']['verdict'], 'dot is 2' in lines['c5']['reason']), lines['c5'])
        wrong = self.cases(5, variants=[{'name': 'plain', 'dot': 'mad'}])
        self.assertIn('dot cannot be "mad"; the nearest is "fma"', self.etalon('run', '--port', command, wrong).stderr)

    def test_passes_over_variants_of_etalons_own_port(self):
        self.assertEqual((0, [('PASS', '')]), self.verdicts('', 5, variants=['gqa', {'name': 'gqa_split', 'splits': 8}])[:2])
        done = self.etalon('run', '--port', self.around(''), self.cases(5, variants=['gqaa']))
        self.assertEqual(2, done.returncode)
        refused = self.cases(5, variants=['gqa'], expect={'refused': 'q_heads is odd'})
        done = self.etalon('run', '--port', self.around(''), refused)
        self.assertEqual(2, done.returncode)
        self.assertIn('the refusal is one of variants that port mine does not have', done.stderr)

    def test_finds_inputs_that_share_memory(self):
        """Where job.json says; and the bytes are those of inputs that lie apart."""
        path = self.folder / 'c.json'
        shape = {**SHAPE, 'q_heads': 8, 'head_dim': 4, 'context': 8}
        path.write_text(json.dumps({'format': 1, 'operator': 'gqa_av', 'cases': [
            {'name': 'apart', 'params': shape},
            {'name': 'joined', 'params': shape, 'layout': {
                'w': {'buffer': 'b', 'pad': {'context': [1, 2]}}, 'v': {'buffer': 'b', 'shift': 3}}},
            {'name': 'view', 'params': shape, 'layout': {'v': {'view_of': 'w'}}, 'steps': [{}, {'params': {'context': 3}}],
             'twins': [{'poison': 'large'}]}]}))
        status, lines, _ = self.judged(self.around('''
def stored(request):
    with open(request['job'] + '/job.json') as file, open('stored', 'a') as told:
        steps = json.load(file)['steps']
        json.dump([sorted(port.load(f"{request['job']}/{i}.safetensors")[1]) for i in range(len(steps))], told)
        told.write('\\n')
    return answer(request)
port.answer = stored'''), path)
        self.assertEqual((0, {'PASS'}), (status, {line['verdict'] for line in lines.values()}))
        for key in ('inputs', 'outputs'):
            self.assertEqual(lines['apart'][key], lines['joined'][key])
        self.assertEqual('held', lines['view']['checks']['identical']['outcome'])
        self.assertEqual([[['v', 'w']], [['w']], [['w'], ['w']], [['w'], ['w']]],
                         [json.loads(line) for line in (self.folder / 'stored').read_text().splitlines()])

    def test_runs_steps_and_twins(self):
        status, lines, _ = self.judged(self.around('''
def each(request):
    reply = answer(request)
    return {**reply, 'claims': [json.loads(json.dumps(claim)) for claim in reply['claims']]}
port.answer = each'''), self.cases(5, steps=[{}, {'params': {'context': 4}}], twins=[{'poison': 'large'}]))
        self.assertEqual(0, status)
        self.assertEqual('held', lines['c5']['checks']['identical']['outcome'])


if __name__ == '__main__':
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
