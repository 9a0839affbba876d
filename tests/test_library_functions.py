"""Functions of NumPy, SciPy and torch that are composites here, fused and by the library itself: every dtype that the
library takes, at NaN, infinities, zeros and ends of integers, and its refusals."""

from __future__ import annotations

import enum
import math
import re

import numpy as np
import pytest

import kfusion as kf
from differential import INF, NAN, compared, differences, outcome, specials
from sweeps import sweep, texts

torch, special = pytest.importorskip("torch"), pytest.importorskip("scipy.special")
F = torch.nn.functional
NAMES = {"torch": torch, "nn": torch.nn, "F": F, "T": torch.tensor, "t": torch.tensor([3, 0, 2])}
NAMES |= {"np": np, "sp": special, "INF": INF, "NAN": NAN, "Level": enum.IntEnum("Level", "LOW HIGH")}

DTYPES = ("float32", "float64", "float16", "bfloat16", "int32", "int64", "bool")


def values(dtype):
    """An even number of awkward values; the largest of half types are left out, of which torch rounds each step."""
    if dtype == "bool":
        return np.array([False, True, True, False])
    x = specials("float32" if dtype == "bfloat16" else dtype)
    return x[:18] if "16" in dtype else x[: len(x) // 2 * 2]


def tensor(dtype):
    return torch.from_numpy(values(dtype).copy()).to(getattr(torch, dtype))


ACTIVATIONS = """
F.hardswish(x) ; F.hardsigmoid(x) ; F.hardtanh(x) ; F.hardtanh(x,-2,0.5) ; F.hardtanh(x,2,1) ; F.mish(x) ; F.selu(x)
F.celu(x) ; F.celu(x,0.5) ; F.celu(x,-2.0) ; F.prelu(x,x[3:4]*0+0.25) ; F.prelu(x.reshape(1,2,-1),x[6:8]) ; F.glu(x)
F.prelu(x.reshape(2,-1),x[:3]) ; x.prelu(x[6]) ; F.glu(x.reshape(2,-1),0) ; F.glu(x[1:]) ; F.logsigmoid(x)
F.softsign(x) ; F.tanhshrink(x) ; F.softshrink(x) ; F.softshrink(x,1.5) ; F.softshrink(x,-1.0) ; F.hardshrink(x)
x.hardshrink(2) ; F.threshold(x,1,2) ; F.threshold(x,-0.5,20) ; F.softmin(x[3:],0) ; F.rrelu(x) ; F.rrelu(x,0.1,0.2)
nn.Softmin(0)(x[3:]) ; nn.Softplus(2)(x) ; F.silu(x.chunk(2)[0])*x.chunk(2)[1] ; F.gelu(x[3:9])*x[5:11]
"""
ELEMENTWISE = """
torch.lerp(x,x.flip(0),0.3) ; x.lerp(x*2,x) ; torch.lerp(x,x*0+4,0.75) ; torch.addcmul(x,x,x)
torch.addcmul(x,x,x,value=2) ; torch.addcmul(x,x,x,value=0.5) ; x.addcdiv(x.flip(0),x)
torch.addcdiv(x,x,x*0+2,value=-3) ; torch.nan_to_num(x) ; x.nan_to_num(2)
torch.nan_to_num(x,nan=1.5,posinf=7,neginf=-3.5) ; torch.logaddexp2(x,x.flip(0)) ; x.logaddexp2(x*2)
torch.fmod(x,x.flip(0)) ; torch.fmod(x,3) ; x.fmod(-2.5) ; torch.fmod(x,0) ; torch.div(x,3,rounding_mode='trunc')
torch.div(x,-2.5,rounding_mode='trunc') ; torch.div(x,x.flip(0),rounding_mode='trunc') ; x.div(0,rounding_mode='trunc')
torch.div(x,2,rounding_mode='up') ; x<<1 ; x<<3 ; x<<31 ; x<<63 ; x>>1 ; x>>31 ; x>>63 ; 1<<(x&7) ; 5>>(x&7)
torch.bitwise_left_shift(x,x&3) ; x.bitwise_right_shift(2) ; x<<1.5 ; torch.signbit(x) ; x.signbit() ; torch.frac(x)
x.frac() ; torch.heaviside(x,x*0+1) ; x.heaviside(x) ; torch.deg2rad(x) ; x.rad2deg() ; torch.logit(x) ; x.logit(1e-2)
torch.special.logit(x,0.25) ; torch.xlogy(x,x.abs()) ; x.xlogy(0) ; torch.xlogy(2,x) ; torch.special.xlog1py(x,x)
x.sinc() ; torch.float_power(x,2) ; x.float_power(0.5) ; torch.float_power(2,x) ; torch.erfc(x) ; torch.special.erfc(x)
x.erfc() ; torch.special.ndtr(x.abs()) ; torch.special.entr(x) ; torch.isclose(x,x.flip(0)) ; torch.isclose(x,x*1)
torch.isclose(x,x,equal_nan=True) ; x.isclose(x+x*1e-6,rtol=1e-3) ; torch.isposinf(x) ; torch.isneginf(x) ; x.isreal()
torch.ldexp(x,T(3)) ; torch.ldexp(x,T([2,-1]).repeat(len(x)//2)) ; torch.clamp(x,x.flip(0),x*0+2) ; x.clamp(max=x*0+1)
torch.fix(x) ; torch.fmax(x,x.flip(0)) ; torch.fmin(x,T(1.0)) ; torch.round(x,decimals=1)
torch.round(x*10,decimals=-1) ; torch.absolute(x) ; torch.square(x) ; x.rsqrt() ; torch.exp2(x)
torch.copysign(x,x.flip(0)) ; torch.hypot(x,x) ; x.positive() ; torch.negative(x)
"""


# Rounded by torch after each step for half types, and here once.
ROUNDED = (
    "F.tanhshrink(x)",
    "x.logit(1e-2)",
    "torch.special.ndtr(x.abs())",
    "np.trapezoid(x,np.arange(len(x))*0.5)",
)

# Sums of which torch casts half of the value to an integer and the other half not; a square of bools that is an int64.
REFUSED = {("torch.addcmul(x,x,x,value=0.5)", d) for d in ("int32", "int64")} | {("torch.square(x)", "bool")}
REFUSED |= {("np.round(x,-1)", d) for d in ("int32", "int64")}


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


def is_int8(result):
    """What NumPy makes of bools, and kfusion has not."""
    return any(getattr(r, "dtype", None) == np.int8 for r in (result if isinstance(result, tuple) else (result,)))


def check(table, dtype, x, name="x", **options):
    """Each text as a function of x, by the library and fused; all that the library computes are one fused function."""
    table = texts(table) if isinstance(table, str) else table
    functions = {t: eval(f"lambda {name}: {t}", NAMES) for t in table if not ("16" in dtype and t in ROUNDED)}
    expected = {text: outcome(f, x) for text, f in functions.items()}
    computed = [text for text, result in expected.items() if not isinstance(result, Exception) and not is_int8(result)]
    together = kf.fuse(lambda v: [functions[text](v) for text in computed])
    got = outcome(together, x)
    if isinstance(got, Exception):  # say which
        got = [outcome(kf.fuse(functions[text]), x) for text in computed]
    wrong = {text: compared(g, expected[text], **options) for text, g in zip(computed, got, strict=True)}
    wrong |= {text: differences(functions[text], (x,)) for text in expected.keys() - computed}
    wrong = {text: what for text, what in wrong.items() if what and (text, dtype) not in REFUSED}
    assert not wrong, "\n".join(f"{text}: {what}" for text, what in wrong.items())


@pytest.mark.parametrize("dtype", DTYPES)
def test_torch_of_one_tensor(dtype):
    check(ACTIVATIONS + ELEMENTWISE, dtype, tensor(dtype), signed=False)


def test_torch_of_other_shapes():
    of_rows = [text for text in texts(ACTIVATIONS + ELEMENTWISE) if "oftmin" not in text]  # not of no elements
    for x in (torch.empty(2, 0), torch.arange(24.0).reshape(4, 6)[::2, 1::2].t() - 9):
        check(of_rows, "float32", x, signed=False)


REDUCTIONS = """
torch.nansum(x) ; x.nansum(0) ; torch.nansum(x,(0,1),keepdim=True) ; x.nanmean(1) ; torch.nanmean(x)
torch.nanmean(x,-1,True) ; torch.count_nonzero(x) ; torch.count_nonzero(x,1) ; x.count_nonzero((0,1))
torch.var_mean(x.clamp(-5,5),1) ; torch.std_mean(x,0,keepdim=True) ; torch.var_mean(x,correction=0,dim=0)
torch.aminmax(x) ; x.aminmax(dim=0,keepdim=True) ; torch.aminmax(x,dim=1).max ; torch.diff(x) ; x.diff(n=2,dim=0)
torch.diff(x,3) ; torch.trapezoid(x) ; torch.trapezoid(x,dx=0.5,dim=0) ; torch.trapezoid(x,x.flip(0))
torch.dist(x,x*2,1) ; x.dist(x.flip(0)) ; F.pairwise_distance(x,x.flip(0)) ; F.pairwise_distance(x,x*2,3)
F.pairwise_distance(x,x*0,float('inf'),keepdim=True) ; F.cosine_similarity(x,x.flip(0)) ; F.cosine_similarity(x[:1],x,0)
F.cosine_similarity(x,x[0],dim=-1) ; F.cosine_similarity(x,x*2,0,1e3) ; torch.norm(x,0) ; (x*1e30)[:1].norm(p=3,dim=0)
torch.norm(x,3,1) ; x.norm(0.5,0,True) ; x.norm(float('-inf')) ; torch.linalg.vector_norm(x,2.5,dim=(0,1))
torch.linalg.vector_norm(x,-1,dim=1) ; torch.linalg.vector_norm(x,0,dim=1,keepdim=True) ; F.normalize(x,3)
F.normalize(x,0.5,0) ; F.normalize(x,dim=(0,1)) ; torch.logsumexp(x,(0,1)) ; torch.sum(x,1,dtype=torch.float64)
torch.mean(x,0,dtype=torch.float32) ; x.prod(1,dtype=torch.float64) ; F.group_norm(x,1)
F.group_norm(x,2,x[0,:4],x[1,:4]) ; F.group_norm(x[None],3) ; F.group_norm(x,4) ; nn.GroupNorm(2,4)(x.float())
F.instance_norm(x[None]) ; F.instance_norm(x[:,None].float())
F.instance_norm(x[None],x[0,:3],x[1,:3].abs(),use_input_stats=False)
"""


@pytest.mark.parametrize("dtype", DTYPES)
def test_reductions_of_torch(dtype):
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.uniform(-3, 3, (3, 4))).to(getattr(torch, dtype))
    check(REDUCTIONS, dtype, x, signed=False, slack=1)
    if x.is_floating_point():
        x[0, 1], x[1, 2], x[2] = NAN, INF, NAN
        check(REDUCTIONS, dtype, x, signed=False, slack=1)
    of_no_axes = [t for t in texts(REDUCTIONS) if re.match(r"(x|torch)\.(nan\w*|count_nonzero|\w+_mean|aminmax)\(", t)]
    check(of_no_axes, dtype, x[0, 0], signed=False)


LOSSES = """
F.multi_margin_loss(x,t) ; F.multi_margin_loss(x,t,p=2,margin=0.5,weight=w[0])
F.multi_margin_loss(x,t,reduction='none') ; F.multi_margin_loss(x[0],t[0]) ; F.multi_margin_loss(x,t,p=3)
F.triplet_margin_with_distance_loss(x,y,q)
F.triplet_margin_with_distance_loss(x,y,q,distance_function=lambda a,b: (a-b).abs().sum(-1),swap=True,reduction='none')
F.l1_loss(x,y) ; F.l1_loss(x,y,reduction='sum') ; F.l1_loss(x,y,weight=abs(y)) ; F.l1_loss(x,y[0])
F.l1_loss(x,y,False) ; F.mse_loss(x,y) ; F.mse_loss(x,y,weight=abs(x)) ; F.mse_loss(x,y,weight=abs(x),reduction='none')
F.mse_loss(x,y,reduce=False) ; F.mse_loss(x,y,weight=y[0]) ; F.smooth_l1_loss(x,y)
F.smooth_l1_loss(x,y,beta=0.5,reduction='none') ; F.smooth_l1_loss(x,y,beta=0.0) ; F.smooth_l1_loss(x,y,beta=-1.0)
F.huber_loss(x,y) ; F.huber_loss(x,y,'sum',2.5) ; F.huber_loss(x,y,delta=0.5,weight=abs(y))
F.huber_loss(x,y,delta=0.0) ; F.binary_cross_entropy(q,z) ; F.binary_cross_entropy(q,z,reduction='none')
F.binary_cross_entropy(z,z,w) ; F.binary_cross_entropy(q,z[0]) ; F.binary_cross_entropy_with_logits(x,z)
F.binary_cross_entropy_with_logits(x*30,z,w,pos_weight=w*3,reduction='sum')
F.binary_cross_entropy_with_logits(x,q,reduction='none') ; F.kl_div(-abs(x),q) ; F.kl_div(x,z,reduction='batchmean')
F.kl_div(x,-abs(y),reduction='sum',log_target=True) ; F.kl_div(x,q,reduction='none') ; F.hinge_embedding_loss(x,s)
F.hinge_embedding_loss(x,s,2.0,reduction='none') ; F.margin_ranking_loss(x,y,s)
F.margin_ranking_loss(x,y,s,0.5,reduction='none') ; F.margin_ranking_loss(x,y,s[0]) ; F.soft_margin_loss(x,s)
F.soft_margin_loss(x*2,s,reduction='none') ; F.multilabel_soft_margin_loss(x,z)
F.multilabel_soft_margin_loss(x,z,w[0],reduction='none') ; F.poisson_nll_loss(x,abs(y))
F.poisson_nll_loss(abs(x),abs(y)*3,log_input=False,full=True,reduction='none') ; F.gaussian_nll_loss(x,y,abs(y))
F.gaussian_nll_loss(x,y,abs(y[:,0]),full=True) ; F.gaussian_nll_loss(x,y,0.5,reduction='none')
F.gaussian_nll_loss(x,y,abs(y[:,:2])) ; F.gaussian_nll_loss(x,y,abs(y[:,:1])) ; F.triplet_margin_loss(x,y,q)
F.triplet_margin_loss(x,y,q,2.5,1,swap=True,reduction='none') ; F.triplet_margin_loss(x,y,q,-1.0)
F.cosine_embedding_loss(x,y,s[:,0]) ; F.cosine_embedding_loss(x,x*2,-s[:,0],0.25,reduction='none')
F.cosine_embedding_loss(x[0],y[0],s[0,0]) ; F.nll_loss(x,t) ; F.nll_loss(x,t,w[0])
F.nll_loss(x,t,w[0],ignore_index=2,reduction='sum') ; F.nll_loss(x,t,ignore_index=2) ; F.nll_loss(x[0],t[0])
F.nll_loss(x,t,reduction='none',weight=w[0],ignore_index=1) ; F.nll_loss(x.t()[None],t[None]) ; F.nll_loss(x,t*0-100)
F.cross_entropy(x,t) ; F.cross_entropy(x,t,w[0]) ; F.cross_entropy(x,t,w[0],ignore_index=2)
F.cross_entropy(x,t,label_smoothing=0.1) ; F.cross_entropy(x,t,w[0],label_smoothing=0.25,ignore_index=2)
F.cross_entropy(x,t,w[0],label_smoothing=1.0,reduction='none') ; F.cross_entropy(x,t,label_smoothing=0.1,ignore_index=2)
F.cross_entropy(x,t,label_smoothing=0.1,ignore_index=2,reduction='sum') ; F.cross_entropy(x,q)
F.cross_entropy(x,q,w[0],label_smoothing=0.1) ; F.cross_entropy(x,q,w[0],reduction='none')
F.cross_entropy(x,t,label_smoothing=2.0) ; F.cross_entropy(x.t()[None],t[None],w[0])
F.cross_entropy(x.t()[None],q.t()[None]) ; F.cross_entropy(x,t,w[0,:2]) ; F.cross_entropy(x*1000,t)
F.cross_entropy(x,t[:2]) ; nn.CrossEntropyLoss(label_smoothing=0.2,reduction='sum')(x,t)
"""
LEAST = {"x": -3, "y": -3, "q": 0.01, "z": 0, "s": -1, "w": 0.5}
MOST = {"x": 3, "y": 3, "q": 0.99, "z": 2, "s": 1, "w": 2}


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int64"])
def test_losses_of_torch(dtype):
    """x, y: numbers; q: probabilities; z: 0 and 1; s: 1 and -1; w: weights; t: classes. All but t are rows of v."""
    rng = np.random.default_rng(0)
    data = {name: rng.uniform(LEAST[name], MOST[name], (3, 4)) for name in LEAST}
    data |= {"z": np.floor(data["z"]), "s": np.sign(data["s"])}
    v = torch.from_numpy(np.stack(list(data.values()))).to(getattr(torch, dtype))
    rows = [re.sub(r"\b[xyqzsw]\b", lambda m: f"v[{[*data].index(m[0])}]", text) for text in texts(LOSSES)]
    if "16" in dtype:
        rows = [t for t in rows if "multi_margin" not in t]  # which torch has on CUDA only
    if dtype == "int64":  # of which torch has a few by chance
        rows = [t for t in rows if isinstance(outcome(eval(f"lambda v: {t}", NAMES), v), Exception)]
    check(rows, dtype, v, "v", signed=False, slack=1)


NUMPY = """
np.nan_to_num(x,nan=np.float64(0.75)) ; np.linalg.norm(x,np.float32(3)) ; np.clip(x,x*0,None)
np.clip(x,a_min=-1,a_max=1) ; x.clip(max=1) ; np.clip(x,x[::-1],x*0+2) ; np.nan_to_num(x)
np.nan_to_num(x,nan=2,posinf=9,neginf=-9) ; np.sinc(x) ; np.isclose(x,x[::-1]) ; np.isclose(x,x*1,equal_nan=True)
np.isclose(x,x+x*1e-6,rtol=1e-3,atol=0) ; np.isclose(1.0,x) ; np.isclose(x,2) ; np.isposinf(x) ; np.isneginf(x)
np.select([x>1,x<0],[x*2,x*3]) ; np.select([x>1,x<0],[x,5],7.5) ; np.select([x>1,x],[x,x]) ; np.select([x>0],[1,2])
np.isin(x,[1,2,0.1]) ; np.isin(x,[0,-1],invert=True) ; np.isin(x,[]) ; np.isin(x,3) ; np.isin(x,np.array([[1,2]]))
np.nansum(x) ; np.nansum(x,0,keepdims=True) ; np.nansum(x,dtype=np.float64) ; np.nanprod(x,-1) ; np.nanmean(x,0)
np.nanmean(x) ; np.nanvar(x) ; np.nanvar(x,0,ddof=1) ; np.nanstd(x,keepdims=True) ; np.nanmax(x) ; np.nanmin(x,0)
np.count_nonzero(x) ; np.count_nonzero(x,axis=0,keepdims=True) ; np.ptp(x) ; np.ptp(x,0,keepdims=True) ; np.average(x)
np.average(x,0,returned=True) ; np.average(x,weights=abs(x)+1) ; np.average(x,0,np.arange(len(x)))
np.average(x,0,[1.5]*len(x),returned=True,keepdims=True) ; np.average(np.ones(len(x)),weights=x*0+2)
np.average(x,weights=[1,2]) ; np.diff(x) ; np.diff(x,3,0) ; np.diff(x,0) ; np.diff(x,-1) ; np.trapezoid(x)
np.trapezoid(x,dx=0.25) ; np.trapezoid(x,x[::-1]) ; np.trapezoid(x,np.arange(len(x))*0.5) ; np.linalg.norm(x,3)
np.linalg.norm(x,0) ; np.linalg.norm(x,-2.5,0) ; np.linalg.norm(x,np.inf) ; np.linalg.vector_norm(x,ord=0.5)
np.sum(x,dtype=np.float64) ; np.sum(x,0,dtype='int32') ; np.mean(x,dtype=np.float64) ; x.sum(0,np.float64)
x.prod(dtype='float32') ; x.mean(dtype=np.float32) ; np.argmax(x) ; x.argmin(-1,keepdims=True) ; x.argmax(1)
"""

NUMPY_AXES = """
np.average(x,1,[1,2,3.5,0]) ; np.trapezoid(x,[0,1,2,4],axis=1) ; np.trapezoid(x,[3,1],axis=0) ; np.diff(x,axis=0)
np.average(x,(1,0),np.arange(8).reshape(4,2)) ; np.linalg.norm(x,'fro') ; np.nanvar(x,(0,1)) ; np.average(x,0,x[0])
"""


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d != "bfloat16"])
def test_functions_of_numpy(dtype):
    x = values(dtype)[:8]
    check(NUMPY, dtype, x, signed=False, slack=1)
    if dtype.startswith("float"):
        check(NUMPY, dtype, np.linspace(-1, 2, 8).astype(dtype), signed=False, slack=1)


def test_functions_of_numpy_along_axes():
    def along(dtype):
        check(NUMPY_AXES, dtype, np.arange(8).reshape(2, 4).astype(dtype), signed=False, slack=1)

    sweep(along, [(d,) for d in DTYPES if d != "bfloat16"])


UFUNCS = """
np.fmod(x,x[::-1]) ; np.fmod(x,3) ; np.fmod(7,x) ; np.fmod(x,-2.5) ; x<<2 ; x<<31 ; x>>1 ; x>>63 ; 3<<(x&7)
np.left_shift(x,x&3) ; np.right_shift(x,2) ; np.divmod(x,3) ; divmod(x,x[::-1]) ; divmod(7.5,x) ; np.modf(x)
np.signbit(x) ; np.fabs(x) ; np.heaviside(x,0.5) ; np.heaviside(x,x) ; np.logaddexp2(x,x*2) ; np.deg2rad(x)
np.radians(x) ; np.rad2deg(x) ; np.degrees(x) ; np.float_power(x,2) ; np.float_power(2,x) ; sp.logit(x)
sp.log_expit(x) ; sp.xlogy(x,x) ; sp.xlog1py(x,2) ; sp.xlogy(0.0,x) ; sp.entr(x) ; sp.erfc(x) ; sp.ndtr(x)
np.add(x,1,dtype=np.float64) ; np.multiply(x,x,dtype='float32') ; np.sqrt(x,dtype=np.float64)
np.add(x,1.5,dtype=np.int64) ; np.less(x,1,dtype=bool) ; np.true_divide(x,2,dtype='f4') ; np.add.reduce(x)
np.maximum.reduce(x,axis=0,keepdims=True) ; np.multiply.reduce(x[:5]) ; np.logical_or.reduce(x) ; np.round(x,2)
np.round(x,-1) ; x.round(1) ; np.exp(x+0.0,out=x*1.0) ; np.add(x,x,out=x*1) ; np.add(x,0.5,out=x*1)
x+np.int8(3) ; np.uint16(3)*x ; np.maximum(x,np.uint64(2)) ; x<np.int16(1) ; np.uint8(7)//x ; x**np.uint8(2)
x*Level.HIGH ; np.where(x>1,x,Level.LOW) ; np.nanmean(x+np.int64(2**62)) ; np.nanvar(x+np.int64(2**62))
"""


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d != "bfloat16"])
def test_ufuncs_of_numpy_and_scipy(dtype):
    check(UFUNCS, dtype, values(dtype), signed=False)


def test_erfc_is_exact_to_a_few_units():
    for dtype, most in (("float32", 9), ("float64", 26)):
        x = np.linspace(-6, most, 4001).astype(dtype)
        expected = np.array([math.erfc(v) for v in x])
        got = kf.fuse(lambda v: special.erfc(v))(x)
        assert got.dtype == dtype
        assert (np.abs(got - expected) <= 6 * np.spacing(expected.astype(dtype))).all()


def test_a_function_of_the_library_is_one_kernel_when_nothing_is_fused():
    for text in ("F.hardswish(x)", "torch.lerp(x,x,0.3)", "x.long()<<2", "x.erfc()", "F.glu(x)"):
        plan = kf.plan(eval(f"lambda x: {text}", NAMES), kf.spec(8, like="torch"))
        assert len(plan.unfused_groups) == (2 if "long" in text else 1), text


OF_NUMBERS = """
F.softplus(x,w)+F.celu(x,w)*w ; torch.lerp(x,x*2,w) ; torch.fmod(x,w) ; F.huber_loss(x,x*0,delta=w)
F.softshrink(x,w) ; torch.xlogy(w,x)
"""


def test_float_arguments_of_torchs_functions():
    """One fused function gets one value after another: read by its kernels, or traced anew."""
    for text in texts(OF_NUMBERS):
        f = eval(f"lambda x, w: {text}", NAMES)
        fused, x = kf.fuse(f), torch.linspace(0.5, 3, 8)
        for w in (2.0, 0.5, 3.0, 0.5):
            assert not compared(fused(x, w), f(x, w)), (text, w)
