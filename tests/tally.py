#!/usr/bin/env python3
"""tools/tally, on PTX written by hand. usage: tally.py [unittest argument ...]"""
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEAD = '//\n// Generated\n.version 8.4\n.target sm_90\n.address_size 64\n'
# 5 exchanges, one of them predicated, in a block of its own; a comment and a declaration that count for nothing.
TREE = '''
.func (.param .b32 back) helper (.param .b32 x)
;
.entry skinny_gemm_sml(
    .param .u64 .ptr .global .align 2 weight,
    .param .u64 lanes
)
.maxntid 1024, 1, 1
{
    .reg .f32 %f<9>;
    bar.sync 0;
    ld.shared.v4.u32 {%r1, %r2, %r3, %r4}, [%rd1];
    st.volatile.shared.f32 [%rd2], %f1;
    fma.rn.f32 %f1, %f2, %f3, %f1; // fma.rn.f32
    /* shfl.sync.bfly.b32 */
    {
    // begin inline asm
    shfl.sync.bfly.b32 %f2, %f1, 8, 0x1f, 0xffffffff;
    // end inline asm
    }
    shfl.sync.bfly.b32 %f2, %f1, 4, 0x1f, 0xffffffff;
    shfl.sync.bfly.b32 %f2, %f1, 2, 0x1f, 0xffffffff;
$L__BB0_3:
    .loc 1 2 3
    shfl.sync.bfly.b32 %f2, %f1, 1, 0x1f, 0xffffffff;
    @%p1 shfl.sync.bfly.b32 %f2, %f1, %r9, 0x1f, 0xffffffff;
    @!%p1 bar.sync 0;
    ret;
}
'''
# A kernel whose arithmetic is in a function that it calls twice.
CALLS = '''
.func  (.param .b32 back) store_sum(
    .param .b32 x
)
{
    ld.local.v2.f32 {%f1, %f2}, [%rd3];
    fma.rn.ftz.f32 %f1, %f2, %f3, %f1;
    ld.shared.f32 %f4, [%rd1];
    ret;
}
.visible .entry skinny_gemm_naive(
    .param .u64 lanes
)
{
    { // callseq 0
    call.uni (retval0),
    store_sum,
    (
    param0
    );
    }
    @%p2 call (retval0), store_sum, (param0);
    fma.rn.f64 %fd1, %fd2, %fd3, %fd1;
    ret;
}
'''


class Tally(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = Path(scratch.name)

    def program(self, name, text, options):
        (self.folder / f'{name}@0:0.bin').write_bytes(text.encode() + b'\0')
        (self.folder / f'{name}@0:0.txt').write_text(f'skinny_gemm.cl -cl-std=CL1.2 -D OUT_DTYPE=f32 {options}\n')

    def tally(self, *options):
        done = subprocess.run([ROOT / 'tools/tally', self.folder, *options], capture_output=True, text=True)
        return done.returncode, done.stdout.splitlines(), done.stderr

    def test_counts_the_instructions_of_kernels_by_chunk_and_tail(self):
        ptx = HEAD + TREE + CALLS
        self.program('a', ptx, '-D YTILE=1 -D TOKENS=1 -D A_CHUNK=8 -D TAIL=2')
        self.program('b', HEAD + CALLS, '-D YTILE=1 -D TOKENS=1 -D A_CHUNK=16')
        code, out, _ = self.tally()
        self.assertEqual(['| file | A_CHUNK | TAIL | kernels | shfl.sync | bar.sync | ld.shared | st.shared | ld.local | fma.rn.f32 |',
                          '|---|---|---|---|---|---|---|---|---|---|',
                          # sml: 5, 2, 1, 1, 0, 1; naive with what it calls, counted once: 0, 0, 1, 0, 1, 1
                          '| skinny_gemm | 8 | 2 | 2 | 5 | 2 | 2 | 1 | 1 | 2 |',
                          '| skinny_gemm | 16 | - | 1 | 0 | 0 | 1 | 0 | 1 | 1 |'], out[:4])
        self.assertEqual((0, ['', 'tail local: holds of 1 of 1 kernels', 'tail vendor: holds of 2 of 2 kernels']), (code, out[4:]))

    def test_counts_each_kernel(self):
        self.program('a', HEAD + TREE + CALLS, '-D YTILE=1 -D TOKENS=1 -D A_CHUNK=8 -D TAIL=2')
        out = self.tally('--each')[1]
        self.assertIn('| skinny_gemm_naive | 8 | 2 | 1 | 1 | - | - | 0 | 0 | 1 | 0 | 1 | 1 |', out)
        self.assertIn('| skinny_gemm_sml | 8 | 2 | 1 | 1 | - | - | 5 | 2 | 1 | 1 | 0 | 1 |', out)

    def test_fails_of_a_tail_with_too_few_exchanges_or_with_any_where_none_is_due(self):
        self.program('a', HEAD + TREE, '-D YTILE=2 -D TOKENS=3 -D A_CHUNK=8 -D TAIL=2')
        self.program('c', HEAD + TREE.replace('shfl.sync', 'mov', 4), '-D YTILE=2 -D TOKENS=3 -D A_CHUNK=8 -D TAIL=2')
        self.program('b', HEAD + TREE, '-D YTILE=1 -D TOKENS=1 -D A_CHUNK=8')
        code, out, _ = self.tally()
        self.assertEqual(1, code)
        self.assertIn('    skinny_gemm_sml, YTILE=2 TOKENS=3 A_CHUNK=8 TAIL=2: 2 shfl.sync, must be 5 for each of 1 to 6 sums', out)
        self.assertIn('tail vendor: holds of 1 of 2 kernels', out)
        self.assertIn('    skinny_gemm_sml, YTILE=1 TOKENS=1 A_CHUNK=8: 5 shfl.sync, must be none', out)

    def test_says_where_there_is_no_PTX(self):
        self.program('a', 'poclbin', '-D YTILE=1')
        self.assertEqual((2, [], f'tally: {self.folder} has no PTX; 1 programs of other kinds\n'), self.tally())


if __name__ == '__main__':
    unittest.main()
