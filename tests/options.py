#!/usr/bin/env python3
"""Options of etalon run: reports, shards, early ends, folders kept. Usage, skipping and exit status: as of cli.py."""
import json
import os
import re
import shutil
import subprocess
import sys
import unittest
import xml.etree.ElementTree

import cli
from cli import Faulty, case_file, etalon, faulty_file, fresh, judged

# What neither XML nor JSON takes as it is, and what a compiler repeats in its log.
UGLY = b'#error \x01\x02\x1b[31m \xff\xfe ]]> "quoted" \'single\' <tag a="b">&amp; \xed\xa0\x80 \xef\xbf\xbf \x7f \xc3\xa4\n'


def small(name='small', **more):
    return {'name': name, 'params': {'q_heads': 6, 'kv_heads': 2, 'head_dim': 8, 'context': 10}, **more}


class JUnit(unittest.TestCase):
    def junit(self, *args, **env):
        path = fresh() / 'junit.xml'
        ran = judged(*args, '--junit', path, **env)
        if shutil.which('xmllint'):
            done = subprocess.run(['xmllint', '--noout', path], capture_output=True, text=True)
            self.assertEqual((0, ''), (done.returncode, done.stderr))
        return ran, xml.etree.ElementTree.parse(path).getroot()

    def test_has_a_test_case_for_each_run_with_what_the_results_say(self):
        ran, root = self.junit(faulty_file(), Faulty.port(), '--timeout', 3)
        self.assertEqual({'name': 'etalon', 'tests': '20', 'failures': '13', 'errors': '3', 'skipped': '0'}, root.attrib)
        suite, = root
        self.assertEqual('0:0 ' + ran.header['devices'][0]['device'], suite.get('name'))
        cases = suite.findall('testcase')
        self.assertEqual(list(ran.of), [case.get('name') for case in cases])
        tags = {'PASS': None, 'FAIL': 'failure', 'ERROR': 'error'}
        for case in cases:
            line = ran.of[case.get('name')]
            trouble = [child for child in case if child.tag != 'properties']
            self.assertEqual([tags[line['verdict']]] if tags[line['verdict']] else [], [t.tag for t in trouble])
            properties = {p.get('name'): p.get('value') for p in case.find('properties')}
            self.assertEqual((line['verdict'], 'gqa_av'), (properties['verdict'], case.get('classname')))
            self.assertTrue(properties['reproduce'].startswith('etalon run '), properties)
            if line['verdict'] == 'ERROR':
                self.assertEqual(line['reason'].split(), trouble[0].text.split())
                continue
            self.assertEqual([' '.join(line['inputs']), ' '.join(line['outputs']), json.dumps(line['headroom'])],
                             [properties['inputs'], properties['outputs'], properties['headroom']])
            for name, text in cli.broken(line).items():
                self.assertIn(f'{name}: {text}\n', trouble[0].text)

    def test_has_the_reproduce_line_of_the_console(self):
        ran, root = self.junit(faulty_file('wrong'), Faulty.port())
        line = cli.printed(ran, 'wrong')[-1].split('reproduce: ')[1]
        self.assertEqual([line], [p.get('value') for p in root.iter('property') if p.get('name') == 'reproduce'])

    def test_has_skipped_runs_with_their_reason(self):
        path = case_file('f', small(params={**small()['params'], 'capacity': 2**33}), small('fits'))
        ran, root = self.junit(path, '--variant', 'gqa')
        skipped, = root.iter('skipped')
        self.assertEqual(ran.of['gqa_av/f/small/normal/gqa']['reason'], skipped.get('message'))

    def test_is_xml_and_results_are_json_whatever_a_build_log_holds(self):
        kernels = fresh()
        (kernels / 'gqa_av.cl').write_bytes(UGLY + (cli.ROOT / 'ocl/gqa_av.cl').read_bytes())
        ran, root = self.junit(case_file('f', small()), '--variant', 'gqa', '--port', f'ocl:{kernels}')
        error, = root.iter('error')
        self.assertEqual((1, 'ERROR'), (ran.code, error.get('type')))
        self.assertIn(']]> "quoted" \'single\' <tag a="b">&amp; ', error.text)
        self.assertIn(']]> "quoted" \'single\' <tag a="b">&amp; ', ran.of['gqa_av/f/small/normal/gqa']['reason'])

    def test_that_cannot_be_created_is_status_2_and_nothing_runs(self):
        ran = etalon('run', faulty_file('right'), '--junit', '/nonexistent/junit')
        self.assertEqual((2, '', 'etalon: /nonexistent/junit: No such file or directory\n'),
                         (ran.code, ran.out, ran.err))

    @unittest.skipUnless(os.path.exists('/dev/full'), 'no /dev/full')
    def test_that_cannot_be_written_is_status_1_and_the_results_are_whole(self):
        ran = judged(faulty_file('right'), '--junit', '/dev/full')
        self.assertEqual((1, 'etalon: /dev/full: No space left on device: the results are not whole\n', 1),
                         (ran.code, ran.err, len(ran.of)))


class FiguresThatAreNoNumbers(unittest.TestCase):
    def test_are_null_and_the_outcome_says_what_they_mean(self):
        """The kernels of cli.py make NaN and infinities; every line of theirs was read as strict JSON."""
        of = Faulty.run().of
        self.assertEqual(20, len(of))
        for name, check in ('nan', 'nmse'), ('nan', 'bound'), ('nan', 'gain'), ('inf', 'nmse'), ('inf', 'bound'):
            found = of[f'gqa_av/f/{name}/normal/per_head']['checks'][check]
            self.assertEqual((None, 'broken'), (found['figure'], found['outcome']), (name, check))


class AShard(unittest.TestCase):
    def ids(self, *args):
        ran = etalon('run', '--dry-run', *args)
        self.assertEqual(0, ran.code, ran.err)
        return ran.out.splitlines()

    def test_and_the_others_are_disjoint_and_complete_and_stay_what_they_are(self):
        whole = self.ids()
        for n in 1, 2, 7, 16:
            shards = [self.ids('--shard', f'{k}/{n}') for k in range(1, n + 1)]
            self.assertEqual(sorted(whole), sorted(id for shard in shards for id in shard))
            self.assertEqual(shards[n // 2], self.ids('--shard', f'{n // 2 + 1}/{n}'))

    def test_may_be_empty(self):
        for args in ([], ['--strict'], ['--dry-run']):
            ran = etalon('run', faulty_file('right'), '--shard', '9/9', *args)
            self.assertEqual(0, ran.code, ran.err)
        self.assertEqual(2, etalon('run', faulty_file('right'), '-k', 'none', '--shard', '9/9').code)

    def test_that_is_empty_leaves_results_without_runs(self):
        ran = judged(faulty_file('right'), '--shard', '9/9')
        self.assertEqual((0, 0, {}), (ran.code, ran.header['runs'], ran.of))


class WhatFailed(unittest.TestCase):
    def test_is_run_again_and_nothing_else(self):
        path, results = faulty_file('right', 'wrong', 'nan', 'last'), fresh() / 'old.jsonl'
        self.assertEqual(1, etalon('run', path, Faulty.port(), '-o', results).code)
        ran = judged(path, Faulty.port(), '--failed', results)
        self.assertEqual({'gqa_av/f/wrong/normal/per_head': 'FAIL', 'gqa_av/f/nan/normal/per_head': 'FAIL'},
                         dict(sorted(ran.verdicts().items(), reverse=True)))
        self.assertIn(' --failed old.jsonl', ran.header['command'])
        self.assertEqual(0, etalon('run', path, '--failed', results).code, 'with the kernels as they are')

    def test_is_found_whatever_its_tier(self):
        results = fresh() / 'old.jsonl'
        kernels = cli.kernel_folder(('i == 0 && rest > 0', 'i == 1 && rest > 0'))
        ran = judged('-t', 'smoke', '--port', f'ocl:{kernels}')
        results.write_text('\n'.join(map(json.dumps, [ran.header, *ran.of.values()])) + '\n')
        failed = [id for id, verdict in ran.verdicts().items() if verdict == 'FAIL']
        self.assertGreater(len(failed), 0)
        self.assertEqual(failed, list(judged('--failed', results).of))

    def test_being_nothing_is_status_2(self):
        results = fresh() / 'old.jsonl'
        etalon('run', faulty_file('right'), '-o', results)
        ran = etalon('run', faulty_file('right'), '--failed', results)
        self.assertEqual((2, f'etalon: nothing selected: none of the 1 runs of {results} failed\n'), (ran.code, ran.err))

    def test_and_is_no_longer_there_is_status_2(self):
        results = fresh() / 'old.jsonl'
        etalon('run', faulty_file('wrong'), Faulty.port(), '-o', results)
        ran = etalon('run', '--failed', results)
        self.assertEqual((2, f'etalon: {results}:2: no case that was read has the run gqa_av/f/wrong/normal/per_head; '
                             'name the files and variants of then\n'), (ran.code, ran.err))

    def test_in_a_file_that_is_none_is_status_2(self):
        ran = etalon('run', '--failed', '/dev/null')
        self.assertEqual((2, 'etalon: /dev/null:1: the file is empty\n'), (ran.code, ran.err))


class AnEarlyEnd(unittest.TestCase):
    def test_comes_after_the_first_failure(self):
        for option in ['-x'], ['--max-fail', '1']:
            ran = judged(faulty_file('right', 'nan', 'wrong', 'last'), Faulty.port(), *option)
            self.assertEqual((1, ['PASS', 'FAIL']), (ran.code, list(ran.verdicts().values())))
            self.assertIn('1 passed, 1 failed, 2 not run (--max-fail 1) in ', ran.out.splitlines()[-1])
            self.assertEqual(4, ran.header['runs'])

    def test_comes_after_so_many_failures(self):
        ran = judged(faulty_file('right', 'nan', 'wrong', 'last'), Faulty.port(), '--max-fail', '2')
        self.assertEqual((1, 3), (ran.code, len(ran.of)))

    def test_comes_not_where_known_failures_fail(self):
        known = fresh() / 'known'
        known.write_text('*/nan/*\t*\tknown\n*/wrong/*\t*\tknown\n')
        ran = judged(faulty_file('right', 'nan', 'wrong', 'last'), Faulty.port(), '-x', '--known', known)
        self.assertEqual((0, 4), (ran.code, len(ran.of)))


class TheSlowest(unittest.TestCase):
    def test_are_listed_before_the_last_line(self):
        ran = judged(faulty_file('right', 'nan', 'wrong', 'last'), '--slowest', '3')
        lines = ran.out.splitlines()
        self.assertEqual('slowest, compile and kernel:', lines[0])
        listed = [re.fullmatch(r' *(\d+\.\d{3}) s  (\S+) on .+', line).groups() for line in lines[1:-1]]
        seconds = {id: line['compile_s'] + line['kernel_s'] for id, line in ran.of.items()}
        self.assertEqual(sorted(seconds, key=seconds.get, reverse=True)[:3], [id for _, id in listed])
        for text, id in listed:
            self.assertAlmostEqual(seconds[id], float(text), delta=0.001)

    def test_are_no_more_than_there_are(self):
        self.assertEqual(3, len(etalon('run', faulty_file('right'), '--slowest', '9').out.splitlines()))


class JobsThatAreKept(unittest.TestCase):
    def test_are_those_of_failing_runs_under_their_names(self):
        folder = fresh() / 'kept'
        path = faulty_file('right', 'wrong', 'large', 'crash')
        ran = etalon('run', path, Faulty.port(), '--keep', folder)
        self.assertEqual(1, ran.code, ran.err)
        self.assertEqual(['gqa_av.f.crash.normal', 'gqa_av.f.large.normal', 'gqa_av.f.wrong.normal'],
                         sorted(p.name for p in folder.iterdir()))
        self.assertEqual(f'    kept: {folder}/gqa_av.f.wrong.normal', cli.printed(ran, 'wrong')[-2])
        wrong = folder / 'gqa_av.f.wrong.normal'
        self.assertEqual(['job0', 'per_head@0:0'], sorted(p.name for p in wrong.iterdir()))
        self.assertEqual(['0.safetensors', 'job.json'], sorted(p.name for p in (wrong / 'job0').iterdir()))
        self.assertEqual(['0.0.safetensors', '0.1.safetensors'], sorted(p.name for p in (wrong / 'per_head@0:0').iterdir()))
        self.assertEqual(['job0', 'job1', 'job2', 'per_head@0:0', 'per_head@0:0.twin0', 'per_head@0:0.twin1'],
                         sorted(p.name for p in (folder / 'gqa_av.f.large.normal').iterdir()))

    def test_are_without_the_outputs_of_runs_that_pass(self):
        folder = fresh()
        path = case_file('f', {'name': 'nan', 'params': {'q_heads': 6, 'kv_heads': 2, 'head_dim': 8, 'context': 11},
                               'variants': ['gqa', 'per_head'], 'checks': {'identical': False, 'agrees': False}})
        self.assertEqual(1, etalon('run', path, Faulty.port(), '--keep', folder).code)
        self.assertEqual(['job0', 'per_head@0:0'], sorted(p.name for p in (folder / 'gqa_av.f.nan.normal').iterdir()))

    def test_have_names_that_fit_a_file_system(self):
        folder = fresh()
        sweep = {'sweep': {'context': [11], 'q_heads': [6]}, 'params': {'kv_heads': 2, 'head_dim': 8}}
        names = ['n' * 220 + end for end in 'ab']
        path = case_file('f', *({'name': name, **sweep, 'variants': ['per_head']} for name in names))
        self.assertEqual(1, etalon('run', path, Faulty.port(), '--keep', folder).code)
        kept = list(folder.iterdir())
        self.assertEqual((2, 2), (len(kept), len(list(kept[0].iterdir()))))

    def test_are_none_where_nothing_fails(self):
        folder = fresh()
        self.assertEqual(0, etalon('run', faulty_file('right'), '--keep', folder).code)
        self.assertEqual([], list(folder.iterdir()))

    def test_need_a_folder_that_is_empty(self):
        folder = fresh()
        (folder / 'x').touch()
        for place, why in (folder, 'not empty'), (folder / 'x', 'Not a directory'), ('/nonexistent/x', 'No such file or directory'):
            ran = etalon('run', faulty_file('right'), '--keep', place)
            self.assertEqual((2, '', f'etalon: --keep {place}: {why}\n'), (ran.code, ran.out, ran.err))


class Memory(unittest.TestCase):
    def test_that_is_too_small_skips_with_both_numbers(self):
        # w 6 * 4 * 12 * 4 bytes as in limit.py, v 10 * 2 * 8 * 4, out 6 * 8 * 4: 1152 + 640 + 192; no scratch.
        path = case_file('f', small(variants=['per_head']), small('least', params={**small()['params'], 'context': 1},
                                                                 variants=['per_head']))
        ran = judged(path, '--memory', '1983')
        self.assertEqual((0, {'gqa_av/f/small/normal/per_head': 'SKIP', 'gqa_av/f/least/normal/per_head': 'PASS'}),
                         (ran.code, ran.verdicts()))
        self.assertEqual('its buffers are 1984 bytes, --memory allows 1983',
                         ran.of['gqa_av/f/small/normal/per_head']['reason'])
        self.assertIn(' --memory 1983', ran.header['command'])
        self.assertEqual({'PASS'}, set(judged(path, '--memory', '1984').verdicts().values()))

    def test_that_skips_everything_is_status_3(self):
        self.assertEqual(3, etalon('run', case_file('f', small()), '--memory', '1').code)

    def test_is_never_allocated(self):
        path = case_file('f', small(params={**small()['params'], 'capacity': 2**21, 'head_dim': 64}), variants=['gqa'])
        ran = judged(path, '--memory', '1G')
        self.assertRegex(ran.of['gqa_av/f/small/normal/gqa']['reason'], r'bytes, --memory allows 1073741824$')


class ATimeout(unittest.TestCase):
    def test_ends_a_run_that_takes_longer_and_not_the_others(self):
        ran = judged(faulty_file('right', 'endless', 'last'), Faulty.port(), '--timeout', '2.5')
        self.assertEqual(['PASS', 'ERROR', 'PASS'], list(ran.verdicts().values()))
        self.assertEqual('no answer within 2.5 s; killed', ran.of['gqa_av/f/endless/normal/per_head']['reason'])


class WrongUsage(unittest.TestCase):
    def test_is_status_2_and_one_line(self):
        for option, values in (('max-fail', ('0', '-1', 'x', '')), ('slowest', ('0', '10001')), ('keep', ('',)),
                               ('memory', ('0', '1T', '', '-1', '1KK', '1.5G'))):
            for value in values:
                ran = etalon('run', f'--{option}={value}')
                self.assertEqual((2, '', f'etalon: "{value}" is not what --{option} takes; see etalon --help\n'),
                                 (ran.code, ran.out, ran.err))

    def test_is_any_of_these_with_mutate(self):
        for args in (['--junit', 'x'], ['--failed', 'x'], ['-x'], ['--slowest', '1'], ['--keep', 'x']):
            ran = etalon('mutate', *args)
            self.assertEqual((2, 'etalon: mutate takes no --junit, --failed, --max-fail, --slowest, --keep\n'),
                             (ran.code, ran.err))


if __name__ == '__main__':
    sys.exit(cli.main())
