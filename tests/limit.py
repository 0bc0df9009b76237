#!/usr/bin/env python3
"""--limit, a smaller device in place of the one there is. Usage, skipping and exit status: as of cli.py."""
import sys
import unittest

import cli

SMALL = {'params': {'q_heads': 6, 'kv_heads': 2, 'head_dim': 8, 'context': 10}}
# After its work per_head stores the number of its items in the first output.
COUNTS_ITEMS = ('\n}\n\nkernel void gqa_av_gqa(', '''
    if (head == 0 && get_group_id(0) == 0 && get_local_id(0) == 0)
        out[out_at] = (float)get_local_size(0);
}

kernel void gqa_av_gqa(''')

# Items take every 64th partial, as if there were always 64 of them.
ASSUMES_64 = ('i < PARTIALS; i += get_local_size(0)) {', 'i < PARTIALS; i += 64) {')
CAP = 'gqa_av/teeth/halves/normal/gqa_tile2'  # groups of 8: 2 quads of outputs x 8 heads x 64 partials x 16 bytes


def small(variant, *args):
    return cli.judged(cli.case_file('s', {'name': 'small', **SMALL, 'variants': [variant]}), *args)


def outputs(ran):
    return {id: line.get('outputs') for id, line in ran.of.items()}


class ALimit(unittest.TestCase):
    def assert_passes(self, ran):
        self.assertEqual(0, ran.code, ran.out + ran.err)
        self.assertEqual({'PASS'}, set(ran.verdicts().values()))

    def test_of_the_work_group_changes_no_bytes(self):
        whole = cli.judged('--tier', 'smoke')
        self.assert_passes(whole)
        for items in 1, 2, 3, 5, 31:
            limited = cli.judged('--tier', 'smoke', '--limit', f'work_group={items}')
            self.assert_passes(limited)
            self.assertEqual(outputs(whole), outputs(limited), items)

    def test_of_what_the_smallest_devices_have_leaves_the_default_tier_whole(self):
        ran = cli.judged('--limit', 'work_group=64,local_memory=16K')
        self.assertEqual(0, ran.code, ran.out + ran.err)
        self.assertEqual({'PASS', 'SKIP'}, set(ran.verdicts().values()))
        for id, line in ran.of.items():
            if line['verdict'] == 'SKIP':
                # The one kernel that needs all of act in local memory, and the tails that a device may lack.
                self.assertRegex(id, r'^skinny_gemm/.*/(sml(:.*)?|mid:tail=\w+)$')
                self.assertRegex(line['reason'], r'^(a group takes \d+ bytes of local memory, the device has 16384'
                                                 r'|tail \w+ takes exchanges over 32 lanes, the device has them over 0)$')
        judged = {id: line['checks'] for id, line in ran.of.items() if 'outputs' in line}
        self.assertGreater(len(judged), 1000)

        def lacking(check, operator):
            return [id for id, checks in judged.items()
                    if id.startswith(operator) and checks.get(check, {}).get('outcome') != 'held']
        # No run but has bytes to be compared with: of the replay, and of another variant or a twin where there can be one.
        self.assertEqual([], lacking('replay', ''))
        self.assertEqual([], lacking('identical', 'gqa_av/'))

    def test_of_the_work_group_is_how_many_items_a_kernel_has(self):
        port = f'--port=ocl:{cli.kernel_folder(COUNTS_ITEMS)}'
        for limits, got in ((), '64 (0x42800000)'), (('--limit', 'work_group=31'), '31 (0x41f80000)'):
            ran = small('per_head', port, *limits)
            line = ran.of['gqa_av/s/small/normal/per_head']
            self.assertIn(f'got {got}, want ', cli.broken(line)['bound'])

    def test_of_local_memory_skips_what_needs_more(self):
        ran = small('gqa', '--limit', 'local_memory=3071')
        self.assertEqual(3, ran.code)
        self.assertEqual('a group takes 3072 bytes of local memory, the device has 3071',
                         ran.of['gqa_av/s/small/normal/gqa']['reason'])
        self.assert_passes(small('gqa', '--limit', 'local_memory=3K'))

    def test_of_local_memory_that_the_smallest_devices_have_is_all_needed(self):
        for limit, verdict in (16384, 'PASS'), (16383, 'SKIP'):
            ran = cli.judged('-k', 'gqa_av/*', '--variant', 'gqa_tile2', '--limit', f'local_memory={limit}')
            self.assertEqual(verdict, ran.verdicts()[CAP])
            skipped = {line['reason'] for line in ran.of.values() if line['verdict'] == 'SKIP'}
            self.assertEqual(set() if limit == 16384 else
                             {'a group takes 16384 bytes of local memory, the device has 16383'}, skipped)

    def test_of_the_work_group_shows_a_kernel_that_assumes_64_items(self):
        tail = '-k', 'gqa_av/teeth/tail/*', f'--port=ocl:{cli.kernel_folder(ASSUMES_64)}'
        self.assert_passes(cli.judged(*tail))
        for items in 31, 1:
            limited = cli.judged(*tail, '--limit', f'work_group={items}')
            self.assertEqual(1, limited.code, limited.out)
            self.assertIn('bound', cli.broken(limited.of['gqa_av/teeth/tail/normal/per_head']))

    def test_of_a_buffer_skips_what_needs_more(self):
        # w is [6, align4(1), align4(10)] in f32: 6 * 4 * 12 * 4 bytes; v is 10 * 2 * 8 * 4 = 640.
        ran = small('per_head', '--limit', 'alloc=1151')
        self.assertEqual(3, ran.code)
        self.assertIn('0 passed, 0 failed, 1 skipped (1 w is 1152 bytes, the device allocates 1151 at most)', ran.out)
        self.assertTrue(ran.err.startswith('etalon: nothing could be judged\n'), ran.err)

    def test_of_a_buffer_counts_its_guards(self):
        # 1152 bytes as above, between two of 4096.
        ran = small('per_head', '--limit', 'alloc=4K')
        self.assertEqual('w is 9344 bytes, the device allocates 4096 at most',
                         ran.of['gqa_av/s/small/normal/per_head']['reason'])
        self.assert_passes(small('per_head', '--limit', 'alloc=4K', '--guards', 'off'))

    def test_above_the_devices_own_changes_nothing(self):
        whole = small('per_head')
        limited = small('per_head', '--limit', 'work_group=1M,local_memory=1024G,alloc=1024G')
        self.assertEqual(whole.header['devices'], limited.header['devices'])
        self.assertEqual(outputs(whole), outputs(limited))

    def test_is_in_the_results_and_in_reproduce_lines(self):
        limit = 'work_group=31,local_memory=16K,alloc=1M,no_subgroups'
        ran = small('per_head', f'--port=ocl:{cli.kernel_folder(COUNTS_ITEMS)}', '--limit', limit)
        self.assertIn(f' --limit {limit}', ran.header['command'])
        self.assertIn(f' --limit {limit}', ran.out.splitlines()[-2])
        device = ran.header['devices'][0]
        self.assertEqual((31, 16384, 1048576),
                         (device['work_group'], device['local_memory'], device['allocation']))

    def test_that_makes_no_sense_is_refused_in_one_line(self):
        for limit in (',', 'work_group', 'work_group=', 'work_group=0', 'work_group=-1', 'work_group=+1',
                      'work_group= 1', 'work_group=1T', 'work_group=1KK', 'work_group=1 ', 'work_group=1,',
                      ',work_group=1', 'work_group=1,,alloc=1', 'work_group=1,work_group=2', 'local_memory=16k',
                      'alloc=9007199254740992', 'alloc=9007199254740991K', 'alloc=99999999999999999999',
                      'subgroups', 'no_subgroups=1', 'no_subgroups,no_subgroups', 'units=2'):
            ran = cli.etalon('run', '--limit', limit)
            self.assertEqual((2, ''), (ran.code, ran.out), limit)
            self.assertEqual(f'etalon: "{limit}" is not what --limit takes; see etalon --help\n', ran.err)


if __name__ == '__main__':
    sys.exit(cli.main())
