/*
 * What the device's arithmetic does: out[i] = the bits of one operation on the bits a[i], b[i], c[i].
 * One item a vector; no local memory. Operations are numbered as in probe.c.
 */
#pragma OPENCL FP_CONTRACT OFF

enum { FMA, ADD, MUL, MUL_ADD, HALF_LOAD, HALF_STORE, INT_TO_FLOAT, FLOAT_TO_INT, COMPARE };

kernel void probe(global const uint *a, global const uint *b, global const uint *c, global uint *out, ulong first,
                  uint operation)
{
    const ulong i = first + get_global_id(0);
    const float x = as_float(a[i]), y = as_float(b[i]), z = as_float(c[i]);
    switch (operation) {
    case FMA:
        out[i] = as_uint(fma(x, y, z));
        break;
    case ADD:
        out[i] = as_uint(x + y);
        break;
    case MUL:
        out[i] = as_uint(x * y);
        break;
    case MUL_ADD:
        out[i] = as_uint(x * y + z);
        break;
    case HALF_LOAD:
        out[i] = as_uint(vload_half(2 * i, (global const half *)a));
        break;
    case HALF_STORE: /* the upper half of out[i] was 0 */
        vstore_half_rte(x, 2 * i, (global half *)out);
        break;
    case INT_TO_FLOAT:
        out[i] = as_uint((float)as_int(a[i]));
        break;
    case FLOAT_TO_INT:
        out[i] = as_uint((int)x);
        break;
    case COMPARE:
        out[i] = (uint)(x < y) | (uint)(x == y) << 1 | (uint)(x > y) << 2 | (uint)isnan(x) << 3;
        break;
    }
}
