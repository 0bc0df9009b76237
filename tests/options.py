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


if __name__ == '__main__':
    sys.exit(cli.main())
