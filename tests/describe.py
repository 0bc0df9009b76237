#!/usr/bin/env python3
"""etalon describe, for every operator there is. Usage, skipping and exit status: as of cli.py."""
import json
import re
import sys
import unittest

import again
import built
import cli

# Of each operator one run, and what is put into its kernel: (old, new, verdict, a check that breaks, whether alone).
PLANTED = {
    'gqa_av/llm/smoke-odd-group/normal/per_head': {
        'another_head': ('    const ulong head = get_group_id(1), kv_head = head * kv_heads / q_heads', '    const ulong head = get_group_id(1), kv_head = head % kv_heads', 'FAIL', 'bound', False)},
    'gqa_av/llm/smoke/normal/per_head': {
        'term_lost': ('rest > 0', 'rest > 1', 'FAIL', 'bound', False),
        'another_order': ('i == 0 && rest > 0', 'i == 1 && rest > 0', 'FAIL', 'replay', True),
        'not_written': ('if (4 * t < lanes)', 'if (4 * t + 4 < lanes)', 'FAIL', 'written', False),
        'not_there': ('kernel void gqa_av_per_head(', 'kernel void gqa_av_other(', 'ERROR', None, False)},
    'gdn_postconv/llm/smoke-f32/normal/per_token_head': {
        'another_norm': ('from + key_dim + i) * k_inverse', 'from + key_dim + i) * q_inverse', 'FAIL', 'bound', False),
        'term_lost': ('ulong i = first; i < n; i += step', 'ulong i = first; i + 1 < n; i += step', 'FAIL', 'bound', False),
        'another_order': ('ss = fma(x, x, ss);', 'ss = ss + x * x;', 'FAIL', 'replay', True),
        'not_written': ('ulong h = first; h < end; h += step', 'ulong h = first; h + 1 < end; h += step', 'FAIL', 'written', False),
        'not_there': ('kernel void gdn_postconv_per_token_head(', 'kernel void gdn_postconv_other(', 'ERROR', None, False)},
    'skinny_gemm/types/halves/dtypes=weight:f32+act:f32+out:f32/normal/naive': {
        'another_row': ('weight_at + m * weight_stride0 + k) - zero', 'weight_at + (m + 1) % out_features * weight_stride0 + k) - zero',
                        'FAIL', 'bound', False),
        'term_lost': ('ulong k = from; k < end; k++', 'ulong k = from; k + 1 < end; k++', 'FAIL', 'bound', False),
        'another_order': ('ulong k = from; k < end; k++', 'ulong k = end; k-- > from;', 'FAIL', 'replay', True),
        'not_written': ('        if (n >= tokens)\n', '        if (n + 1 >= tokens)\n', 'FAIL', 'written', False),
        'not_there': ('kernel void skinny_gemm_naive(', 'kernel void skinny_gemm_other(', 'ERROR', None, False)},
    'flash_attn/llm/smoke/normal/tile_f32': {
        'no_sink': ('has_sinks ? group.even : 0', '0', 'FAIL', 'bound', False),
        'term_lost': ('min((ulong)STEP, kv_length - key)', 'min((ulong)STEP, kv_length - key - 1)', 'FAIL', 'bound', False),
        'another_order': ('            l = l + weight[r * LINE + j];', '            l = l + weight[r * LINE + STEP - 1 - j];',
                          'FAIL', 'replay', True),
        'not_written': ('i < rows.n * v_head_dim;', 'i + 1 < rows.n * v_head_dim;', 'FAIL', 'written', False),
        'not_there': ('kernel void flash_attn_tile_f32(', 'kernel void flash_attn_other(', 'ERROR', None, False)},
}


def abi_of(text):
    """{variant: {'at': params, 'kernels': {name: {'program', 'scalars', 'arguments'}}}}"""
    variants, kernels = {}, None
    for line in text.split('\n\n', 1)[1].splitlines():
        if match := re.match(r'(\w+): .', line):
            variants[match[1]] = {'kernels': {}}
            here = variants[match[1]]
        elif match := re.match(r'  at (.*):$', line):
            here['at'] = dict(pair.split('=') for pair in match[1].split())
        elif match := re.match(r'  launches what (\w+) does', line):
            here['runs'] = match[1]
        elif match := re.match(r'  kernel (\w+) of (\S+)$', line):
            kernels = here['kernels'][match[1]] = {'file': match[2], 'arguments': []}
        elif match := re.match(r'    (-cl-std.*)$', line):
            kernels['program'] = f'{kernels["file"]} {match[1]}'
        elif match := re.match(r' {4,}(\d+)  (\w+) +(global const T \*|global T \*|global float \*|local \*|ulong) +(.+)$', line):
            kernels['arguments'].append((int(match[1]), match[2], match[3], match[4]))
    return variants


class Describe(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.about = {op: built.described(cli.ETALON, op) for op in built.operators(cli.ETALON)}

    def test_says_everything_that_the_listings_say(self):
        listing = cli.etalon('list', 'operators').out
        for op, about in self.about.items():
            self.assertIn(f'{op:<16} {about["summary"]}\n', listing)
            for variant in about['variants']:
                self.assertIn(f'  {variant["name"]:<14} {variant["summary"]}\n', listing)
        self.assertEqual(listing.count('\n'), sum(1 + len(about['variants']) for about in self.about.values()))

    def test_says_as_text_what_it_says_as_json(self):
        for op, about in self.about.items():
            text = re.sub(r'\s+', ' ', cli.etalon('describe', op).out)
            for part in ('params', 'tensors', 'fills', 'variants', 'checks', 'lies'):
                for entry in about[part]:
                    self.assertIn(f' {entry["name"]} ', text)
                    self.assertIn(entry.get('doc', entry.get('summary', '')), text)

    def test_documents_every_param_tensor_knob_and_key(self):
        for about in self.about.values():
            for entry in [*about['params'], *about['tensors'], *about['layout'], *about['data'], *about['expect'],
                          *about['checks'], *(knob for variant in about['variants'] for knob in variant['knobs'])]:
                self.assertTrue(entry['doc'], entry)

    def test_is_enough_to_write_a_case_of_everything_that_passes(self):
        for op, about in self.about.items():
            path = cli.fresh() / 'built.json'
            built.a_file_that_fits(cli.ETALON, about, path)
            made = json.loads(path.read_text())['cases'][0]
            self.assertEqual(set(made['params']), {param['name'] for param in about['params']})
            ran = cli.judged(path)
            self.assertEqual(0, ran.code, ran.out + ran.err)
            # A device need not have all that a knob may ask for.
            self.assertLessEqual(set(ran.verdicts().values()), {'PASS', 'SKIP'})
            passed = [id for id, verdict in ran.verdicts().items() if verdict == 'PASS']
            self.assertEqual({variant['name'] for variant in about['variants']}, {id.split('/')[-1].split(':')[0] for id in passed})
            for variant in about['variants']:
                for knob in variant['knobs']:
                    for value in built.knob_values(knob):
                        word = str(value).lower() if isinstance(value, bool) else value
                        self.assertTrue([id for id in ran.of if f'{knob["name"]}={word}' in id], (knob, word))
            for dtypes in made['sweep']['dtypes']:
                for tensor, dtype in dtypes.items():
                    self.assertTrue([id for id in passed if re.search(rf'\b{tensor}:{dtype}\b', id)], (tensor, dtype))


class TheAbi(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.abi = {op: abi_of(cli.etalon('describe', op, '--abi').out) for op in built.operators(cli.ETALON)}

    def test_has_a_kernel_for_every_variant(self):
        for op, variants in self.abi.items():
            about = built.described(cli.ETALON, op)
            self.assertEqual([variant['name'] for variant in about['variants']], list(variants))
            for name, variant in variants.items():
                run = variant.get('runs', name)
                self.assertIn(f'{op}_{run}', variants[run]['kernels'])

    def test_numbers_the_arguments_and_explains_each(self):
        for op, variants in self.abi.items():
            tensors = built.described(cli.ETALON, op)['tensors']
            strides = [name for t in tensors for name in (t['name'], f'{t["name"]}_at',
                                                          *(f'{t["name"]}_stride{k}' for k in range(len(t['dims']) - 1)))]
            for variant in variants.values():
                for kernel in variant['kernels'].values():
                    numbers, names, types, meanings = zip(*kernel['arguments'])
                    self.assertEqual(tuple(range(len(numbers))), numbers)
                    self.assertEqual(len(set(names)), len(names), names)
                    self.assertEqual(strides, list(names[:len(strides)]))
                    self.assertTrue(all(meanings))

    def test_builds_what_a_run_builds(self):
        for op, variants in self.abi.items():
            for name, variant in variants.items():
                if 'runs' in variant:
                    continue
                params = {param: json.loads(value) if re.match(r'[-\d]|true|false', value) else value.strip('"')
                          for param, value in variant['at'].items()}
                path = cli.fresh() / 'abi.json'
                path.write_text(json.dumps({'format': 1, 'operator': op, 'cases': [
                    {'name': 'at', 'params': params, 'variants': [name]}]}))
                line = cli.judged(path).of[f'{op}/abi/at/normal/{name}']
                self.assertEqual(line['program'].rstrip(), next(iter(variant['kernels'].values()))['program'])

    def test_of_gqa_av_is_that_of_its_page(self):
        # docs/operators/gqa_av.md, "Kernel ABI": rank 3 tensors, then scratch, then five scalars.
        split = self.abi['gqa_av']['gqa_split']['kernels']['gqa_av_gqa_split']['arguments']
        self.assertEqual(['scratch', 'scratch_at', 'q_heads', 'kv_heads', 'head_dim', 'context', 'splits'],
                         [name for _, name, _, _ in split[12:]])
        self.assertEqual((12, 'scratch', 'global float *'), split[12][:3])
        self.assertEqual(('out_stride1', 'ulong', 'from one of q_heads to the next'), split[11][1:])

    def test_names_what_its_options_depend_on(self):
        text = cli.etalon('describe', 'gqa_av', '--abi').out
        gqa = text.split('\ngqa: ')[1].split('\ngqa_tile2: ')[0]
        self.assertIn('  kernels or options depend on q_heads, kv_heads\n', gqa)
        self.assertNotIn('depend', text.split('\nper_head: ')[1].split('\ngqa: ')[0])


class ASkeleton(unittest.TestCase):
    def test_passes_the_smoke_tier(self):
        for op in built.operators(cli.ETALON):
            folder = cli.fresh() / 'mine'
            ran = cli.etalon('describe', op, '--skeleton', folder)
            self.assertEqual((0, ''), (ran.code, ran.err))
            self.assertEqual(sorted(ran.out.splitlines()), sorted(map(str, folder.iterdir())))
            self.assertIn(folder / f'{op}.cl', list(folder.iterdir()))
            ran = cli.etalon('run', '--port', f'ocl:{folder}', '--operator', op, '--tier', 'smoke')
            self.assertEqual(0, ran.code, ran.out + ran.err)
            self.assertRegex(ran.out, r'[1-9]\d* passed, 0 failed')

    def test_holds_what_is_built_in_and_all_that_it_includes(self):
        for op in built.operators(cli.ETALON):
            folder = cli.fresh() / 'mine'
            cli.etalon('describe', op, '--skeleton', folder)
            for path in folder.iterdir():
                origin = next(cli.ROOT.glob(f'[or][ce][lf]/{path.name}'))
                self.assertEqual(origin.read_bytes(), path.read_bytes())
                for name in re.findall(r'^\s*#\s*include\s*"(.+)"', path.read_text(), re.M):
                    self.assertTrue((folder / name).is_file(), name)

    def test_is_what_runs(self):
        folder = cli.fresh() / 'mine'
        cli.etalon('describe', 'gqa_av', '--skeleton', folder)
        with (folder / 'dtype.clh').open('a') as header:
            header.write('#error this header was read\n')
        ran = cli.etalon('run', '--port', f'ocl:{folder}', 'gqa_av/llm/smoke', '--variant', 'gqa')
        self.assertEqual(1, ran.code)
        self.assertIn('this header was read', ran.out)

    def test_overwrites_nothing_and_then_writes_nothing(self):
        folder = cli.fresh() / 'mine'
        folder.mkdir()
        (folder / 'dtype.clh').write_text('mine\n')
        ran = cli.etalon('describe', 'gqa_av', '--skeleton', folder)
        self.assertEqual((2, ''), (ran.code, ran.out))
        self.assertEqual(f'etalon: {folder}/dtype.clh is there already; --skeleton overwrites nothing\n', ran.err)
        self.assertEqual(['mine\n'], [path.read_text() for path in folder.iterdir()])

    def test_needs_the_folder_above(self):
        ran = cli.etalon('describe', 'gqa_av', '--skeleton', cli.fresh() / 'no' / 'mine')
        self.assertEqual(2, ran.code)
        self.assertRegex(ran.err, r'\Aetalon: folder .*/no/mine cannot be made: No such file or directory\n\Z')


class ABugPutIntoASkeleton(unittest.TestCase):
    def planted(self, id, old, new):
        """(what was run, its line) of a folder with the bug."""
        op, *_, variant = id.split('/')
        folder = cli.fresh() / 'mine'
        cli.etalon('describe', op, '--skeleton', folder)
        text = (folder / f'{op}.cl').read_text()
        self.assertEqual(1, text.count(old), old)
        (folder / f'{op}.cl').write_text(text.replace(old, new))
        ran = cli.judged('--variant', variant, '-k', id, '--port', f'ocl:{folder}')
        return ran, ran.of[id]

    def test_gets_its_verdict_and_a_reproduce_line_that_prints_the_same(self):
        self.assertEqual(set(built.operators(cli.ETALON)), {id.split('/')[0] for id in PLANTED})
        for id, bugs in PLANTED.items():
            for name, (old, new, verdict, check, alone) in bugs.items():
                with self.subTest(id, bug=name):
                    ran, line = self.planted(id, old, new)
                    self.assertEqual((1, verdict), (ran.code, line['verdict']))
                    if check:
                        self.assertIn(check, cli.broken(line))
                        self.assertEqual(alone, len(cli.broken(line)) == 1, cli.broken(line))
                    before, code, after = again.again(cli.ETALON, ran.out, id, cli.WORK)
                    self.assertEqual((1, before), (code, after))


class ACommandLine(unittest.TestCase):
    def refused(self, sentence, *args):
        ran = cli.etalon('describe', *args)
        self.assertEqual((2, '', f'etalon: {sentence}\n'), (ran.code, ran.out, ran.err))

    def test_that_makes_no_sense_is_refused_in_one_line(self):
        one = 'describe takes one operator, see etalon list operators'
        self.refused(one)
        self.refused(one, '--json')
        self.refused(one, 'gqa_av', 'gqa_av')
        self.refused(one, '--schema', 'gqa_av', 'gqa_av')
        self.refused('there is no operator "gqa-av"; the nearest is "gqa_av"', 'gqa-av')
        self.refused('describe takes one of --json, --abi, --schema and --skeleton', 'gqa_av', '--json', '--abi')
        self.refused('--skeleton lacks its argument; see etalon --help', 'gqa_av', '--skeleton')
        self.refused('--skeleton takes no empty argument; see etalon --help', 'gqa_av', '--skeleton', '')


if __name__ == '__main__':
    sys.exit(cli.main())
