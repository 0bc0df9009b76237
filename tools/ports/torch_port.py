#!/usr/bin/env python3
"""gqa_av and gdn_postconv by PyTorch, on CUDA where there is a device, for etalon run --port 'exec:tools/ports/torch_port.py'.

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

from seat import Lacking, arith, serve

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


if __name__ == '__main__':
    torch.backends.cuda.matmul.allow_tf32 = False
    name = torch.cuda.get_device_name() if DEVICE.type == 'cuda' else 'CPU'
    serve('torch', {'name': f'PyTorch {torch.__version__} {name}', 'vendor': 'PyTorch', 'driver': torch.__version__},
          {'gqa_av': {'another_head': another_head}, 'gdn_postconv': {'floor': floor}} if sys.argv[1:] == ['wrong'] else
          {'gqa_av': {'matmul': matmul, 'einsum': einsum}, 'gdn_postconv': {'rsqrt': rsqrt}})
