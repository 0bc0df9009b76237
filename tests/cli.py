#!/usr/bin/env python3
"""The command etalon from outside. Usage: cli.py ETALON [unittest argument ...], or ETALON in the environment.

The name of a test is what must hold. Kernels that go wrong are ocl/gqa_av.cl with text replaced, which must be there.
Exit status: 0, 1, or 77 where there is no PoCL device.
"""
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ICD = Path('/etc/OpenCL/vendors/pocl.icd')
ETALON = ''  # the executable
WORK = Path()  # emptied at the end
ENV = {}  # PoCL alone, no settings of the user's; its kernel cache is the user's

POISON = 'nan (0x7fea2a2a)'  # of an f32 output in even repeats


# ---- Running the command ----


class Ran:
    def __init__(self, done, results=None):
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr
        self.lines = [strict(line) for line in results.read_text().splitlines()] if results else []
        self.header = self.lines[0] if self.lines else None
        self.of = {line['id']: line for line in self.lines[1:]}

    def verdicts(self):
        return {id: line['verdict'] for id, line in self.of.items()}


def etalon(*args, cwd=None, **env):
    """Runs it; an environment variable that is None is unset."""
    done = subprocess.run([ETALON, *map(str, args)], cwd=cwd or WORK, env=environment(env), text=True,
                          stdin=subprocess.DEVNULL, capture_output=True, timeout=500)
    return Ran(done)


def judged(*args, **env):
    """The same with a results file, of which every line must be JSON."""
    results = fresh() / 'results.jsonl'
    ran = etalon('run', *args, '-o', results, **env)
    return Ran(subprocess.CompletedProcess([], ran.code, ran.out, ran.err), results)


def environment(changes):
    return {key: str(value) for key, value in {**ENV, **changes}.items() if value is not None}


def strict(line):
    """RFC 8259 has no NaN and no Infinity; a key that is there twice would hide a value."""

    def no_constant(name):
        raise ValueError(f'{name} is no JSON')

    def no_duplicates(pairs):
        if len(dict(pairs)) != len(pairs):
            raise ValueError(f'a key is there twice: {pairs}')
        return dict(pairs)

    return json.loads(line, parse_constant=no_constant, object_pairs_hook=no_duplicates)


def fresh():
    return Path(tempfile.mkdtemp(dir=WORK))


def case_file(name, *cases, folder=None, operator='gqa_av', **defaults):
    path = (folder or fresh()) / f'{name}.json'
    path.write_text(json.dumps({'format': 1, 'operator': operator, 'defaults': defaults, 'cases': cases}))
    return path


def kernel_folder(*edits, name='kernels'):
    """A folder for --port ocl:DIR: gqa_av.cl with each (old, new) replaced, old being there exactly once."""
    text = (ROOT / 'ocl/gqa_av.cl').read_text()
    for old, new in edits:
        if text.count(old) != 1:
            raise AssertionError(f'ocl/gqa_av.cl has {text.count(old)} times: {old}')
        text = text.replace(old, new)
    folder = fresh() / name
    folder.mkdir()
    (folder / 'gqa_av.cl').write_text(text)
    return folder


def broken(line):
    return {name: check['text'] for name, check in line['checks'].items() if check['outcome'] == 'broken'}


# ---- Kernels that go wrong ----

# 6 heads over 2, head_dim 8: `place` is (query_length 0, q_heads 4, head_dim 5), element 37 of 48. What goes wrong is
# chosen by the context, in the one group and item that stores `place`; other contexts are computed right. Context 6 is
# for a built-in case. A bf16 v does not build.
PLACE = 'out (query_length 0, q_heads 4, head_dim 5)'
FAULTS = (
    ('    const ulong head = get_group_id(1), kv_head = head * kv_heads / q_heads;\n', '''\
    const ulong head = get_group_id(1), kv_head = head * kv_heads / q_heads;
    const ulong place = out_at + 4 * out_stride1 + 5;
    const STORED(OUT_DTYPE) before = out[place];
'''),
    ('\n}\n\nkernel void gqa_av_gqa(', '''
#if JOIN(is_, V_DTYPE)
    undeclared = 0;
#endif
    if (head == 3 && context == 6 && get_group_id(0) == 0 && get_local_id(0) == 0)
        out[out_at + 3 * out_stride1 + 2] += 1;
    if (head != 4 || get_group_id(0) != 1 || get_local_id(0) != 0)
        return;
    switch (context) {
    case 11: out[place] = as_float(0x7fc00123u); break;
    case 12: out[place] = -INFINITY; break;
    case 13: out[place] = as_float(as_uint(out[place]) + 1); break;
    case 14: out[place] = out[place - 1]; break;
    case 15: out[place] = before; break;
    case 16: out[out_at - 1] = 1; break;
    case 17: out[out_at + q_heads * head_dim] = 1; break;
    case 18: out[out_at + 4 * out_stride1 + head_dim + 1] = 1; break;
    case 19: ((global float *)v)[v_at + 19 * v_stride0 + v_stride1 + 3] = 0.5f; break;
    case 20: ((global float *)w)[w_at + q_heads * w_stride0] = 0.5f; break;
    case 21: out[place] = as_float(as_uint(out[place]) ^ (as_uint(before) & 1)); break;
    case 22:
    case 23: out[place] += 0.0f * v[v_at + context * v_stride0]; break;
    case 30: out[out_at + (1ul << 40)] = 1; break;
    case 31: for (volatile int endless = 1; endless;); break;
    }
}

kernel void gqa_av_gqa('''),
    ('#define PARTIALS 64', '#define PARTIALS 64\n#define is_bf16 1'),
)

FAULTY_CASES = [{'name': name, 'params': {'context': context}, **more} for name, context, more in (
    ('right', 10, {}),
    ('nan', 11, {}),
    ('inf', 12, {}),
    ('ulp', 13, {}),
    ('wrong', 14, {}),
    ('unwritten', 15, {}),
    ('before', 16, {}),
    ('behind', 17, {}),
    ('padding', 18, {'layout': {'out': {'pad': {'head_dim': [0, 2]}}}}),
    ('input', 19, {'params': {'context': 19, 'capacity': 20}}),
    ('input-guard', 20, {}),
    ('stale', 21, {}),
    ('large', 22, {'params': {'context': 22, 'capacity': 24}, 'poison': 'large',
                   'twins': [{'params': {'capacity': 30}}, {'poison': 'nan'}]}),
    ('poison', 23, {'params': {'context': 23, 'capacity': 24}}),
    ('crash', 30, {}),
    ('after-crash', 10, {}),
    ('endless', 31, {}),
    ('after-endless', 10, {}),
    ('unbuilt', 10, {'dtypes': {'v': 'bf16'}}),
    ('last', 10, {}),
)]


def faulty_file(*names):
    cases = [case for case in FAULTY_CASES if not names or case['name'] in names]
    return case_file('f', *cases, params={'q_heads': 6, 'kv_heads': 2, 'head_dim': 8}, variants=['per_head'])


class Faulty:
    """The kernels and one run over all of them, made when first asked for."""

    _kernels = _run = None

    @classmethod
    def kernels(cls):
        if not cls._kernels:
            cls._kernels = kernel_folder(*FAULTS, name="it's a folder")
            # --timeout is about kernels: this compiles them.
            etalon('run', faulty_file('right'), '--port', f'ocl:{cls._kernels}')
        return cls._kernels

    @classmethod
    def port(cls):
        return f'--port=ocl:{cls.kernels()}'

    @classmethod
    def run(cls):
        port = cls.port()
        if not cls._run:
            cls._run = judged(faulty_file(), port, '--timeout', 3)
        return cls._run


class AFaultPlantedInAKernel(unittest.TestCase):
    def line(self, name):
        return Faulty.run().of[f'gqa_av/f/{name}/normal/per_head']

    def assert_broken(self, name, **checks):
        """These checks and no others are broken, and their texts start so."""
        line = self.line(name)
        self.assertEqual('FAIL', line['verdict'])
        texts = broken(line)
        self.assertEqual(set(checks), set(texts), texts)
        for check, start in checks.items():
            self.assertEqual(start, texts[check][:len(start)], check)

    def test_ends_the_run_with_status_1_and_leaves_all_other_cases_as_they_were(self):
        verdicts = Faulty.run().verdicts()
        self.assertEqual(1, Faulty.run().code)
        self.assertEqual([f'gqa_av/f/{case["name"]}/normal/per_head' for case in FAULTY_CASES], list(verdicts))
        passed = [id.split('/')[2] for id, verdict in verdicts.items() if verdict == 'PASS']
        self.assertEqual(['right', 'after-crash', 'after-endless', 'last'], passed)
        self.assertRegex(Faulty.run().out.splitlines()[-1], r'^4 passed, 13 failed, 3 errors in \d')

    def test_if_it_is_one_nan_is_told_with_its_place(self):
        self.assert_broken('nan', nmse='out: sum err^2 nan', bound=f'{PLACE}: got nan (0x7fc00123), want ',
                           gain='out: coherent error of nan', replay=f'{PLACE}: got nan (0x7fc00000), replay ')
        self.assertRegex(broken(self.line('nan'))['bound'], '; 1 of 48 elements$')

    def test_if_it_is_one_infinity_is_told_with_its_place(self):
        self.assert_broken('inf', nmse='out: sum err^2 inf', bound=f'{PLACE}: got -inf (0xff800000), want ',
                           gain='out: coherent error of ', replay=f'{PLACE}: got -inf (0xff800000), replay ')

    def test_if_it_is_one_unit_in_the_last_place_breaks_replay_alone(self):
        self.assert_broken('ulp', replay=f'{PLACE}: got ')
        got, want = re.findall(r'\(0x([0-9a-f]{8})\)', broken(self.line('ulp'))['replay'])
        self.assertEqual(int(want, 16) + 1, int(got, 16))

    def test_if_it_is_one_wrong_element_is_told_with_its_place(self):
        self.assert_broken('wrong', nmse='out: ', bound=f'{PLACE}: got ', gain='out: ', replay=f'{PLACE}: got ')
        self.assertRegex(broken(self.line('wrong'))['bound'], '; 1 of 48 elements$')

    def test_if_it_is_one_element_never_written_is_told_with_its_place(self):
        texts = broken(self.line('unwritten'))
        self.assertEqual(f'{PLACE}: never written in repeat 0, still {POISON}; 2 of 96 elements', texts['written'])
        self.assertRegex(texts['bound'], '^' + re.escape(f'{PLACE}: got {POISON}, want ') + '.*; 1 of 48 elements$')

    def test_if_it_writes_before_its_output_breaks_guards_alone(self):
        self.assert_broken('before', guards='out: element 1 before its start was ')
        self.assertIn(', is 1 (0x3f800000); ', broken(self.line('before'))['guards'])

    def test_if_it_writes_behind_its_output_breaks_guards_alone(self):
        self.assert_broken('behind', guards='out: element 1 past its end was ')

    def test_if_it_writes_padding_of_its_output_breaks_guards_alone(self):
        # Rows are 8 + 2 apart: row 4 starts at 40, its second element of padding is 49.
        self.assert_broken('padding', guards='out: padding at element 49 of the buffer was overwritten: '
                                             f'1 (0x3f800000), was {POISON}')

    def test_if_it_changes_an_input_breaks_inputs_kept_alone(self):
        # (19 * 2 + 1) * 8 + 3
        self.assert_broken('input', inputs_kept='v: element 315 at (19,1,3) was ')
        self.assertIn(', is 0.5 (0x3f000000); ', broken(self.line('input'))['inputs_kept'])

    def test_if_it_writes_behind_an_input_breaks_guards_alone(self):
        self.assert_broken('input-guard', guards='w: element 1 past its end was ')

    def test_if_its_output_depends_on_what_the_buffer_held_breaks_repeat(self):
        self.assert_broken('stale', repeat=f'{PLACE}: ')
        self.assertRegex(broken(self.line('stale'))['repeat'], r' of repeat 0, .* of repeat 1; 1 of 48 elements$')

    def test_if_it_reads_a_row_beyond_the_context_breaks_identical_with_the_twin_whose_poison_is_nan(self):
        self.assert_broken('large', identical=f'{PLACE}: ')
        self.assertRegex(broken(self.line('large'))['identical'],
                         r' of the case, nan \(0x7fc00000\) of twin 1; 1 of 48 elements$')

    def test_if_it_reads_a_row_beyond_the_context_shows_as_nan(self):
        self.assertIn(f'{PLACE}: got ', broken(self.line('poison'))['bound'])
        self.assertRegex(broken(self.line('poison'))['replay'], r'got nan \(0x7fc00000\)')

    def test_if_it_aborts_the_process_is_one_error_that_names_the_signal(self):
        self.assertEqual('ERROR', self.line('crash')['verdict'])
        self.assertRegex(self.line('crash')['reason'], r'^the runner died by signal \d+ \(')

    def test_if_it_never_ends_is_one_error_that_names_the_time(self):
        self.assertEqual('ERROR', self.line('endless')['verdict'])
        self.assertEqual('no answer within 3 s; killed', self.line('endless')['reason'])
        self.assertEqual([], processes_with(str(Faulty.kernels())), 'the runner is still there')

    def test_if_it_does_not_build_is_one_error_with_the_log(self):
        line = self.line('unbuilt')
        source = (Faulty.kernels() / 'gqa_av.cl').read_text().splitlines()
        number = source.index('    undeclared = 0;') + 1
        self.assertEqual('ERROR', line['verdict'])
        self.assertRegex(line['reason'], r'^clBuildProgram: CL_BUILD_PROGRAM_FAILURE \(-11\)')
        self.assertRegex(line['reason'], rf"gqa_av\.cl:{number}:.* use of undeclared identifier 'undeclared'")

    def test_leaves_figures_that_are_no_numbers_as_null(self):
        self.assertIsNone(self.line('nan')['headroom'])
        self.assertIsNone(self.line('inf')['nmse'])
        self.assertIsNone(self.line('nan')['checks']['bound']['figure'])

    def test_is_printed_with_check_figure_limit_place_and_both_values(self):
        block = printed(Faulty.run(), 'gqa_av/f/wrong/normal/per_head')
        self.assertRegex(block[0], r'^FAIL  gqa_av/f/wrong/normal/per_head on ')
        self.assertRegex('\n'.join(block), r'\n    bound: [0-9.e+]+, limit 1: ' + re.escape(PLACE) +
                         r': got [0-9.]+ \(0x[0-9a-f]{8}\), want [0-9.]+ \(0x[0-9a-f]{8}\), err ')

    def test_has_its_reproduce_line_again_before_the_last_line(self):
        lines = Faulty.run().out.splitlines()
        each = [line.split('reproduce: ')[1] for line in lines if line.startswith('    reproduce: ')]
        self.assertEqual(16, len(each))
        self.assertEqual(['reproduce:', *('  ' + line for line in each)], lines[-18:-1])


def printed(ran, id):
    """The lines on one failure, its reproduce line the last."""
    lines = ran.out.splitlines()
    first = next(i for i, line in enumerate(lines) if id in line)
    last = next(i for i in range(first, len(lines)) if lines[i].startswith('    reproduce: '))
    return lines[first:last + 1]


class AReproduceLine(unittest.TestCase):
    def shell(self, command, **env):
        folder = fresh()
        (folder / 'etalon').symlink_to(ETALON)
        path = f'{folder}:{ENV["PATH"]}'
        done = subprocess.run(['sh', '-c', command], cwd=WORK, env=environment({'PATH': path, **env}), text=True,
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=500)
        return Ran(done)

    def assert_reproduced(self, ran, id):
        block = printed(ran, id)
        again = self.shell(block[-1].split('reproduce: ')[1])
        self.assertEqual(1, again.code, again.err)
        self.assertEqual(block, printed(again, id))
        self.assertRegex(again.out.splitlines()[-1], '^0 passed, 1 failed in ')

    def test_fails_in_the_same_way(self):
        self.assert_reproduced(Faulty.run(), 'gqa_av/f/wrong/normal/per_head')

    def test_carries_every_option_that_changed_the_run(self):
        path = faulty_file('right', 'stale')
        ran = etalon('run', path, Faulty.port(), '--seed', 7, '--repeat', 3, '--timeout', 50.5, '--guards', 'off',
                     '-j', 1, '--filter', '*stale*')
        self.assertIn('--guards off --seed 7 --repeat 3 --timeout 50.5', printed(ran, 'stale')[-1])
        self.assert_reproduced(ran, 'gqa_av/f/stale/normal/per_head')

    def test_of_a_built_in_case_needs_only_its_id(self):
        ran = etalon('run', 'gqa_av/edges/one-hot', Faulty.port(), '--variant', 'per_head')
        self.assertEqual(1, ran.code)
        self.assertNotIn('.json', printed(ran, 'one-hot')[-1])
        self.assert_reproduced(ran, 'gqa_av/edges/one-hot/normal/per_head')

    def test_of_a_capped_case_names_its_folder_and_tier(self):
        path = case_file('f', {'name': 'long', 'tier': 'smoke', 'params': {'context': 4096},
                               'limit': {'smoke': {'context': 14}}},
                         params={'q_heads': 6, 'kv_heads': 2, 'head_dim': 8}, variants=['per_head'])
        ran = etalon('run', path.parent, Faulty.port(), '-t', 'smoke')
        self.assert_reproduced(ran, 'gqa_av/f/long/tier=smoke/normal/per_head')

    def test_of_a_variant_that_the_file_does_not_name_names_it(self):
        path = case_file('f', {'name': 'other', 'params': {'q_heads': 6, 'kv_heads': 2, 'head_dim': 8, 'context': 14}},
                         variants=['gqa'])
        ran = etalon('run', path, Faulty.port(), '--variant', 'per_head')
        self.assert_reproduced(ran, 'gqa_av/f/other/normal/per_head')

    def test_of_a_run_that_only_differs_from_another_runs_both(self):
        case = {'name': 'pair', 'params': {'q_heads': 6, 'kv_heads': 2, 'head_dim': 8, 'context': 13}}
        ran = etalon('run', case_file('f', {**case, 'checks': {'replay': False}}), Faulty.port())
        block = printed(ran, 'gqa_av/f/pair/normal/gqa')
        again = self.shell(block[-1].split('reproduce: ')[1])
        self.assertRegex(block[1], r'^    identical: 1, limit 0: ')
        self.assertEqual((1, block), (again.code, printed(again, 'gqa_av/f/pair/normal/gqa')))

    def test_of_a_stale_list_of_known_failures_names_the_list(self):
        known = fresh() / 'known'
        known.write_text('*/right/*\t*\tit was wrong once\n')
        ran = etalon('run', faulty_file('right'), Faulty.port(), '--known', known)
        again = self.shell(printed(ran, 'right')[-1].split('reproduce: ')[1])
        self.assertEqual((1, printed(ran, 'right')), (again.code, printed(again, 'right')))


class AVariantThatDidNotRun(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        text = (ROOT / 'ocl/gqa_av.cl').read_text()
        gqa = text[text.index('kernel void gqa_av_gqa('):]
        kernels = kernel_folder((gqa, f'''\
#if GROUP_SIZE == 3
#define gqa_av_gqa gqa_av_gqa2
#endif
#if GROUP_SIZE != 4
{gqa}
#endif
'''))
        path = case_file('f', *({'name': f'g{n}', 'params': {'q_heads': n}} for n in (2, 3, 4)),
                         params={'kv_heads': 1, 'head_dim': 8, 'context': 9}, variants=['gqa'])
        cls.ran = judged(path, '--port', f'ocl:{kernels}')

    def line(self, name):
        return self.ran.of[f'gqa_av/f/{name}/normal/gqa']

    def test_because_its_kernel_has_another_name_is_an_error(self):
        self.assertEqual('ERROR', self.line('g3')['verdict'])
        self.assertRegex(self.line('g3')['reason'], r'CL_INVALID_KERNEL_NAME .*kernel gqa_av_gqa,.* GROUP_SIZE=3')

    def test_because_its_kernel_is_missing_is_an_error(self):
        self.assertEqual('ERROR', self.line('g4')['verdict'])
        self.assertRegex(self.line('g4')['reason'], r'CL_INVALID_KERNEL_NAME .*kernel gqa_av_gqa,.* GROUP_SIZE=4')

    def test_leaves_the_others_judged_and_ends_with_status_1(self):
        self.assertEqual(('PASS', 1), (self.line('g2')['verdict'], self.ran.code))

    def test_because_the_folder_is_not_there_is_told_before_anything_runs(self):
        ran = etalon('run', 'gqa_av/edges/one-hot', '--port', 'ocl:nowhere')
        self.assertEqual((2, '', 'etalon: --port ocl:nowhere: there is no such folder\n'), (ran.code, ran.out, ran.err))


# ---- Judge and runner ----


def read_proc(pid, name):
    try:
        return (Path('/proc') / str(pid) / name).read_text(errors='replace')
    except OSError:
        return ''


def children(pid):
    """The command's name, in parentheses, may hold anything: the parent follows the last of them."""
    every = (entry.name for entry in Path('/proc').iterdir() if entry.name.isdigit())
    return [int(p) for p in every if read_proc(p, 'stat').rpartition(')')[2].split()[1:2] == [str(pid)]]


def processes_with(text):
    every = (entry.name for entry in Path('/proc').iterdir() if entry.name.isdigit())
    return [p for p in every if text in read_proc(p, 'cmdline') and read_proc(p, 'stat').rpartition(')')[2][1] != 'Z']


class TheJudge(unittest.TestCase):
    def test_never_maps_opencl_while_its_runner_does(self):
        judge = subprocess.Popen([ETALON, 'run', '--filter', '*/edges/contexts/*', '--filter', '*/groups/*'], cwd=WORK,
                                 env=ENV, stdout=subprocess.PIPE, text=True)
        samples, runner_samples = [], 0
        while judge.poll() is None:
            samples.append(read_proc(judge.pid, 'maps'))
            runner_samples += any('/libOpenCL' in read_proc(child, 'maps') for child in children(judge.pid))
            time.sleep(0.005)
        out = judge.stdout.read()
        judge.stdout.close()
        samples = [maps for maps in samples if Path(ETALON).name in maps]
        self.assertEqual(0, judge.returncode, out)
        self.assertGreater(len(samples), 20)
        self.assertGreater(runner_samples, 5)
        for maps in samples:
            self.assertNotRegex(maps, r'/lib(OpenCL|pocl)[^/\n]*\n')

    def test_never_maps_opencl_while_it_lists_devices(self):
        judge = subprocess.Popen([ETALON, 'list', 'devices'], cwd=WORK, env=ENV, stdout=subprocess.DEVNULL)
        while judge.poll() is None:
            self.assertNotIn('/libOpenCL', read_proc(judge.pid, 'maps'))


class AnInterruptedRun(unittest.TestCase):
    def interrupt(self, number, **env):
        """Sends a signal while a kernel does not come back; all that is left to look at."""
        results = fresh() / 'results.jsonl'
        path = faulty_file('right', 'wrong', 'endless', 'last')
        judge = subprocess.Popen([ETALON, 'run', path, Faulty.port(), '-v', '-o', results], cwd=WORK,
                                 env=environment(env), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                 start_new_session=True)
        try:
            for line in judge.stdout:
                if line.startswith('    reproduce: '):
                    break
            time.sleep(0.3)  # the next job is with the runner
            runners = children(judge.pid)
            folders = set(re.findall(r'\S*/etalon-\w{6}(?=/)', read_proc(judge.pid, 'maps')))
            os.kill(judge.pid, number) if number == signal.SIGKILL else os.killpg(judge.pid, number)
            out, err = judge.communicate(timeout=120)
        finally:
            judge.kill()
            judge.wait()
            judge.stdout.close()
            judge.stderr.close()
        self.assertEqual(1, len(runners))
        self.assertEqual(1, len(folders))
        until = time.monotonic() + 60
        while any(read_proc(p, 'maps') for p in runners) and time.monotonic() < until:
            time.sleep(0.01)
        left = [p for p in runners if read_proc(p, 'maps')]
        for p in left:
            os.kill(p, signal.SIGKILL)
        self.assertEqual([], left, 'a runner is left')
        return judge.returncode, out, folders, results

    def assert_interrupted(self, number, **env):
        code, out, folders, results = self.interrupt(number, **env)
        lines = [strict(line) for line in results.read_text().splitlines()]
        self.assertEqual(128 + number, code)
        self.assertEqual(['gqa_av/f/right/normal/per_head', 'gqa_av/f/wrong/normal/per_head'],
                         [line['id'] for line in lines[1:]])
        self.assertTrue(results.read_text().endswith('\n'))
        self.assertRegex(out.splitlines()[-1], r'^1 passed, 1 failed, 2 not run in ')
        self.assertEqual([], [folder for folder in folders if os.path.exists(folder)])

    def test_by_sigint_ends_with_130_and_whole_results_and_leaves_no_process_and_no_folder(self):
        self.assert_interrupted(signal.SIGINT)

    def test_by_sigterm_ends_with_143_and_whole_results_and_leaves_no_process_and_no_folder(self):
        temp = fresh()
        self.assert_interrupted(signal.SIGTERM, TMPDIR=temp)
        self.assertEqual([], list(temp.iterdir()))

    def test_by_sigkill_leaves_no_runner(self):
        code, *_ = self.interrupt(signal.SIGKILL, TMPDIR=fresh())
        self.assertEqual(-signal.SIGKILL, code)


class AWholeRun(unittest.TestCase):
    def test_leaves_no_folder(self):
        temp = fresh()
        self.assertEqual(0, etalon('run', 'gqa_av/edges/one-hot', TMPDIR=temp).code)
        self.assertEqual([], list(temp.iterdir()))

    def test_says_so_where_tmpdir_is_no_folder(self):
        ran = etalon('run', 'gqa_av/edges/one-hot', TMPDIR='/nonexistent')
        self.assertNotEqual(0, ran.code)
        self.assertRegex(ran.out + ran.err, r'/nonexistent\S*:? .*No such file or directory')


# ---- Exit statuses ----


class NothingToJudge(unittest.TestCase):
    def test_because_nothing_is_selected_is_status_2(self):
        path = faulty_file('right')
        for args in (['--filter', '*nothing*'], ['--exclude', '*'], ['--variant', 'per_head', '--filter', '*/gqa']):
            with self.subTest(args):
                ran = etalon('run', path, *args)
                self.assertEqual((2, ''), (ran.code, ran.out))
                self.assertRegex(ran.err, r'\Aetalon: nothing selected: no run of 1 cases read passes .*\n\Z')

    def test_because_the_shard_is_empty_is_status_0(self):
        ran = etalon('run', faulty_file('right'), '--shard', '2/2')
        self.assertEqual(0, ran.code)
        self.assertRegex(ran.out, r'\A0 passed, 0 failed in ')

    def test_because_no_device_has_that_name_is_status_3_and_names_the_driver_files(self):
        ran = etalon('run', faulty_file('right'), '--device', 'nope*')
        self.assertEqual((3, ''), (ran.code, ran.out))
        self.assertRegex(ran.err, r'\Aetalon: no device of that name\n(.*\n)*' +
                         re.escape(f'{ENV["OCL_ICD_VENDORS"]}/pocl.icd: '))

    def test_because_there_is_no_driver_is_status_3_and_names_the_folder(self):
        empty = fresh()
        for ran in (etalon('run', faulty_file('right'), OCL_ICD_VENDORS=empty),
                    etalon('list', 'devices', OCL_ICD_VENDORS=empty)):
            self.assertEqual((3, ''), (ran.code, ran.out))
            self.assertRegex(ran.err, r'\Aetalon: no device\n(.*\n)*' + re.escape(f'{empty}: holds no .icd file\n'))

    def test_because_no_driver_opens_is_status_3_and_says_why(self):
        folder = fresh()
        (folder / 'broken.icd').write_text('libthere-is-none.so.1\n')
        ran = etalon('run', faulty_file('right'), OCL_ICD_VENDORS=folder)
        self.assertEqual((3, ''), (ran.code, ran.out))
        self.assertRegex(ran.err, re.escape(f'{folder}/broken.icd: libthere-is-none.so.1 cannot be opened: '))

    def huge(self, *others):
        # 2^33 rows of one head of 64 f32: 2 TiB, more than any device allocates.
        return case_file('f', {'name': 'huge', 'params': {'capacity': 2**33}}, *others, variants=['per_head', 'gqa'],
                         params={'q_heads': 4, 'kv_heads': 1, 'head_dim': 64, 'context': 8})

    def test_because_all_is_skipped_is_status_3_and_the_reason_has_both_numbers(self):
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        ran = judged(self.huge())
        limit = ran.header['devices'][0]['allocation']
        self.assertEqual(3, ran.code)
        self.assertRegex(ran.err, r'\Aetalon: nothing could be judged\n(.*\n)*.*/pocl\.icd: ')
        self.assertEqual({'gqa_av/f/huge/normal/per_head': 'SKIP', 'gqa_av/f/huge/normal/gqa': 'SKIP'}, ran.verdicts())
        for line in ran.of.values():
            self.assertEqual(f'v is {2**41} bytes, the device allocates {limit} at most', line['reason'])
        self.assertLess(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss - before, 1 << 20, 'KiB were allocated')

    def test_in_part_is_status_0_and_with_strict_status_1(self):
        path = self.huge({'name': 'small'})
        self.assertEqual(0, etalon('run', path).code)
        self.assertEqual(1, etalon('run', path, '--strict').code)
        self.assertEqual(0, etalon('run', path, '--strict', '--exclude', '*huge*').code)

    def test_on_a_device_is_status_0_where_all_that_is_selected_is_refused_as_it_must_be(self):
        ran = etalon('run', 'gqa_av/edges/no-head-dim', OCL_ICD_VENDORS=fresh())
        self.assertEqual((0, ''), (ran.code, ran.err))
        self.assertRegex(ran.out, r'\A1 passed, 0 failed in ')


class ResultsThatCannotBeWritten(unittest.TestCase):
    def test_from_the_start_are_status_2(self):
        ran = etalon('run', faulty_file('right'), '-o', '/nonexistent/results')
        self.assertEqual((2, '', 'etalon: /nonexistent/results: No such file or directory\n'),
                         (ran.code, ran.out, ran.err))

    @unittest.skipUnless(os.path.exists('/dev/full'), 'no /dev/full')
    def test_to_the_end_are_status_1(self):
        ran = etalon('run', faulty_file('right'), '-o', '/dev/full')
        self.assertEqual((1, 'etalon: /dev/full: No space left on device: the results are not whole\n'),
                         (ran.code, ran.err))


class KnownFailures(unittest.TestCase):
    def run_known(self, text, *args, names=('right', 'wrong')):
        known = fresh() / 'known'
        known.write_text(text)
        return judged(faulty_file(*names), Faulty.port(), '--known', known, *args)

    def test_that_fail_are_xfail_and_status_0(self):
        ran = self.run_known('# comment\n\n*/wrong/*\t*\tfrom the start, see the tracker\n')
        wrong = ran.of['gqa_av/f/wrong/normal/per_head']
        self.assertEqual(0, ran.code, ran.out)
        self.assertEqual(('XFAIL', 'from the start, see the tracker'), (wrong['verdict'], wrong['reason']))
        self.assertRegex(ran.out.splitlines()[-1], '^1 passed, 0 failed, 1 known failures in ')

    def test_that_pass_are_xpass_and_status_1(self):
        ran = self.run_known('gqa_av/f/*\t*\tall of it\n')
        self.assertEqual({'gqa_av/f/right/normal/per_head': 'XPASS', 'gqa_av/f/wrong/normal/per_head': 'XFAIL'},
                         ran.verdicts())
        self.assertEqual(1, ran.code)
        self.assertRegex(ran.out.splitlines()[-1], '^0 passed, 0 failed, 1 known failures, 1 known failures that pass')

    def test_of_another_device_do_not_count(self):
        ran = self.run_known('*\tNo Such Device*\tit is broken there\n')
        self.assertEqual({'gqa_av/f/right/normal/per_head': 'PASS', 'gqa_av/f/wrong/normal/per_head': 'FAIL'},
                         ran.verdicts())
        self.assertEqual(1, ran.code)

    def test_are_never_errors(self):
        ran = self.run_known('*\t*\tall of it\n', names=('unbuilt',))
        self.assertEqual((['ERROR'], 1), (list(ran.verdicts().values()), ran.code))

    def test_in_a_malformed_file_are_told_by_file_and_line(self):
        for text, line in (('*\t*\n', 1), ('# one\n\n* * reason\n', 3), ('*\t*\tgood\n\t*\treason\n', 2),
                           ('*\t\treason\n', 1), ('*\t*\t\n', 1), ('*\t*\ta\tb\n', 1)):
            with self.subTest(text):
                known = fresh() / 'known'
                known.write_text(text)
                ran = etalon('run', faulty_file('right'), '--known', known)
                self.assertEqual((2, ''), (ran.code, ran.out))
                self.assertEqual(f'etalon: {known}:{line}: must read ID-GLOB TAB DEVICE-GLOB TAB REASON\n', ran.err)

    def test_in_a_file_that_is_not_there_are_status_2(self):
        ran = etalon('run', faulty_file('right'), '--known', '/nonexistent')
        self.assertEqual((2, 'etalon: /nonexistent: cannot be read: No such file or directory\n'), (ran.code, ran.err))


class TwoDevices(unittest.TestCase):
    TWO = {'POCL_DEVICES': 'basic pthread'}

    @classmethod
    def setUpClass(cls):
        listed = etalon('list', 'devices', **cls.TWO).out
        cls.names = re.findall(r'(?m)^0:\d +(.*) \(Portable Computing Language;', listed)
        if len(set(cls.names)) != 2:
            raise unittest.SkipTest('this PoCL has no second device')

    def test_owe_each_other_the_same_bytes(self):
        ran = judged('gqa_av/llm/smoke', **self.TWO)
        lines = ran.lines[1:]
        self.assertEqual(0, ran.code, ran.out)
        self.assertEqual([(variant, name) for variant in ('per_head', 'gqa') for name in self.names],
                         [(line['variant'], line['device']) for line in lines])
        self.assertEqual(1, len({line['outputs'][0] for line in lines}))
        self.assertEqual({'held'}, {line['checks']['identical']['outcome'] for line in lines})

    def test_each_have_an_error_of_their_own(self):
        ran = judged(faulty_file('right', 'crash', 'after-crash'), Faulty.port(), **self.TWO)
        self.assertEqual(['PASS', 'PASS', 'ERROR', 'ERROR', 'PASS', 'PASS'],
                         [line['verdict'] for line in ran.lines[1:]])

    def test_each_have_known_failures_of_their_own(self):
        known = fresh() / 'known'
        known.write_text(f'*/wrong/*\t{self.names[0]}\tnot on the other\n')
        ran = judged(faulty_file('wrong'), Faulty.port(), '--known', known, **self.TWO)
        self.assertEqual((1, ['XFAIL', 'FAIL']), (ran.code, [line['verdict'] for line in ran.lines[1:]]))


# ---- Selection changes nothing else ----


class ARunAlone(unittest.TestCase):
    """Params, claims, verdicts, figures and digests are those of the run among others.

    Only `agrees` and `identical` compare with other runs, and so are there or not.
    """

    @classmethod
    def setUpClass(cls):
        cls.folder = fresh()
        shape = {'q_heads': 4, 'kv_heads': 2, 'head_dim': 12}
        case_file('s', {'name': 'small', 'tier': 'smoke', 'params': {'context': 67}, 'fills': ['normal', 'ramp']},
                  {'name': 'odd', 'sweep': {'context': [5, 261]}, 'layout': {'v': {'pad': {'head_dim': [1, 2]}}},
                   'twins': [{'poison': 'large'}]},
                  {'name': 'seeded', 'params': {'context': 9}, 'seed': 5, 'dtypes': {'v': 'f16'}},
                  {'name': 'wide', 'tier': 'full', 'params': {'context': 300}}, folder=cls.folder, params=shape,
                  variants=['per_head', 'gqa'])
        cls.whole = cls.lines(cls.folder, '-j', 2)

    @classmethod
    def lines(cls, *args):
        ran = judged(*args)
        if ran.code != 0:
            raise AssertionError(ran.out + ran.err)
        for line in ran.of.values():
            for key in ('device_ns', 'device_ns_median', 'compile_s', 'kernel_s'):
                del line[key]
            line['checks'].pop('agrees', None)
            line['checks'].pop('identical', None)
        return ran.of

    def test_is_the_same_on_one_thread(self):
        self.assertEqual(10, len(self.whole))
        self.assertEqual(self.whole, self.lines(self.folder, '-j', 1))

    def test_is_the_same_when_it_is_filtered(self):
        some = self.lines(self.folder, '-k', '*/context=261/*', '-k', '*/ramp/gqa', '--exclude', '*/s/odd/*/gqa')
        self.assertEqual(['gqa_av/s/small/ramp/gqa', 'gqa_av/s/odd/context=261/normal/per_head'], list(some))
        self.assertEqual({id: self.whole[id] for id in some}, some)

    def test_is_the_same_under_its_variant_alone(self):
        some = self.lines(self.folder, '--variant', 'per_head')
        self.assertEqual({id: line for id, line in self.whole.items() if id.endswith('/per_head')}, some)

    def test_is_the_same_in_a_shard_and_the_shards_are_the_whole(self):
        shards = [self.lines(self.folder, '--shard', f'{k}/3') for k in (1, 2, 3)]
        self.assertEqual(sorted(self.whole), sorted(id for shard in shards for id in shard))
        self.assertEqual(self.whole, {id: line for shard in shards for id, line in shard.items()})
        self.assertTrue(all(shards), 'no shard is empty')

    def test_is_the_same_in_another_tier(self):
        smoke, full = self.lines(self.folder, '-t', 'smoke'), self.lines(self.folder, '-t', 'full')
        self.assertEqual((4, 12), (len(smoke), len(full)))
        self.assertEqual(smoke, {id: self.whole[id] for id in smoke})
        self.assertEqual(self.whole, {id: full[id] for id in self.whole})

    def test_is_the_same_in_the_order_of_another_command_line(self):
        other = case_file('o', {'name': 'first', 'params': {'q_heads': 1, 'kv_heads': 1, 'head_dim': 3, 'context': 2}},
                          variants=['per_head', 'gqa'])
        lines = self.lines(other, self.folder / 's.json')
        self.assertEqual(14, len(lines))
        self.assertEqual(self.whole, {id: lines[id] for id in self.whole})

    def test_is_taken_once_where_it_is_asked_for_twice(self):
        twice = self.lines(self.folder, self.folder / '..' / self.folder.name / 's.json', '-t', 'full')
        self.assertEqual(12, len(twice))

    def test_shares_its_id_with_no_other(self):
        other = case_file('s', {'name': 'seeded', 'params': {'context': 8, 'q_heads': 1, 'kv_heads': 1, 'head_dim': 1}})
        ran = etalon('run', self.folder / 's.json', other)
        self.assertEqual((2, ''), (ran.code, ran.out))
        column = other.read_text().index('{"name"') + 1
        self.assertEqual(f'etalon: {other}:1:{column}: the id gqa_av/s/seeded is that of a case of '
                         f'{self.folder}/s.json too\n', ran.err)


class Data(unittest.TestCase):
    def digests(self, *args):
        ran = judged('gqa_av/llm/smoke', *args)
        self.assertEqual(0, ran.code, ran.out)
        return {id: (line['inputs'], line['outputs']) for id, line in ran.of.items()}

    def test_follow_the_seed_and_nothing_else(self):
        unseeded, zero, one = self.digests(), self.digests('--seed', 0), self.digests('--seed', 1)
        self.assertEqual(unseeded, zero)
        self.assertEqual(one, self.digests('--seed', 1, '-j', 1, '--guards', 'off', '--repeat', 1))
        for id in zero:
            self.assertNotEqual(zero[id][0], one[id][0])
            self.assertNotEqual(zero[id][1], one[id][1])

    def test_of_two_variants_of_one_order_give_the_same_bytes(self):
        (inputs, outputs), other = self.digests().values()
        self.assertEqual((inputs, outputs), other)
        self.assertRegex(outputs[0], '^[0-9a-f]{32}$')


class GuardsAndRepeats(unittest.TestCase):
    def test_off_change_no_byte_and_their_checks_say_so(self):
        on, off = judged('gqa_av/llm/smoke'), judged('gqa_av/llm/smoke', '--guards', 'off', '--repeat', 1)
        self.assertEqual((0, 0), (on.code, off.code))
        for id, line in on.of.items():
            self.assertEqual((line['inputs'], line['outputs']), (off.of[id]['inputs'], off.of[id]['outputs']))
            self.assertEqual('held', line['checks']['guards']['outcome'])
            self.assertEqual('held', line['checks']['repeat']['outcome'])
            self.assertEqual({'outcome': 'skipped', 'text': 'guards off'}, off.of[id]['checks']['guards'])
            self.assertNotIn('repeat', off.of[id]['checks'])


# ---- What a case says, and what is right ----


def product(w, v, q_heads, kv_heads):
    """out[h][d], with h reading KV head floor(h * kv_heads / q_heads)."""
    return [[sum(w[h][c] * v[c][h * kv_heads // q_heads][d] for c in range(len(v))) for d in range(len(v[0][0]))]
            for h in range(q_heads)]


def flat(nested):
    return [x for part in nested for x in (flat(part) if isinstance(part, list) else [part])]


class AProductOfSmallIntegers(unittest.TestCase):
    """Every sum is exact, so that one pair of loops written elsewhere gives the bits."""

    def case(self, name, q_heads, kv_heads, head_dim, context=7):
        w = [[(5 * h + 3 * c) % 7 - 3 for c in range(context)] for h in range(q_heads)]
        v = [[[(c * 31 + k * 17 + d * 7) % 101 - 50 for d in range(head_dim)] for k in range(kv_heads)]
             for c in range(context)]
        return {'name': name, 'params': {'q_heads': q_heads, 'kv_heads': kv_heads, 'head_dim': head_dim,
                                         'context': context, 'capacity': context + 2},
                'data': {'w': {'values': flat(w)}, 'v': {'values': flat(v)}},
                'expect': {'out': {'values': flat(product(w, v, q_heads, kv_heads))}}}

    def test_is_right_for_head_dims_5_and_100_and_for_any_heads(self):
        ran = judged(case_file('f', self.case('d5', 4, 2, 5), self.case('d100', 4, 2, 100),
                               self.case('heads-9-1', 9, 1, 5), self.case('heads-3-2', 3, 2, 5),
                               self.case('heads-2-3', 2, 3, 5)), '--variant', 'per_head', '--variant', 'gqa')
        self.assertEqual(0, ran.code, ran.out)
        self.assertEqual(['gqa_av/f/d5/normal/per_head', 'gqa_av/f/d5/normal/gqa', 'gqa_av/f/d100/normal/per_head',
                          'gqa_av/f/d100/normal/gqa', 'gqa_av/f/heads-9-1/normal/per_head',
                          'gqa_av/f/heads-3-2/normal/per_head', 'gqa_av/f/heads-2-3/normal/per_head'], list(ran.of))
        for line in ran.of.values():
            self.assertEqual('held', line['checks']['expect']['outcome'])

    def test_is_held_against_the_oracle_too(self):
        case = self.case('d5', 4, 2, 5)
        case['expect']['out']['values'][13] += 1
        ran = judged(case_file('f', {**case, 'variants': ['per_head']}))
        line = ran.of['gqa_av/f/d5/normal/per_head']
        self.assertEqual((1, 'FAIL', ['expect']), (ran.code, line['verdict'], list(broken(line))))
        # Element 13 of rows of 5.
        self.assertRegex(broken(line)['expect'], r'\Aoracle: out \(query_length 0, q_heads 2, head_dim 3\): got ')


class Poison(unittest.TestCase):
    def test_beyond_the_context_in_unread_weight_rows_and_in_padding_changes_no_byte(self):
        # w has align4(1) = 4 rows a head, of which decode reads one.
        padded = {'w': {'pad': {'context': [3, 5], 'query_length': [1, 1]}, 'shift': 1},
                  'v': {'pad': {'capacity': [1, 2], 'head_dim': [0, 3]}}, 'out': {'pad': {'head_dim': [1, 0]}}}
        ran = judged(case_file('f', {'name': 'poison', 'params': {'q_heads': 4, 'kv_heads': 2, 'head_dim': 12,
                                                                 'context': 67},
                                     'sweep': {'poison': ['nan', 'large'], 'capacity': [67, 68, 200],
                                               'layout': [{}, padded]}}))
        self.assertEqual(0, ran.code, ran.out)
        self.assertEqual(48, len(ran.of))
        self.assertEqual(1, len({(*line['inputs'], *line['outputs']) for line in ran.of.values()}))


class ScoresBelowThoseOfF32(unittest.TestCase):
    def test_are_of_keys_that_are_seen(self):
        """16 times -1e34, a quarter of it, and the mask: together below f32's lowest number, which stands for them."""
        lowest = {'name': 'lowest', 'params': {'q_heads': 1, 'kv_heads': 1, 'head_dim': 16, 'kv_length': 4, 'mask': 'data'},
                  'dtypes': {'k': 'f32', 'mask': 'f32'},
                  'data': {'q': {'constant': 1e17}, 'k': {'constant': -1e17}, 'v': {'constant': 3},
                           'mask': {'constant': '-0x1.fffffep127'}},
                  'expect': {'out': {'constant': 3}}}
        ran = judged(case_file('f', lowest, operator='flash_attn'))
        self.assertEqual({'flash_attn/f/lowest/normal/tile_f32': 'PASS'}, {id: line['verdict'] for id, line in ran.of.items()})


class InputsThatShareMemory(unittest.TestCase):
    SHAPE = {'q_heads': 8, 'kv_heads': 4, 'head_dim': 4, 'context': 8}
    JOINED = {'w': {'buffer': 'b', 'pad': {'context': [1, 2]}, 'shift': 1}, 'v': {'buffer': 'b', 'pad': {'capacity': [2, 1]}}}
    STEPS = [{}, {'params': {'context': 0}}, {'params': {'context': 3}}]

    def test_lie_apart_or_in_one_buffer_with_the_same_bytes(self):
        ran = judged(case_file('f', {'name': 'cache', 'params': {**self.SHAPE, 'capacity': 9}, 'steps': self.STEPS,
                                     'sweep': {'layout': [{}, self.JOINED], 'query_length': [1, 3]},
                                     'fills': ['normal', 'exact'], 'twins': [{'poison': 'large'}]}))
        self.assertEqual(0, ran.code, ran.out)
        self.assertEqual({'PASS'}, {line['verdict'] for line in ran.of.values()})
        found = {}
        for id, line in ran.of.items():
            found.setdefault(re.sub('layout=[^,]*,', '', id), []).append((line['inputs'], line['outputs']))
        self.assertLess(5, len(found))
        for id, lines in found.items():
            self.assertEqual(2, len(lines), id)
            self.assertEqual(lines[0], lines[1], id)

    def test_pass_as_a_view_in_every_variant_and_without_guards(self):
        path = case_file('f', {'name': 'view', 'params': self.SHAPE, 'layout': {'v': {'view_of': 'w'}},
                               'fills': ['normal', 'exact'], 'sweep': {'query_length': [1, 4]},
                               'steps': [{}, {'params': {'context': 3}}], 'twins': [{'poison': 'large'}]})
        for more in ([], ['--guards', 'off'], ['--port', 'openblas']):
            ran = judged(path, *more)
            if ran.code == 3 and more[-1:] == ['openblas']:
                continue
            self.assertEqual((0, {'PASS'}), (ran.code, {line['verdict'] for line in ran.of.values()}), ran.out)
            for line in ran.of.values():
                self.assertEqual(2, len(line['outputs']))
                # Data that are there twice are not independent, and of no exact family. The bound is that of recorded data:
                # 'worst' alone would be wider.
                self.assertEqual(set(), {'noise', 'gain', 'exact'} & set(line['checks']))

    def test_are_one_argument_twice(self):
        """A kernel that writes w writes v, and is told of once, by the name of the one that has the place."""
        change = kernel_folder(('    const ulong head = get_group_id(1), kv_head = head * kv_heads / q_heads;\n', '''\
    const ulong head = get_group_id(1), kv_head = head * kv_heads / q_heads;
    if (head == 7 && get_group_id(0) == 0 && get_local_id(0) == 0 && context == 8)
        ((global float *)w)[v_at + v_stride0 + 2] = 0.5f;
'''))
        ran = judged(case_file('f', {'name': 'view', 'params': self.SHAPE, 'layout': {'v': {'view_of': 'w'}}},
                               {'name': 'cache', 'params': self.SHAPE, 'layout': self.JOINED}, variants=['per_head'],
                               checks={'repeat': False}), f'--port=ocl:{change}')
        # w is [8, 4, 8], packed, and v has its strides: (1, 0, 2) is element 34. In the cache w takes 1 + 32 * 11 = 353
        # elements, v [8, 4, 4] begins two positions of 16 behind, and (1, 0, 2) is 18 further.
        for name, place in (('view', 'w: element 34 at (1,0,2) was '), ('cache', 'v: element 403 at (1,0,2) was ')):
            text = broken(ran.of[f'gqa_av/f/{name}/normal/per_head'])['inputs_kept']
            self.assertEqual(place, text[:len(place)])


class Steps(unittest.TestCase):
    def cases(self, last=6):
        shape = {'q_heads': 4, 'kv_heads': 2, 'head_dim': 8, 'capacity': 300}
        return ({'name': 'grow', 'params': shape,
                 'steps': [{'params': {'context': 257}},
                           {'params': {'context': 3}, 'data': {'w': {'constant': 1}, 'v': {'values': [1, 2, 3]}},
                            'expect': {'out': {'constant': last}}},
                           {'params': {'context': 0}, 'data': {'v': {'constant': 1}},
                            'expect': {'out': {'constant': 0}}}]},
                {'name': 'alone', 'params': {**shape, 'context': 257}},
                {'name': 'three', 'params': {**shape, 'context': 3},
                 'data': {'w': {'constant': 1}, 'v': {'values': [1, 2, 3]}}})

    def test_are_each_what_they_would_be_as_a_case_of_their_own(self):
        ran = judged(case_file('f', *self.cases()))
        self.assertEqual(0, ran.code, ran.out)
        for variant in ('per_head', 'gqa'):
            grow, alone, three = (ran.of[f'gqa_av/f/{name}/normal/{variant}'] for name in ('grow', 'alone', 'three'))
            for key in ('inputs', 'outputs'):
                self.assertEqual(3, len(grow[key]))
                self.assertEqual(alone[key] + three[key], grow[key][:2])
            self.assertEqual('held', grow['checks']['expect']['outcome'])

    def test_that_fail_are_named(self):
        ran = judged(case_file('f', *self.cases(last=7)), '--filter', '*/grow/*/gqa')
        texts = broken(ran.of['gqa_av/f/grow/normal/gqa'])
        self.assertEqual((1, ['expect']), (ran.code, list(texts)))
        self.assertRegex(texts['expect'], r'\Astep 1: oracle: out \(query_length 0, q_heads 0, head_dim 0\): got 6 ')


class AVariantAskedForByName(unittest.TestCase):
    SENTENCES = {(9, 1): 'q_heads = 9 over kv_heads = 1 is a group of 9, must be at most 8',
                 (3, 2): 'q_heads = 3 over kv_heads = 2 is a group of 1.5, must be whole and at most 8'}

    def case(self, q_heads, kv_heads, **more):
        return {'name': f'heads-{q_heads}-{kv_heads}',
                'params': {'q_heads': q_heads, 'kv_heads': kv_heads, 'head_dim': 4, 'context': 3}, **more}

    def test_by_a_file_that_fits_no_shape_is_status_2_with_its_sentence(self):
        for heads, sentence in self.SENTENCES.items():
            with self.subTest(heads):
                path = case_file('f', self.case(*heads, variants=['gqa']))
                ran = etalon('run', path)
                column = path.read_text().index('{"name"') + 1
                self.assertEqual((2, ''), (ran.code, ran.out))
                self.assertEqual(f'etalon: {path}:1:{column}: variant gqa fits none of this case\'s shapes: '
                                 f'{sentence}\n', ran.err)

    def test_by_the_command_line_that_fits_no_case_is_status_2_with_its_sentence(self):
        for heads, sentence in self.SENTENCES.items():
            with self.subTest(heads):
                ran = etalon('run', case_file('f', self.case(*heads)), '--variant', 'gqa')
                self.assertEqual((2, ''), (ran.code, ran.out))
                self.assertEqual(f'etalon: --variant gqa fits none of the cases selected: {sentence}\n', ran.err)

    def test_where_a_refusal_is_expected_passes_with_exactly_that_sentence(self):
        cases = [self.case(*heads, variants=['gqa'], expect={'refused': sentence})
                 for heads, sentence in self.SENTENCES.items()]
        cases.append({**self.case(9, 1, variants=['gqa'], expect={'refused': 'gqa: no'}), 'name': 'other-words'})
        cases.append(self.case(8, 1, variants=['gqa'], expect={'refused': 'gqa: no'}))
        ran = judged(case_file('f', *cases))
        self.assertEqual(1, ran.code)
        self.assertEqual({'gqa_av/f/heads-9-1/-/gqa': 'PASS', 'gqa_av/f/heads-3-2/-/gqa': 'PASS',
                          'gqa_av/f/other-words/-/gqa': 'FAIL', 'gqa_av/f/heads-8-1/-/gqa': 'FAIL'}, ran.verdicts())
        self.assertEqual(f'must be refused with "gqa: no", was with "{self.SENTENCES[9, 1]}"',
                         broken(ran.of['gqa_av/f/other-words/-/gqa'])['expect'])
        self.assertEqual('must be refused with "gqa: no", was accepted',
                         broken(ran.of['gqa_av/f/heads-8-1/-/gqa'])['expect'])

    def test_that_fits_some_shapes_runs_on_those_and_dry_run_v_says_why_not_on_the_others(self):
        rows = [{'label': 'g8', 'q_heads': 8}, {'label': 'g9', 'q_heads': 9}, {'label': 'g4', 'q_heads': 4}]
        path = case_file('f', {'name': 'mixed', 'params': {'kv_heads': 1, 'head_dim': 4, 'context': 3}, 'shapes': rows,
                               'variants': ['gqa']})
        ran = etalon('run', path, '--dry-run', '-v')
        self.assertEqual((0, ['gqa_av/f/mixed/shape=g8/normal/gqa', 'gqa_av/f/mixed/shape=g4/normal/gqa',
                              f'gqa_av/f/mixed/shape=g9: no gqa: {self.SENTENCES[9, 1]}']),
                         (ran.code, [line for line in ran.out.splitlines() if not line.startswith('    ')]))
        self.assertEqual(0, etalon('run', path).code)


GROUP_OF_9 = {'q_heads': 9, 'kv_heads': 1, 'head_dim': 4, 'context': 3}
GROUP_OF_2 = {**GROUP_OF_9, 'q_heads': 2}
INNERMOST = 'gqa_av: the innermost stride of v is 2, must be 1'
TOO_MANY = 'q_heads = 9 over kv_heads = 1 is a group of 9, must be at most 8'


class ACaseIsNeverLeftOutSilently(unittest.TestCase):
    def test_where_no_variant_computes_it_and_another_case_runs(self):
        # heads that lie inside each other are for no kernel: the innermost stride is not 1
        inside = {'v': {'order': ['capacity', 'head_dim', 'kv_heads']}}
        path = case_file('f', {'name': 'two', 'params': {**GROUP_OF_2, 'kv_heads': 2}, 'layout': inside},
                         {'name': 'one', 'params': GROUP_OF_2})
        ran = judged(path)
        self.assertEqual(0, ran.code, ran.out)
        self.assertEqual([('gqa_av/f/two/normal/-', 'SKIP', INNERMOST)],
                         [(x['id'], x['verdict'], x['reason']) for x in ran.lines[1:] if x['verdict'] != 'PASS'])
        self.assertEqual(1, judged(path, '--strict').code)
        self.assertEqual(3, judged(path, '-k', '*/two/*').code)

    def test_where_it_is_capped_in_the_widest_tier(self):
        path = case_file('f', {'name': 'a', 'params': {**GROUP_OF_2, 'context': 1000},
                               'limit': {'full': {'context': 100}}})
        ids = [f'gqa_av/f/a/tier=full/normal/{variant}' for variant in ('per_head', 'gqa', 'gqa_tile2', 'gqa_split')]
        self.assertEqual(ids, [line['id'] for line in judged(path).lines[1:]])

    def test_where_a_twin_fits_no_variant(self):
        path = case_file('f', {'name': 'a', 'params': {**GROUP_OF_9, 'kv_heads': 3},
                               'twins': [{'params': {'kv_heads': 1}}]})
        self.assertEqual('gqa_av/f/a/normal/per_head\n', etalon('run', path, '--dry-run').out)
        self.assertIn(f'\ngqa_av/f/a: no gqa: {TOO_MANY}\n', etalon('run', path, '--dry-run', '-v').out)

    def test_where_a_kernel_folder_has_not_its_file(self):
        folder = kernel_folder()
        (folder / 'gqa_av.cl').rename(folder / 'gqa-av.cl')
        ran = judged('gqa_av/llm/smoke', '--port', f'ocl:{folder}')
        self.assertEqual(3, ran.code)
        self.assertEqual([('SKIP', 'not provided: the folder of --port has no gqa_av.cl')] * 2,
                         [(x['verdict'], x['reason']) for x in ran.lines[1:]])

    def test_where_a_kernel_folder_has_a_pipe_for_its_file(self):
        folder = kernel_folder()
        (folder / 'gqa_av.cl').unlink()
        os.mkfifo(folder / 'gqa_av.cl')
        ran = judged('gqa_av/llm/smoke', '--port', f'ocl:{folder}')
        self.assertEqual([('ERROR', f'{folder}/gqa_av.cl is not a file')] * 2,
                         [(x['verdict'], x['reason']) for x in ran.lines[1:]])


class ARefusal(unittest.TestCase):
    def test_that_is_not_met_fails(self):
        path = case_file('f', {'name': 'a', 'params': GROUP_OF_2, 'variants': ['gqa'], 'expect': {'refused': 'no'}})
        ran = judged(path)
        self.assertEqual((1, 'must be refused with "no", was accepted'), (ran.code, broken(ran.lines[1])['expect']))

    def test_is_run_under_its_variant(self):
        ran = judged('gqa_av/edges/group-above-cap', '--variant', 'gqa')
        self.assertEqual((0, ['gqa_av/edges/group-above-cap/-/gqa']), (ran.code, [x['id'] for x in ran.lines[1:]]))
        self.assertEqual(2, etalon('run', 'gqa_av/edges/group-above-cap', '--variant', 'per_head').code)


class TheEnvironment(unittest.TestCase):
    def test_without_a_temporary_folder_is_told_before_anything_runs(self):
        ran = etalon('run', '--tier', 'smoke', TMPDIR='/nonexistent')
        self.assertEqual((2, '', 'etalon: TMPDIR is /nonexistent: No such file or directory\n'),
                         (ran.code, ran.out, ran.err))

    def test_with_a_full_standard_output_is_a_failure(self):
        for command in (['list', 'operators'], ['run', '--dry-run'], ['--help']):
            with open('/dev/full', 'w') as full:
                code = subprocess.run([ETALON, *command], stdout=full, stderr=subprocess.DEVNULL).returncode
            self.assertEqual(1, code, command)

    def test_with_standard_output_closed_is_told(self):
        done = subprocess.run(['sh', '-c', f'"{ETALON}" run --tier smoke >&-'], capture_output=True, text=True)
        self.assertEqual((2, 'etalon: standard output is closed\n'), (done.returncode, done.stderr))


class ADryRun(unittest.TestCase):
    def test_lists_the_ids_in_the_order_of_the_run_and_runs_nothing(self):
        path, results = faulty_file(), fresh() / 'results'
        dry = etalon('run', path, '--dry-run', '-o', results, OCL_ICD_VENDORS=fresh())
        self.assertEqual((0, '20 runs, none executed\n'), (dry.code, dry.err))
        self.assertEqual(list(Faulty.run().of), dry.out.splitlines())
        self.assertFalse(results.exists())

    def test_says_with_v_which_variants_are_left_out_and_why(self):
        path = case_file('f', {'name': 'a', 'params': {'q_heads': 9, 'kv_heads': 1, 'head_dim': 4, 'context': 3}})
        self.assertEqual('gqa_av/f/a/normal/per_head\n', etalon('run', path, '--dry-run').out)
        lines = etalon('run', path, '--dry-run', '-v').out.splitlines()
        self.assertEqual(['gqa_av/f/a/normal/per_head',
                          *(f'gqa_av/f/a: no {variant}: {TOO_MANY}' for variant in ('gqa', 'gqa_tile2', 'gqa_split'))],
                         [line for line in lines if not line.startswith('    ')])

    def test_says_with_v_how_large_wrong_answers_would_be(self):
        path = case_file('f', {'name': 'a', 'params': {'q_heads': 8, 'kv_heads': 2, 'head_dim': 16, 'context': 30},
                               'variants': ['gqa']})
        lines = etalon('run', path, '--dry-run', '-v', OCL_ICD_VENDORS=fresh()).out.splitlines()
        self.assertEqual(['first_position', 'last_position', 'kv_head', 'scale', 'zeros', 'mean'],
                         [line.split(':')[0].strip() for line in lines[1:]])
        # 1 % off everywhere: 1e-4 of sum ref^2, and zeros: all of it; the limit is 5e-4 of it
        self.assertRegex(lines[4], '^    scale: nmse 0.2 bound ')
        self.assertRegex(lines[5], '^    zeros: nmse 2e\\+03 bound ')


class DataThatCouldNotHaveTold(unittest.TestCase):
    BLIND = {'params': {'q_heads': 4, 'kv_heads': 2, 'head_dim': 8, 'context': 13}, 'variants': ['gqa'],
             'checks': {'nmse': False, 'bound': False, 'noise': False, 'gain': False, 'replay': False}}

    def test_make_a_pass_mistrusted(self):
        ran = judged(case_file('f', {'name': 'blind', **self.BLIND}))
        self.assertEqual((1, {'gqa_av/f/blind/normal/gqa': 'MISTRUSTED'}), (ran.code, ran.verdicts()))
        self.assertRegex(ran.of['gqa_av/f/blind/normal/gqa']['reason'],
                         '^these data could not have told: first_position is seen by no check, ')

    def test_are_made_up_for_by_an_exact_fill_of_the_same_geometry(self):
        exact = {'name': 'exact', **self.BLIND, 'fills': ['onehot']}
        ran = judged(case_file('f', {'name': 'blind', **self.BLIND}, exact))
        self.assertEqual((0, ['PASS', 'PASS']), (ran.code, list(ran.verdicts().values())))
        off = {**exact, 'checks': {**self.BLIND['checks'], 'exact': False}}
        self.assertEqual(['MISTRUSTED'] * 2,
                         list(judged(case_file('f', {'name': 'blind', **self.BLIND}, off)).verdicts().values()))

    def test_do_not_matter_where_bytes_decide(self):
        replayed = {**self.BLIND, 'checks': {**self.BLIND['checks'], 'replay': True}}
        empty = {**self.BLIND, 'params': {**self.BLIND['params'], 'context': 0, 'capacity': 4}}
        given = {**self.BLIND, 'data': {'w': {'constant': 1}, 'v': {'constant': 2}}, 'expect': {'out': {'constant': 26}}}
        ran = judged(case_file('f', {'name': 'a', **replayed}, {'name': 'b', **empty}, {'name': 'c', **given}))
        self.assertEqual((0, ['PASS'] * 3), (ran.code, list(ran.verdicts().values())))


class AnExactFill(unittest.TestCase):
    CASE = {'name': 'a', 'params': {'q_heads': 4, 'kv_heads': 2, 'head_dim': 8, 'context': 61}, 'variants': ['per_head'],
            'dtypes': {'w': 'bf16', 'v': 'bf16', 'out': 'bf16'}, 'fills': ['exact', 'equal', 'onehot']}

    def test_is_the_oracle_to_the_byte(self):
        ran = judged(case_file('f', self.CASE))
        self.assertEqual({'held'}, {line['checks']['exact']['outcome'] for line in ran.lines[1:]})

    def test_names_what_was_read_instead(self):
        modulo = kernel_folder(('    const ulong head = get_group_id(1), kv_head = head * kv_heads / q_heads;\n',
                                '    const ulong head = get_group_id(1), kv_head = head % kv_heads;\n'))
        ran = judged(case_file('f', self.CASE), '--port', f'ocl:{modulo}')
        self.assertEqual(['FAIL'] * 3, list(ran.verdicts().values()))
        # 61 keys: seed 0 weighs 0 in head 0 and 60 in head 1, which reads KV head 1 % 2
        self.assertRegex(broken(ran.of['gqa_av/f/a/onehot/per_head'])['exact'],
                         'this is V of position 60, KV head 1, in place of V of position 60, KV head 0; ')


class AResultsFile(unittest.TestCase):
    def test_has_the_header_first_and_then_a_line_a_run(self):
        ran = judged('gqa_av/llm/smoke', '--seed', 3)
        header, lines = ran.header, ran.lines[1:]
        self.assertEqual((1, 'run gqa_av/llm/smoke --tier default --seed 3', 'default'), (header['format'], header['command'], header['tier']))
        self.assertEqual(['Portable Computing Language'], [device['platform'] for device in header['devices']])
        self.assertRegex(header['devices'][0]['probe'], '^fma 4096/4096, ')
        self.assertEqual(['gqa_av/llm/smoke/normal/per_head', 'gqa_av/llm/smoke/normal/gqa'], [x['id'] for x in lines])
        for line in lines:
            self.assertEqual(header['devices'][0]['device'], line['device'])
            self.assertEqual('ctx64x4', line['claim']['order'])
            self.assertLess(line['headroom'], 1)

    def test_names_no_path(self):
        text = json.dumps(Faulty.run().lines[0])
        self.assertNotIn(str(WORK), text)
        self.assertIn('"run f.json --tier default --port ocl:DIR --timeout 3"', text)


# ---- Malformed case files ----


class AMalformedCaseFile(unittest.TestCase):
    TEXT = '''\
{
  "format": 1,
  "operator": "gqa_av",
  "defaults": { "params": { "kv_heads": 2 } },
  "cases": [
    {
      "name": "a",
      "params": { "q_heads": 8, "head_dim": 4, "context": 3 },
      "sweep": { "capacity": [3, 5] },
      "data": { "v": { "constant": 1 } }
    },
    { "name": "b", "params": { "q_heads": 2, "head_dim": 1, "context": 1 } }
  ]
}
'''
    # (what is replaced, by what, the place and the sentence)
    DAMAGES = (
        (TEXT, '', '1:1: the text is empty'),
        ('"context": 3 },', '"context": 3, },', '8:62: a key in quotes was expected, not \'}\''),
        ('"head_dim": 4', '"head_dim": 04', '8:45: a number has no leading zeros'),
        ('"a",', "'a',", "7:15: a value was expected, not '''"),
        ('"name": "a"', '"name": "a', '7:15: the string that starts here does not end on its line'),
        ('"context": 3 }', '"context": NaN }', '8:59: unknown word NaN; JSON has true, false and null'),
        ('  ]\n}\n', '  ]\n', "14:1: ',' or '}' was expected, but the text ends"),
        ('  ]\n}\n', '  ]\n}\n{}\n', "15:1: the end of the text was expected, not '{'"),
        ('"context": 3', '"context": 3, "context": 4', '8:62: key "context" is given twice, first on line 8'),
        ('"format": 1', '"format": 2', '2:13: format 2 is newer than this etalon reads (1)'),
        ('  "format": 1,\n', '', '1:1: the file needs "format"'),
        ('"gqa_av"', '"gqa-av"', '3:15: there is no operator "gqa-av"; the nearest is "gqa_av"'),
        ('"defaults"', '"default"', '4:3: the file has no "default"; the nearest is "defaults"'),
        ('{ "params": { "kv_heads": 2 } }', '{ "name": "c" }', '4:17: name is for cases, not for defaults'),
        ('"kv_heads": 2', '"kv_head": 2', '4:29: gqa_av has no param "kv_head"; the nearest is "kv_heads"'),
        ('"sweep"', '"sweeps"', '9:7: a case has no "sweeps"; the nearest is "sweep"'),
        ('"q_heads": 8', '"q_heads": 0', '8:30: q_heads is 0, must be at least 1'),
        ('"q_heads": 8', '"q_heads": 2.5',
         '8:30: q_heads is 2.5, not a whole number from -9007199254740991 to 9007199254740991'),
        ('"q_heads": 8, ', '', '6:5: a needs q_heads'),
        ('"capacity": [3, 5]', '"capacity": [3, 2]',
         '6:5: gqa_av/f/a/capacity=2: capacity is 2, below context = 3'),
        ('"capacity": [3, 5]', '"capacity": []', '9:30: capacity has no values'),
        ('"capacity": [3, 5]', '"capacity": [3, 3]', '6:5: two of its cases have the id gqa_av/f/a/capacity=3'),
        ('"capacity": [3, 5]', '"data": [3]', '9:18: "data" cannot be swept; the nearest that can is "tp"'),
        ('"v": { "constant": 1 }', '"x": { "constant": 1 }', '10:17: gqa_av has no tensor "x"; the nearest is "w"'),
        ('"v": { "constant": 1 }', '"out": { "constant": 1 }', '10:17: data is for inputs, and out is not one'),
        ('"constant": 1', '"values": [1, 2]',
         '10:34: gqa_av/f/a/capacity=3: 2 values for v, which can take 1, 3, 6, 24'),
        ('"constant": 1', '"constant": 1, "seed": 2', '10:39: seed goes with fill only'),
        ('"constant": 1', '"fill": "exactly"', '10:32: there is no fill "exactly"; the nearest is "exact"'),
        ('"name": "b"', '"name": "a"', '12:15: "a" is the name of the case on line 7 too'),
        ('"name": "b"', '"name": "b/c"',
         '12:15: "b/c" cannot stand in an id: letters, digits and ._- only, a letter or digit first'),
        ('"name": "b",', '"name": "b", "model": "lama-3.1-8b",',
         '12:29: there is no model "lama-3.1-8b"; the nearest is "llama-3.1-8b"'),
        ('"name": "b",', '"name": "b", "model": "llama-3.1-8b", "tp": 5,',
         '12:51: tp = 5 does not divide q_heads = 32 of llama-3.1-8b'),
        ('"name": "b",', '"name": "b", "variants": ["gpa"],',
         '12:33: gqa_av has no variant "gpa"; the nearest is "gqa"'),
        ('"name": "b",', '"name": "b", "dtypes": { "w": "f8" },', '12:37: w cannot be "f8"; it can be f32, f16, bf16'),
        ('"name": "b",', '"name": "b", "tier": "quick",',
         '12:28: there is no tier "quick", only smoke, default and full'),
        ('"name": "b",', '"name": "b", "checks": { "bound": -1 },',
         '12:41: checks.bound is -1, not a number of at least 0, or false'),
        ('"name": "b",', '"name": "b", "layout": { "v": { "pad": { "rows": [1, 1] } } },',
         '12:48: v has no dimension "rows"; the nearest is "kv_heads"'),
        ('"name": "b",', '"name": "b", "steps": [],', '12:29: steps is empty; leave it out for one step'),
        ('"name": "b",', '"name": "b", "twins": [{ "params": { "head_dim": 2 } }],',
         '12:5: gqa_av/f/b: a twin changes the shape of out'),
    )

    def test_without_damage_is_none(self):
        path = fresh() / 'f.json'
        path.write_text(self.TEXT)
        self.assertEqual(0, etalon('run', path, '--dry-run').code)

    def test_is_told_in_one_sentence_with_file_line_and_column(self):
        self.assertGreater(len({sentence for *_, sentence in self.DAMAGES}), 20)
        path = fresh() / 'f.json'
        for old, new, sentence in self.DAMAGES:
            with self.subTest(sentence):
                self.assertEqual(1, self.TEXT.count(old))
                path.write_text(self.TEXT.replace(old, new))
                ran = etalon('run', path)
                self.assertEqual((2, '', f'etalon: {path}:{sentence}\n'), (ran.code, ran.out, ran.err))

    def test_of_bytes_that_are_no_text_is_told_too(self):
        path = fresh() / 'f.json'
        path.write_bytes(self.TEXT.encode().replace(b'"a"', b'"\xff"'))
        ran = etalon('run', path)
        self.assertEqual((2, f'etalon: {path}:7:16: byte 0xff is not UTF-8\n'), (ran.code, ran.err))

    def test_keeps_the_good_ones_beside_it_from_running(self):
        folder = fresh()
        shutil.copy(faulty_file('right'), folder / 'good.json')
        (folder / 'bad.json').write_text('[')
        ran = etalon('run', folder)
        self.assertEqual((2, ''), (ran.code, ran.out))
        self.assertEqual(f'etalon: {folder}/bad.json:1:2: a value was expected, but the text ends\n', ran.err)


# ---- Usage ----


class WrongUsage(unittest.TestCase):
    LINES = (
        (['run', 'x.json', '--bogus'], '--bogus is no option; see etalon --help'),
        (['run', 'x.json', '-y'], '-y is no option; see etalon --help'),
        (['run', 'x.json', '--tier', 'nightly'], '"nightly" is not what --tier takes; see etalon --help'),
        (['run', 'x.json', '-t', 'nightly'], '"nightly" is not what --tier takes; see etalon --help'),
        (['run', 'x.json', '--filter'], '--filter lacks its argument; see etalon --help'),
        (['run', '--dry-run=yes'], '--dry-run takes no argument; see etalon --help'),
        (['run', '--guards', 'maybe'], '"maybe" is not what --guards takes; see etalon --help'),
        (['run', '--color', 'red'], '"red" is not what --color takes; see etalon --help'),
        (['run', '-j', '0'], '"0" is not what --threads takes; see etalon --help'),
        (['run', '-j', 'two'], '"two" is not what --threads takes; see etalon --help'),
        (['run', '--timeout', '0'], '"0" is not what --timeout takes; see etalon --help'),
        (['run', '--timeout', '3s'], '"3s" is not what --timeout takes; see etalon --help'),
        (['run', '--timeout', 'nan'], '"nan" is not what --timeout takes; see etalon --help'),
        (['run', '--repeat', '0'], '"0" is not what --repeat takes; see etalon --help'),
        (['run', '--repeat', '10001'], '"10001" is not what --repeat takes; see etalon --help'),
        (['run', '--seed', '-1'], '"-1" is not what --seed takes; see etalon --help'),
        (['run', '--seed', '9007199254740992'], '"9007199254740992" is not what --seed takes; see etalon --help'),
        (['run', '--shard', '0/3'], '"0/3" is not what --shard takes; see etalon --help'),
        (['run', '--shard', '4/3'], '"4/3" is not what --shard takes; see etalon --help'),
        (['run', '--shard', '1'], '"1" is not what --shard takes; see etalon --help'),
        (['run', '--port', 'cuda'], '"cuda" is not what --port takes; see etalon --help'),
        (['run', '--port', 'ocl:'], '"ocl:" is not what --port takes; see etalon --help'),
        (['run', '--operator', 'gqa'], '"gqa" is not what --operator takes; see etalon --help'),
        (['run', '--variant', 'gpa'], '--variant gpa: port ocl has no such variant'),
        (['run', '--variant', 'gqa:lanes=4'], '--variant gqa:lanes=4: gqa has no knob "lanes"'),
        (['run', 'nope.json'], 'nope.json: cannot be read: No such file or directory'),
        (['run', 'gqa_av/edges/nope'], 'no case and no run has the id "gqa_av/edges/nope"'),
        (['list', 'nothing'], 'list devices, operators or models'),
        (['judge'], '"judge" is no command; see etalon --help'),
    )

    def test_is_status_2_and_one_line(self):
        for args, line in self.LINES:
            with self.subTest(args):
                ran = etalon(*args)
                self.assertEqual((2, '', f'etalon: {line}\n'), (ran.code, ran.out, ran.err))

    def test_without_a_command_shows_the_usage(self):
        ran = etalon()
        self.assertEqual((2, ''), (ran.code, ran.out))
        self.assertEqual(etalon('--help').out, ran.err)


class Output(unittest.TestCase):
    def test_of_help_and_version_is_on_stdout_with_status_0(self):
        for args, start in ((['--help'], 'usage: etalon run'), (['run', '--help'], 'usage: etalon run'),
                            (['--version'], 'etalon ')):
            with self.subTest(args):
                ran = etalon(*args)
                self.assertEqual((0, '', start), (ran.code, ran.err, ran.out[:len(start)]))

    def test_lists_operators_with_their_variants_and_models_with_their_sources(self):
        self.assertRegex(etalon('list', 'operators').out, r'(?m)^gqa_av +grouped-query.*\n  per_head +.*\n  gqa +')
        self.assertRegex(etalon('list', 'models').out, r'(?m)^llama-3\.1-8b +\S')

    def test_lists_the_device(self):
        ran = etalon('list', 'devices')
        self.assertEqual(0, ran.code)
        self.assertRegex(ran.out, r'\A0:0 +\S.* \(Portable Computing Language; .*\), \d+ units, ')

    def test_has_a_line_for_each_pass_with_v_only(self):
        path = faulty_file('right')
        self.assertEqual(1, len(etalon('run', path).out.splitlines()))
        self.assertRegex(etalon('run', path, '-v').out, r'\APASS  gqa_av/f/right/normal/per_head on .*  headroom 0\.')

    def test_has_colors_when_asked_for_only(self):
        path = faulty_file('right')
        self.assertNotIn('\033', etalon('run', path, '-v').out)
        self.assertIn('\033[32mPASS', etalon('run', path, '-v', '--color', 'always').out)

    def test_is_that_of_the_device_named_by_glob_or_by_place(self):
        path = faulty_file('right')
        by_place = judged(path, '--device', '0:0')
        by_name = judged(path, '--device', by_place.header['devices'][0]['device'][:3] + '*')
        self.assertEqual([line['outputs'] for line in by_name.of.values()],
                         [line['outputs'] for line in by_place.of.values()])
        self.assertEqual((0, 0), (by_name.code, by_place.code))


# ---- ----


def has_pocl():
    """PoCL and nothing else: some loaders do not read OCL_ICD_VENDORS, and then other devices cannot be kept out."""
    devices = etalon('list', 'devices').out.splitlines() if ICD.exists() else []
    return bool(devices) and all('Portable Computing Language' in line for line in devices)


def prepare(executable):
    global ETALON, WORK
    ETALON = str(Path(executable).resolve())
    WORK = Path(tempfile.mkdtemp(prefix='etalon cli-'))
    vendors = WORK / 'vendors'
    vendors.mkdir()
    if ICD.exists():
        shutil.copy(ICD, vendors)
    unset = ('ETALON_CASES', 'NO_COLOR', 'TMPDIR')
    ENV.update({key: value for key, value in os.environ.items() if key not in unset})
    ENV['OCL_ICD_VENDORS'] = str(vendors)


def main():
    executable = sys.argv[1] if len(sys.argv) > 1 else os.environ.get('ETALON')
    if not executable:
        sys.exit(__doc__)
    prepare(executable)
    try:
        if not has_pocl():
            print('skipped: no PoCL device')
            return 77
        result = unittest.main(argv=[sys.argv[0], *sys.argv[2:]], exit=False).result
    finally:
        shutil.rmtree(WORK, ignore_errors=True)
    bad = {getattr(test, 'test_case', test) for test, _ in result.failures + result.errors}
    skipped = f', {len(result.skipped)} skipped' if result.skipped else ''
    print(f'{max(0, result.testsRun - len(bad) - len(result.skipped))} passed, {len(bad)} failed{skipped}')
    return 1 if bad or result.testsRun == 0 else 0


if __name__ == '__main__':
    sys.exit(main())
