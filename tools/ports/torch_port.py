#!/usr/bin/env python3
"""Every operator by PyTorch, on CUDA where there is a device, for etalon run --port 'exec:tools/ports/torch_port.py'.

With the argument wrong it offers a variant that goes wrong instead, which etalon has to notice. Exit status 77 without
PyTorch.
"""
import sys

try:
    import numpy as np
    import torch
except ImportError as error:
    print(f'{error.name} is missing', file=sys.stderr)
    sys.exit(77)

from seat import Lacking, Refused, arith, serve

DEVICE = torch.device('cuda' if torch.cuda.is_available() else 'cpu')


def operands(params, inputs):
    """w [Hq, S, C] and v [C, Hq, D] in f32, to which every type here is widened exactly."""
    w = torch.from_numpy(inputs['w'].values(np.float32)[:, :params['query_length'], :params['context']])
    v = torch.from_numpy(inputs['v'].values(np.float32)[:params['context']])
    heads = torch.arange(params['q_heads']) * params['kv_heads'] // params['q_heads']
    return w.to(DEVICE), v[:, heads].to(DEVICE)


def store(out, values):
    out.store(values.cpu().numpy())


def computed(params, inputs, outputs, product):
    try:
        store(outputs['out'], product(*operands(params, inputs)))
    except torch.cuda.OutOfMemoryError as error:
        raise Lacking(str(error)) from error
    # Each term is rounded at most as a product, and in every sum.
    return arith(depth_sum=2 * params['context'])


def matmul(params, inputs, outputs):
    return computed(params, inputs, outputs,
                    lambda w, v: torch.matmul(w, v.transpose(0, 1)).transpose(0, 1))


def einsum(params, inputs, outputs):
    return computed(params, inputs, outputs, lambda w, v: torch.einsum('hsc,chd->shd', w, v))


def another_head(params, inputs, outputs):
    """The values of the next query head."""
    return computed(params, inputs, outputs, lambda w, v: torch.einsum('hsc,chd->shd', w, v.roll(1, dims=1)))


def postconv(params, inputs, outputs, norm):
    """By the functions a model's code would call; the gates in float64, as float32's are not as close as is asked."""
    tokens, heads, width = params['tokens'], params['k_heads'], params['k_head_dim']
    conv = torch.from_numpy(inputs['conv'].values(np.float32)).to(DEVICE)
    q, k, v = conv.split([heads * width, heads * width, params['v_heads'] * params['v_head_dim']], dim=1)
    scale = width ** -0.5 if params['scale_q'] else 1
    a, b, a_log, dt_bias = (torch.from_numpy(inputs[name].values(np.float64)).to(DEVICE)
                            for name in ('a', 'b', 'A_log', 'dt_bias'))
    store(outputs['q'], norm(q.reshape(tokens, heads, width), params['eps']) * scale)
    store(outputs['k'], norm(k.reshape(tokens, heads, width), params['eps']))
    store(outputs['v'], v.reshape(tokens, params['v_heads'], params['v_head_dim']))
    store(outputs['g'], -torch.exp(a_log) * torch.nn.functional.softplus(a + dt_bias, threshold=20))
    store(outputs['beta'], torch.sigmoid(b))
    return arith(depth_sum=2 * width)


def rsqrt(params, inputs, outputs):
    return postconv(params, inputs, outputs, lambda x, eps: x * torch.rsqrt(x.square().sum(-1, keepdim=True) + eps))


def floor(params, inputs, outputs):
    """eps as a floor of the norm, as torch.nn.functional.normalize has it."""
    return postconv(params, inputs, outputs, lambda x, eps: torch.nn.functional.normalize(x, dim=-1, eps=eps))


TYPES = {'f32': torch.float32, 'f16': torch.float16, 'bf16': torch.bfloat16}


def tensor(inputs, name, kind=torch.float32):
    """To which every value is converted exactly."""
    return torch.from_numpy(inputs[name].values(np.float32)).to(DEVICE, kind)


def called(params, compute):
    try:
        result = compute()
    except torch.cuda.OutOfMemoryError as error:
        raise Lacking(str(error)) from error
    except RuntimeError as error:
        if 'not implemented for' not in str(error):
            raise
        raise Refused(f'PyTorch {torch.__version__}: {error}') from error
    return result, arith(depth_sum=2 * params['in_features'] + 3)  # and two scales and a bias


def stored(params, inputs, outputs, linear=torch.nn.functional.linear):
    """In the type that the model has: one call, whose sums are f32 inside, and which rounds once."""
    weight, act, out = inputs['weight'].dtype, inputs['act'].dtype, outputs['out'].dtype
    if not weight == act == out in TYPES:
        raise Refused(f'weight, act and out are {weight}, {act} and {out}: linear has all of f32, f16 or bf16')
    if params['bias'] not in ('none', 'm', '1xm'):
        raise Refused(f'bias is {params["bias"]}: linear has one a row of the weight')
    kind = TYPES[act]
    bias = None if params['bias'] == 'none' else tensor(inputs, 'bias', kind)[0]
    result, declared = called(params, lambda: linear(tensor(inputs, 'act', kind), tensor(inputs, 'weight', kind), bias))
    store(outputs['out'], result.float())
    return declared


def dequantised(params, inputs):
    """[out_features, in_features] of f32; of i4 scaled, one rounding a weight."""
    weight = tensor(inputs, 'weight')
    if not params['group']:
        return weight
    grouped = weight.reshape(params['out_features'], -1, params['group'])
    if params['zero_points']:
        grouped = grouped + 8 - tensor(inputs, 'zero_points')[:, :, None]
    return (grouped * tensor(inputs, 'weight_scale')[:, :, None]).reshape(weight.shape)


def widened(params, inputs, outputs, linear=torch.nn.functional.linear):
    """Every type and bias, by the f32 of all of them."""
    total, declared = called(params, lambda: linear(tensor(inputs, 'act'), dequantised(params, inputs)))
    for name in () if params['group'] else ('act_scale', 'weight_scale'):
        scale = tensor(inputs, name)
        total = total * scale.T if scale.numel() else total
    store(outputs['out'], total if params['bias'] == 'none' else total + tensor(inputs, 'bias'))
    return declared


def in_parts(act, weight, bias=None):
    """The sums of two halves of the terms are rounded to bf16 before they are added."""
    halves = zip(act.chunk(2, dim=1), weight.chunk(2, dim=1))
    total = sum(torch.nn.functional.linear(a, w).bfloat16().float() for a, w in halves)
    return total if bias is None else total + bias


RIGHT = {'gqa_av': {'matmul': matmul, 'einsum': einsum}, 'gdn_postconv': {'rsqrt': rsqrt},
         'skinny_gemm': {'stored': stored, 'widened': widened}}
WRONG = {'gqa_av': {'another_head': another_head}, 'gdn_postconv': {'floor': floor},
         'skinny_gemm': {'in_parts': lambda *given: widened(*given, linear=in_parts)}}

def sums_in_f32():
    """What is declared. Where an option is not known, there is nothing of the kind to turn off."""
    for option in ('allow_tf32', 'allow_fp16_reduced_precision_reduction', 'allow_bf16_reduced_precision_reduction'):
        try:
            setattr(torch.backends.cuda.matmul, option, False)
        except AssertionError:
            pass


if __name__ == '__main__':
    sums_in_f32()
    name = torch.cuda.get_device_name() if DEVICE.type == 'cuda' else 'CPU'
    serve('torch', {'name': f'PyTorch {torch.__version__} {name}', 'vendor': 'PyTorch', 'driver': torch.__version__},
          WRONG if sys.argv[1:] == ['wrong'] else RIGHT)
