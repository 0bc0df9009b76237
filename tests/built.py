"""Case files made from `etalon describe OP --json` alone: nothing here knows an operator."""
import json
import subprocess


def output(etalon, *args):
    return subprocess.run([etalon, *args], check=True, capture_output=True, text=True).stdout


def operators(etalon):
    return [line.split()[0] for line in output(etalon, 'list', 'operators').splitlines() if line[0] != ' ']


def described(etalon, op):
    return json.loads(output(etalon, 'describe', op, '--json'))


def param_values(about, size):
    """Every param: required numbers are `size` where their range allows it, the others what they would be anyway."""
    values = {}
    for param in about['params']:
        if param['required']:
            numeric = param['type'] in ('int', 'real')
            values[param['name']] = (min(max(size, param['min']), param['max']) if numeric else
                                     param['values'][0] if param['type'] == 'name' else False)
        else:
            values[param['name']] = values[param['same_as']] if 'same_as' in param else param['default']
    return values


def layout(tensor):
    """Every key but view_of, which stands alone: all dimensions padded, the outer ones in reverse, nothing where a buffer
    begins."""
    *outer, inner = tensor['dims']
    shared = {'buffer': tensor['name']} if tensor['role'] == 'input' else {}
    return {'pad': {dim: [1, 2] for dim in tensor['dims']}, 'order': [*reversed(outer), inner], 'shift': 3, **shared}


def knob_values(knob):
    values = {'name': knob.get('values'), 'bool': [True, False]}.get(knob['type'], [knob.get('default'), knob.get('min')])
    return list(dict.fromkeys(values))


def variant(about):
    return {'name': about['name'], **{knob['name']: knob_values(knob) for knob in about['knobs']}}


def check_values(about):
    return {check['name']: {'atol': 1, 'rtol': 1} if check['takes'] == 'atol and rtol' else check['default']
            for check in about['checks']}


def types(about):
    """Each type of each tensor, at least once."""
    return [{tensor['name']: tensor['dtypes'][i % len(tensor['dtypes'])] for tensor in about['tensors']}
            for i in range(max(len(tensor['dtypes']) for tensor in about['tensors']))]


def types_that_fit(etalon, about, size, path):
    """Those that go together: an operator may refuse one tensor's type beside another's."""
    fitting = []
    for dtypes in types(about):
        path.write_text(json.dumps(a_file(about, size, {
            'name': 'types', 'params': param_values(about, size), 'dtypes': dtypes,
            'layout': {tensor['name']: layout(tensor) for tensor in about['tensors']}})))
        if subprocess.run([etalon, 'run', path, '--dry-run'], capture_output=True).returncode == 0:
            fitting.append(dtypes)
    return fitting


def a_case(about, size, dtypes):
    """Every param, type, layout key, fill, variant, knob and check of an operator, and every key of the format but
    those that need a model or a file: `model` would set params again."""
    params = param_values(about, size)
    inputs = [tensor['name'] for tensor in about['tensors'] if tensor['role'] == 'input']
    numeric = [param for param in about['params'] if param['type'] in ('int', 'real')]
    return {
        'name': 'everything',
        'note': 'made from describe',
        'origin': ['owner/repo#1'],
        'tier': 'smoke',
        'bench': True,
        'params': params,
        'shapes': [{'label': 'a', **params}],
        'sweep': {'dtypes': dtypes},
        'layout': {tensor['name']: layout(tensor) for tensor in about['tensors']},
        'fills': [fill['name'] for fill in about['fills'] if fill['of_runs']],
        'seed': 2,
        'poison': 'nan',
        'rows': 1000,
        'limit': {'smoke': {param['name']: param['max'] for param in numeric if param['max'] <= 2**53 - 1}},
        'variants': [variant(v) for v in about['variants']],
        'checks': check_values(about),
        'twins': [{'poison': 'large'}],
        'steps': [{}, {'params': params, 'data': {inputs[0]: {'fill': 'constant', 'value': '0x1p-1', 'seed': 3}}},
                  {'data': {inputs[0]: {'fill': 'uniform'}}}],
    }


def a_file(about, size, *cases, **defaults):
    return {'format': 1, 'operator': about['operator'], 'note': 'made from describe',
            'defaults': {'tier': 'full', **defaults}, 'cases': list(cases) or [a_case(about, size, types(about))]}


SIZES = (4, 8, 16, 32, 64, 128, 256, 2, 1)


def a_file_that_fits(etalon, about, path):
    """Written to path: of the first size that operator and variants take."""
    for size in SIZES:
        dtypes = types_that_fit(etalon, about, size, path)
        if not dtypes:
            continue
        path.write_text(json.dumps(a_file(about, size, a_case(about, size, dtypes))))
        done = subprocess.run([etalon, 'run', path, '--dry-run'], capture_output=True, text=True)
        if done.returncode == 0:
            return size
    raise AssertionError(f'no size fits {about["operator"]}: {done.stderr}')
