#!/usr/bin/env python3
"""The manual page and the completions know what etalon --help knows. usage: manual.py ETALON [unittest argument ...]"""
import os
import re
import shutil
import subprocess
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ETALON = Path(sys.argv[1]).resolve()
PAGE = ROOT / 'docs/etalon.1'
TIERS = ['default', 'full', 'smoke']


def run(*args, **env):
    return subprocess.run([str(arg) for arg in args], capture_output=True, text=True, timeout=60, cwd=ROOT,
                          env={**os.environ, 'PATH': f'{ETALON.parent}:{os.environ["PATH"]}', **env})


def options_in(text):
    return set(re.findall(r'(?:^|(?<=[\s|(,]))--?[a-z][a-z-]*', text, re.M))


def help_text(*command):
    done = run(ETALON, *command, '--help')
    assert done.returncode == 0 and not done.stderr
    return done.stdout


def commands():
    return re.findall(r'^(?:usage:|      ) etalon ([a-z]+)', help_text(), re.M)


def operators():
    return [line.split()[0] for line in run(ETALON, 'list', 'operators').stdout.splitlines() if line[0] != ' ']


class ThePage(unittest.TestCase):
    def tagged(self, of_diff):
        """The options that the page explains, of diff or of the rest: those of its tags."""
        before, diff, after = re.fullmatch(r'(.*)^\.SS Options of diff\n(.*?)(^\.S.*)', PAGE.read_text(), re.M | re.S).groups()
        tags = re.findall(r'^\.TP\n(.*)$', diff if of_diff else before + after, re.M)
        return options_in('\n'.join(re.sub(r'\\f.|"|^\.\w+ ', '', tag).replace('\\-', '-') for tag in tags))

    def test_explains_the_options_of_the_help_and_no_others(self):
        self.assertEqual(sorted(options_in(help_text())), sorted(self.tagged(of_diff=False)))
        self.assertEqual(sorted(options_in(help_text('diff'))), sorted(self.tagged(of_diff=True)))

    def test_names_the_commands_of_the_help_and_no_others(self):
        self.assertEqual(sorted(commands()),
                         sorted(set(re.findall(r'^\.B etalon ([a-z]+)$', PAGE.read_text(), re.M))))

    @unittest.skipUnless(shutil.which('mandoc'), 'no mandoc')
    def test_is_clean_for_mandoc(self):
        done = run('mandoc', '-T', 'lint', '-W', 'warning', PAGE)
        self.assertEqual((0, ''), (done.returncode, done.stdout + done.stderr))

    @unittest.skipUnless(shutil.which('man') and shutil.which('groff'), 'no man with groff')
    def test_is_clean_for_man(self):
        done = run('man', '--warnings', '-E', 'UTF-8', '-l', '-Tutf8', PAGE, MANWIDTH='100')
        self.assertEqual((0, ''), (done.returncode, done.stderr))
        self.assertIn('measurement standard', done.stdout)


BASH = '''
source completions/etalon.bash
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_etalon
printf '%s\\n' "${COMPREPLY[@]}"
'''
# The words that are offered, of which compadd and _files, known within zsh's completion only, are told.
ZSH = '''
compadd() {
    [[ $1 == -S ]] && shift 2
    if [[ $1 == -a ]]; then print -l -- ${(P)2}; else print -l -- $@; fi
}
_files() { print -l files $@ }
words=("$@") CURRENT=$#
source completions/_etalon
'''


class Completion:
    """Of bash or zsh: complete(words) gives what may stand in place of the last word."""

    def test_offers_the_options_of_the_help_of_the_command_and_no_others(self):
        for command in commands():
            self.assertEqual(sorted(options_in(help_text(command))), sorted(self.complete('etalon', command, '-')))
        self.assertIn('--markdown', self.complete('etalon', 'diff', '-'))
        self.assertNotIn('--markdown', self.complete('etalon', 'run', '-'))

    def test_offers_the_commands(self):
        self.assertEqual(sorted([*commands(), '--help', '--version']), sorted(self.complete('etalon', '')))

    def test_offers_what_an_option_takes(self):
        self.assertEqual(TIERS, sorted(self.complete('etalon', 'run', '--tier', '')))
        self.assertEqual(TIERS, sorted(self.complete('etalon', 'run', '-t', '')))
        self.assertEqual(['off', 'on'], sorted(self.complete('etalon', 'run', '--guards', '')))
        self.assertEqual(operators(), self.complete('etalon', 'run', '--operator', ''))
        self.assertIn('per_head', self.complete('etalon', 'run', '--variant', ''))

    def test_offers_what_a_command_takes(self):
        self.assertEqual(['devices', 'models', 'operators'], sorted(self.complete('etalon', 'list', '')))
        self.assertEqual(operators(), self.complete('etalon', 'describe', ''))


@unittest.skipUnless(shutil.which('bash'), 'no bash')
class Bash(Completion, unittest.TestCase):
    def complete(self, *words):
        done = run('bash', '-c', BASH, 'bash', *words)
        self.assertEqual((0, ''), (done.returncode, done.stderr))
        return done.stdout.split()

    def test_offers_only_what_begins_like_the_word(self):
        self.assertEqual(['--tier', '--timeout'], self.complete('etalon', 'run', '--ti'))
        self.assertEqual(['smoke'], self.complete('etalon', 'run', '--tier', 's'))

    def test_offers_files_elsewhere(self):
        self.assertEqual(['README.md'], self.complete('etalon', 'run', 'READ'))
        for option in '--junit', '--failed', '--known', '-o', '--results':
            self.assertEqual(['README.md'], self.complete('etalon', 'run', option, 'READ'))
        for option in '--skeleton', '--keep', '--binaries', '--outputs':
            self.assertEqual(['docs'], self.complete('etalon', 'describe', option, 'do'))


@unittest.skipUnless(shutil.which('zsh'), 'no zsh')
class Zsh(Completion, unittest.TestCase):
    def complete(self, *words):
        done = run('zsh', '-f', '-c', ZSH, 'zsh', *words)
        self.assertEqual((0, ''), (done.returncode, done.stderr))
        return done.stdout.split()

    def test_offers_files_elsewhere(self):
        self.assertEqual(['files'], self.complete('etalon', 'run', 'READ'))
        for option in '--junit', '--failed', '--known', '-o', '--results':
            self.assertEqual(['files'], self.complete('etalon', 'run', option, '-'))
        for option in '--skeleton', '--keep', '--binaries', '--outputs':
            self.assertEqual(['files', '-/'], self.complete('etalon', 'describe', option, 'do'))


if __name__ == '__main__':
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
