"""Functions that torch makes of its operators are kernels: torch runs on stand-ins, whose operators are traced."""

from __future__ import annotations

import pytest

import kfusion as kf

torch = pytest.importorskip("torch")
F = torch.nn.functional

_FUNCTIONS = {
    "einsum": lambda x, y: torch.einsum("bij,bkj->bik", x, y),
    "einsum of one index": lambda x, y: torch.einsum("i,i->i", x[0, 0], y[0, 0]),
    "inner": lambda x, y: torch.inner(x, y),
    "tensordot": lambda x, y: torch.tensordot(x, y, dims=([1, 2], [1, 2])),
    "outer": lambda x, y: torch.outer(x[0, 0], y[0, 1]),
    "kron": lambda x, y: torch.kron(x[0], y[0]),
    "vecdot": lambda x, y: torch.linalg.vecdot(x, y),
    "multi_dot": lambda x, y: torch.linalg.multi_dot((x[0], y[0].T, x[1])),
    "fftshift": lambda x, y: torch.fft.fftshift(x + y),
    "methods": lambda x, y: x.inner(y).reshape_as(x.inner(x)),
    "an operator with a row": lambda x, y: torch.slice_scatter(x, y[:, :2], 1, 1, 3),
}


def _arrays(rng, *shape):
    return [torch.from_numpy(rng.standard_normal(shape)).float() for _ in range(2)]


def _has_calls(f, *args):
    return "library_call" in {node["op"] for node in kf.trace(f, *args).to_dict()["nodes"]}


@pytest.mark.parametrize("name", _FUNCTIONS)
def test_they_are_kernels(rng, name):
    f, fused = _FUNCTIONS[name], kf.fuse(_FUNCTIONS[name])
    for shape in ((2, 5, 4), (2, 5, 3), (3, 7, 6), (3, 5, 8)):  # from the second one on of sizes
        args = _arrays(rng, *shape)
        torch.testing.assert_close(fused(*args), f(*args))
    assert not _has_calls(f, *args)


def test_a_stage_has_the_functions_name(rng):
    x, y = _arrays(rng, 2, 5, 4)
    plan = kf.plan(lambda x, y: torch.einsum("bij,bkj->bik", x, y).relu(), x, y)
    assert [g.label for g in plan.groups] == ["einsum+relu"]


def test_numbers_count_by_their_values(rng):
    x, _ = _arrays(rng, 2, 5, 4)

    def f(x, spacing):
        return torch.gradient(x, spacing=spacing, dim=1)[0]

    fused = kf.fuse(f)
    for spacing in (0.5, 0.25, 0.5):
        torch.testing.assert_close(fused(x, spacing), f(x, spacing))


def test_autocast(rng):
    args = _arrays(rng, 2, 8, 8)
    f = _FUNCTIONS["einsum"]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got, want = kf.fuse(f)(*args), f(*args)
    assert got.dtype == want.dtype == torch.bfloat16
    torch.testing.assert_close(got, want)


def test_gradients(rng):
    args = [a.requires_grad_() for a in _arrays(rng, 2, 5, 4)]
    for name in ("einsum", "kron", "fftshift"):
        f = _FUNCTIONS[name]
        got, want = (torch.autograd.grad((g(*args) ** 2).sum(), args) for g in (kf.fuse(f), f))
        torch.testing.assert_close(got, want)


def test_views_share_memory(rng):
    def f(x, y):
        made = x + 1
        diagonal, same = torch.atleast_3d(made[0]), torch.broadcast_tensors(made, y)[0]
        made.mul_(2)
        return diagonal, same

    args = _arrays(rng, 2, 5, 4)
    torch.testing.assert_close(kf.fuse(f)(*args), f(*args))


def test_what_has_an_operator_without_a_form_is_one_call(rng):
    """None of its operators is traced where another one has no form, nor those of many steps."""
    x, _ = _arrays(rng, 2, 8, 4)
    names = [n["op"] for n in kf.trace(lambda x: F.local_response_norm(x, 2), x).to_dict()["nodes"]]
    assert names == ["input", "library_call"]
    network = torch.nn.RNN(4, 4)
    assert _has_calls(lambda x: network(x)[0], x)


def test_a_gpu_that_is_not_there():
    x, y = (kf.spec((2, 64, 64), "bfloat16", like="torch") for _ in range(2))
    plan = kf.plan(lambda x, y: _FUNCTIONS["einsum"](x, y) * 2, x, y, device="H200")
    assert [g.label for g in plan.groups] == ["einsum+multiply"]
    with torch.device("meta"):
        tensors = [torch.empty(2, 64, 64) for _ in range(2)]
    assert [g.label for g in kf.plan(_FUNCTIONS["einsum"], *tensors, device="H200").groups] == ["einsum"]


_REFUSED = {
    "slice": (lambda x, y: torch.slice_scatter(x, y, 0, 1, 3), [(4, 2), (5, 2), (6, 2)], [(6, 3), (7, 1)]),
    "end": (lambda x, y: torch.slice_scatter(x, y, 0, -2), [(4, 2), (5, 2), (6, 2)], [(7, 3)]),
    "index": (lambda x, y: torch.select_scatter(x, y[0], 0, 2), [(4, 2), (5, 2), (6, 2)], [(2, 2)]),
    "negative index": (lambda x, y: torch.select_scatter(x, y[0], 0, -3), [(4, 2), (5, 2), (6, 2)], [(2, 2)]),
}


@pytest.mark.parametrize("name", _REFUSED)
def test_what_torch_refuses_after_other_sizes(rng, name):
    f, good, bad = _REFUSED[name]
    fused = kf.fuse(f)
    for sizes in (*good, *bad):
        args = [_arrays(rng, n, 3)[0] for n in sizes]
        if sizes in good:
            torch.testing.assert_close(fused(*args), f(*args))
        else:
            for called in (f, fused):
                with pytest.raises((RuntimeError, IndexError), match=r"size equal|out of range"):
                    called(*args)


@pytest.mark.parametrize("is_cast", [False, True])
@pytest.mark.parametrize("dtypes", [("bfloat16", "float32"), ("float32", "bfloat16")])
def test_what_is_scattered_takes_the_tensors_dtype(rng, dtypes, is_cast):
    x, y = (a.to(getattr(torch, d)) for a, d in zip(_arrays(rng, 5, 3), dtypes, strict=True))
    for f in (lambda x, y: torch.slice_scatter(x, y[:2], 0, 1, 3), lambda x, y: torch.select_scatter(x, y[0], 0, 1)):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_cast):
            torch.testing.assert_close(kf.fuse(f)(x, y), f(x, y), rtol=0, atol=0)


def test_numbers_beyond_a_dtype(rng):
    x = _arrays(rng, 5, 3)[0].half()
    with pytest.raises(RuntimeError, match=r"kfusion\.constant_pad_nd: value cannot be converted"):
        kf.fuse(lambda x: torch.constant_pad_nd(x, (1, 1), 1e30))(x)


def test_torchs_own_functions_are_calls(rng):
    """Their further results have another dtype on each device, and no gradients."""
    x = _arrays(rng, 5, 3)[0].requires_grad_()

    def f(x):
        return torch.native_layer_norm(x, (3,), None, None, 1e-5)

    got, want = kf.fuse(f)(x), f(x)
    torch.testing.assert_close(got, want)
    assert [t.requires_grad for t in got] == [t.requires_grad for t in want]
    with pytest.raises((NotImplementedError, ValueError, RuntimeError, TypeError)):  # as torch does
        kf.fuse(lambda x: torch._softmax(x, 1, False))(torch.arange(6).reshape(2, 3))


def _norms(x):
    return x.new_ones(x.shape[1]), x.new_zeros(x.shape[1])


_OF_TWO_SPELLINGS = {
    "kl_div": lambda x, y: torch.kl_div(x, y.exp()),
    "sum": lambda x, y: torch.kl_div(x, y.exp(), reduction=2),
    "mean": lambda x, y: torch.kl_div(x, y.exp(), 1),
    "binary_cross_entropy_with_logits": lambda x, y: torch.binary_cross_entropy_with_logits(x, y),
    "hinge_embedding_loss": lambda x, y: torch.hinge_embedding_loss(x, y.sign()),
    "margin_ranking_loss": lambda x, y: torch.margin_ranking_loss(x, y, y.sign()),
    "cosine_embedding_loss": lambda x, y: torch.cosine_embedding_loss(x[0], y[0], y[0, :, 0].sign()),
    "triplet_margin_loss": lambda x, y: torch.triplet_margin_loss(x, y, x * y),
    "poisson_nll_loss": lambda x, y: torch.poisson_nll_loss(x, y, True, False, 1e-8, 1),
    "batch_norm": lambda x, y: torch.batch_norm(x, *_norms(x), None, None, True, 0.1, 1e-5, False),
    "instance_norm": lambda x, y: torch.instance_norm(x, *_norms(x), None, None, True, 0.1, 1e-5, False),
    "group_norm": lambda x, y: torch.group_norm(x, 1, *_norms(x), 1e-5, False),
}


@pytest.mark.parametrize("name", _OF_TWO_SPELLINGS)
def test_torchs_own_losses_and_norms_are_not_functionals(rng, name):
    """torch.kl_div does not reduce by default, and torch.batch_norm takes weights first."""
    args = _arrays(rng, 3, 4, 5)
    torch.testing.assert_close(kf.fuse(_OF_TWO_SPELLINGS[name])(*args), _OF_TWO_SPELLINGS[name](*args))
