#!/usr/bin/env python3
"""The schema of case files and etalon's reader accept and refuse alike. usage: schema.py ETALON [unittest argument ...]

Exit status: 0, 1, or 77 where python3-jsonschema is missing.
"""
import copy
import json
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import built

try:
    from jsonschema import Draft202012Validator
except ImportError:
    print('skipped: no python3-jsonschema with draft 2020-12')
    sys.exit(77)

ROOT = Path(__file__).resolve().parent.parent
ETALON = str(Path(sys.argv[1]).resolve())
SCHEMA = ROOT / 'cases/case.schema.json'

# How the reader says that a key is none of those that may stand there.
UNKNOWN = re.compile(r' has no (?:param |tensor |dimension |knob )?"|cannot be swept|for cases, not for defaults|'
                     r'there is no tier|only inputs share memory|, and .* is not one|so it has no limit')


def read(path):
    """The reader's sentence, or '' where it accepts."""
    done = subprocess.run([ETALON, 'run', path, '--dry-run'], capture_output=True, text=True, timeout=60)
    assert done.returncode in (0, 2), done.stderr
    return done.stderr.split(': ', 2)[-1].strip() if done.returncode else ''


def objects(value, path=()):
    """Every object in a value, with its path."""
    if isinstance(value, dict):
        yield path, value
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from objects(inner, (*path, key))


def leaves(errors):
    for error in errors:
        yield error
        yield from leaves(error.context)


def at(value, path):
    for key in path:
        value = value[key]
    return value


def edited(value, path, new):
    made = copy.deepcopy(value)
    at(made, path[:-1])[path[-1]] = new
    return made


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.path = Path(cls.folder.name) / 'made.json'
        cls.schema = Draft202012Validator(json.loads(SCHEMA.read_text()))
        cls.files = {}
        for op in built.operators(ETALON):
            about = built.described(ETALON, op)
            size = built.a_file_that_fits(ETALON, about, cls.path)
            cls.files[op] = about, size, json.loads(cls.path.read_text())

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def reader(self, document):
        self.path.write_text(json.dumps(document))
        return read(self.path)


class TheSchema(Case):
    def test_that_is_committed_is_what_describe_prints(self):
        self.assertEqual(SCHEMA.read_text(), built.output(ETALON, 'describe', '--schema'),
                         'etalon describe --schema >cases/case.schema.json')

    def test_is_a_schema_and_so_is_that_of_each_operator(self):
        Draft202012Validator.check_schema(self.schema.schema)
        for op in self.files:
            schema = json.loads(built.output(ETALON, 'describe', op, '--schema'))
            Draft202012Validator.check_schema(schema)
            self.assertEqual([op], schema['properties']['operator']['enum'])
            self.assertTrue(Draft202012Validator(schema).is_valid(self.files[op][2]))

    def test_accepts_every_committed_case_file(self):
        paths = [path for path in (ROOT / 'cases').rglob('*.json') if path.name not in ('models.json', SCHEMA.name)]
        self.assertTrue(paths)
        for path in paths:
            errors = [f'{error.json_path}: {error.message}'
                      for error in self.schema.iter_errors(json.loads(path.read_text()))]
            self.assertEqual([], errors, path)

    def test_accepts_the_examples_of_the_page_that_the_reader_accepts(self):
        blocks = re.findall(r'^```json\n(.*?)^```', (ROOT / 'docs/cases.md').read_text(), re.M | re.S)
        examples = [json.loads(block) for block in blocks]
        examples = [example for example in examples if 'operator' in example]
        self.assertGreater(len(examples), 4)
        for example in examples:
            self.assertEqual('', self.reader(example), example)
            self.assertEqual([], [error.message for error in self.schema.iter_errors(example)])

    def test_accepts_a_case_of_everything(self):
        for about, _, document in self.files.values():
            self.assertEqual([], [error.message for error in self.schema.iter_errors(document)])

    def test_knows_the_same_keys_everywhere_as_the_reader(self):
        """Each key of the whole format, put into each object of a case of everything."""
        for about, size, document in self.files.values():
            document = copy.deepcopy(document)
            case = document['cases'][0]
            output = next(tensor['name'] for tensor in about['tensors'] if tensor['role'] == 'output')
            case['expect'] = {output: {'constant': 0, 'atol': 1}}
            case['data'] = {next(iter(case['steps'][1]['data'])): {'constant': 0}}
            # What is not merged stands in one place: where the case has its own, the default would not be read.
            merged = {'params', 'dtypes', 'layout', 'data', 'checks', 'limit'}
            own = {'name', 'note', 'shapes', 'steps', 'expect'}
            document['defaults'] = {key: value for key, value in case.items() if key not in own}
            document['cases'] = [{key: value for key, value in case.items() if key in own | merged}]
            self.assertEqual('', self.reader(document))
            self.assertTrue(self.schema.is_valid(document))
            words = {key for _, value in objects(self.schema.schema) for key in value.get('properties', ())}
            words |= {'values', 'fill', 'nothing'}
            names = {tensor['name'] for tensor in about['tensors']}
            numbers = {param['name'] for param in about['params'] if param['type'] in ('int', 'real')}
            places, asked = set(), 0
            for path, value in objects(document):
                # Once each: what is merged stands in the defaults too, and tensors are alike.
                place = tuple('tensor' if key in names else key for key in path if key not in ('defaults', 'cases', 0))
                if 'variants' in path or (place in places and place):
                    continue
                places.add(place)
                others = words - set(value)
                if 'limit' in path:
                    others -= {param['name'] for param in about['params']} - numbers  # their type is looked at first
                wrong = edited(document, path, {**value, **dict.fromkeys(others)}) if path else {
                    **document, **dict.fromkeys(others)}
                unknown = ' '.join(error.message for error in leaves(self.schema.iter_errors(wrong))
                                   if error.validator == 'additionalProperties')
                for word in sorted(others):
                    sentence = self.reader(edited(document, (*path, word), None))
                    # null is no value of any key
                    self.assertTrue(sentence, (path, word))
                    self.assertEqual(f"'{word}'" in unknown, bool(UNKNOWN.search(sentence)), (path, word, sentence))
                    asked += 1
            self.assertGreater(asked, 500)


def damages(about, document):
    """(what, damaged file) of everything wrong that a schema can say."""
    case = document['cases'][0]
    tensor = about['tensors'][0]
    inner = tensor['dims'][-1]
    field = next(param for param in about['params'] if param['type'] == 'int')
    source = next(iter(case['steps'][1]['data']))
    output = next(t['name'] for t in about['tensors'] if t['role'] == 'output')

    def inside(*path, new):
        return edited(document, ('cases', 0, *path), new)

    def without(*path):
        made = copy.deepcopy(document)
        del at(made, path[:-1])[path[-1]]
        return made

    yield 'no format', without('format')
    yield 'format 2', {**document, 'format': 2}
    yield 'format as text', {**document, 'format': '1'}
    yield 'no operator', without('operator')
    yield 'another operator', {**document, 'operator': about['operator'] + '_'}
    yield 'no cases', without('cases')
    yield 'an empty list of cases', {**document, 'cases': []}
    yield 'cases as an object', {**document, 'cases': {'a': case}}
    yield 'a note that is a number', {**document, 'note': 1}
    yield 'a key of the file', {**document, 'case': []}
    yield 'defaults with a name', {**document, 'defaults': {'name': 'a'}}
    yield 'defaults with steps', {**document, 'defaults': {'steps': [{}]}}
    yield 'no name', without('cases', 0, 'name')
    yield 'a name with a space', inside('name', new='a b')
    yield 'a name that begins with a dot', inside('name', new='.a')
    yield 'an origin that is none', inside('origin', new=['owner/repo'])
    yield 'an empty origin', inside('origin', new=[])
    yield 'another tier', inside('tier', new='fast')
    yield 'bench as a number', inside('bench', new=1)
    yield 'a model that is a number', inside('model', new=7)
    yield 'tp 0', inside('tp', new=0)
    yield 'a negative seed', inside('seed', new=-1)
    yield 'a seed of 2^53', inside('seed', new=2**53)
    yield 'another poison', inside('poison', new='zero')
    yield 'rows 0', inside('rows', new=0)
    yield 'rows as another word', inside('rows', new='some')
    yield 'a param that is text', inside('params', field['name'], new='4')
    yield 'a param that is half', inside('params', field['name'], new=1.5)
    yield 'a param below its range', inside('params', field['name'], new=field['min'] - 1)
    yield 'a param of a shape below its range', inside('shapes', 0, field['name'], new=field['min'] - 1)
    yield 'a param of a step below its range', inside('steps', 0, new={'params': {field['name']: field['min'] - 1}})
    yield 'a swept param below its range', inside('sweep', field['name'], new=[field['min'] - 1])
    yield 'a label with a slash', inside('shapes', 0, 'label', new='a/b')
    yield 'an empty list of shapes', inside('shapes', new=[])
    yield 'a sweep of rows', inside('sweep', 'rows', new=[1])
    yield 'a sweep of nothing', inside('sweep', 'tp', new=[])
    yield 'a sweep of one value', inside('sweep', 'poison', new='nan')
    yield 'a type that there is not', inside('layout', new={}) | {'defaults': {'dtypes': {tensor['name']: 'f31'}}}
    yield 'a tensor that there is not', inside('layout', 'no', new={})
    yield 'a pad of one side', inside('layout', tensor['name'], 'pad', inner, new=[1])
    yield 'a negative pad', inside('layout', tensor['name'], 'pad', inner, new=[-1, 0])
    yield 'an order that is short', inside('layout', tensor['name'], 'order', new=tensor['dims'][1:])
    yield 'an order with a dimension twice', inside('layout', tensor['name'], 'order', new=[inner] * (len(tensor['dims']) + 1))
    yield 'a view of an output', inside('layout', new={source: {'view_of': output}})
    yield 'a view of itself', inside('layout', new={source: {'view_of': source}})
    yield 'an output that is a view', inside('layout', new={output: {'view_of': source}})
    yield 'a view that is shifted', inside('layout', new={source: {'view_of': tensor['name'], 'shift': 1}})
    yield 'a buffer of an output', inside('layout', new={output: {'buffer': 'cache'}})
    yield 'a buffer without a name', inside('layout', new={source: {'buffer': 1}})
    yield 'a shift backwards', inside('layout', tensor['name'], 'shift', new=-1)
    yield 'an empty list of fills', inside('fills', new=[])
    yield 'a fill that there is not', inside('fills', new=['gaussian'])
    yield 'a fill twice', inside('fills', new=['normal', 'normal'])
    yield 'the fill constant for a run', inside('fills', new=['constant'])
    yield 'data of an output', inside('data', new={output: {'constant': 0}})
    yield 'data from two sources', inside('data', new={source: {'constant': 0, 'values': [1]}})
    yield 'data from no source', inside('data', new={source: {'seed': 1}})
    yield 'a constant that is another word', inside('data', new={source: {'constant': 'infinity'}})
    yield 'an empty list of values', inside('data', new={source: {'values': []}})
    yield 'a fill constant without a value', inside('data', new={source: {'fill': 'constant'}})
    yield 'a value of another fill', inside('data', new={source: {'fill': 'normal', 'value': 1}})
    yield 'a seed of a constant', inside('data', new={source: {'constant': 1, 'seed': 1}})
    yield 'a file without a tensor', inside('data', new={source: {'file': 'a.safetensors'}})
    yield 'a tensor without a file', inside('data', new={source: {'fill': 'normal', 'tensor': 'a'}})
    yield 'expect of an input', inside('expect', new={source: {'constant': 0}})
    yield 'expect with a fill', inside('expect', new={output: {'fill': 'normal'}})
    yield 'a negative atol', inside('expect', new={output: {'constant': 0, 'atol': -1}})
    yield 'an atol of nan', inside('expect', new={output: {'constant': 0, 'atol': 'nan'}})
    yield 'expect with both', inside('expect', new={'refused': 'no', output: {'constant': 0}})
    yield 'an empty sentence', inside('expect', new={'refused': ''})
    yield 'a step that expects a refusal', inside('steps', 0, new={'expect': {'refused': 'no'}})
    yield 'no steps', inside('steps', new=[])
    yield 'a step with a seed', inside('steps', 0, new={'seed': 1})
    yield 'a twin of nothing', inside('twins', new=[{}])
    yield 'no twins', inside('twins', new=[])
    yield 'a twin with a seed', inside('twins', new=[{'seed': 1}])
    yield 'a variant that there is not', inside('variants', new=['none'])
    yield 'no variants', inside('variants', new=[])
    yield 'a variant without a name', inside('variants', new=[{}])
    yield 'a knob that there is not', inside('variants', new=[{'name': about['variants'][0]['name'], 'no': 1}])
    yield 'a variant twice', inside('variants', new=[about['variants'][0]['name']] * 2)
    for variant in about['variants']:
        for knob in variant['knobs']:
            if knob['type'] == 'int':
                yield f'{knob["name"]} beyond its range', inside(
                    'variants', new=[{'name': variant['name'], knob['name']: knob['max'] + 1}])
            yield f'no {knob["name"]}', inside('variants', new=[{'name': variant['name'], knob['name']: []}])
    yield 'a cap in a tier that there is not', inside('limit', 'fast', new={})
    yield 'a cap that is text', inside('limit', 'smoke', field['name'], new='4')
    yield 'a check that there is not', inside('checks', 'rmse', new=1)
    yield 'a negative limit', inside('checks', 'bound', new=-1)
    yield 'a limit of true', inside('checks', 'bound', new=True)
    yield 'a switch that is a number', inside('checks', 'replay', new=0)
    yield 'repeat 0', inside('checks', 'repeat', new=0)
    yield 'repeat 1001', inside('checks', 'repeat', new=1001)
    yield 'allclose without rtol', inside('checks', 'allclose', new={'atol': 1})
    yield 'allclose of true', inside('checks', 'allclose', new=True)
    for path, value in objects(document):
        if path and path[-1] not in ('cases',):
            yield f'null at {path}', edited(document, path, None)


PAGE = ROOT / 'docs/cases.md'
BASE = {'q_heads': 8, 'kv_heads': 8, 'head_dim': 64, 'context': 3}


class ThePage(Case):
    """docs/cases.md against the schema and the reader. Its examples are of gqa_av."""

    def keys(self):
        """Of the format alone: not those that an operator gives."""
        theirs = set()
        for about, _, _ in self.files.values():
            theirs |= {entry['name'] for entry in (*about['params'], *about['tensors'])}
            theirs |= {dim for tensor in about['tensors'] for dim in tensor['dims']}
            theirs |= {knob['name'] for variant in about['variants'] for knob in variant['knobs']}
        found = {key for _, value in objects(self.schema.schema) for key in value.get('properties', ())}
        return found - theirs

    def rows(self, *columns):
        """Rows of the tables with these columns: {column: cell}, by key."""
        rows, here = {}, False
        for line in PAGE.read_text().splitlines():
            cells = [cell.strip() for cell in re.split(r'(?<!\\)\|', line)[1:-1]]
            if not cells:
                here = False
            elif cells == list(columns):
                here = True
            elif here and not line.startswith('|--'):
                self.assertEqual(len(columns), len(cells), line)
                for key in cells[0].split(', '):
                    self.assertNotIn(key, rows)
                    rows[key] = dict(zip(columns, cells))
        self.assertTrue(rows, columns)
        return rows

    def accepted(self, document):
        (Path(self.folder.name) / 'models.json').write_text(json.dumps(self.example_models()))
        self.assertEqual('', self.reader(document), document)
        self.assertEqual([], [error.message for error in self.schema.iter_errors(document)])

    def example_models(self):
        return next(json.loads(block) for block in re.findall(r'^```json\n(.*?)^```', PAGE.read_text(), re.M | re.S)
                    if 'tiny' in json.loads(block))

    def case(self, **keys):
        merged = {'name': 'a', **keys, 'params': {**BASE, **keys.get('params', {})}}
        return {'format': 1, 'operator': 'gqa_av', 'cases': [merged]}

    def examples(self, rows):
        for key, row in rows.items():
            for example in re.findall(r'`(.*?)`', row['example']):
                yield key, row, json.loads(example if example.startswith('{') else '{' + example + '}')

    def test_mentions_each_key_of_the_schema(self):
        text = PAGE.read_text()
        for key in sorted(self.keys()):
            self.assertRegex(text, rf'(?m)^\|[^|]*\b{key}\b|`[^`]*\b{key}\b[^`]*`|"{key}"', key)

    def test_has_a_row_for_each_key_of_a_case_with_an_example_that_is_accepted(self):
        rows = self.rows('key', 'takes', 'default', 'example')
        case = self.schema.schema['$defs']['gqa_av.case']['properties']
        layout = self.schema.schema['$defs']['gqa_av.layout']['properties']['v']['properties']
        self.assertEqual(set(case) | set(layout), set(rows))
        for key, row, example in self.examples(rows):
            self.assertEqual([key], list(example))
            if key in layout:
                example = {'layout': {'v': example}}
            needed = {'layer': {'model': 'tiny'}, 'tp': {'model': 'tiny'}, 'limit': {'tier': 'smoke'},
                      'view_of': {'params': {'kv_heads': 4, 'head_dim': 4}}}
            example |= needed.get(key, {})
            self.accepted(self.case(**example))

    def test_gives_the_defaults_of_the_schema(self):
        rows = self.rows('key', 'takes', 'default', 'example')
        defs = self.schema.schema['$defs']
        for key in ('tier', 'bench', 'seed', 'poison', 'rows'):
            self.assertEqual(defs[key]['default'], value_of(rows[key]['default']), key)
        self.assertEqual(defs['gqa_av.fills']['default'], value_of(rows['fills']['default']))
        checks = self.rows('checks', 'takes', 'default', 'example')
        self.assertEqual(set(defs['checks']['properties']), set(checks))
        for key, row in checks.items():
            self.assertEqual(defs['checks']['properties'][key]['default'], value_of(row['default']), key)

    def test_has_a_row_for_each_check_with_an_example_that_is_accepted(self):
        for _, _, example in self.examples(self.rows('checks', 'takes', 'default', 'example')):
            self.accepted(self.case(checks=example))

    def test_has_a_row_for_each_key_of_a_file_or_a_source_with_an_example_that_is_accepted(self):
        rows = self.rows('key', 'takes', 'example')
        source = self.schema.schema['$defs']['gqa_av.source']['properties']
        self.assertEqual(set(self.schema.schema['properties']) | set(source), set(rows))
        for key, row, example in self.examples(rows):
            if key == 'cases':
                example['cases'][0]['params'] = BASE
            if key not in source:
                self.accepted({**self.case(), **example})
            elif 'file' not in example:
                self.accepted(self.case(data={'v': example}))


def value_of(cell):
    """A cell's value: JSON, or a word."""
    try:
        return json.loads(cell)
    except ValueError:
        return cell


class Damage(Case):
    def test_is_refused_by_the_schema_and_by_the_reader_alike(self):
        for about, _, document in self.files.values():
            self.assertEqual('', self.reader(document))
            count = 0
            for what, damaged in damages(about, document):
                self.assertFalse(self.schema.is_valid(damaged), f'{what}: the schema accepts it')
                self.assertTrue(self.reader(damaged), f'{what}: the reader accepts it')
                count += 1
            self.assertGreater(count, 100)


class ARefusal(Case):
    def test_may_leave_the_ranges_for_schema_and_reader(self):
        for about, size, document in self.files.values():
            for param in about['params']:
                if param['type'] != 'int' or not param['required']:
                    continue
                params = built.param_values(about, size) | {param['name']: param['min'] - 1}
                for expect, good in ({'refused': 'any sentence'}, True), (None, False):
                    case = {'name': 'refused', 'params': params, 'shapes': [{'label': 'x', **params}]}
                    made = built.a_file(about, size, {**case, 'expect': expect} if expect else case)
                    self.assertEqual(good, self.schema.is_valid(made), param['name'])
                    self.assertEqual(good, self.reader(made) == '', param['name'])


if __name__ == '__main__':
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
