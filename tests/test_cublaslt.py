"""Products with cuBLASLt's epilogues: what is planned for which GPU, and results against float64."""

from __future__ import annotations

import itertools
import math

import pytest

import kfusion as kf
from kinds import HAVE_GPU
from sweeps import sweep

torch = pytest.importorskip("torch")
F = torch.nn.functional
AMPERE = HAVE_GPU and torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 0)
on_gpu = pytest.mark.skipif(not AMPERE, reason="needs a GPU of compute capability 8.0 or more")
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
ROUNDING = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
EXECUTORS = ["cublaslt", "array_library", "cuda"]


def gelu(x):
    return F.gelu(x, approximate="tanh")


FORMS = {
    "bias": lambda x, w, b, r: F.linear(x, w, b),
    "bias and relu": lambda x, w, b, r: F.relu(F.linear(x, w, b)),
    "bias and gelu": lambda x, w, b, r: gelu(F.linear(x, w, b)),
    "relu": lambda x, w, b, r: F.relu(x @ w.T),
    "gelu": lambda x, w, b, r: gelu(x @ w.T),
    "residual": lambda x, w, b, r: x @ w.T + r,
    "bias and residual": lambda x, w, b, r: r + F.linear(x, w, b),
    "residual, bias and relu": lambda x, w, b, r: F.relu((x @ w.T + r) + b),
    "bias in float32": lambda x, w, b, r: ((x @ w.T).to(torch.promote_types(x.dtype, torch.float32)) + b).to(x.dtype),
}
REFUSED = {
    "a gelu by erf": (lambda x, w, b, r: F.gelu(x @ w.T), "no multiply beyond"),
    "relu before a bias": (lambda x, w, b, r: F.relu(x @ w.T) + b, "no add beyond"),
    "a scale": (lambda x, w, b, r: x @ w.T * b, "no multiply beyond"),
    "a number": (lambda x, w, b, r: x @ w.T + 1.0, "no add beyond"),
    "two readers": (lambda x, w, b, r: (lambda y: F.relu(y) + y)(x @ w.T), "beyond"),
    "a rounded value": (lambda x, w, b, r: F.relu((x @ w.T + b).float().to(torch.float16).float()), "beyond"),
}


def specs(m=256, k=64, n=128, dtype="bfloat16"):
    def spec(*shape):
        return kf.spec(shape, dtype, like="torch")

    return spec(m, k), spec(n, k), spec(n), spec(m, n)


def planned(f, *arguments, device="A100 80GB", executors=EXECUTORS):
    return kf.plan(f, *arguments, device=device, executors=executors)


def test_a_form_is_one_kernel_on_devices_without_kernels_of_ours():
    def check(form, device):
        (group,) = planned(FORMS[form], *specs(), device=device, executors="available").groups
        assert group.executor == "cublaslt"
        assert group.how.startswith("epilogue of the library: ")
        for said, part in (("gelu", "gelu"), ("relu", "relu"), ("a bias", "bias"), ("added", "residual")):
            assert (said in group.how) == (part in form)

    sweep(check, itertools.product(FORMS, ["A100 80GB", "RTX 4090", "B200", "RTX 5090"]))


def test_what_is_no_form_is_refused():
    def check(f, why):
        plan = planned(f, *specs())
        refusals = [r for r in plan.refusals if r.reason == kf.Reason.NOT_IMPLEMENTED]
        assert refusals
        for refusal in refusals:
            assert "cublaslt computes on a product a bias, a matrix that is added, then" in refusal.sentence
            assert why in refusal.sentence
            assert "array_library computes a matmul alone" in refusal.sentence
        assert {g.executor for g in plan.groups} <= {"cublaslt", "array_library", "cuda"}
        assert len(plan.groups) == 2

    sweep(check, REFUSED.values())
    of_bytes = "multiples of 16 bytes"  # where the library has no good kernel
    for arguments, why in (
        (specs(dtype="float32"), "float16 or bfloat16"), (specs(n=129), of_bytes), (specs(k=63), of_bytes)
    ):  # fmt: skip
        plan = planned(FORMS["residual, bias and relu"], *arguments)
        assert all(g.executor != "cublaslt" for g in plan.groups)
        assert any(why in r.sentence for r in plan.refusals)


# Arrays inside of others, `at` elements on, or so many elements further apart than they are long.
PLACES = {
    "a factor": lambda at: (lambda x, w: F.relu(x[:, at : at + 64] @ w), (96, 72), (64, 64)),
    "the other factor": lambda at: (lambda x, w: F.relu(x @ w[:, at : at + 64]), (96, 64), (64, 72)),
    "a row": lambda at: (lambda x, w: F.relu(x[:1, at : at + 64] @ w), (96, 72), (64, 64)),
    "a column as a row": lambda at: (lambda x, w: F.relu(x[:, :1].T @ w), (64, 64 + at), (64, 64)),
    "rows by batch": lambda at: (lambda x, w: F.relu(x[:, :, :64] @ w), (6, 1, 64 + at), (6, 64, 64)),
    "a bias": lambda at: (lambda x, w, b: F.relu(x @ w + b[at : at + 64]), (96, 64), (64, 64), (72,)),
    "a residual": lambda at: (lambda x, w, r: F.relu(x @ w + r[:, at : at + 64]), (96, 64), (64, 64), (96, 72)),
    "residuals by batch": lambda at: (
        lambda x, w, r: F.relu(x @ w + r[:, : 96 * 64].view(2, 96, 64)), (2, 96, 64), (2, 64, 64), (2, 96 * 64 + at)
    ),
}  # fmt: skip


def test_arrays_begin_at_multiples_of_16_bytes():
    def check(place, at):
        f, *shapes = PLACES[place](at)
        plan = planned(f, *(kf.spec(s, "bfloat16", like="torch") for s in shapes))
        assert [g.executor for g in plan.groups] == (["cublaslt"] if at == 8 else ["array_library", "cuda"])

    sweep(check, itertools.product(PLACES, [1, 4, 8]))


FROM_IMAGES = [(2, 16, 12, 16), (24, 16, 3, 3), (16, 32)]


def from_images(x, w, m):
    """A product along rows of images, whose channels lie innermost when it is to be computed."""
    return F.relu(F.conv2d(x, w, padding=1) @ m)


def test_rows_of_images_are_planned_as_if_they_were_contiguous():
    for device in ("A100 80GB", "H100"):
        plan = planned(from_images, *(kf.spec(s, "bfloat16", like="torch") for s in FROM_IMAGES), device=device)
        assert [g.executor for g in plan.groups] == ["array_library", "cublaslt"]


def test_older_gpus_and_products_alone_are_the_library_s():
    assert "cublaslt" not in kf.executors("T4")
    plan = planned(FORMS["bias and relu"], *specs(), device="T4", executors="available")
    assert [g.executor for g in plan.groups][-1] == "cuda"
    (alone,) = planned(lambda x, w: x @ w.T, *specs()[:2], executors="available").groups
    assert alone.executor == "array_library"


def draw(*shape, dtype="bfloat16", scale=1.0):
    return (torch.randn(*shape, device="cuda") * scale).to(DTYPES[dtype])


def forced(f):
    return kf.FusedFunction(f, {"executors": ["cublaslt", "cuda"], "by_time": False})


def check(f, *arguments, dtype="bfloat16"):
    fused = forced(f)
    plan = fused.plan(*arguments)
    assert [g.executor for g in plan.groups] == ["cublaslt"], plan.groups
    got = fused(*arguments)
    want = f(*[a.double() for a in arguments])
    assert got.shape == want.shape
    assert got.dtype == DTYPES[dtype]
    assert torch.equal(got.isnan(), want.isnan())
    finite = want.isfinite()
    error = (got.double() - want)[finite].norm() / want[finite].norm().clamp(min=1e-30)
    assert error <= 1.5 * ROUNDING[dtype], error
    assert torch.equal(got.nan_to_num(7.0), fused(*arguments).nan_to_num(7.0))  # run to run the same
    return got


SHAPES = [(1, 8, 8), (7, 16, 24), (128, 64, 256), (129, 8, 264), (1000, 776, 1000), (512, 4096, 128)]


def near(f, *arguments, executors=EXECUTORS):
    """By whichever executors, which may round the product."""
    fused = kf.FusedFunction(f, {"executors": executors})
    got, want = fused(*arguments), f(*[a.double() for a in arguments])
    assert (got.double() - want).norm() / want.norm() <= 3 * ROUNDING["bfloat16"]
    assert torch.equal(got, fused(*arguments))


@on_gpu
@pytest.mark.cuda
@pytest.mark.parametrize("dtype", DTYPES)
def test_forms_against_float64(dtype):
    for m, k, n in SHAPES:
        x, w = draw(m, k, dtype=dtype), draw(n, k, dtype=dtype, scale=k**-0.5)
        arguments = x, w, draw(n, dtype=dtype), draw(m, n, dtype=dtype)
        sweep(lambda form, given=arguments: check(FORMS[form], *given, dtype=dtype), [(form,) for form in FORMS])


@on_gpu
@pytest.mark.cuda
def test_layouts_of_factors_and_results():
    x, w, b = draw(96, 64), draw(64, 128), draw(128)
    batches = draw(6, 48, 64), draw(6, 64, 128)
    sweep(check, [
        (lambda x, w, b: F.relu(x @ w + b), x, w, b),
        (lambda x, w, b: F.relu(x.T @ w + b), draw(64, 96), w, b),
        (lambda x, w, b: F.relu(x.T @ w.T + b), draw(64, 96), draw(128, 64), b),
        (lambda x, w, b: F.relu(x[:, 8:72] @ w + b), draw(96, 200), w, b),
        (lambda x, w, b, r: x @ w + b + r[:, 8:136], x, w, b, draw(96, 200)),
        (lambda x, w, b: gelu(x @ w + b), draw(2, 3, 48, 64), w, b),
        (lambda x, w: F.relu(x @ w), *batches),
        (lambda x, w, b: F.relu(x @ w + b), *batches, b),
        *((lambda x, w, r: x @ w + r, *batches, draw(*shape)) for shape in ((6, 48, 128), (48, 128))),
    ])  # fmt: skip


@on_gpu
@pytest.mark.cuda
def test_arrays_inside_of_others_and_at_odd_addresses():
    for place in PLACES:
        for at in (1, 8):
            f, *shapes = PLACES[place](at)
            (check if at == 8 else near)(f, *(draw(*s) for s in shapes))

    def odd(*shape):
        return draw(math.prod(shape) + 1)[1:].view(*shape)

    arguments = odd(96, 64), odd(128, 64), odd(128), odd(96, 128)
    near(lambda x, w, b, r: F.relu(F.linear(x, w, b) + r), *arguments)
    near(from_images, *(draw(*s, scale=0.2) for s in FROM_IMAGES))  # lies otherwise than was planned


@on_gpu
@pytest.mark.cuda
def test_nan_and_inf_pass_through():
    x, w, b, r = draw(64, 64), draw(128, 64), draw(128), draw(64, 128)
    x[3, 5] = torch.nan
    b[17] = torch.nan
    b[18], b[19] = torch.inf, 1e4
    for form in ("bias and relu", "bias and gelu"):
        got = check(FORMS[form], x, w, b, r)
        assert got[3].isnan().all()
        assert got[:, 17].isnan().all()


@on_gpu
@pytest.mark.cuda
def test_a_first_call_in_a_graph():
    x, w, b, out = draw(96, 72), draw(136, 72), draw(136), draw(96, 136)
    f, graph = forced(lambda x, w, b: gelu(F.linear(x, w, b))), torch.cuda.CUDAGraph()
    assert [g.executor for g in f.plan(x, w, b).groups] == ["cublaslt"]
    with torch.cuda.graph(graph):
        f(x, w, b, out=out)
    x.mul_(-0.5)
    graph.replay()
    want = gelu(F.linear(x.double(), w.double(), b.double()))
    assert (out.double() - want).norm() / want.norm() <= 3 * ROUNDING["bfloat16"]
    assert torch.equal(out, f(x, w, b))
