#!/usr/bin/env python3
"""--port plugin:FILE.so: tools/ports/plugin.c, as it is and with what goes wrong put into it. No device is needed.

usage: plugin.py ETALON LIBETALON CC [flag ...]
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
from pathlib import Path

import again
import built

ROOT = Path(__file__).resolve().parent.parent
ETALON, LIBRARY, *CC = sys.argv[1:]
ETALON, LIBRARY = Path(ETALON).resolve(), Path(LIBRARY).resolve()
SOURCE = ROOT / 'tools/ports/plugin.c'
ANY = ('gqa_av/llm/smoke', '-v')  # one run
COMPUTE = '    kernel_of(problem)->compute(problem, out);\n'


class Plugin(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        made = tempfile.TemporaryDirectory(prefix='etalon-plugin-')
        cls.addClassCleanup(made.cleanup)
        cls.folder = Path(made.name)
        (cls.folder / 'etalon').symlink_to(ROOT / 'ref')
        cls.plain = cls.built('plain', SOURCE.read_text())

    @classmethod
    def built(cls, name, text, *flags):
        source, made = cls.folder / f'{name}.c', cls.folder / f'{name}.so'
        source.write_text(text)
        subprocess.run([*CC, '-std=c11', '-O2', '-Wall', '-Wextra', '-Werror', '-ffp-contract=off', '-fPIC', '-shared', *flags,
                        f'-I{cls.folder}', source, LIBRARY, '-lm', '-o', made], check=True)
        return made

    def edited(self, name, *edits):
        """The plugin with each (old, new) replaced, old being there exactly once."""
        text = SOURCE.read_text()
        for old, new in edits:
            self.assertEqual(1, text.count(old), old)
            text = text.replace(old, new)
        return self.built(name, text)

    def etalon(self, *args):
        return subprocess.run([ETALON, *map(str, args)], cwd=self.folder, text=True, capture_output=True, timeout=300,
                              stdin=subprocess.DEVNULL)

    def judged(self, plugin, *args):
        """(exit status, lines of results, what was run)"""
        results = self.folder / 'results.jsonl'
        results.unlink(missing_ok=True)
        done = self.etalon('run', '--port', f'plugin:{plugin}', '-o', results, *args)
        lines = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else [None]
        return done.returncode, lines[1:], done

    def refused(self, plugin, args=ANY):
        """The one sentence of a plugin that nothing can be judged with."""
        done = self.etalon('run', '--port', f'plugin:{plugin}', *args)
        self.assertEqual((3, ''), (done.returncode, done.stdout), done.stderr)
        self.assertEqual(1, done.stderr.count('\n'), done.stderr)
        return done.stderr.removeprefix(f'etalon: --port plugin:{plugin}: ').rstrip('\n')


class TheExample(Plugin):
    def test_passes_the_smoke_tier_with_replay_held(self):
        status, lines, done = self.judged(self.plain, '--tier', 'smoke')
        self.assertEqual((0, ''), (status, done.stderr), done.stdout)
        self.assertEqual(set(built.operators(ETALON)), {line['id'].split('/')[0] for line in lines if line['id'].endswith('/serial')})
        self.held(lines)

    def held(self, lines):
        for line in lines:
            self.assertEqual('PASS', line['verdict'], line)
            if line['id'].endswith('/serial'):
                self.assertEqual('held', line['checks']['replay']['outcome'], line)

    def test_passes_every_storage_type_with_replay_held(self):
        status, lines, done = self.judged(self.plain, '-k', '*/types/*')
        self.assertEqual((0, ''), (status, done.stderr), done.stdout)
        self.held(lines)
        types = {dtype for line in lines for dtype in line['dtypes'].values()}
        self.assertLessEqual({'f32', 'f16', 'bf16', 'f8e4m3fn', 'f8e4m3fnuz', 'i8', 'i4', 'u8'}, types)

    def test_finds_inputs_that_share_memory(self):
        """The same pointer and bytes; and what it computes are the bytes of inputs that lie apart."""
        shares = self.edited('shares', (COMPUTE, '''\
    FILE *told = fopen("told", "a");
    fprintf(told, "%d %d %d\\n", problem->tensor[0].shares, problem->tensor[1].shares,
            problem->tensor[0].data == problem->tensor[1].data && problem->tensor[0].bytes == problem->tensor[1].bytes);
    fclose(told);
''' + COMPUTE))
        cases = self.folder / 'shared.json'
        cases.write_text(json.dumps({'format': 1, 'operator': 'gqa_av', 'cases': [
            {'name': name, 'params': {'q_heads': 8, 'kv_heads': 2, 'head_dim': 4, 'context': 8}, 'layout': layout,
             'checks': {'repeat': False}} for name, layout in (
                 ('apart', {}), ('joined', {'w': {'buffer': 'b', 'shift': 1}, 'v': {'buffer': 'b', 'pad': {'head_dim': [1, 2]}}}),
                 ('view', {'v': {'view_of': 'w'}}))]}))
        status, lines, done = self.judged(shares, cases)
        self.assertEqual((0, ''), (status, done.stderr), done.stdout)
        self.held(lines)
        apart, joined, _ = lines
        self.assertEqual((apart['inputs'], apart['outputs']), (joined['inputs'], joined['outputs']))
        self.assertEqual(['0 0 0', '0 1 1', '0 1 1'], (self.folder / 'told').read_text().splitlines())

    def test_called_as_a_variant_of_etalons_own_need_not_refuse_as_that_does(self):
        gqa = self.edited('gqa', ('.name = "serial",\n                                                .summary = "one chain over the context"',
                                  '.name = "gqa",\n                                                .summary = "one chain over the context"'))
        status, lines, done = self.judged(gqa, 'gqa_av/regressions/executorch-21063-uneven', *ANY)
        self.assertEqual(0, status, done.stdout + done.stderr)
        self.assertEqual(['gqa_av/llm/smoke/normal/gqa'], [line['id'] for line in lines])

    def test_is_one_device_with_its_variants(self):
        done = self.etalon('list', 'operators', '--port', f'plugin:{self.plain}')
        self.assertEqual(len(built.operators(ETALON)), done.stdout.count('  serial '), done.stdout + done.stderr)
        done = self.etalon('list', 'devices', '--port', f'plugin:{self.plain}')
        self.assertRegex(done.stdout, r'\A0:0   plain C .*\n\Z')

    def test_is_found_in_the_folder_without_a_slash(self):
        self.assertEqual(0, self.judged('plain.so', *ANY)[0])


class ThePage(Plugin):
    def test_has_a_plugin_that_does_what_is_shown(self):
        page = (ROOT / 'docs/porting.md').read_text()
        self.built('mine', re.search(r'^A whole port; tools/ports/plugin\.c.*\n\n```c\n((?:.*\n)*?)```$', page, re.M).group(1),
                   '-Wno-unused-parameter')
        shown = re.search(r'^\$ etalon run --port plugin:mine\.so (.*)\n((?:.*\n)*?)```$', page, re.M)
        done = self.etalon('run', '--port', 'plugin:mine.so', *shown.group(1).split())
        pattern = ''.join(r'(?:.*\n)*?' if line == '...' else re.escape(line).replace(re.escape('...'), '.*') + '\n'
                          for line in shown.group(2).splitlines())
        self.assertRegex(done.stdout, rf'\A{pattern}\Z', done.stderr)
        self.assertEqual(0, self.judged('mine.so', '--tier', 'smoke', '--operator', 'gqa_av')[0])


class Wrong(Plugin):
    # Of each operator cases, and what is put into its arithmetic: (old, new, a check that breaks, whether alone).
    TERMS = 'int64_t k = g * width; k < (g + 1) * width; k++'
    PLANTED = {
        'gqa_av/llm/smoke': {
            'lost': ('c < p->context; c++)', 'c + 1 < p->context; c++)', 'bound', False),
            'half': ('                put(&t[OUT], out[OUT], s, h, d, sum);',
                     '                put(&t[OUT], out[OUT], s, h, d, et_widen(ET_F16, et_narrow(ET_F16, (double)sum)));', 'bound', False),
            'back': ('int64_t c = 0; c < p->context; c++)', 'int64_t c = p->context - 1; c >= 0; c--)', 'replay', True),
            'short': ('d < p->head_dim; d++) {', 'd + 1 < p->head_dim; d++) {', 'written', False)},
        'gqa_av/llm/smoke-odd-group': {
            'head': ('h * p->kv_heads / p->q_heads, d)', 'h % p->kv_heads, d)', 'bound', False)},
        'gdn_postconv/llm/smoke-f32': {
            'lost': ('int64_t d = 0; d < p->k_head_dim; d++)\n        sum', 'int64_t d = 0; d + 1 < p->k_head_dim; d++)\n        sum',
                     'bound', False),
            'scale': ('which == Q && p->scale_q', 'which == Q && !p->scale_q', 'bound', False),
            'sign': ('-(et_exp(get(&t[A_LOG]', '(et_exp(get(&t[A_LOG]', 'bound', False),
            'back': ('int64_t d = 0; d < p->k_head_dim; d++)\n        sum', 'int64_t d = p->k_head_dim - 1; d >= 0; d--)\n        sum',
                     'replay', True),
            'short': ('h < p->v_heads; h++) {', 'h + 1 < p->v_heads; h++) {', 'written', False)},
        'skinny_gemm/types/halves/*:f32': {
            'lost': (TERMS, TERMS.replace('k <', 'k + 1 <'), 'bound', False),
            'row': ('get(&t[WEIGHT], m, k, 0)', 'get(&t[WEIGHT], (m + 1) % p->out_features, k, 0)', 'bound', False),
            'bias': ('sum += shared(&t[BIAS], n, m);', 'sum += shared(&t[BIAS], n, n);', 'bound', False),
            'back': (TERMS, 'int64_t k = (g + 1) * width - 1; k >= g * width; k--', 'replay', True),
            'short': ('m < p->out_features; m++) {', 'm + 1 < p->out_features; m++) {', 'written', False)},
        'skinny_gemm/types/int4-padded': {
            'group': ('get(&t[WEIGHT_SCALE], m, g, 0)', 'get(&t[WEIGHT_SCALE], m, 0, 0)', 'bound', False),
            'zero': ('p->zero_points ? get', 'p->zero_points ? 0 * get', 'bound', False)},
        'skinny_gemm/types/fp8-scales': {
            'scales': ('sum *= get(&t[ACT_SCALE], 0, 0, 0);', 'sum *= shared(&t[WEIGHT_SCALE], m, 0);', 'bound', False)},
        'flash_attn/llm/smoke': {
            'lost': ('? p->kv_length - from : STEP', '? p->kv_length - from - 1 : STEP', 'bound', False),
            'window': ('j > position - p->window)', 'j >= position - p->window)', 'bound', False),
            'sink': ('if (any && p->sinks)', 'if (any && !p->sinks)', 'bound', False),
            'top_left': ('? i : i + p->kv_length - p->query_length', '? i + p->kv_length - p->query_length : i', 'bound', False),
            'back': ('int64_t j = 0; j < n; j++) {\n        const float', 'int64_t j = n - 1; j >= 0; j--) {\n        const float',
                     'replay', True),
            'short': ('d < p->v_head_dim; d++)\n        put(', 'd + 1 < p->v_head_dim; d++)\n        put(', 'written', False)},
        'flash_attn/edges/smoke': {
            'late': ('    if (p->softcap > 0)\n', '    if (p->softcap > 0 && p->mask == ET_MASK_NONE)\n', 'bound', False),
            'slope': ('(et_u32)h, (et_u32)p->q_heads)', '0, (et_u32)p->q_heads)', 'bound', False),
            'mask': ('h % p->mask_heads, i, j)', '0, i, j)', 'bound', False),
            'head': ('get(&of->k, j, kv, c)', 'get(&of->k, j, (kv + 1) % p->kv_heads, c)', 'bound', False)},
    }

    def test_arithmetic_order_and_elements_left_out_fail_and_a_reproduce_line_prints_the_same(self):
        self.assertEqual(set(built.operators(ETALON)), {case.split('/')[0] for case in self.PLANTED})
        for case, bugs in self.PLANTED.items():
            for name, (old, new, check, alone) in bugs.items():
                with self.subTest(case, bug=name):
                    plugin = self.edited(f'planted-{name}', (old, new))
                    status, lines, done = self.judged(plugin, '-k', f'{case}/*')
                    line = next(line for line in lines if '/normal/' in line['id'])
                    broken = [check for check, found in line['checks'].items() if found['outcome'] == 'broken']
                    self.assertEqual((1, 'FAIL'), (status, line['verdict']))
                    self.assertIn(check, broken)
                    self.assertEqual(alone, len(broken) == 1, broken)
                    before, code, after = again.again(ETALON, done.stdout, line['id'], self.folder)
                    self.assertEqual((1, before), (code, after))

    def test_element_beside_an_output_breaks_guards_alone(self):
        """Of q, whose end another output would follow, as of out; the data themselves are right."""
        for name, size, place in (('past its end', 't.bytes / et_format(t.dtype)->bytes', '1 past its end'),
                                  ('before its start', '-1', '1 before its start')):
            beside = self.edited('beside', (COMPUTE, COMPUTE + f"""    for (int n = 0; problem->op->tensors[n].name; n++) {{
        const struct et_tensor t = problem->tensor[n];
        if (out[n])
            et_store(t.dtype, out[n], (int64_t)({size}), 0);
    }}
"""))
            status, lines, done = self.judged(beside, '--tier', 'smoke')
            self.assertEqual((1, {'FAIL'}), (status, {line['verdict'] for line in lines if line['device']}), done.stdout)
            for line in lines:
                if line['device']:
                    broken = {check: of['text'] for check, of in line['checks'].items() if of['outcome'] == 'broken'}
                    first = 'q' if line['id'].startswith('gdn_postconv/') else 'out'
                    self.assertEqual({'guards'}, set(broken))
                    self.assertRegex(broken['guards'], rf'^{first}: element {place} was -?nan \(0x[0-9a-f]+\), is 0 \(0x0+\)')

    def test_guards_lie_around_outputs_unless_they_are_off(self):
        for args, outcome in (('on', 'held'), ('off', 'skipped')):
            _, lines, _ = self.judged(self.plain, '--guards', args, *ANY)
            self.assertEqual(outcome, lines[0]['checks']['guards']['outcome'])

    def test_strides_fail_for_each_tensor_in_the_smoke_tier(self):
        """As if it were packed: rows next to each other, nothing before the first."""
        packed = self.edited('packed', (COMPUTE, """    struct et_problem copy = *problem;
    et_tensor_pack(&copy.tensor[atoi(getenv("PACKED"))]);
    kernel_of(&copy)->compute(&copy, out);
"""), ('#include <stdio.h>\n', '#include <stdio.h>\n#include <stdlib.h>\n'))
        for op in built.operators(ETALON):
            tensors = json.loads(self.etalon('describe', op, '--json').stdout)['tensors']
            for i, tensor in enumerate(tensors):
                with self.subTest(f'{op} {tensor["name"]}'), unittest.mock.patch.dict(os.environ, PACKED=str(i)):
                    status, lines, done = self.judged(packed, '--tier', 'smoke', '--operator', op)
                    self.assertEqual(1, status, done.stdout)
                    self.assertIn('FAIL', {line['verdict'] for line in lines})

    def test_crash_is_one_error_with_the_signal(self):
        crash = self.edited('crash', (COMPUTE, COMPUTE + '    abort();\n'), ('#include <stdio.h>\n', '#include <stdio.h>\n#include <stdlib.h>\n'))
        status, lines, _ = self.judged(crash, *ANY)
        self.assertEqual((1, 'ERROR'), (status, lines[0]['verdict']))
        self.assertTrue(lines[0]['reason'].startswith('the runner died by signal 6 (Aborted)'), lines[0]['reason'])

    def test_write_to_an_input_is_an_error(self):
        kept = self.edited('kept', ('                float sum = 0;\n                for (int64_t c',
                                    '                float sum = *(volatile float *)t[W].data = 0;\n                for (int64_t c'))
        _, lines, _ = self.judged(kept, *ANY)
        self.assertEqual('ERROR', lines[0]['verdict'])

    def test_print_on_standard_output_harms_nothing(self):
        loud = self.edited('loud', (COMPUTE, COMPUTE + '    puts("{}"), fflush(stdout);\n'))
        self.assertEqual(0, self.judged(loud, *ANY)[0])


class Remote(Plugin):
    """tools/ports/remote.py, with an adb whose device is a folder of this machine."""

    def judged_there(self, runner):
        there, bin_ = self.folder / 'there', self.folder / 'bin'
        there.mkdir(exist_ok=True)
        bin_.mkdir(exist_ok=True)
        adb = bin_ / 'adb'
        adb.write_text('#!/bin/sh\ncase $1 in\nshell) shift 2; exec sh -c "$*" ;;\npush | pull) exec cp -r "$2" "$3" ;;\nesac\n')
        adb.chmod(0o755)
        results = self.folder / 'there.jsonl'
        results.unlink(missing_ok=True)
        command = f'exec {sys.executable} {ROOT}/tools/ports/remote.py adb {there} {ETALON} worker {runner}'
        done = subprocess.run([ETALON, 'run', '--tier', 'smoke', '-o', results, '--port', f'exec:{command}'],
                              cwd=self.folder, text=True, capture_output=True, timeout=300, stdin=subprocess.DEVNULL,
                              env={**os.environ, 'PATH': f'{bin_}:{os.environ["PATH"]}'})
        self.assertEqual([], list(there.iterdir()))
        return done, [json.loads(line) for line in results.read_text().splitlines()[1:]] if results.exists() else []

    def test_plugin_passes_the_smoke_tier_with_replay_held(self):
        done, lines = self.judged_there(f'--port plugin:{self.plain}')
        self.assertEqual((0, ''), (done.returncode, done.stderr), done.stdout)
        self.assertEqual({'held'}, {line['checks']['replay']['outcome'] for line in lines if line['variant'] == 'serial'})

    def test_runner_that_is_not_there_ends_the_command_at_once(self):
        done, lines = self.judged_there('--port nowhere')
        self.assertEqual((3, []), (done.returncode, lines), done.stderr)
        self.assertIn('the runner there ended: exit status 2', done.stderr)

    def test_opencl_passes_the_smoke_tier(self):
        done, lines = self.judged_there('--port ocl --device 0:0')
        if done.returncode == 3:
            self.skipTest(done.stderr)
        self.assertEqual(0, done.returncode, done.stdout + done.stderr)
        self.assertIn('gqa_split', {(line['variant'] or '').split(':')[0] for line in lines})


# What tools/ports/cuda.cu uses of CUDA, where the device is this processor.
CUDA = r'''
#include <stdlib.h>
#include <string.h>
#define __device__
#define __global__
typedef int cudaError_t;
typedef int *cudaEvent_t;
enum { cudaSuccess, cudaErrorMemoryAllocation, cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost };
struct cudaDeviceProp { char name[256]; int multiProcessorCount; size_t totalGlobalMem; };
static struct { unsigned x; } blockIdx, blockDim, threadIdx;
static const char *cudaGetErrorString(cudaError_t code) { return code ? "out of memory" : "no error"; }
static cudaError_t cudaGetDeviceProperties(cudaDeviceProp *found, int) { *found = {"no GPU", 1, 1 << 30}; return cudaSuccess; }
static cudaError_t cudaMalloc(void **at, size_t n) { return (*at = malloc(n)) ? cudaSuccess : cudaErrorMemoryAllocation; }
static cudaError_t cudaMemcpy(void *to, const void *from, size_t n, int) { memcpy(to, from, n); return cudaSuccess; }
static cudaError_t cudaEventCreate(cudaEvent_t *event) { *event = new int(); return cudaSuccess; }
static cudaError_t cudaEventRecord(cudaEvent_t) { return cudaSuccess; }
static cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t, cudaEvent_t) { *ms = 1; return cudaSuccess; }
static cudaError_t cudaEventDestroy(cudaEvent_t event) { delete event; return cudaSuccess; }
static cudaError_t cudaGetLastError() { return cudaSuccess; }
static void cudaFree(void *at) { free(at); }
'''


class Cxx(Plugin):
    """C++ as a CUDA program is. CI has no GPU: there its kernel runs on the processor, an item after the other."""

    def compiled(self, source, *command):
        made = source.with_suffix('.so')
        done = subprocess.run([*command, f'-I{self.folder}', source, LIBRARY, '-lm', '-o', made], text=True, capture_output=True)
        self.assertEqual(0, done.returncode, done.stderr)
        return made

    def cxx(self, name, text):
        if not shutil.which('g++'):
            self.skipTest('g++ is not installed')
        source = self.folder / f'{name}.cpp'
        source.write_text(text)
        flags = [flag for flag in CC if flag.startswith(('-fsanitize', '--coverage'))]
        if 'clang' in CC[0] and flags:
            self.skipTest('the sanitizers of clang and g++ do not mix')
        return self.compiled(source, 'g++', '-std=c++17', '-O2', '-ffp-contract=off', '-fPIC', '-shared', *flags)

    def on_the_processor(self):
        launch = re.compile(r'chain<<<(.*), GROUP>>>(\(.*\));\n')
        text, n = launch.subn(r'''{
            blockDim.x = GROUP;
            for (blockIdx.x = 0; blockIdx.x < \1; blockIdx.x++)
                for (threadIdx.x = 0; threadIdx.x < GROUP; threadIdx.x++)
                    chain\2;
        }\n''', (ROOT / 'tools/ports/cuda.cu').read_text())
        self.assertEqual(1, n)
        (self.folder / 'cuda_runtime.h').write_text(CUDA)
        self.addCleanup((self.folder / 'cuda_runtime.h').unlink)
        return text

    def test_page_is_cxx_too(self):
        page = re.search(r'^```c\n(#include <etalon/etalon_port\.h>\n.*?)^```$', (ROOT / 'docs/porting.md').read_text(), re.S | re.M)
        code, lines, done = self.judged(self.cxx('page', page.group(1)), *ANY)
        self.assertEqual((0, ['PASS']), (code, [line['verdict'] for line in lines]), done.stdout + done.stderr)

    def test_cuda_port_passes_the_smoke_tier_but_for_other_types(self):
        plugin = self.cxx('cuda', self.on_the_processor())
        code, lines, done = self.judged(plugin, '--tier', 'smoke', '--operator', 'gqa_av')
        self.assertEqual((0, ''), (code, done.stderr), done.stdout)
        self.assertEqual({'PASS', 'SKIP'}, {line['verdict'] for line in lines})
        self.assertEqual({'held'}, {line['checks']['replay']['outcome'] for line in lines if 'replay' in line.get('checks', {})})
        self.assertRegex({line['reason'] for line in lines if line['verdict'] == 'SKIP'}.pop(), r'is b?f16, must be f32')

    def test_cuda_port_that_loses_the_last_key_fails(self):
        text = self.on_the_processor().replace('c < p.context;', 'c + 1 < p.context;')
        code, lines, done = self.judged(self.cxx('lost', text), *ANY)
        self.assertEqual((1, ['FAIL']), (code, [line['verdict'] for line in lines]), done.stdout)

    def test_cuda_port_is_taken_by_nvcc(self):
        if not shutil.which('nvcc') or len(CC) > 1:
            self.skipTest('no nvcc, or a build with sanitizers')
        source = self.folder / 'gpu.cu'
        source.write_text((ROOT / 'tools/ports/cuda.cu').read_text())
        plugin = self.compiled(source, 'nvcc', '-O2', '-shared', '-Xcompiler', '-fPIC')
        code, lines, done = self.judged(plugin, '--tier', 'smoke', '--operator', 'gqa_av')
        if code == 3:
            self.assertRegex(done.stderr, r'^etalon: --port plugin:\S+: no CUDA device: ')
        else:
            self.assertEqual((0, {'PASS', 'SKIP'}), (code, {line['verdict'] for line in lines}), done.stdout)


class Refused(Plugin):
    def test_without_the_file(self):
        self.assertEqual('the plugin cannot be opened: No such file or directory', self.refused('none.so'))

    def test_that_is_no_shared_object(self):
        (self.folder / 'text.so').write_text('text')
        self.assertIn('the plugin cannot be loaded: ', self.refused('text.so'))

    def test_without_the_function(self):
        self.built('empty', 'extern int nothing;\nint nothing;\n')
        self.assertEqual('the plugin has no function et_plugin', self.refused('empty.so'))

    def test_of_another_abi_by_number(self):
        self.edited('abi', ('.abi = ET_ABI', '.abi = 99'))
        self.assertEqual('the plugin was built for ABI 99 of etalon_port.h, this etalon has 3', self.refused('abi.so'))

    def test_with_a_hole_in_its_table(self):
        self.edited('hole', (', .close = close_cpu', ''),
                    ('static void close_cpu', '__attribute__((unused)) static void close_cpu'))
        self.assertEqual('the port of the plugin has no close', self.refused('hole.so'))
        self.edited('half', ('.name = "serial",\n                                                .summary = "one chain over the context"',
                             '.name = NULL,\n                                                .summary = "one chain over the context"'))
        self.assertEqual('variant 0 of the plugin has no name', self.refused('half.so'))

    def test_that_dies_as_it_is_loaded(self):
        self.built('dies', '#include <stdlib.h>\n__attribute__((constructor)) static void dies(void)\n{\n    abort();\n}\n')
        self.assertIn('the runner died by signal 6 (Aborted)', self.refused('dies.so'))

    def test_with_a_variant_of_no_operator(self):
        self.edited('odd', ('.op = "gqa_av",\n', '.op = "gqa",\n'))
        self.assertEqual('variant 0 of the plugin is of gqa, which is no operator', self.refused('odd.so'))

    def test_by_what_needs_kernels(self):
        done = self.etalon('mutate', '--port', f'plugin:{self.plain}')
        self.assertEqual(2, done.returncode)
        self.assertIn('mutate takes no --port plugin:FILE.so', done.stderr)

    def test_by_what_has_no_runner(self):
        for command in 'dump', 'check':
            done = self.etalon(command, 'x', '-o', 'x', '--port', f'plugin:{self.plain}')
            self.assertEqual(2, done.returncode)
            self.assertIn(f'{command} takes no --port', done.stderr)

    def test_as_an_output(self):
        before = self.plain.read_bytes()
        for option in '--results', '--junit':
            done = self.etalon('run', '--port', 'plugin:plain.so', option, self.plain, *ANY)
            self.assertEqual((2, f'etalon: {option} {self.plain} and --port plain.so are one file\n'), (done.returncode, done.stderr))
        self.assertEqual(before, self.plain.read_bytes())


class TheJudge(Plugin):
    def test_never_loads_it(self):
        """The process that is started first is not the one that maps the plugin."""
        tells = self.edited('tells', ('    *session = NULL;\n', '''    *session = NULL;
    char line[4096];
    FILE *maps = fopen("/proc/self/maps", "r"), *judge;
    snprintf(line, sizeof line, "/proc/%d/maps", (int)getppid());
    judge = fopen(line, "r");
    FILE *told = fopen("told", "w");
    while (fgets(line, sizeof line, maps))
        if (strstr(line, "tells.so"))
            fputs("worker\\n", told);
    while (fgets(line, sizeof line, judge))
        if (strstr(line, "tells.so"))
            fputs("judge\\n", told);
    fclose(told), fclose(judge), fclose(maps);
'''), ('#include <string.h>\n', '#include <string.h>\n#include <unistd.h>\n'),
                            ('/*\n * A port in plain C', '#define _XOPEN_SOURCE 700\n/*\n * A port in plain C'))
        self.assertEqual(0, self.judged(tells, *ANY)[0])
        self.assertEqual({'worker'}, set((self.folder / 'told').read_text().split()))


if __name__ == '__main__':
    unittest.main(argv=sys.argv[:1])
