#!/usr/bin/env python3
"""Options of etalon run: reports, shards, early ends, folders kept. Usage, skipping and exit status: as of cli.py."""
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
import unittest
import xml.etree.ElementTree
from pathlib import Path

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


class TheResultsPage(unittest.TestCase):
    def test_names_every_key(self):
        page = (cli.ROOT / 'docs/results.md').read_text()
        ran = judged('-t', 'smoke')
        skip = judged(case_file('f', small()), '--memory', '1').of.values()
        keys = set(ran.header) | set(ran.header['devices'][0])
        for line in [*ran.of.values(), *Faulty.run().of.values(), *skip]:
            keys |= set(line) | set(line.get('claim', {}))
            for check in line.get('checks', {}).values():
                keys |= set(check)
        for key in sorted(keys):
            self.assertIn(f'`{key}`', page)


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


class ProgramsThatAreWritten(unittest.TestCase):
    def test_are_those_of_the_run_once_each_under_their_names(self):
        folder = fresh() / 'built'
        ran = judged(faulty_file('right'), '--binaries', folder)
        self.assertEqual(0, ran.code, ran.err)
        names = sorted(p.name for p in folder.iterdir() if p.name.startswith('gqa_av'))
        self.assertEqual(2, len(names), names)
        for name, ending in zip(names, ('bin', 'txt')):
            self.assertRegex(name, rf'\Agqa_av-[0-9a-f]{{16}}@0:0\.{ending}\Z')
        line = (folder / names[1]).read_text()
        self.assertEqual({line.removesuffix('\n')[:239]}, {run['program'] for run in ran.of.values()})
        for path in folder.iterdir():
            self.assertGreater(path.stat().st_size, 0, path)
        again = fresh() / 'built'
        self.assertEqual(0, etalon('run', faulty_file('right'), '--binaries', again).code)
        self.assertEqual(sorted(p.name for p in folder.iterdir()), sorted(p.name for p in again.iterdir()))

    def test_need_a_folder_that_is_empty(self):
        folder = fresh()
        (folder / 'x').touch()
        for place, why in (folder, 'not empty'), (folder / 'x', 'Not a directory'), ('/nonexistent/x', 'No such file or directory'):
            ran = etalon('run', faulty_file('right'), '--binaries', place)
            self.assertEqual((2, '', f'etalon: --binaries {place}: {why}\n'), (ran.code, ran.out, ran.err))

    def test_are_an_error_where_they_cannot_be_written(self):
        """The folder goes while the device is opened: the first file, the probe's, cannot be made."""
        ran = etalon('worker', '--port', 'ocl', '--device', '0:0', '--binaries', '/nonexistent')
        self.assertEqual(1, ran.code)
        self.assertRegex(ran.out, r'\A\{"status": ?"error", ?"error": ?"/nonexistent/probe-[0-9a-f]{16}@0:0\.bin: No such file or directory"\}\n\Z')

    def test_are_none_of_a_program_of_others(self):
        for port in 'exec:true', 'plugin:x.so':
            ran = etalon('run', faulty_file('right'), '--port', port, '--binaries', fresh())
            self.assertEqual((2, '', f"etalon: --port {port} takes no --binaries: it builds nothing of etalon's\n"),
                             (ran.code, ran.out, ran.err))


class TheTimesOfARun(unittest.TestCase):
    def test_are_of_the_first_execution_and_the_middle_of_all(self):
        for repeats in 1, 5:
            (run,) = judged(faulty_file('right'), '--repeat', repeats).of.values()
            self.assertGreater(run['device_ns'], 0)
            self.assertGreater(run['device_ns_median'], 0)
            if repeats == 1:
                self.assertEqual(run['device_ns'], run['device_ns_median'])


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
        for option, values in (('max-fail', ('0', '-1', 'x', '+1', ' 1')), ('slowest', ('0', '10001')),
                               ('memory', ('0', '1T', '-1', '1KK', '1.5G', '+1', ' 1')), ('seed', ('-0', '+0', '-1', ' 0', '0x1')),
                               ('shard', ('+1/2', ' 1/2', '1/+2', '1/ 2', '0/2', '3/2', '1/', '/2', '1', '-1/2', '1/2/'))):
            for value in values:
                ran = etalon('run', f'--{option}={value}')
                self.assertEqual((2, '', f'etalon: "{value}" is not what --{option} takes; see etalon --help\n'),
                                 (ran.code, ran.out, ran.err))

    def test_is_an_argument_that_is_empty(self):
        for option in ('results', 'junit', 'known', 'failed', 'keep', 'binaries', 'filter', 'exclude', 'device', 'cases', 'mutants',
                       'skeleton', 'operator', 'shard', 'seed', 'memory', 'max-fail', 'tier', 'timeout', 'port'):
            ran = etalon('run', f'--{option}=')
            self.assertEqual((2, '', f'etalon: --{option} takes no empty argument; see etalon --help\n'),
                             (ran.code, ran.out, ran.err))
        for letter, option in ('o', 'results'), ('k', 'filter'):
            self.assertEqual(f'etalon: --{option} takes no empty argument; see etalon --help\n',
                             etalon('run', f'-{letter}', '').err)

    def test_is_one_that_would_do_nothing(self):
        for command, args in (
                ('mutate', ['--junit=x', '--failed=x', '-x', '--slowest=1', '--keep=x', '--binaries=x', '--shard=1/2',
                            '--strict', '--known=x', '--outputs=x']),
                ('dump', ['--junit=x', '--failed=x', '-x', '--slowest=1', '--keep=x', '--shard=1/2', '--strict',
                          '--known=x', '--limit=alloc=1G', '--guards=off', '--device=*', '--variant=gqa', '--repeat=2',
                          '--timeout=1', '--memory=1G', '--port=ocl', '--outputs=x', '--mutants=x']),
                ('check', ['--failed=x', '--keep=x', '--shard=1/2', '--limit=alloc=1G', '--guards=off', '--device=*',
                           '--variant=gqa', '--repeat=2', '--seed=1', '--timeout=1', '--port=ocl:x', '--tier=full']),
                ('run', ['--outputs=x', '--mutants=x', '--json', '--abi', '--schema', '--skeleton=x', '--list']),
                ('list', ['--seed=1', '--junit=x', '--limit=alloc=1G', '--device=*', '--results=x']),
                ('describe', ['--port=exec:true', '--port=plugin:x.so', '--tier=smoke', '--verbose', '--cases=x']),
                ('worker', ['--seed=1', '--cases=x', '--results=x'])):
            for arg in args:
                name = '--max-fail' if arg == '-x' else arg.partition('=')[0]
                ran = etalon(command, arg)
                self.assertEqual((2, '', f'etalon: {command} takes no {name}; see etalon --help\n'),
                                 (ran.code, ran.out, ran.err))


class AFolderOfCases(unittest.TestCase):
    def test_is_walked_once_whatever_leads_to_it(self):
        folder = fresh()
        deep = folder / '/'.join('abcdefghij')
        deep.mkdir(parents=True)
        case_file('one', small(variants=['gqa']), folder=folder)
        case_file('two', small(variants=['gqa']), folder=deep)
        for link, to in (folder / 'a/self', folder), (deep / 'up', deep.parent), (folder / 'z', folder / 'a'):
            link.symlink_to(to)
        ran = etalon('run', '--dry-run', folder)
        self.assertEqual((0, {'gqa_av/one/small/normal/gqa', 'gqa_av/two/small/normal/gqa'}), (ran.code, set(ran.out.split())))
        self.assertEqual('etalon: nothing selected: no run of 2 cases read passes tier and filters\n',
                         etalon('run', '-k', 'none', folder).err)


class OneFileForTwoThings(unittest.TestCase):
    def assert_refused(self, one, other, *args, command='run'):
        ran = etalon(command, *args)
        self.assertEqual((2, '', f'etalon: {one} and {other} are one file\n'), (ran.code, ran.out, ran.err))

    def test_is_refused_and_stays_what_it_is(self):
        folder = fresh()
        known, failed, link = folder / 'known', folder / 'failed', folder / 'link'
        known.write_text('a\tb\tc\n')
        path = case_file('f', small(variants=['gqa']))
        etalon('run', faulty_file('wrong'), Faulty.port(), '-o', failed)
        link.symlink_to(path)
        os.link(known, folder / 'hard')
        before = [file.read_bytes() for file in (known, failed, path)]
        for output in '--results', '--junit':
            self.assert_refused(f'{output} {known}', f'--known {known}', path, output, known, '--known', known)
            self.assert_refused(f'{output} {folder}/hard', f'--known {known}', path, output, folder / 'hard', '--known', known)
            self.assert_refused(f'{output} {link}', f'the case file {path}', path, output, link)
            self.assert_refused(f'{output} {path}', f'the case file {path}', path.parent, output, path)
            self.assert_refused(f'{output} {failed}', f'--failed {failed}', faulty_file('wrong'), '--failed', failed, output, failed)
        cases = shutil.copytree(pathlib.Path(__file__).resolve().parent.parent / 'cases', folder / 'cases')
        teeth = cases / 'gqa_av/teeth.json'
        self.assert_refused(f'--results {teeth}', f'the case file {teeth}', '--cases', cases, '-o', teeth, command='mutate')
        self.assertEqual(before, [file.read_bytes() for file in (known, failed, path)])

    def test_is_refused_before_it_is_there(self):
        folder = fresh()
        for a, b in (folder / 'x', folder / 'x'), (folder / 'x', f'{folder}/./x'):
            self.assert_refused(f'--results {a}', f'--junit {b}', '-t', 'smoke', '-o', a, '--junit', b)
            self.assert_refused(f'--results {a}', f'--keep {b}', '-t', 'smoke', '-o', a, '--keep', b)
        self.assertEqual([], list(folder.iterdir()))

    def test_is_refused_where_a_case_reads_it(self):
        folder = fresh()
        data = folder / 'v.safetensors'
        header = b'{"v":{"dtype":"F32","shape":[10,2,8],"data_offsets":[0,640]}}'
        header = header.ljust(64)
        data.write_bytes(len(header).to_bytes(8, 'little') + header + bytes(640))
        path = folder / 'f.json'
        shutil.copy(case_file('f', small(data={'v': {'file': 'v.safetensors', 'tensor': 'v'}}, variants=['gqa'])), path)
        self.assert_refused(f'--results {data}', f'the data file {data}', path, '-o', data)
        self.assertEqual(0, etalon('run', path).code)

    def test_may_be_one_that_nothing_destroys(self):
        ran = etalon('run', case_file('f', small(variants=['gqa'])), '-o', '/dev/null', '--junit', '/dev/null',
                     '--known', '/dev/null')
        self.assertEqual((0, ''), (ran.code, ran.err))


class ANameWithControlCharacters(unittest.TestCase):
    def test_is_one_line_that_steers_no_terminal(self):
        folder = fresh()
        name = folder / 'we\nird\x01\x1b[31m\x7f.json'
        shown = f'{folder}/we?ird??[31m?.json'
        self.assertEqual(f'etalon: {shown}: cannot be read: No such file or directory\n', etalon('run', name).err)
        name.write_text('{')
        self.assertRegex(etalon('run', name).err, rf'\Aetalon: {re.escape(shown)}:1:2: .*\n\Z')
        for args in (['diff', name, name], ['run', '--failed', name], ['run', '--known', name],
                     ['run', '-o', name / 'x'], ['run', '--junit', name / 'x'], ['run', '--keep', name / 'x'],
                     ['run', '--cases', name / 'x'], ['run', '--port', f'ocl:{name}'], ['list', 'models', '--cases', name],
                     ['mutate', '--mutants', name], ['describe', 'gqa_av', '--skeleton', name], [name], ['run', '-k', name],
                     ['run', f'--{name}'], ['diff', '--headroom', name, 'a', 'b']):
            ran = etalon(*args)
            self.assertEqual((2, 1), (ran.code, ran.err.count('\n')), (args, ran.err))
            self.assertNotRegex(ran.err, r'[\x00-\x09\x0b-\x1f\x7f]')


class Drivers(unittest.TestCase):
    """What the loader looked at: list devices -v with a device there, list devices and run (status 3) without."""

    def folder(self, **files):
        folder = fresh()
        for name, text in files.items():
            (folder / f'{name}.icd').write_bytes(text if isinstance(text, bytes) else text.encode())
        return folder

    def assert_told(self, lines, code=3, **env):
        verbose = etalon('list', 'devices', '-v', **env)
        if code == 0:
            self.assertEqual(0, verbose.code, verbose.err)
            self.assertEqual(lines, verbose.out.splitlines()[1:])
            return
        listed, ran = etalon('list', 'devices', **env), etalon('run', '-t', 'smoke', **env)
        for done in verbose, listed, ran:
            self.assertEqual((3, '', ['etalon: no device', *lines]), (done.code, done.out, done.err.splitlines()))

    NONE = 'clGetPlatformIDs: CL_PLATFORM_NOT_FOUND_KHR (-1001)'

    def test_that_open_and_that_fail_are_told_of_with_the_reason(self):
        pocl = cli.ICD.read_text().split()[0]
        folder = self.folder(a_none='libthere-is-none.so.1\n', b_empty='', c_libm='libm.so.6', d_text='/etc/passwd\n',
                             e_pocl=pocl + '\n', f_bytes=b'lib\x1b[31m\x7f.so\n')
        (folder / 'g_folder.icd').mkdir()
        (folder / 'h_gone.icd').symlink_to('/nonexistent')
        (folder / 'not-read.txt').write_text('x')
        self.assert_told([
            f'OCL_ICD_VENDORS is {folder}',
            f'{folder}/a_none.icd: libthere-is-none.so.1 cannot be opened: libthere-is-none.so.1: '
            'cannot open shared object file: No such file or directory',
            f'{folder}/b_empty.icd: names no library',
            f'{folder}/c_libm.icd: libm.so.6 opens but is no OpenCL driver: it has no clGetExtensionFunctionAddress',
            f'{folder}/d_text.icd: /etc/passwd cannot be opened: /etc/passwd: invalid ELF header',
            f'{folder}/e_pocl.icd: {pocl} opens',
            f'{folder}/f_bytes.icd: lib?[31m?.so cannot be opened: lib?[31m?.so: '
            'cannot open shared object file: No such file or directory',
            f'{folder}/g_folder.icd: cannot be read: Is a directory',
            f'{folder}/h_gone.icd: cannot be read: No such file or directory'], code=0, OCL_ICD_VENDORS=folder)

    def test_that_are_none_are_told_of(self):
        folder = self.folder()
        self.assert_told([self.NONE, f'OCL_ICD_VENDORS is {folder}', f'{folder}: holds no .icd file'], OCL_ICD_VENDORS=folder)

    def test_of_one_file_are_told_of(self):
        icd = self.folder(x='libm.so.6\n') / 'x.icd'
        self.assert_told([self.NONE, f'OCL_ICD_VENDORS is {icd}', f'{icd}: libm.so.6 opens but is no OpenCL driver: '
                          'it has no clGetExtensionFunctionAddress'], OCL_ICD_VENDORS=icd)
        self.assert_told([self.NONE, 'OCL_ICD_VENDORS is /nonexistent/x.icd',
                          '/nonexistent/x.icd: cannot be read: No such file or directory'],
                         OCL_ICD_VENDORS='/nonexistent/x.icd')

    def test_in_the_other_folder_that_the_loader_knows_are_told_of(self):
        folder = self.folder(x='libnone.so\n')
        self.assert_told([self.NONE, f'OPENCL_VENDOR_PATH is {folder}', f'{folder}/x.icd: libnone.so cannot be opened: '
                          'libnone.so: cannot open shared object file: No such file or directory'],
                         OCL_ICD_VENDORS=None, OPENCL_VENDOR_PATH=folder)


# ---- Ends that nobody wants ----


class AnInterruptedRun(unittest.TestCase):
    def interrupt(self, number, *args, until, **env):
        """Runs etalon, sends it the signal once until(process) holds; code, stdout, stderr and how long it took."""
        run = subprocess.Popen([cli.ETALON, 'run', *map(str, args)], cwd=cli.WORK, env=cli.environment(env),
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               start_new_session=True)
        try:
            patience = time.monotonic() + 60
            while not until(run) and time.monotonic() < patience:
                time.sleep(0.01)
            os.killpg(run.pid, number)
            out, err = run.communicate(timeout=60)
        finally:
            if run.poll() is None:
                os.killpg(run.pid, signal.SIGKILL)
                run.wait()
        return run.returncode, out, err

    def test_keeps_results_and_junit_and_says_what_was_not_run(self):
        for number in signal.SIGINT, signal.SIGTERM:
            folder = fresh()
            results, junit = folder / 'r.jsonl', folder / 'j.xml'
            code, out, err = self.interrupt(
                number, faulty_file('right', 'wrong', 'endless', 'last'), Faulty.port(), '-o', results, '--junit', junit,
                until=lambda run: results.exists() and results.read_text().count('\n') == 3)
            self.assertEqual((128 + number, ''), (code, err))
            header, *lines = map(cli.strict, results.read_text().splitlines())
            self.assertEqual((4, ['PASS', 'FAIL']), (header['runs'], [line['verdict'] for line in lines]))
            suite = xml.etree.ElementTree.parse(junit).getroot().find('testsuite')
            self.assertEqual([line['id'] for line in lines], [case.get('name') for case in suite.findall('testcase')])
            self.assertEqual('2', suite.find('properties/property[@name="not run"]').get('value'))
            self.assertRegex(out.splitlines()[-1], '^1 passed, 1 failed, 2 not run in ')
            self.assertIn('reproduce:\n  etalon run ', out)

    def test_ends_while_the_oracle_works(self):
        # 4096 rows of 4096 terms in 4096 channels: a minute or more of oracle on one thread. The kernel adds one term of each.
        kernels = cli.kernel_folder(('for (ulong c = 0; c < context; c++)', 'for (ulong c = 0; c < 1; c++)'))
        case = {'name': 'long', 'variants': ['tiled'], 'fills': ['uniform'], 'checks': {'repeat': False},
                'dtypes': {'w': 'f16', 'v': 'f16', 'out': 'f16'},
                'params': {'q_heads': 4, 'kv_heads': 1, 'head_dim': 4096, 'query_length': 1024, 'context': 4096}}
        path, results = case_file('f', small('first', variants=['gqa']), case), fresh() / 'r.jsonl'

        def oracle_works(run):
            """Its thread is there, and the runner has written the outputs and waits for more to do."""
            threads = len(list(Path(f'/proc/{run.pid}/task').iterdir()))
            begun = results.exists() and results.read_text().count('\n') == 2 and threads > 1
            return begun and all(cli.read_proc(child, 'wchan') != '0' and self.idle(child)
                                 for child in cli.children(run.pid))

        code, out, err = self.interrupt(signal.SIGINT, path, '-j', 1, '--port', f'ocl:{kernels}', '-o', results,
                                        until=oracle_works)
        self.assertEqual((130, ''), (code, err))
        self.assertRegex(out.splitlines()[-1], r'^1 passed, 0 failed, 1 not run in ')

    def test_ends_while_a_file_is_waited_for(self):
        pipe = fresh() / 'pipe'
        os.mkfifo(pipe)

        def waits(run):
            """It handles signals, and sleeps."""
            status = dict(line.split(':\t', 1) for line in cli.read_proc(run.pid, 'status').splitlines())
            return int(status['SigCgt'], 16) >> (signal.SIGTERM - 1) & 1 and status['State'].startswith('S')

        for args in ['--failed', pipe], [pipe]:
            for number in signal.SIGINT, signal.SIGTERM:
                self.assertEqual((128 + number, '', ''), self.interrupt(number, *args, until=waits))

    def test_ends_while_inputs_are_filled(self):
        # v is 65536 * 8 * 128 * 4 bytes, 256 MiB: seconds of filling on one thread.
        params = {'q_heads': 8, 'kv_heads': 8, 'head_dim': 128, 'context': 65536}
        path = case_file('f', small('first', variants=['gqa']),
                         {'name': 'large', 'params': params, 'rows': 1, 'variants': ['gqa']})
        for number in signal.SIGINT, signal.SIGTERM, signal.SIGHUP:
            temp, results = fresh(), fresh() / 'r.jsonl'

            def filled(run):
                """Inputs are read-only once they are whole."""
                inputs = [file.stat() for file in temp.glob('etalon-*/group*/job0/0.safetensors')]
                return any(st.st_size > 2**28 and st.st_mode & 0o200 for st in inputs)

            code, out, err = self.interrupt(number, path, '-j', 1, '-o', results, until=filled, TMPDIR=temp)
            self.assertEqual((128 + number, '', []), (code, err, list(temp.iterdir())))
            self.assertRegex(out.splitlines()[-1], r'^1 passed, 0 failed, 1 not run in ')
            self.assertEqual(2, results.read_text().count('\n'))
            code, out, err = self.interrupt(number, '--dry-run', '-v', path, '-j', 1, until=filled, TMPDIR=temp)
            self.assertEqual((128 + number, '2 runs, none executed\n', []), (code, err, list(temp.iterdir())))

    @staticmethod
    def idle(pid):
        """It used no time of a processor for a while."""
        def used():
            return cli.read_proc(pid, 'stat').rpartition(')')[2].split()[11:13]
        before = used()
        time.sleep(0.5)
        return before == used()

    def hung_driver(self):
        """Reading a pipe that nobody writes never ends."""
        folder = fresh()
        os.mkfifo(folder / 'hung.icd')
        return folder

    def test_ends_while_a_driver_that_hangs_is_asked_for_its_devices(self):
        for number in signal.SIGINT, signal.SIGTERM:
            code, out, err = self.interrupt(number, faulty_file('right'), until=lambda run: cli.children(run.pid),
                                            OCL_ICD_VENDORS=self.hung_driver())
            self.assertEqual((128 + number, '', 'etalon: interrupted while devices were opened\n'), (code, out, err))

    def test_that_ended_before_its_runner_began_leaves_no_runner(self):
        """Too early for the signal that a runner asks for."""
        env = cli.environment({'OCL_ICD_VENDORS': self.hung_driver()})
        for options in ['--list'], ['--device', '0:0']:
            ours, theirs = socket.socketpair()
            ours.close()
            with theirs:
                runner = subprocess.Popen([cli.ETALON, 'worker', *options], env=env, stdin=theirs,
                                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            self.assertEqual((b'', None), runner.communicate(timeout=60))
            self.assertEqual(1, runner.returncode)

    def test_of_list_devices_leaves_no_runner(self):
        listing = subprocess.Popen([cli.ETALON, 'list', 'devices'], env=cli.environment({'OCL_ICD_VENDORS': self.hung_driver()}),
                                   start_new_session=True)
        until = time.monotonic() + 60
        while not cli.children(listing.pid) and time.monotonic() < until:
            time.sleep(0.01)
        runner, = cli.children(listing.pid)
        listing.send_signal(signal.SIGINT)
        self.assertEqual(-signal.SIGINT, listing.wait(60))
        until = time.monotonic() + 60
        while cli.read_proc(runner, 'maps') and time.monotonic() < until:
            time.sleep(0.01)
        self.assertEqual('', cli.read_proc(runner, 'maps'))


class NobodyToReadTheOutput(unittest.TestCase):
    def into(self, stdout, *args):
        """Results and JUnit of a run whose standard output goes there."""
        folder = fresh()
        done = subprocess.run([cli.ETALON, 'run', *map(str, args), '-o', folder / 'r.jsonl', '--junit', folder / 'j.xml'],
                              env=cli.ENV, cwd=cli.WORK, stdin=subprocess.DEVNULL, stdout=stdout,
                              stderr=subprocess.PIPE, text=True)
        lines = [cli.strict(line) for line in (folder / 'r.jsonl').read_text().splitlines()]
        cases = list(xml.etree.ElementTree.parse(folder / 'j.xml').getroot().iter('testcase'))
        return done, lines, cases

    def closed_pipe(self):
        reader, writer = os.pipe()
        os.close(reader)
        return writer

    def test_because_the_pipe_is_closed_is_told_once_and_loses_no_result(self):
        writer = self.closed_pipe()
        try:
            done, lines, cases = self.into(writer, faulty_file('right', 'wrong', 'nan', 'last'), Faulty.port())
        finally:
            os.close(writer)
        self.assertEqual((1, 'etalon: standard output: Broken pipe\n'), (done.returncode, done.stderr))
        self.assertEqual((5, 4), (len(lines), len(cases)))

    @unittest.skipUnless(os.path.exists('/dev/full'), 'no /dev/full')
    def test_because_the_disk_is_full_is_told_once_and_loses_no_result(self):
        for args in [], ['-v']:
            with open('/dev/full', 'w') as full:
                done, lines, cases = self.into(full, '-t', 'smoke', *args)
            self.assertEqual((1, 'etalon: standard output: No space left on device\n'), (done.returncode, done.stderr))
            self.assertEqual((1 + len(cases), lines[0]['runs']), (len(lines), len(cases)))


class AFullDisk(unittest.TestCase):
    """Files of at most so many bytes, which any user can have; and a real file system, where this is root."""

    MOST = 4 << 20  # more than PoCL's compiler writes

    def test_under_the_results_leaves_whole_lines_and_is_told_at_the_end(self):
        # 400 lines of 1.5 KB and more, in at most 100,000 bytes; the runner was there before that limit.
        path = case_file('f', small(sweep={'context': list(range(1, 401))}, variants=['per_head']))
        folder = fresh()
        run = subprocess.Popen([cli.ETALON, 'run', path, '-o', folder / 'r', '--junit', folder / 'j'], env=cli.ENV,
                               cwd=cli.WORK, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True)
        while run.poll() is None and not ((folder / 'r').exists() and (folder / 'r').stat().st_size):
            time.sleep(0.005)
        resource.prlimit(run.pid, resource.RLIMIT_FSIZE, (100000, 100000))
        out, err = run.communicate()
        self.assertEqual((1, f'etalon: {folder}/r: File too large: the results are not whole; '
                             f'{folder}/j: File too large: the results are not whole\n'), (run.returncode, err))
        self.assertRegex(out.splitlines()[-1], r'^400 passed, 0 failed in ')
        lines = [cli.strict(line) for line in (folder / 'r').read_text().splitlines()]
        self.assertTrue(10 < len(lines) < 400, len(lines))
        self.assertEqual(400, lines[0]['runs'])
        self.assertEqual(2, etalon('diff', folder / 'r', folder / 'r').code, 'they are not taken for whole')

    def test_under_the_jobs_is_an_error_of_each_run_that_does_not_fit(self):
        # v is 131072 * 2 * 8 * 4 bytes, 8 MiB.
        path = case_file('f', small('fits'), small('large', params={**small()['params'], 'capacity': 131072}),
                         small('fits-too'), variants=['per_head'])
        temp = fresh()
        done = subprocess.run([cli.ETALON, 'run', path], env=cli.environment({'TMPDIR': temp}), cwd=cli.WORK,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (self.MOST, self.MOST)))
        self.assertEqual((1, ''), (done.returncode, done.stderr))
        self.assertRegex(done.stdout, r'\AERROR gqa_av/f/large/normal/per_head on .*\n    .*/0\.safetensors.*: File too large\n')
        self.assertRegex(done.stdout.splitlines()[-1], '^2 passed, 0 failed, 1 errors in ')
        self.assertEqual([], list(temp.iterdir()))

    def test_that_is_one_is_an_error_of_each_run_that_does_not_fit(self):
        folder = fresh()
        if os.geteuid() != 0 or subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=64k', 'tmpfs', folder],
                                               stderr=subprocess.DEVNULL).returncode != 0:
            self.skipTest('no file system can be mounted')
        try:
            path = case_file('f', small('large', params={**small()['params'], 'capacity': 2048}), variants=['per_head'])
            ran = etalon('run', path, TMPDIR=folder)
            left = list(folder.iterdir())
            results = etalon('run', '-t', 'smoke', '-o', folder / 'r.jsonl')
            lines = [cli.strict(line) for line in (folder / 'r.jsonl').read_text().splitlines()]
        finally:
            subprocess.run(['umount', folder], check=True)
        self.assertEqual((1, '', []), (ran.code, ran.err, left))
        self.assertRegex(ran.out, r'\AERROR .*\n    .*0\.safetensors of \d+ bytes cannot be made: its file system has \d+ free\n')
        self.assertEqual((1, f'etalon: {folder}/r.jsonl: No space left on device: the results are not whole\n'),
                         (results.code, results.err))
        self.assertGreater(len(lines), 5)


class ATemporaryFolder(unittest.TestCase):
    def test_that_is_none_is_told_before_anything_runs(self):
        file = fresh() / 'file'
        file.write_text('')
        file.chmod(0o755)
        for place, why in (file, 'Not a directory'), ('/nonexistent', 'No such file or directory'):
            ran = etalon('run', '-t', 'smoke', TMPDIR=place)
            self.assertEqual((2, '', f'etalon: TMPDIR is {place}: {why}\n'), (ran.code, ran.out, ran.err))

    def test_that_cannot_be_written_is_told_before_anything_runs(self):
        place = '/proc/self' if os.geteuid() == 0 else '/'  # root may write anywhere else
        ran = etalon('run', '-t', 'smoke', TMPDIR=place)
        self.assertEqual((2, ''), (ran.code, ran.out))
        self.assertRegex(ran.err, rf'\Aetalon: TMPDIR is {place}: .*\n\Z')


if __name__ == '__main__':
    sys.exit(cli.main())
