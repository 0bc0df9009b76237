#!/usr/bin/env python3
"""etalon diff, and the golden results of PoCL. Usage, skipping and exit status: as of cli.py."""
import json
import os
import re
import subprocess
import sys
import unittest

import cli

HEADER = {'format': 1, 'etalon': '0.1.0', 'commit': 'abc', 'runs': 2}
ONE = {'id': 'gqa_av/f/one/normal/gqa', 'device': 'GPU', 'verdict': 'PASS', 'claim': {'order': 'ctx64x4'},
       'headroom': 0.1, 'inputs': ['a' * 32], 'outputs': ['b' * 32]}
TWO = {**ONE, 'id': 'gqa_av/f/two/normal/gqa'}
BROKEN = {'checks': {'replay': {'outcome': 'broken', 'text': 'out (0): got 1, replay 2'},
                     'bound': {'outcome': 'held'}}}


def results(*lines, header=HEADER, end='\n'):
    path = cli.fresh() / 'r.jsonl'
    path.write_text('\n'.join(json.dumps(line) for line in (header, *lines)) + end)
    return path


class Diff(unittest.TestCase):
    def diff(self, old, new, *args):
        """Results of the lines; ONE is in both."""
        ran = cli.etalon('diff', results(ONE, *old, header={**HEADER, 'runs': 1 + len(old)}),
                         results(ONE, *new, header={**HEADER, 'runs': 1 + len(new)}), *args)
        self.assertEqual('', ran.err)
        return ran

    def assert_change(self, old, new, code, *lines, args=()):
        ran = self.diff(old, new, *args)
        self.assertEqual((code, list(lines)), (ran.code, ran.out.splitlines()[:-1]), ran.out)
        self.assertRegex(ran.out.splitlines()[-1], r'^\d+ regressions, \d+ changes of \d+ runs before, \d+ after')


class TwoResultsFiles(Diff):
    def test_that_are_the_same_have_no_change(self):
        ran = self.diff([TWO], [TWO])
        self.assertEqual((0, '0 regressions, 0 changes of 2 runs before, 2 after\n'), (ran.code, ran.out))

    def test_are_compared_without_times_places_and_environment(self):
        more = {'device_ns': 5, 'compile_s': 1, 'kernel_s': 2, 'program': 'x', 'nmse': 1e-9, 'device': 'other'}
        other = results({**ONE, **more}, {**TWO, **more}, header={**HEADER, 'commit': 'def', 'system': 'BSD'})
        self.assertEqual(0, cli.etalon('diff', results(ONE, TWO), other).code)

    def test_are_compared_whatever_the_order_of_their_lines(self):
        self.assertEqual(0, cli.etalon('diff', results(ONE, TWO), results(TWO, ONE)).code)


class AVerdict(Diff):
    def test_that_is_worse_is_a_regression_and_names_what_is_broken(self):
        self.assert_change([TWO], [{**TWO, **BROKEN, 'verdict': 'FAIL'}], 1,
                           'REGRESSION worse    gqa_av/f/two/normal/gqa on GPU: PASS -> FAIL',
                           '    replay: out (0): got 1, replay 2')

    def test_falls_from_pass_over_xfail_and_skip_to_what_is_bad(self):
        ladder = [['PASS'], ['XFAIL'], ['SKIP'], ['FAIL', 'ERROR', 'MISTRUSTED', 'XPASS']]
        for i, olds in enumerate(ladder):
            for k, news in enumerate(ladder):
                for old in olds:
                    for new in news:
                        ran = self.diff([{**TWO, 'verdict': old}], [{**TWO, 'verdict': new}])
                        kind = 'worse' if i < k else 'better' if i > k else 'verdict' if old != new else None
                        self.assertEqual(1 if i < k else 0, ran.code, (old, new))
                        self.assertEqual(kind, ran.out.split()[1] if kind else None, (old, new))

    def test_of_a_skip_comes_with_its_reason(self):
        self.assert_change([TWO], [{'id': TWO['id'], 'verdict': 'SKIP', 'reason': 'too\nlarge \x1b[31m'}], 1,
                           'REGRESSION worse    gqa_av/f/two/normal/gqa: PASS -> SKIP', '    too', '    large  [31m')


class Digests(Diff):
    def test_of_outputs_that_change_are_a_regression_with_both_and_the_step(self):
        old = {**TWO, 'inputs': ['a' * 32] * 2, 'outputs': ['b' * 32, 'c' * 32]}
        self.assert_change([old], [{**old, 'outputs': ['b' * 32, 'd' * 32]}], 1,
                           f'REGRESSION outputs  gqa_av/f/two/normal/gqa on GPU: step 1: {"c" * 32} -> {"d" * 32}',
                           '    no check is broken: the claim or its replay changed too')

    def test_of_outputs_that_owe_no_bytes_are_a_regression_with_strict_only(self):
        skipped = {'checks': {'replay': {'outcome': 'skipped', 'text': 'probe: fma differs'}}}
        for more in {'claim': {'order': 'none'}}, skipped:
            old, new = {**TWO, **more}, {**TWO, **more, 'outputs': ['d' * 32]}
            self.assertEqual((0, 'note'), (self.diff([old], [new]).code, self.diff([old], [new]).out.split()[0]))
            self.assertEqual(1, self.diff([old], [new], '--strict').code)
        self.assertEqual(0, self.diff([TWO], [{**TWO, **skipped, 'outputs': ['d' * 32]}]).code)

    def test_of_outputs_that_change_with_a_fix_are_a_note(self):
        for args in [], ['--strict']:
            self.assert_change([{**TWO, **BROKEN, 'verdict': 'FAIL'}], [{**TWO, 'outputs': ['d' * 32]}], 0,
                               'note       better   gqa_av/f/two/normal/gqa on GPU: FAIL -> PASS',
                               f'note       outputs  gqa_av/f/two/normal/gqa on GPU: step 0: {"b" * 32} -> {"d" * 32}',
                               "    no bytes are owed: it did not pass before, its order is none, or the device's "
                               "arithmetic is not C's", args=args)

    def test_of_inputs_that_change_are_told_alone(self):
        self.assert_change([TWO], [{**TWO, 'inputs': ['d' * 32], 'outputs': ['e' * 32]}], 1,
                           f'REGRESSION inputs   gqa_av/f/two/normal/gqa on GPU: step 0: {"a" * 32} -> {"d" * 32}')

    def test_may_stay_where_the_claim_changes(self):
        self.assert_change([TWO], [{**TWO, 'claim': {'order': 'serial'}}], 0,
                           'note       claim    gqa_av/f/two/normal/gqa on GPU: ctx64x4 -> serial')


class Headroom(Diff):
    def test_is_told_where_it_changed_by_more_than_the_factor(self):
        for old, new, factor, told in ((0.1, 0.2, 2, False), (0.1, 0.21, 2, True), (0.21, 0.1, 2, True),
                                       (0.1, 0.25, 3, False), (0, 0.019, 2, False), (0, 0.021, 2, True),
                                       (None, 0.5, 2, False)):
            ran = self.diff([{**TWO, 'headroom': old}], [{**TWO, 'headroom': new}], '--headroom', factor)
            self.assertEqual((0, told), (ran.code, 'headroom' in ran.out), (old, new, factor))

    def test_that_grew_is_a_regression_with_strict(self):
        self.assert_change([TWO], [{**TWO, 'headroom': 0.9}], 1,
                           'REGRESSION headroom gqa_av/f/two/normal/gqa on GPU: 0.1 -> 0.9', args=['--strict'])
        self.assertEqual(0, self.diff([TWO], [{**TWO, 'headroom': 0.01}], '--strict').code)


class APassThatLostItsEvidence(Diff):
    CHECKS = {'checks': {name: {'outcome': 'held'} for name in ('bound', 'agrees', 'exact', 'replay', 'identical')}}

    def without(self, *keys, of=TWO):
        return {key: value for key, value in of.items() if key not in keys}

    def test_because_it_has_no_digests_is_a_regression(self):
        for key, digest in ('inputs', 'a' * 32), ('outputs', 'b' * 32):
            for new in self.without(key), {**TWO, key: []}:
                self.assert_change([TWO], [new], 1,
                                   f'REGRESSION {key:8} gqa_av/f/two/normal/gqa on GPU: step 0: {digest} -> none',
                                   '    it passed without a digest')

    def test_because_it_has_no_claim_is_a_regression(self):
        self.assert_change([TWO], [self.without('claim')], 1,
                           'REGRESSION claim    gqa_av/f/two/normal/gqa on GPU: ctx64x4 -> none',
                           '    it passed without a claim')

    def test_where_no_bytes_were_owed_is_one_with_strict_only(self):
        old = {**TWO, 'claim': {'order': 'none'}}
        for key in 'inputs', 'outputs', 'claim':
            for code, args in (0, []), (1, ['--strict']):
                ran = self.diff([old], [self.without(key, of=old)], *args)
                self.assertEqual((code, key), (ran.code, ran.out.split()[1]))

    def test_because_it_has_no_headroom_is_a_regression(self):
        for new in self.without('headroom'), {**TWO, 'headroom': None}:
            self.assert_change([TWO], [new], 1, 'REGRESSION headroom gqa_av/f/two/normal/gqa on GPU: 0.1 -> none')

    def test_because_checks_of_bytes_are_not_run_is_a_regression(self):
        old = {**TWO, **self.CHECKS}
        for new in TWO, {**TWO, 'checks': {}}:
            self.assert_change([old], [new], 1,
                               'REGRESSION checks   gqa_av/f/two/normal/gqa on GPU: held -> not held', '    bound: not run',
                               '    agrees: not run', '    exact: not run', '    replay: not run', '    identical: not run')
        for name in self.CHECKS['checks']:
            new = {**TWO, 'checks': {key: value for key, value in self.CHECKS['checks'].items() if key != name}}
            ran = self.diff([old], [new])
            self.assertEqual((name in ('exact', 'replay', 'identical'), f'    {name}: not run'),
                             (ran.code == 1, ran.out.splitlines()[1]))
            self.assertEqual(1, self.diff([old], [new], '--strict').code)

    def test_because_a_check_is_skipped_is_a_note(self):
        new = {**TWO, 'checks': {**self.CHECKS['checks'], 'replay': {'outcome': 'skipped', 'text': 'probe: fma differs'}}}
        for code, word, args in (0, 'note      ', []), (1, 'REGRESSION', ['--strict']):
            self.assert_change([{**TWO, **self.CHECKS}], [new], code,
                               f'{word} checks   gqa_av/f/two/normal/gqa on GPU: held -> not held', '    replay: skipped',
                               args=args)

    def test_is_told_by_its_verdict_where_it_is_none(self):
        for verdict in 'SKIP', 'ERROR':
            new = {'id': TWO['id'], 'verdict': verdict, 'reason': 'x'}
            self.assert_change([{**TWO, **self.CHECKS}], [new], 1,
                               f'REGRESSION worse    gqa_av/f/two/normal/gqa: PASS -> {verdict}', '    x')

    def test_cannot_lose_what_a_reduced_file_does_not_have(self):
        self.assertEqual(0, self.diff([self.without('headroom')], [{**TWO, **self.CHECKS}]).code)


class TheSetOfRuns(Diff):
    def test_that_lost_one_is_a_regression(self):
        self.assert_change([TWO], [], 1, 'REGRESSION removed  gqa_av/f/two/normal/gqa on GPU: PASS')

    def test_may_grow_by_what_is_not_bad(self):
        self.assert_change([], [TWO], 0, 'note       added    gqa_av/f/two/normal/gqa on GPU: PASS')
        self.assert_change([], [{**TWO, **BROKEN, 'verdict': 'FAIL'}], 1,
                           'REGRESSION added    gqa_av/f/two/normal/gqa on GPU: FAIL',
                           '    replay: out (0): got 1, replay 2')


class SeveralDevices(Diff):
    def test_are_matched_by_name(self):
        cpu = {**TWO, 'device': 'CPU', 'outputs': ['c' * 32]}
        self.assertEqual(0, self.diff([TWO, cpu], [cpu, TWO]).code)
        self.assert_change([TWO, cpu], [TWO], 1, 'REGRESSION removed  gqa_av/f/two/normal/gqa on CPU: PASS')

    def test_of_one_name_are_matched_in_turn(self):
        twin = {**TWO, 'outputs': ['c' * 32]}
        self.assertEqual(0, self.diff([TWO, twin], [TWO, twin]).code)
        self.assertEqual(1, self.diff([TWO, twin], [TWO]).code)

    def test_may_be_compared_with_one_that_has_no_name(self):
        nameless = {key: value for key, value in TWO.items() if key != 'device'}
        self.assertEqual(0, self.diff([nameless], [TWO]).code)


class Forms(Diff):
    NEW = {**TWO, **BROKEN, 'verdict': 'FAIL', 'outputs': ['d' * 32]}

    def test_in_json_are_one_object(self):
        whole = cli.strict(self.diff([TWO], [self.NEW], '--json').out)
        self.assertEqual((1, 2, 2), (whole['format'], whole['regressions'], whole['new']['runs']))
        self.assertEqual([{'kind': 'worse', 'regression': True, 'id': TWO['id'], 'device': 'GPU', 'old': 'PASS',
                           'new': 'FAIL', 'text': 'replay: out (0): got 1, replay 2'},
                          {'kind': 'outputs', 'regression': True, 'id': TWO['id'], 'device': 'GPU', 'step': 0,
                           'old': 'b' * 32, 'new': 'd' * 32}], whole['changes'])
        self.assertEqual([], cli.strict(self.diff([TWO], [TWO], '--json').out)['changes'])

    def test_in_markdown_are_a_table(self):
        new = {**TWO, 'verdict': 'FAIL', 'checks': {'bound': {'outcome': 'broken', 'text': 'a|b <c>'}}}
        self.assertEqual('''\
**etalon diff**: 1 regressions, 1 changes of 2 runs before, 2 after: 1 worse

| change | run | before | after |
|---|---|---|---|
| **worse** | gqa\\_av/f/two/normal/gqa on GPU<br>bound: a\\|b \\<c\\> | PASS | FAIL |
''', self.diff([TWO], [new], '--markdown').out)
        self.assertEqual('**etalon diff**: 0 regressions, 0 changes of 2 runs before, 2 after\n',
                         self.diff([TWO], [TWO], '--markdown').out)

    def test_in_markdown_end_after_100_rows(self):
        many = [{**TWO, 'id': f'x{i}'} for i in range(120)]
        out = self.diff(many, [], '--markdown').out
        self.assertEqual((100, 'and 20 more'), (out.count('| **removed** |'), out.splitlines()[-1]))


class AFileThatIsNoWholeResultsFile(unittest.TestCase):
    def assert_refused(self, path, sentence):
        for files in ((path, results(ONE, TWO)), (results(ONE, TWO), path)):
            ran = cli.etalon('diff', *files)
            self.assertEqual((2, '', f'etalon: {path}{sentence}\n'), (ran.code, ran.out, ran.err))

    def of(self, text):
        path = cli.fresh() / 'x.jsonl'
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    def test_because_it_is_not_there(self):
        self.assert_refused(cli.fresh() / 'none', ': cannot be read: No such file or directory')

    def test_because_it_is_too_large(self):
        sparse = self.of('{')
        os.truncate(sparse, 2**28 + 1)
        for path, why in ('/dev/zero', 'more than 268435456 bytes'), (sparse, 'has 268435457 bytes, at most 268435456 are read'):
            self.assert_refused(path, f': {why}')
            ran = cli.etalon('run', '--failed', path)
            self.assertEqual((2, '', f'etalon: {path}: {why}\n'), (ran.code, ran.out, ran.err))

    def test_because_it_is_a_folder(self):
        self.assert_refused(cli.fresh(), ': cannot be read: Is a directory')

    def test_because_it_is_empty(self):
        self.assert_refused(self.of(''), ':1: the file is empty')

    def test_because_it_ends_in_the_middle_of_a_line(self):
        self.assert_refused(results(ONE, TWO, end=''), ':3: the file ends in the middle of this line')

    def test_because_the_run_did_not_end(self):
        self.assert_refused(results(ONE), ':2: the file ends after 1 of the 2 runs that its header announces')

    def test_because_a_line_is_no_json(self):
        path = self.of(json.dumps(HEADER) + '\n{"id": "a", "verdict": PASS}\n')
        ran = cli.etalon('diff', path, path)
        self.assertEqual(2, ran.code)
        self.assertRegex(ran.err, '^etalon: ' + re.escape(str(path)) + r':2:24: .*\n$')

    def test_because_it_is_no_results_file(self):
        self.assert_refused(self.of('{"id": "x"}\n'), ':1:1: no results file: its first line has no "format"')
        self.assert_refused(self.of('{"format": 2}\n'), ':1:12: format is 2, this etalon reads 1')
        self.assert_refused(self.of('{"format": 1}\n{"mutant": "x"}\n'),
                            ':2:1: neither a header nor a run: there is no "format" and no "id"')
        self.assert_refused(self.of('{"format": 1}\n{"id": "x"}\n'), ':2:1: a run has no verdict')
        self.assert_refused(self.of('{"format": 1}\n{"id": "x", "verdict": "GOOD"}\n'),
                            ':2:24: verdict is "GOOD", which is none')
        self.assert_refused(self.of('{"format": 1}\n{"id": "x", "verdict": "PASS", "outputs": ["00"]}\n'),
                            ':2:44: a digest has 2 characters, not 32')

    def test_because_a_line_holds_a_nul(self):
        for text in b'{"format": 1}\n{"id": \0"x"}\n{}\n', b'{"format": 1}\n\0\n':
            path = self.of(text)
            ran = cli.etalon('diff', path, path)
            self.assertEqual(2, ran.code)
            self.assertRegex(ran.err, f'^etalon: {re.escape(str(path))}:2:?.*\n$')


class Usage(unittest.TestCase):
    def test_is_told_in_one_line(self):
        for args, line in ((['a'], 'diff takes two results files; see etalon diff --help'),
                           (['a', 'b', 'c'], 'diff takes two results files; see etalon diff --help'),
                           (['a', 'b', '--headroom', '0.5'], '--headroom takes a factor from 1 on, not "0.5"'),
                           (['a', 'b', '--bogus'], '"--bogus" is not what diff takes; see etalon diff --help')):
            ran = cli.etalon('diff', *args)
            self.assertEqual((2, '', f'etalon: {line}\n'), (ran.code, ran.out, ran.err))

    def test_is_shown_by_help(self):
        ran = cli.etalon('diff', '--help')
        self.assertEqual((0, '', 'usage: etalon diff'), (ran.code, ran.err, ran.out[:18]))


class ShardsInOneFile(unittest.TestCase):
    def test_one_after_the_other_are_the_whole_run(self):
        whole, shards = cli.fresh() / 'whole.jsonl', cli.fresh() / 'shards.jsonl'
        self.assertEqual(0, cli.etalon('run', '-t', 'smoke', '-o', whole).code)
        text = ''
        for k in 1, 2, 3:
            self.assertEqual(0, cli.etalon('run', '-t', 'smoke', '--shard', f'{k}/3', '-o', shards).code)
            text += shards.read_text()
        shards.write_text(text)
        ran = cli.etalon('diff', whole, shards)
        self.assertEqual((0, ''), (ran.code, ran.err), ran.out)
        self.assertRegex(ran.out, r'\A0 regressions, 0 changes of (\d+) runs before, \1 after\n\Z')


class TheGoldenResults(unittest.TestCase):
    """results/pocl.jsonl, as .ci/run compares it with a run of tier default; here the runs of one case."""

    CASE = 'gqa_av/llm/smoke/normal/'

    def golden(self):
        header, *lines = (json.loads(line) for line in (cli.ROOT / 'results/pocl.jsonl').read_text().splitlines())
        lines = [line for line in lines if line['id'].startswith(self.CASE)]
        self.assertGreater(len(lines), 1)
        return results(*lines, header={**header, 'runs': len(lines)})

    def diff(self, *args):
        path = cli.fresh() / 'new.jsonl'
        ran = cli.etalon('run', '-k', self.CASE + '*', '-o', path, *args)
        diff = cli.etalon('diff', self.golden(), path)
        self.assertEqual('', diff.err)
        return ran, diff

    def test_are_those_of_the_kernels(self):
        ran, diff = self.diff()
        self.assertEqual((0, 0), (ran.code, diff.code), ran.out + diff.out)

    def test_tell_of_one_bit_of_one_constant_with_case_element_and_digests(self):
        # Partial 1 adds the last, incomplete quad: a sum of the same terms in another order.
        kernels = cli.kernel_folder(('i == 0 && rest > 0', 'i == 1 && rest > 0'))
        old, = re.findall(r'^' + self.CASE + r'gqa (\w+)$', self.listing(self.golden()), re.M)
        ran, diff = self.diff('--port', f'ocl:{kernels}')
        self.assertEqual((1, 1), (ran.code, diff.code))
        self.assertRegex(diff.out, rf'(?m)^REGRESSION worse    {self.CASE}gqa on .*: PASS -> FAIL\n'
                                   r'    replay: out \(query_length 0, q_heads \d+, head_dim \d+\): got ')
        self.assertRegex(diff.out, rf'(?m)^REGRESSION outputs  {self.CASE}gqa on .*: step 0: {old} -> [0-9a-f]{{32}}$')

    def listing(self, path):
        lines = [json.loads(line) for line in path.read_text().splitlines()[1:]]
        return '\n'.join(f'{line["id"]} {line["outputs"][0]}' for line in lines)

    def test_are_made_by_one_command_from_a_run(self):
        run, made = cli.fresh() / 'run.jsonl', cli.fresh() / 'golden.jsonl'
        self.assertEqual(0, cli.etalon('run', '-t', 'smoke', '-o', run).code)
        subprocess.run([cli.ROOT / 'tools/golden', '--from', run, '-o', made], check=True)
        self.assertEqual(0, cli.etalon('diff', made, run).code)
        self.assertNotRegex(made.read_text(), r'"(device|devices|commit|system|program|\w+_ns|\w+_s)":')


if __name__ == '__main__':
    sys.exit(cli.main())
