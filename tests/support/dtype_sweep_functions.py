"""The functions of x and y that dtype_sweep.py calls, by library."""

from __future__ import annotations

_OF_TORCH = """
x + y ; x - y ; x * y ; x / y ; x // y ; x % y ; x ** y ; x == y ; x != y ; x < y ; x <= y ; x > y ; x >= y
x & y ; x | y ; x ^ y ; x << y ; x >> y ; torch.add(x, y, alpha=2) ; torch.sub(x, y, alpha=2) ; torch.rsub(x, y)
torch.div(x, y, rounding_mode="floor") ; torch.div(x, y, rounding_mode="trunc") ; torch.floor_divide(x, y)
torch.remainder(x, y) ; torch.fmod(x, y) ; torch.pow(x, y) ; torch.float_power(x, y) ; torch.true_divide(x, y)
torch.atan2(x, y) ; torch.hypot(x, y) ; torch.logaddexp(x, y) ; torch.logaddexp2(x, y) ; torch.copysign(x, y)
torch.maximum(x, y) ; torch.minimum(x, y) ; torch.fmax(x, y) ; torch.fmin(x, y) ; torch.logical_and(x, y)
torch.logical_or(x, y) ; torch.logical_xor(x, y) ; torch.xlogy(x, y) ; torch.special.xlog1py(x, y) ; torch.gcd(x, y)
torch.heaviside(x, y) ; torch.nextafter(x, y) ; torch.ldexp(x, y) ; torch.isclose(x, y) ; torch.dist(x, y)
torch.isclose(x, y, rtol=0.1, equal_nan=True) ; torch.lerp(x, y, 0.3) ; torch.lerp(x, x, y) ; torch.where(x > 1, x, y)
torch.where(x > 1, y, 2) ; torch.clamp(x, y) ; torch.clamp(x, max=y) ; torch.clamp(x, y, y) ; x.masked_fill(x > 1, y)
torch.addcmul(x, y, x) ; torch.addcmul(x, x, y, value=3) ; torch.addcdiv(x, y, x) ; torch.addcdiv(x, x, y, value=0.5)
F.mse_loss(x, y) ; F.l1_loss(x, y) ; F.smooth_l1_loss(x, y) ; F.huber_loss(x, y, delta=0.7) ; F.prelu(x, y)
F.kl_div(x, y) ; F.soft_margin_loss(x, y) ; F.poisson_nll_loss(x, y) ; F.binary_cross_entropy_with_logits(x, y)
torch.stack([x, y]) ; torch.cat([x, y]) ; torch.cat([x.reshape(-1), y.reshape(-1)]) ; torch.atleast_1d(x) + y
x.type_as(y) ; x.add_(y) ; x.mul_(y) ; x.div_(y) ; x.sub_(y, alpha=2) ; x.pow_(y) ; x.fmod_(y) ; x.copy_(y)
x.masked_fill_(x > 1, y) ; x.clamp_(y) ; x.floor_divide_(y) ; x.lerp_(x, y) ; x.addcmul_(x, y) ; x.eq_(y)
torch.amax(x, 0) - y ; torch.full_like(x, 3) * y
torch.special.zeta(x, y) ; torch.outer(x, y) ; torch.dot(x, y) ; torch.vdot(x, y) ; torch.inner(x, y)
torch.bucketize(x, y) ; torch.searchsorted(x, y) ; torch.isin(x, y) ; torch.cross(x[:3], y[:3]) ; torch.kron(x, y)
torch.index_fill(x, 0, torch.tensor([1]), y) ; torch.fill(x, y) ; x.fill_(y) ; torch.bitwise_and(x, y)
torch.where(torch.tensor(True), x, y) ; torch.minimum(x, y).sum() ; torch.cosine_similarity(x, y, 0)
torch.broadcast_tensors(x, y) ; torch.meshgrid(x, y, indexing="ij") ; torch.polar(x, y) ; torch.igamma(x, y)
torch.put(x, torch.tensor([1]), y) ; torch.scatter(x, 0, torch.tensor([1]), y) ; torch.diff(x, append=y)
torch.sum(x) ; torch.prod(x) ; torch.cumsum(x, 0) ; torch.mean(x) ; torch.var(x) ; torch.norm(x) ; torch.abs(x)
torch.logsumexp(x, 0) ; torch.softmax(x, 0) ; torch.sigmoid(x) ; torch.exp(x) ; torch.round(x) ; torch.sqrt(x)
torch.square(x) ; torch.neg(x) ; torch.sign(x) ; torch.nan_to_num(x) ; torch.trunc(x) ; torch.isfinite(x)
torch.reciprocal(x) ; torch.rsqrt(x) ; torch.erf(x) ; torch.logit(x) ; torch.deg2rad(x) ; torch.frac(x)
torch.amax(x) ; torch.max(x) ; torch.argmax(x) ; torch.any(x) ; torch.count_nonzero(x) ; torch.nansum(x)
torch.signbit(x) ; torch.bitwise_not(x) ; torch.logical_not(x) ; torch.positive(x) ; torch.relu(x)
F.silu(x) ; F.softplus(x) ; F.elu(x) ; F.leaky_relu(x) ; F.hardswish(x) ; F.logsigmoid(x) ; F.normalize(x, dim=0)
"""


_OF_NUMPY = """
x + y ; x - y ; x * y ; x / y ; x // y ; x % y ; x ** y ; x == y ; x != y ; x < y ; x <= y ; x > y ; x >= y
x & y ; x | y ; x ^ y ; x << y ; x >> y ; divmod(x, y) ; np.add(x, y) ; np.subtract(x, y) ; np.multiply(x, y)
np.divide(x, y) ; np.floor_divide(x, y) ; np.remainder(x, y) ; np.fmod(x, y) ; np.power(x, y) ; np.float_power(x, y)
np.arctan2(x, y) ; np.hypot(x, y) ; np.logaddexp(x, y) ; np.logaddexp2(x, y) ; np.copysign(x, y) ; np.maximum(x, y)
np.minimum(x, y) ; np.fmax(x, y) ; np.fmin(x, y) ; np.logical_and(x, y) ; np.logical_or(x, y) ; np.logical_xor(x, y)
np.heaviside(x, y) ; np.nextafter(x, y) ; np.ldexp(x, y) ; np.gcd(x, y) ; np.lcm(x, y) ; np.divmod(x, y)
np.bitwise_and(x, y) ; np.left_shift(x, y) ; np.right_shift(x, y) ; np.isclose(x, y) ; np.where(x > 1, x, y)
np.where(x, x, y) ; np.where(x > 1, 2, x) ; np.clip(x, y, None) ; np.clip(x, None, y) ; np.clip(x, y, y)
np.isclose(x, y, rtol=0.1, equal_nan=True) ; np.select([x > 1], [x], y) ; np.take(x, [0]) + y ; np.dot(x, y)
np.concatenate([np.atleast_1d(x), np.atleast_1d(y)]) ; np.stack([x, y]) ; np.hstack([x, y]) ; np.append(x, y)
np.add(x, y, dtype="f4") ; np.multiply(x, y, dtype="f8") ; np.full_like(x, y) ; np.matmul(x, y) ; np.inner(x, y)
np.broadcast_arrays(x, y) ; np.meshgrid(x, y) ; np.isin(x, y) ; np.cross(x[:3], y[:3]) ; np.kron(x, y) ; np.vdot(x, y)
np.searchsorted(np.sort(x), y) ; np.digitize(x, np.sort(y)) ; np.interp(x, np.sort(y), y) ; np.average(x, weights=y)
np.einsum("...,...->...", x, y) ; np.tensordot(x, y, 0) ; np.linalg.vecdot(x, y) ; np.insert(x, 0, y) ; np.polyval(x, y)
np.diff(x, append=y) ; np.add.outer(x, y) ; np.outer(x, y) ; np.copyto(x, y)
np.add(x, y, out=x) ; np.multiply(x, y, out=x) ; np.maximum(x, y, out=x) ; np.sum(x) + y ; np.max(x) - y
np.mean(x) * y ; np.positive(x) * y ; x.astype(np.float32) + y ; x.astype(y.dtype)
np.sum(x) ; np.prod(x) ; np.mean(x) ; np.var(x) ; np.std(x) ; np.max(x) ; np.min(x) ; np.argmax(x) ; np.argmin(x)
np.any(x) ; np.all(x) ; np.ptp(x) ; np.count_nonzero(x) ; np.cumsum(x) ; np.cumprod(x) ; np.sort(x) ; np.argsort(x)
np.nansum(x) ; np.nanmean(x) ; np.nanmax(x) ; np.nanvar(x) ; np.nanprod(x) ; np.median(x) ; np.linalg.norm(x)
np.sum(x, dtype="f8") ; np.mean(x, dtype="f4") ; np.sum(x, dtype="i8") ; np.prod(x, dtype="f4") ; np.var(x, dtype="f8")
x.sum(0, keepdims=True) ; x.mean(axis=-1) ; x.max(0) ; x.any(0) ; x.all() ; x.prod() ; x.std(ddof=1) ; x.round(1)
np.abs(x) ; np.negative(x) ; np.positive(x) ; np.sign(x) ; np.square(x) ; np.sqrt(x) ; np.cbrt(x) ; np.reciprocal(x)
np.exp(x) ; np.exp2(x) ; np.expm1(x) ; np.log(x) ; np.log2(x) ; np.log10(x) ; np.log1p(x) ; np.sin(x) ; np.cos(x)
np.tan(x) ; np.arcsin(x) ; np.arctan(x) ; np.sinh(x) ; np.tanh(x) ; np.arcsinh(x) ; np.floor(x) ; np.ceil(x)
np.trunc(x) ; np.rint(x) ; np.fix(x) ; np.round(x) ; np.round(x, 2) ; np.round(x, -1) ; np.isnan(x) ; np.isinf(x)
np.isfinite(x) ; np.signbit(x) ; np.invert(x) ; np.logical_not(x) ; np.fabs(x) ; np.deg2rad(x) ; np.degrees(x)
np.modf(x) ; np.frexp(x) ; np.spacing(x) ; np.sinc(x) ; np.nan_to_num(x) ; np.isposinf(x) ; np.isneginf(x)
np.zeros_like(x) ; np.ones_like(x) ; np.full_like(x, 3) ; np.diff(x) ; np.clip(x, 1, 5) ; np.clip(x, 0.5, None)
np.reshape(x, (-1, 1)) ; np.flip(x) ; np.roll(x, 1) ; np.tile(x, 2) ; np.repeat(x, 2) ; np.pad(x, 1) ; np.copy(x)
np.expand_dims(x, 0) ; np.squeeze(x) ; np.ravel(x) ; np.tril(np.outer(x, x)) ; np.atleast_2d(x) ; np.real(x)
np.imag(x) ; np.transpose(x) ; np.broadcast_to(x, (2, 16)) ; np.split(np.atleast_1d(x), 1) ; np.angle(x) ; -x ; +x
abs(x) ; ~x ; np.sort(x)[::-1] ; x[..., None] ; x[()] ; np.trace(np.outer(x, x)) ; np.unwrap(x) ; np.i0(x)
"""

# These are joins, what NumPy computes itself, and views, whose results are copies here.
_IN_C_ORDER = """
np.nextafter(x, y) ; np.select([x > 1], [x], y) ; np.concatenate([np.atleast_1d(x), np.atleast_1d(y)])
np.stack([x, y]) ; np.hstack([x, y]) ; np.einsum("...,...->...", x, y) ; np.polyval(x, y) ; np.diff(x, append=y)
np.add.outer(x, y) ; np.sort(x) ; np.frexp(x) ; np.spacing(x) ; np.diff(x) ; np.pad(x, 1) ; np.expand_dims(x, 0)
np.transpose(x) ; np.angle(x) ; x[..., None] ; np.unwrap(x) ; np.i0(x)
"""


def _texts(lines: str) -> list[str]:
    return [t.strip() for line in lines.strip().splitlines() for t in line.split(" ; ")]


FUNCTIONS = {"torch": _texts(_OF_TORCH), "numpy": _texts(_OF_NUMPY)}
IN_C_ORDER = _texts(_IN_C_ORDER)
