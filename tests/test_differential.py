"""Every function of NumPy's and torch's that is traced, fused and by the library itself, where they may differ: at NaN,
infinities, zeros, denormals, ends of integers, for numbers that fit no dtype, and arrays without axes or elements."""

import functools
import importlib
import itertools

import numpy as np
import pytest

from differential import DTYPES, INF, NAN, differences, shapes_of, specials
from kfusion import _core
from sweeps import sweep

ROWS = {name: row for row in _core.op_table() if row["kind"] == "map" for name in (row["name"], *row["other_names"])}
# What has one right result.
EXACT = {row["name"] for row in ROWS.values() if "exact" in row["facts"]} - {"sqrt"}  # torch's of float64 is not
EITHER_ZERO = ("maximum", "minimum", "fmax", "fmin")  # of 0 and -0 NumPy and torch take either, by the array's length
NUMBERS = (0.5, 2, -1, 0, -0.0, 2.0, True, 3, 2**31, 2**40, -(2**40), INF, NAN, -0.5, -2, 1e300)
LIBRARIES = ("numpy", "torch")


OLDEST_TORCH = (2, 13)  # others raise elsewhere


def library(name):
    module = pytest.importorskip(name)
    if name == "torch" and tuple(int(n) for n in module.__version__.split(".")[:2]) < OLDEST_TORCH:
        pytest.skip(f"torch {module.__version__} is older than {OLDEST_TORCH}")
    return module


def array(x, name):
    return importlib.import_module("torch").from_numpy(x.copy()) if name == "torch" else x


def functions(lib, arity):
    """(name, function) pairs of the table's elementwise functions that the library has; torch.equal is another one."""
    pairs = [(name, getattr(library(lib), name, None)) for name, row in ROWS.items() if row["arity"] == arity]
    return [(name, f) for name, f in pairs if f is not None and (lib, name) != ("torch", "equal")]


def check(f, arrays, name):
    row = ROWS[name]["name"]
    signed = row not in EITHER_ZERO
    assert not differences(f, arrays, exact=row in EXACT, signed=signed)


@pytest.mark.parametrize("lib", LIBRARIES)
def test_of_one_array(lib, some):
    cases = [(dtype, x) for dtype in DTYPES for x in shapes_of(specials(dtype))]

    def checked(name, f):
        for dtype, x in some(cases, 4):
            if dtype != "float16" or ROWS[name]["name"] in EXACT:
                check(lambda v: f(v), (array(x, lib),), name)

    sweep(checked, functions(lib, 1))


@pytest.mark.parametrize("lib", LIBRARIES)
def test_of_two_arrays(lib, some):
    pairs = [(a, b) for a in DTYPES for b in DTYPES if "float16" not in (a, b)]

    def checked(name, f):
        for dtypes in some(pairs, 3):
            x, y = specials(dtypes[0])[:, None], specials(dtypes[1])[None]
            if lib == "torch" and name in ("remainder", "floor_divide"):  # torch's vectors lose quotients that overflow
                x = x[:-5] if dtypes[0].startswith("float") else x
            check(lambda u, v: f(u, v), (array(x, lib), array(y, lib)), name)

    sweep(checked, functions(lib, 2))


@pytest.mark.parametrize("lib", LIBRARIES)
def test_of_arrays_and_numbers(lib, some):
    def checked(name, f):
        for dtype, number in some(itertools.product(DTYPES, NUMBERS), 4):
            x = array(specials(dtype), lib)
            check(lambda v, n=number: f(v, n), (x,), name)
            if lib == "numpy" or not isinstance(number, float):
                check(lambda v, n=number: f(n, v), (x,), name)

    sweep(checked, functions(lib, 2))


REDUCTIONS = {
    "numpy": "sum mean prod max min amax amin any all var std linalg.norm linalg.vector_norm",
    "torch": "sum mean prod max min amax amin any all var std logsumexp softmax log_softmax norm",
}


def reduced(dtype):
    special = np.array([[1.5, -INF, 2], [NAN, 1, 2], [INF, 1, 2], [-0.0, 0, 1]]).astype(dtype) if "f" in dtype else None
    yield special if special is not None else specials(dtype)
    yield np.arange(1, 7).reshape(2, 3).astype(dtype)
    yield from (np.array(3, dtype), np.empty(0, dtype), np.empty((2, 0), dtype), np.empty((0, 3), dtype))


AXES = ["absent", None, 0, -1, 1, (0,), (0, 1), (), (-1, 0), -3, (0, 0)]


@pytest.mark.parametrize("lib", LIBRARIES)
def test_reductions(lib, some):
    words = ("axis", "keepdims") if lib == "numpy" else ("dim", "keepdim")
    arrays = [(dtype, x) for dtype in ("float32", "int32", "int64", "bool") for x in reduced(dtype)]

    def checked(name, axis, keeps):
        f = functools.reduce(getattr, name.split("."), library(lib))
        given = ({} if axis == "absent" else {words[0]: axis}) | ({words[1]: True} if keeps else {})
        if lib == "torch" and name == "logsumexp" and axis == "absent":
            return  # wants a dim
        for dtype, x in some(arrays, 2):
            found = differences(lambda v: f(v, **given), (array(x, lib),), signed=False)
            assert not found, (dtype, x)

    sweep(checked, itertools.product(REDUCTIONS[lib].split(), AXES, (False, True)))


# What a test above does not reach, x being one array.
TORCH = """
torch.relu(x) ; F.relu6(x) ; F.gelu(x,approximate='tanh') ; F.silu(x) ; F.softplus(x)
F.softplus(x,beta=2.0,threshold=3) ; F.leaky_relu(x) ; F.leaky_relu(x,2.0) ; F.elu(x) ; F.elu(x,0.5)
torch.sigmoid(x) ; torch.special.expit(x) ; F.mse_loss(x,x*0) ; F.mse_loss(x,x+1,reduction='sum')
F.normalize(x,dim=0) ; x.clamp(-1,1) ; x.clamp(min=0) ; x.clamp(max=float('nan')) ; x.clamp(1,-1)
x.clamp(min=x*0) ; x.clamp_min(0.5) ; x.clamp_max(1) ; torch.clip(x,0,2) ; x.masked_fill(x>0,3)
x.masked_fill(x>0,2**40) ; torch.where(x>0,x,2) ; torch.where(x>0,1.5,x) ; torch.where(x>0,2**40,x)
x.where(x>0,0) ; torch.where(x>0,True,x) ; torch.where(x,x,x+1) ; torch.full_like(x,2)
torch.full_like(x,1.5) ; torch.full_like(x,2**40) ; torch.zeros_like(x)
torch.ones_like(x,dtype=torch.float64) ; x.float() ; x.double() ; x.half() ; x.bfloat16() ; x.int() ; x.long()
x.bool() ; x.to(torch.int32) ; x.to(torch.bool) ; x.type(torch.float16) ; x**2 ; x**3 ; x**0.5 ; x**-1
x**-0.5 ; x**0 ; x**1 ; x**-2 ; x**2.5 ; 2**x ; 2.0**x ; 0**x ; (-2.0)**x ; x/3 ; 3/x ; x//3 ; 3//x ; x%3
3%x ; x%-3 ; x//-3 ; x%0.5 ; x//0.5 ; -3%x ; x%float('inf') ; x%float('-inf') ; x//float('inf') ; x//0.0
x%0.0 ; x/0 ; x//0 ; x%0 ; 5%x ; 1-x ; x-1 ; x*0 ; x*True ; x+True ; x+1.5 ; x&1 ; x^3 ; ~x ; -x ; +x ; abs(x)
x==1 ; x!=x ; x<2**40 ; x<=-2**40 ; x>2**31 ; x==2**40 ; x+2**31 ; x*2**40 ; x<0.5 ; x>=1.5 ; x==True
torch.add(x,x,alpha=2) ; torch.sub(x,1,alpha=3) ; torch.rsub(x,2) ; torch.add(x,1,alpha=0.5)
torch.div(x,2,rounding_mode='floor') ; torch.div(x,x,rounding_mode='trunc') ; torch.square(x) ; torch.rsqrt(x)
torch.reciprocal(x) ; torch.exp2(x) ; torch.logaddexp(x,x) ; torch.maximum(x,x*0) ; torch.fmax(x,x*0)
torch.max(x,x*0) ; torch.atan2(x,x*0) ; torch.hypot(x,x) ; torch.copysign(x,-1) ; torch.logical_and(x,x>0)
torch.logical_not(x) ; torch.isnan(x) ; torch.isinf(x) ; torch.isfinite(x) ; torch.sign(x) ; torch.sgn(x)
torch.floor(x) ; torch.round(x) ; torch.trunc(x) ; torch.erf(x) ; torch.bitwise_not(x)
torch.bitwise_and(x,3) ; x.reshape(-1) ; x.flip(0) ; x.squeeze() ; x.squeeze(0) ; x.unsqueeze(0)
x.unsqueeze(-1) ; x.unsqueeze(3) ; x.t() ; x.T ; x.mT ; x.transpose(0,-1) ; x.transpose(0,1) ; x.flatten()
x.flatten(0,0) ; x.ravel() ; x.expand(2,*x.shape) ; x.expand(-1) ; x.broadcast_to((3,)+tuple(x.shape))
x.split(2) ; x.split([1,x.shape[0]-1]) ; x.chunk(3) ; x.chunk(100) ; x.unbind(0) ; x.narrow(0,0,1)
x.narrow(0,1,2) ; x.select(0,-1) ; x.select(0,99) ; x[0] ; x[-1] ; x[::2] ; x[...,None] ; x[1:] ; x[100:]
x.movedim(0,-1) ; x.view(-1) ; x.view(x.shape) ; x.numel()+x*0 ; x.dim()*x ; x.size(0)*x ; len(x)*x
torch.index_select(x,0,torch.tensor([0,0])) ; torch.take(x,torch.tensor([0,-1])) ; x[torch.tensor([0,-1])]
F.dropout(x,0.5,False) ; x.clone() ; x.contiguous() ; x.detach() ; x.type_as(torch.ones(1).double())
torch.any(x) ; torch.all(x) ; torch.any(x,dim=()) ; x.all(dim=()) ; x.any(0) ; torch.std(x)
x.var(0,unbiased=False) ; x.var(correction=2) ; torch.logsumexp(x,0) ; F.softmax(x,0) ; F.log_softmax(x,-1)
F.softmax(x,0,dtype=torch.float64) ; x.sum(dtype=torch.float64) ; x.mean(dtype=torch.float32)
x.prod(dtype=torch.int64) ; x.norm(p=1) ; x.norm(p=float('inf')) ; x.norm(p=3) ; x.norm(p=0)
torch.linalg.vector_norm(x,ord=1) ; torch.linalg.vector_norm(x,ord=float('-inf')) ; x.max() ; x.min()
x.max(0).values ; x.min(dim=-1,keepdim=True)[0] ; x.max(keepdim=True) ; torch.max(x,dim=None,keepdim=True)
x.amax() ; x.amax((0,)) ; x.aminmax() ; F.layer_norm(x,x.shape) ; F.layer_norm(x,x.shape[-1:])
F.rms_norm(x,x.shape[-1:]) ; F.layer_norm(x,(99,)) ; x@x ; torch.dot(x,x) ; torch.matmul(x,x) ; torch.mv(x,x)
torch.float_power(x,2) ; x.add(1).mul(2) ; x.eq(x) ; x.ne(0) ; x.true_divide(2) ; x.floor_divide(2)
x.remainder(2) ; x.pow(2) ; x.neg() ; x.logical_or(x) ; x.expand_as(x)
F.cross_entropy(x.reshape(1,-1),torch.tensor([0])) ; F.cross_entropy(x,torch.tensor(0)) ; F.tanh(x)
torch.special.log1p(x) ; torch.arctanh(x) ; (x>0).sum() ; (x>0).float().mean() ; (x>0)+(x<0) ; (x>0)*(x<1)
(x>0)-(x<1) ; (x>0)/2 ; (x>0)//1 ; (x>0)%2 ; -(x>0) ; (x>0)&1 ; (x>0)==1 ; (x>0)**2 ; (x>0)<1
torch.maximum(x>0,x<0) ; torch.clamp(x>0,0,1) ; x.is_floating_point()*x ; F.linear(x,x[None]) ; x.logaddexp(x)
torch.where(x>0,x,float('nan')) ; x | 1 ; torch.cat([x,x]) ; torch.cat((x,-x[:1]),-1) ; torch.cat([x,x>0])
torch.cat([x,x.double()],dim=0) ; torch.cat([x,torch.zeros(0,dtype=x.dtype)]) ; torch.cat([x[:0],x,x[:0]])
torch.concat([x,x],axis=0) ; torch.stack([x,x*0]) ; torch.stack((x,x),dim=-1) ; torch.stack([x.sum(),x.max()])
torch.hstack([x,x]) ; torch.vstack((x,x)) ; torch.dstack([x,x]) ; torch.column_stack([x,x]) ; F.pad(x,(1,2))
F.pad(x,(1,0),value=3) ; F.pad(x,(-1,2)) ; F.pad(x,(-1,-1)) ; F.pad(x,(0,0)) ; F.pad(x[None],(1,2),'reflect')
F.pad(x[None],(2,1),'replicate') ; F.pad(x[None],(1,1),mode='circular') ; torch.roll(x,1) ; x.roll(-2,0)
torch.roll(x,shifts=(1,2),dims=(0,-1)) ; x.repeat(3) ; x.repeat(2,*[1]*x.ndim) ; torch.tile(x,(2,)) ; x.tile(2,1,2)
torch.repeat_interleave(x,3) ; x.repeat_interleave(2,dim=0) ; x.fliplr() ; torch.flipud(x) ; torch.tril(x) ; x.triu(1)
torch.tril(x,diagonal=-1) ; torch.tensor_split(x,3) ; torch.tensor_split(x,(1,2),dim=-1) ; torch.hsplit(x,1)
torch.vsplit(x,[1]) ; x.unflatten(0,(-1,1)) ; torch.cat([x,x]).sum(0) ; torch.cat([x[1:],x[:1]])*2
"""


def rows(texts):
    return [(t.strip(),) for line in texts.strip().splitlines() for t in line.split(" ; ")]


def test_torch(some):
    torch = pytest.importorskip("torch")

    def checked(text):
        f = eval(f"lambda x: {text}", {"torch": torch, "F": torch.nn.functional})
        signed = "norm" not in text and "entropy" not in text
        for dtype in some((*DTYPES, "bfloat16"), 2):
            values = specials("float32" if dtype == "bfloat16" else dtype)
            values = values[:18] if "16" in dtype else values
            if dtype in ("float16", "bfloat16") and ("logsumexp" in text or "tanh'" in text):
                continue  # rounded after each step by torch, or sums of unlike numbers
            for x in some(shapes_of(values), 2):
                tensor = array(x, "torch").to(getattr(torch, dtype))
                assert not differences(f, (tensor,), signed=signed), (dtype, x)

    sweep(checked, rows(TORCH))


NUMPY = """
x**2 ; x**0.5 ; x**-1 ; x**-0.5 ; x**0 ; x**1 ; x**3 ; 2**x ; 2.0**x ; x**np.float32(0.5) ; x**np.float64(2)
np.power(x, 0.5) ; np.power(x, 2) ; np.power(x, -1) ; x%3 ; 3%x ; x//3 ; 3//x ; x//0 ; x%0 ; x/0 ; -x ; +x ; ~x
abs(x) ; x==2**40 ; x<2**40 ; x+2**40 ; x<2**31 ; x&1 ; x^3 ; x-True ; x+True ; x+np.float32(1) ; x*np.int64(2)
x+np.bool_(1) ; np.clip(x, -1, 1) ; np.clip(x, None, 2**40) ; np.clip(x, -2**40, 2**40) ; np.clip(x, 2**40, None)
x.clip(0, NAN) ; np.round(x) ; x.round() ; np.fix(x) ; np.where(x > 0, x, 1) ; np.where(x > 0, x, 1.5)
np.where(x, 1, 0) ; np.zeros_like(x) ; np.full_like(x, 2) ; np.ones_like(x) ; x.astype('int32') ; x.astype(bool)
x.astype('float16') ; x.reshape(-1) ; x.ravel() ; x.T ; np.transpose(x) ; np.squeeze(x) ; np.squeeze(x, 0)
np.squeeze(x, -1) ; np.expand_dims(x, 0) ; np.expand_dims(x, (0, -1)) ; np.flip(x) ; np.flip(x, 0)
np.swapaxes(x, 0, -1) ; np.moveaxis(x, 0, -1) ; np.broadcast_to(x, (2, *x.shape)) ; x[0] ; x[-1] ; x[::-1]
x[..., None] ; x[5:2] ; np.take(x, [0]) ; np.take(x, np.array([0, -1])) ; np.take(x, np.array([0, 0]), axis=0)
np.split(x, 2) ; np.split(x, [1]) ; np.dot(x, x) ; x @ x ; x.mean() ; x.var(ddof=1) ; x.std(0)
np.linalg.norm(x, axis=0) ; np.linalg.norm(x, 1) ; np.linalg.norm(x, np.inf) ; (x > 0).sum() ; (x > 0).mean()
(x > 0) * 2 ; (x > 0) + (x < 1) ; np.shape(x) + (x.sum(),) ; np.linalg.vector_norm(x, ord=1) ; np.copy(x)
np.sum(x, keepdims=True) ; np.concatenate([x, x]) ; np.concatenate((x, -x[:1]), axis=-1) ; np.concatenate([x, x > 0])
np.concatenate([x, x], axis=None) ; np.concatenate([x[:0], x, x[:0]]) ; np.stack([x, x * 0]) ; np.stack((x, x), -1)
np.stack([x.sum(), x.max()]) ; np.hstack([x, x]) ; np.vstack((x, x)) ; np.dstack([x, x]) ; np.column_stack([x, x])
np.append(x, 5) ; np.append(x, 2.5) ; np.append(x, x, 0) ; np.append(x, [1, 2]) ; np.pad(x, 1) ; np.pad(x, (1, 0))
np.pad(x, 1, constant_values=3) ; np.pad(x, ((1, 2),), 'edge') ; np.pad(x, 1, 'symmetric') ; np.pad(x, 1, mode='wrap')
np.pad(x, 0) ; np.roll(x, 1) ; np.roll(x, -2, 0) ; np.roll(x, (1, 2), (0, -1)) ; np.roll(x, 1, (0, 0)) ; x.repeat(3)
np.repeat(x, 2, axis=0) ; np.repeat(x, 0) ; np.tile(x, 2) ; np.tile(x, (2, 1, 2)) ; np.tile(x, 0) ; np.tril(x)
np.triu(x, 1) ; np.tril(x, k=-1) ; np.array_split(x, 3) ; np.array_split(x, [1, 1], -1) ; np.hsplit(x, 1)
np.vsplit(x, [1]) ; np.concatenate([x, x]).sum(0) ; np.concatenate([x[1:], x[:1]]) * 2
"""


def test_numpy(some):
    def checked(text):
        f = eval(f"lambda x: {text}", {"np": np, "NAN": NAN})
        for dtype in some(DTYPES, 2):
            values = specials(dtype)[:18] if dtype == "float16" else specials(dtype)
            for x in some(shapes_of(values), 2):
                assert not differences(f, (x,), signed="norm" not in text), (dtype, x)

    sweep(checked, rows(NUMPY))
