"""The runner's seat (docs/porting.md, section 3) for a port that computes on NumPy arrays.

serve(name, device, variants) answers the judge until it goes. variants is {operator: {name: compute}}, and
compute(params, inputs, outputs) takes {name: Tensor} twice, stores every output and returns the arithmetic that
it declares (arith). It may raise Refused (a shape or type that is not for it) or Lacking (what this machine lacks).
"""
import json
import os
import struct
import sys
import time

import numpy as np

# What a file has of each type; i4 is filed as bytes of two.
FILED = {'F32': np.float32, 'F16': np.float16, 'BF16': np.uint16, 'F8_E4M3': np.uint8, 'F8_E4M3FNUZ': np.uint8,
         'I8': np.int8, 'U8': np.uint8}


class Refused(Exception):
    pass


class Lacking(Exception):
    pass


def arith(depth_sum, depth_qk=0, tiles=0, **types):
    """What is rounded where: f32 unless said otherwise. depth_sum: the longest chain of roundings in a sum."""
    every = {'query': 'f32', 'product': 'f32', 'sum': 'f32', 'weight': 'f32', 'partial': 'f32', **types}
    return {**every, 'depth_qk': depth_qk, 'depth_sum': depth_sum, 'tiles': tiles}


def to_bf16(values):
    """Bits of values (float64) rounded once, ties to even."""
    with np.errstate(over='ignore', invalid='ignore'):
        _, exponent = np.frexp(values)
        quantum = np.maximum(exponent - 8, -133)
        rounded = np.where(np.isfinite(values), np.ldexp(np.rint(np.ldexp(values, -quantum)), quantum), values)
        return (rounded.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def f8(bias, nan):
    """The values of all 256 patterns: a sign, 4 bits of exponent, 3 of mantissa, and no Inf."""
    bits = np.arange(256)
    exponent, mantissa = bits >> 3 & 15, bits & 7
    sizes = np.ldexp(mantissa + np.where(exponent > 0, 8.0, 0.0), np.maximum(exponent, 1) - bias - 3)
    values = np.where(bits < 128, sizes, -sizes)
    values[nan] = np.nan
    return values


F8 = {'f8e4m3fn': f8(7, [0x7f, 0xff]), 'f8e4m3fnuz': f8(8, [0x80])}


class Tensor:
    """A tensor in its buffer: values() are its elements, store() rounds them once to its type: f32, f16 or bf16."""

    def __init__(self, buffer, layout):
        self.dtype = layout['dtype']
        if self.dtype == 'i4':
            # The even one is in the low nibble; place and strides count elements.
            buffer = np.stack((buffer & 15, buffer >> 4), axis=-1).reshape(-1)
        width = buffer.itemsize
        self.bits = np.lib.stride_tricks.as_strided(
            buffer[layout['offset']:], layout['size'], [stride * width for stride in layout['stride']])

    def values(self, kind):
        if self.dtype == 'bf16':
            return (self.bits.astype(np.uint32) << 16).view(np.float32).astype(kind)
        if self.dtype in F8:
            return F8[self.dtype][self.bits].astype(kind)
        values = self.bits.astype(kind)
        return values - 8 if self.dtype == 'i4' else values

    def store(self, values):
        with np.errstate(over='ignore'):
            self.bits[...] = to_bf16(values.astype(np.float64)) if self.dtype == 'bf16' else values


def buffers(path, mode):
    """{name: flat array of what is stored} of a safetensors file: 8 bytes of length, JSON, data."""
    with open(path, 'rb') as file:
        length = struct.unpack('<Q', file.read(8))[0]
        header = json.loads(file.read(length))
    header.pop('__metadata__', None)
    found = {}
    for name, entry in header.items():
        begin, end = entry['data_offsets']
        kind = np.dtype(FILED[entry['dtype']])
        found[name] = np.memmap(path, kind, mode, 8 + length + begin, ((end - begin) // kind.itemsize,)) \
            if end > begin else np.empty(0, kind)
    return found


def tensors(step, path, mode, role):
    files = buffers(path, mode)
    # A tensor that shares a buffer says whose it is, and is filed there.
    return {name: Tensor(files[layout.get('buffer', name)], layout)
            for name, layout in step['tensors'].items() if layout['role'] == role}


def run(request, variants):
    with open(os.path.join(request['job'], 'job.json'), encoding='ascii') as file:
        job = json.load(file)
    compute = variants[job['operator']][request['variant']]
    claims, seconds = [], 0
    for i, step in enumerate(job['steps']):
        inputs = tensors(step, os.path.join(request['job'], f'{i}.safetensors'), 'r', 'input')
        for repeat in range(request['repeats']):
            # The file is there: outputs, and padding that must stay as it is, hold poison.
            path = os.path.join(request['out'], f'{i}.{repeat}.safetensors')
            outputs = tensors(step, path, 'r+', 'output')
            start = time.monotonic()
            declared = compute(step['params'], inputs, outputs)
            seconds += time.monotonic() - start
        claims.append({'arith': declared})
    return {'status': 'ok', 'variant': request['variant'], 'claims': claims, 'step_s': seconds}


def serve(name, device, variants):
    # What libraries print is not the protocol's.
    answers = os.fdopen(os.dup(1), 'w')
    os.dup2(2, 1)

    def say(message):
        answers.write(json.dumps(message) + '\n')
        answers.flush()

    say({'etalon': 1, 'port': name, 'device': device,
         'variants': {op: {variant: {} for variant in offered} for op, offered in variants.items()}})
    for line in sys.stdin:
        try:
            say(run(json.loads(line), variants))
        except Refused as why:
            say({'status': 'refused', 'error': str(why)})
        except (Lacking, MemoryError) as why:
            say({'status': 'lacking', 'error': str(why) or 'out of memory'})
