#!/usr/bin/env python3
"""What the pages show is what the commands print. Usage, skipping and exit status: as of cli.py.

A block that begins with `$ etalon ...` is run in a folder that has the page's JSON blocks, each under the name that stands
before it. In the block `...` stands for the rest of a line, or for any lines.
"""
import json
import re
import shlex
import shutil
import sys
import unittest

import cli

CHECKS = cli.ROOT / 'docs/checks.md'
README = cli.ROOT / 'README.md'


def blocks(page):
    """(language, text, what stands between it and the block before) of each."""
    parts = re.split(r'^```(.*)\n', page.read_text(), flags=re.M)
    # before, language, text, '' of the closing fence, between, ...
    return [(parts[i + 1], parts[i + 2], parts[i]) for i in range(0, len(parts) - 1, 4)]


def named_files(page):
    """{name: document} of the JSON blocks that a NAME.json stands before."""
    return {names[-1]: json.loads(text) for language, text, before in blocks(page)
            if language == 'json' and (names := re.findall(r'\b([\w-]+\.json)', before))}


def pattern(lines):
    """Of the whole output."""
    made = ''
    for line in lines:
        made += r'(?:.*\n)*?' if line.strip() == '...' else re.escape(line).replace(re.escape('...'), '.*') + r'\n'
    return made


class TheWorkedExample(unittest.TestCase):
    def test_prints_what_the_page_shows(self):
        folder = cli.fresh()
        files = named_files(CHECKS)
        files['why-default.json'] = json.loads(json.dumps(files['why.json']))
        del files['why-default.json']['cases'][0]['checks']
        for name, document in files.items():
            (folder / name).write_text(json.dumps(document))
        run = [text.splitlines() for _, text, _ in blocks(CHECKS) if text.startswith('$ etalon ')]
        self.assertEqual(4, len(run))
        for command, *shown in run:
            ran = cli.etalon(*shlex.split(command)[2:], cwd=folder)
            self.assertRegex(ran.out, r'\A' + pattern(shown) + r'(?:.*\n)*\Z', command)


class TheReadme(unittest.TestCase):
    def commands(self):
        text = next(text for _, text, before in blocks(README) if '\n## The ten commonest things\n' in before)
        return [re.split(r'  +', line, maxsplit=1) for line in text.splitlines()]

    def test_has_ten_commands(self):
        commands = self.commands()
        self.assertEqual(10, len(commands))
        for command, what in commands:
            self.assertTrue(command.startswith('etalon ') and what, command)

    def test_has_commands_that_work(self):
        folder = cli.fresh()
        (folder / 'my_case.json').write_text(json.dumps(
            {'format': 1, 'operator': 'gqa_av', 'cases': [
                {'name': 'a', 'params': {'q_heads': 8, 'kv_heads': 2, 'head_dim': 64, 'context': 257}}]}))
        (folder / 'known.txt').write_text('')
        for name in 'results.jsonl', 'new.jsonl':
            shutil.copyfile(cli.ROOT / 'results/pocl.jsonl', folder / name)
        for command, _ in self.commands():
            words = shlex.split(command)[1:]
            # Whole tiers run elsewhere; here it is the command that is looked at.
            dry = ['--dry-run'] if words[0] == 'run' and '--dry-run' not in words else []
            ran = cli.etalon(*words, *dry, cwd=folder)
            self.assertEqual(0, ran.code, f'{command}: {ran.err}')
            self.assertTrue(ran.out, command)


if __name__ == '__main__':
    sys.exit(cli.main())
