#!/usr/bin/env python3
"""Every operator by NumPy, for etalon run --port 'exec:tools/ports/numpy_port.py'.

With the argument wrong it offers variants that go wrong instead, which etalon has to notice. Exit status 77 without
NumPy.
"""
import sys

try:
    import numpy as np
except ImportError:
    print('NumPy is missing', file=sys.stderr)
    sys.exit(77)

from types import SimpleNamespace

from seat import arith, serve, to_bf16


def weighted(params, inputs, kind, context):
    """out[s, h] = sum over positions of w[h, s] * v[position, kv(h)], of the first `context` positions."""
    heads = np.arange(params['q_heads']) * params['kv_heads'] // params['q_heads']
    w = inputs['w'].values(kind)[:, :params['query_length'], :context]
    v = inputs['v'].values(kind)[:context, heads]
    return np.matmul(w, v.transpose(1, 0, 2)).transpose(1, 0, 2)


def gqa_av_float64(params, inputs, outputs):
    outputs['out'].store(weighted(params, inputs, np.float64, params['context']))
    return arith(depth_sum=1)


def gqa_av_float32(params, inputs, outputs):
    outputs['out'].store(weighted(params, inputs, np.float32, params['context']))
    # A BLAS adds in an order of its own: each term is rounded at most as a product, and in every sum.
    return arith(depth_sum=2 * params['context'])


def gqa_av_lost(params, inputs, outputs):
    """The last position is not added."""
    outputs['out'].store(weighted(params, inputs, np.float64, max(0, params['context'] - 1)))
    return arith(depth_sum=1)


def split(params, inputs, kind):
    """q, k and v of conv, heads apart."""
    conv = inputs['conv'].values(kind)
    tokens, heads, width = params['tokens'], params['k_heads'], params['k_head_dim']
    q, k, v = np.split(conv, [heads * width, 2 * heads * width], axis=1)
    shape = (tokens, heads, width)
    return q.reshape(shape), k.reshape(shape), v.reshape(tokens, params['v_heads'], params['v_head_dim'])


def normed(x, eps):
    return x / np.sqrt(np.square(x).sum(axis=-1, keepdims=True, dtype=x.dtype) + x.dtype.type(eps))


def gates(inputs):
    """In float64, whatever the norms are in: NumPy's float32 exp is not as close as the operator asks for."""
    a, b, a_log, dt_bias = (inputs[name].values(np.float64) for name in ('a', 'b', 'A_log', 'dt_bias'))
    x = a + dt_bias
    softplus = np.where(x > 20, x, np.logaddexp(0, x))
    return -np.exp(a_log) * softplus, np.exp(-np.logaddexp(0, -b))


def postconv(params, inputs, outputs, kind, norm):
    q, k, v = split(params, inputs, kind)
    scale = kind(params['k_head_dim']) ** kind(-0.5) if params['scale_q'] else kind(1)
    g, beta = gates(inputs)
    for name, values in (('q', norm(q, params['eps']) * scale), ('k', norm(k, params['eps'])), ('v', v), ('g', g),
                         ('beta', beta)):
        outputs[name].store(values)


def gdn_postconv_float64(params, inputs, outputs):
    postconv(params, inputs, outputs, np.float64, normed)
    return arith(depth_sum=1)


def gdn_postconv_float32(params, inputs, outputs):
    postconv(params, inputs, outputs, np.float32, normed)
    return arith(depth_sum=2 * params['k_head_dim'])


def gdn_postconv_mean(params, inputs, outputs):
    """eps beside the mean, as an RMS norm has it."""
    postconv(params, inputs, outputs, np.float64, lambda x, eps: normed(x, eps * x.shape[-1]))
    return arith(depth_sum=1)


def linear(params, inputs, kind):
    """[tokens, out_features], before the bias. i4 has a scale a group of weights, its zero points being exact."""
    grouped = params['group'] > 0
    width = params['group'] or params['in_features']
    w = inputs['weight'].values(kind).reshape(params['out_features'], -1, width)
    if params['zero_points']:
        w = w + 8 - inputs['zero_points'].values(kind)[:, :, np.newaxis]
    act = inputs['act'].values(kind).reshape(params['tokens'], -1, width)
    sums = np.matmul(act.transpose(1, 0, 2), w.transpose(1, 2, 0))  # [groups, tokens, out_features]
    if grouped:
        return (sums * inputs['weight_scale'].values(kind).T[:, np.newaxis]).sum(axis=0)
    total = sums[0]
    for name in 'act_scale', 'weight_scale':
        scale = inputs[name].values(kind)
        total = total * scale.T if scale.size else total
    return total


def biased(params, inputs, total):
    return total if params['bias'] == 'none' else total + inputs['bias'].values(total.dtype)


def skinny_gemm(params, inputs, outputs, kind):
    outputs['out'].store(biased(params, inputs, linear(params, inputs, kind)))


def skinny_gemm_float64(params, inputs, outputs):
    skinny_gemm(params, inputs, outputs, np.float64)
    return arith(depth_sum=1)


def skinny_gemm_float32(params, inputs, outputs):
    skinny_gemm(params, inputs, outputs, np.float32)
    return arith(depth_sum=2 * params['in_features'] + 3)  # and two scales and a bias


def changed(name, edit):
    """The operator in float64 with what edit makes of one input's values."""
    def compute(params, inputs, outputs):
        values = edit(inputs[name].values(np.float64))
        other = SimpleNamespace(values=lambda kind: values.astype(kind))
        return skinny_gemm_float64(params, {**inputs, name: other}, outputs)
    return compute


def without_last(act):
    return np.where(np.arange(act.shape[1]) < act.shape[1] - 1, act, 0)


def skinny_gemm_no_bias(params, inputs, outputs):
    return skinny_gemm_float64({**params, 'bias': 'none'}, inputs, outputs)


def skinny_gemm_twice(params, inputs, outputs):
    """The sum is rounded to bf16 before the bias is added."""
    total = to_bf16(linear(params, inputs, np.float64)).astype(np.uint32) << 16
    outputs['out'].store(biased(params, inputs, total.view(np.float32)))
    return arith(depth_sum=1)


def seen(params, mask):
    """[Lq, Lkv]: whether a query row sees a key. A materialised mask has what causal and windows say."""
    rows, keys = params['query_length'], params['kv_length']
    visible = np.ones((rows, keys), bool) if mask is None else mask != -np.inf
    if params['mask'] == 'materialised':
        return visible
    position = np.arange(rows)[:, np.newaxis] + (0 if params['causal'] == 'top_left' else keys - rows)
    ahead = np.arange(keys) - position
    if params['causal'] != 'none':
        visible = visible & (ahead <= 0)
    if params['window'] > 0:
        visible = visible & (ahead > -params['window'])
    if params['window_right'] >= 0:
        visible = visible & (ahead <= params['window_right'])
    return visible


def slope(params, head):
    """ALiBi's, of as many heads as there are."""
    heads = 1 << params['q_heads'].bit_length() - 1  # the largest power of two
    steps = (head + 1) / heads if head < heads else (2 * (head - heads) + 1) / (2 * heads)
    return 2.0 ** -(float(np.float32(params['max_bias'])) * steps)


def capped(score, softcap):
    if softcap == 0:
        return score
    softcap = score.dtype.type(np.float32(softcap))
    return softcap * np.tanh(score / softcap)


def softmaxed(score, sink, v):
    """[Lq, Dv] of scores, -Inf where a key is not seen; sink: one more logit, -Inf: none."""
    top = np.maximum(score.max(axis=1, keepdims=True, initial=-np.inf), sink)
    weight = np.exp(score - np.where(top == -np.inf, 0, top))
    total = weight.sum(axis=1, keepdims=True) + np.where(sink == top, 1, np.exp(sink - top))
    return np.where(score.max(axis=1, keepdims=True, initial=-np.inf) > -np.inf, np.matmul(weight, v) / total, 0)


def head_attention(params, q, k, v, mask, sink, head):
    """One head of one sequence: q [Lq, Dk], k [Lkv, Dk], v [Lkv, Dv], mask [Lq, Lkv] or None."""
    scale = np.float32(params['scale'] or params['head_dim'] ** -0.5)
    score = capped(np.matmul(q, k.T) * q.dtype.type(scale), params['softcap'])
    visible = seen(params, mask)
    if mask is not None:
        score = score + q.dtype.type(slope(params, head)) * np.where(visible, mask, 0)
    return softmaxed(np.where(visible, score, -np.inf), sink, v)


def flash_attn(params, inputs, outputs, kind, attention=head_attention):
    q, k, v, masks, sinks = (inputs[name].values(kind) for name in ('q', 'k', 'v', 'mask', 'sinks'))
    batches, heads = params['batch'], params['q_heads']
    out = np.empty((batches, params['query_length'], heads, params['v_head_dim']), kind)
    for b in range(batches):
        for h in range(heads):
            shared, kv = b * params['kv_batch'] // batches, h * params['kv_heads'] // heads
            mask = None if params['mask'] == 'none' else masks[b % params['mask_batches'], h % params['mask_heads']]
            sink = sinks[h] if params['sinks'] else kind(-np.inf)
            out[b, :, h] = attention(params, q[b, :, h], k[shared, :, kv], v[shared, :, kv], mask, sink, h)
    outputs['out'].store(out)


def flash_attn_float64(params, inputs, outputs):
    flash_attn(params, inputs, outputs, np.float64)
    return arith(depth_qk=1, depth_sum=1)


def flash_attn_float32(params, inputs, outputs):
    flash_attn(params, inputs, outputs, np.float32)
    return arith(depth_qk=2 * params['head_dim'], depth_sum=2 * params['kv_length'])


def attention_of(head):
    """The operator in float64, but for what a head is."""
    def compute(params, inputs, outputs):
        flash_attn(params, inputs, outputs, np.float64, head)
        return arith(depth_qk=1, depth_sum=1)
    return compute


def given(edit):
    """A head with other params."""
    return attention_of(lambda params, *rest: head_attention({**params, **edit(params)}, *rest))


def without_last_key(params, q, k, v, mask, sink, head):
    hidden = np.where(np.arange(len(k)) < len(k) - 1, 0 if mask is None else mask, -np.inf)
    return head_attention(params, q, k, v, np.broadcast_to(hidden, (len(q), len(k))), sink, head)


def without_sink(params, q, k, v, mask, sink, head):
    return head_attention(params, q, k, v, mask, -np.inf, head)


def capped_late(params, q, k, v, mask, sink, head):
    """After the mask: a key that is not seen has a score of -softcap, and counts."""
    if params['softcap'] == 0:
        return head_attention(params, q, k, v, mask, sink, head)
    visible = seen(params, mask)
    score = np.matmul(q, k.T) * np.float32(params['scale'] or params['head_dim'] ** -0.5)
    score = score + (0 if mask is None else slope(params, head) * np.where(visible, mask, 0))
    return softmaxed(capped(np.where(visible, score, -np.inf), params['softcap']), sink, v)


def one_more(params):
    return {'window': params['window'] and params['window'] + 1}


def from_the_left(params):
    return {'causal': 'none' if params['causal'] == 'none' else 'top_left'}


RIGHT = {'gqa_av': {'float64': gqa_av_float64, 'float32': gqa_av_float32},
         'gdn_postconv': {'float64': gdn_postconv_float64, 'float32': gdn_postconv_float32},
         'skinny_gemm': {'float64': skinny_gemm_float64, 'float32': skinny_gemm_float32},
         'flash_attn': {'float64': flash_attn_float64, 'float32': flash_attn_float32}}
WRONG = {'gqa_av': {'lost': gqa_av_lost}, 'gdn_postconv': {'mean': gdn_postconv_mean},
         'skinny_gemm': {'lost': changed('act', without_last),
                         'next_row': changed('weight', lambda weight: np.roll(weight, -1, axis=0)),
                         'first_token': changed('act', lambda act: np.repeat(act[:1], len(act), axis=0)),
                         'no_bias': skinny_gemm_no_bias, 'twice': skinny_gemm_twice},
         'flash_attn': {'lost': attention_of(without_last_key), 'no_sink': attention_of(without_sink),
                        'capped_late': attention_of(capped_late), 'window': given(one_more),
                        'top_left': given(from_the_left)}}

if __name__ == '__main__':
    np.seterr(invalid='ignore', divide='ignore')
    serve('numpy', {'name': f'NumPy {np.__version__}', 'vendor': 'NumPy', 'driver': np.__version__},
          WRONG if sys.argv[1:] == ['wrong'] else RIGHT)
