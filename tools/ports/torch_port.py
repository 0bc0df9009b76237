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

from numpy_port import seen, slope
from seat import Lacking, Refused, arith, serve

VERSION = tuple(map(int, torch.__version__.split('.')[:2]))
DEVICE = torch.device('cuda' if torch.cuda.is_available() else 'cpu')


def weights_and_values(params, inputs):
    """w [Hq, S, C] and v [C, Hq, D] in f32, to which every type here is widened exactly."""
    w = torch.from_numpy(inputs['w'].values(np.float32)[:, :params['query_length'], :params['context']])
    v = torch.from_numpy(inputs['v'].values(np.float32)[:params['context']])
    heads = torch.arange(params['q_heads']) * params['kv_heads'] // params['q_heads']
    return w.to(DEVICE), v[:, heads].to(DEVICE)


def store(out, values):
    out.store(values.cpu().numpy())


def computed(params, inputs, outputs, product):
    try:
        store(outputs['out'], product(*weights_and_values(params, inputs)))
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


def called(compute):
    try:
        return compute()
    except torch.cuda.OutOfMemoryError as error:
        raise Lacking(str(error)) from error
    except RuntimeError as error:
        if 'not implemented for' not in str(error):
            raise
        raise Refused(f'PyTorch {torch.__version__}: {error}') from error


def declared(params):
    return arith(depth_sum=2 * params['in_features'] + 3)  # and two scales and a bias


def stored(params, inputs, outputs, linear=torch.nn.functional.linear):
    """In the type that the model has: one call, whose sums are f32 inside, and which rounds once."""
    weight, act, out = inputs['weight'].dtype, inputs['act'].dtype, outputs['out'].dtype
    if not weight == act == out in TYPES:
        raise Refused(f'weight, act and out are {weight}, {act} and {out}: linear has all of f32, f16 or bf16')
    if params['bias'] not in ('none', 'm', '1xm'):
        raise Refused(f'bias is {params["bias"]}: linear has one a row of the weight')
    kind = TYPES[act]
    bias = None if params['bias'] == 'none' else tensor(inputs, 'bias', kind)[0]
    result = called(lambda: linear(tensor(inputs, 'act', kind), tensor(inputs, 'weight', kind), bias))
    store(outputs['out'], result.float())
    return declared(params)


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
    total = called(lambda: linear(tensor(inputs, 'act'), dequantised(params, inputs)))
    for name in () if params['group'] else ('act_scale', 'weight_scale'):
        scale = tensor(inputs, name)
        total = total * scale.T if scale.numel() else total
    store(outputs['out'], total if params['bias'] == 'none' else total + tensor(inputs, 'bias'))
    return declared(params)


def in_parts(act, weight, bias=None):
    """The sums of two halves of the terms are rounded to bf16 before they are added."""
    halves = zip(act.chunk(2, dim=1), weight.chunk(2, dim=1))
    total = sum(torch.nn.functional.linear(a, w).bfloat16().float() for a, w in halves)
    return total if bias is None else total + bias


def added(params, inputs):
    """[B or 1, Hq or 1, Lq, Lkv] of f32 that is added to scores, -Inf where a key is not seen."""
    batches = np.arange(params['batch'] if params['mask_batches'] > 1 else 1) % params['mask_batches']
    heads = np.arange(params['q_heads'] if params['mask_heads'] > 1 or params['max_bias'] > 0 else 1)
    if params['mask'] == 'none':
        return np.where(seen(params, None), np.float32(0), np.float32(-np.inf))[np.newaxis, np.newaxis]
    mask = inputs['mask'].values(np.float32)[batches][:, heads % params['mask_heads']]
    slopes = np.float32([slope(params, head) for head in heads])[:, np.newaxis, np.newaxis]
    return np.where(seen(params, mask), slopes * mask, np.float32(-np.inf))


def operands(params, inputs, kind=torch.float32):
    """q, k and v with heads before rows, and what is added. A sink is a key of zeros that has it added, and no value."""
    if params['softcap'] > 0:
        raise Refused('softcap is not 0: PyTorch has none')
    q, k, v = (tensor(inputs, name, kind).transpose(1, 2) for name in 'qkv')
    bias = added(params, inputs)
    if params['sinks']:
        k, v = (torch.nn.functional.pad(rows, (0, 0, 0, 1)) for rows in (k, v))
        sink = inputs['sinks'].values(np.float32)[:, np.newaxis, np.newaxis]
        if (sink == np.inf).any():
            raise Refused('a sink is Inf: softmax makes that NaN, not zeros')
        shape = len(bias), params['q_heads'], params['query_length']
        bias = np.concatenate([np.broadcast_to(bias, (*shape, bias.shape[3])), np.broadcast_to(sink, (*shape, 1))], axis=3)
    return q, k, v, bias


def refuse_rows_without_a_key(bias):
    if (bias == -np.inf).all(axis=-1).any():
        raise Refused(f'a row sees no key: softmax of PyTorch {torch.__version__} makes that NaN, not zeros')


def attended(params, outputs, result, depth_qk, **types):
    """result [B, Hq, Lq, Dv]"""
    store(outputs['out'], result.transpose(1, 2).float())
    return arith(depth_qk=depth_qk, depth_sum=2 * params['kv_length'], tiles=-(-params['kv_length'] // 64), **types)


def sdpa(params, inputs, outputs, name):
    """torch.nn.functional.scaled_dot_product_attention, of tensors of that type."""
    kind = TYPES[name]
    q, k, v, bias = operands(params, inputs, kind)
    if VERSION < (2, 5):
        refuse_rows_without_a_key(bias)
    mask = torch.from_numpy(bias).to(DEVICE, kind)
    if not np.array_equal(mask.float().cpu().numpy(), bias):
        raise Refused(f'what is added to scores must be of the type of q, and some of it is not {name}')
    if VERSION < (2, 1) and params['scale'] > 0:
        raise Refused(f'scale is {params["scale"]}: PyTorch {torch.__version__} has none')
    scale = {'scale': params['scale']} if params['scale'] > 0 else {}
    k, v = (rows.repeat_interleave(params['batch'] // params['kv_batch'], dim=0)
            .repeat_interleave(params['q_heads'] // params['kv_heads'], dim=1) for rows in (k, v))
    # Where it can be said without a mask other kernels run.
    causal = np.where(np.tri(*bias.shape[2:], dtype=bool), np.float32(0), np.float32(-np.inf))
    if np.array_equal(bias[0, 0], causal) and len(bias[0]) == len(bias) == 1:
        how = {'is_causal': True}
    else:
        how = {'attn_mask': mask} if bias.any() else {}
    result = called(lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, **how, **scale))
    # q and k are both scaled by its square root, or scores are.
    return attended(params, outputs, result, 2 * params['head_dim'] + 2, weight=name)


def sdpa_stored(params, inputs, outputs):
    """In the type that the model has, to which weights are rounded as well."""
    types = {inputs[name].dtype for name in 'qkv'} | {outputs['out'].dtype}
    if len(types) > 1 or not types <= TYPES.keys():
        raise Refused(f'q, k, v and out are {", ".join(sorted(types))}: PyTorch has all of f32, f16 or bf16')
    return sdpa(params, inputs, outputs, *types)


def sdpa_widened(params, inputs, outputs):
    return sdpa(params, inputs, outputs, 'f32')


def identities(q, k, v, bias):
    """multi_head_attention_forward of one head, all projections identities: q [Lq, E], k and v [Lkv, E]."""
    width = q.shape[1]
    same = torch.eye(width, device=DEVICE)
    return torch.nn.functional.multi_head_attention_forward(
        q[:, None], k[:, None], v[:, None], width, 1, torch.cat([same] * 3), None, None, None, False, 0.0, same, None,
        training=False, attn_mask=bias)[0][:, 0]


def in_order(params, kv):
    """Query heads that share a KV head."""
    group = params['q_heads'] // params['kv_heads']
    return range(kv * group, (kv + 1) * group)


def taking_turns(params, kv):
    """As if heads had been repeated as a whole."""
    return range(kv, params['q_heads'], params['kv_heads'])


def multi_head(params, inputs, outputs, heads=in_order):
    """The attention of every PyTorch, in f32. Query heads that share keys are more rows of one head."""
    q, k, v, bias = operands(params, inputs)
    refuse_rows_without_a_key(bias)
    bias = torch.from_numpy(bias).to(DEVICE)
    # It divides scores by the root of its one width, which is the larger of two here.
    width = max(params['head_dim'], params['v_head_dim'])
    q, k, v = (torch.nn.functional.pad(rows, (0, width - rows.shape[3])) for rows in (q, k, v))
    q = q * ((params['scale'] or params['head_dim'] ** -0.5) * width ** 0.5)
    result = torch.empty_like(q)
    for b in range(params['batch']):
        shared = b * params['kv_batch'] // params['batch']
        for kv in range(params['kv_heads']):
            group = list(heads(params, kv))
            mask = bias[b % len(bias)].expand(params['q_heads'], -1, -1)[group].flatten(0, 1)
            rows = called(lambda: identities(q[b, group].flatten(0, 1), k[shared, kv], v[shared, kv], mask))
            result[b, group] = rows.reshape(len(group), -1, width)
    # A term is rounded as q is, twice.
    return attended(params, outputs, result[..., :params['v_head_dim']], 2 * params['head_dim'] + 2)


RIGHT = {'gqa_av': {'matmul': matmul, 'einsum': einsum}, 'gdn_postconv': {'rsqrt': rsqrt},
         'skinny_gemm': {'stored': stored, 'widened': widened}, 'flash_attn': {'multi_head': multi_head}}
if hasattr(torch.nn.functional, 'scaled_dot_product_attention'):
    RIGHT['flash_attn'].update(stored=sdpa_stored, widened=sdpa_widened)
WRONG = {'gqa_av': {'another_head': another_head}, 'gdn_postconv': {'floor': floor},
         'skinny_gemm': {'in_parts': lambda *given: widened(*given, linear=in_parts)},
         'flash_attn': {'taking_turns': lambda *given: multi_head(*given, heads=taking_turns)}}

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
