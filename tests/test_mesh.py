"""Plans for several devices: bytes and times of a rank and of the links between them."""

from __future__ import annotations

import pytest

import kfusion as kf
from kfusion._devices import device_table

X = kf.spec((4096, 1024))


def statistics(x):
    return kf.softmax(x), x.var(0), x.sum()


def test_rows_need_no_links():
    plan = kf.plan(lambda x, b: kf.softmax(x + b), X, kf.spec((1024,)), device="H200", mesh=kf.Mesh(4, {"x": 0}))
    assert plan.link_bytes == 0
    assert plan.exchanges == ()
    assert plan.rank_bytes == 2 * 4096 * 1024 * 4 // 4 + 1024 * 4
    assert plan.time_us == plan.parts[0].fused.time_us
    assert plan.speedup == plan.alone.fused.time_us / plan.time_us


def test_reductions_are_exchanged():
    plan = kf.plan(statistics, X, device="H200", mesh=kf.Mesh(4, {"x": 0}))
    # The mean and the squares around it of each column, and a sum: a ring sends 2 * 3/4 of them.
    assert {e.value: (e.op, e.nbytes, e.link_bytes) for e in plan.exchanges} == {
        "var": ("moments", 2 * 1024 * 4, 3 * 1024 * 4),
        "sum": ("sum", 4, 6),
    }
    assert plan.link == "nvlink"
    (var, _) = sorted(plan.exchanges, key=lambda e: -e.nbytes)
    assert var.time_us == pytest.approx(2 * plan.device.launch_us + var.link_bytes / (plan.link_bandwidth / 2) * 1e6)
    assert "all-reduce var" in str(plan)
    assert max(map(len, str(plan).splitlines())) <= 80
    slow = kf.plan(statistics, X, device="H200", mesh=kf.Mesh(4, {"x": 0}, link=1e9))
    assert (slow.link, slow.link_bandwidth) == ("link", 1e9)
    assert slow.time_us > plan.time_us


def test_products_over_a_split_axis():
    plan = kf.plan(lambda x, w: x @ w, X, kf.spec((1024, 64)), device="A100 80GB", mesh=kf.Mesh(2, {"x": 1}))
    (exchange,) = plan.exchanges
    assert exchange.nbytes == exchange.link_bytes == 4096 * 64 * 4


def test_one_rank_is_one_device():
    plan = kf.plan(statistics, X, device="H200", mesh=kf.Mesh(1, {"x": 0}))
    assert plan.speedup == 1
    assert plan.exchanges == ()


@pytest.mark.parametrize(
    ("mesh", "message"),
    [
        (kf.Mesh(2, {"x": 1}), "softmax .* needs all of an axis that is sharded"),
        (kf.Mesh(2, {"y": 0}), r"shards must name arguments \(x\), got 'y'"),
        (kf.Mesh(2, {"x": 2}), "x has 2 axes, got axis 2"),
        (kf.Mesh(8192, {"x": 0}), "has 4096 elements for 8192 ranks"),
        (kf.Mesh(2, {"x": 0}, "token ring"), "link of H200: the device table has nvlink, pcie"),
    ],
)
def test_refusals(mesh, message):
    with pytest.raises(ValueError, match=message):
        kf.plan(statistics, X, device="H200", mesh=mesh)


@pytest.mark.parametrize("f", [lambda a, b: a @ b.T, lambda a, b: (a[:, None] * b[None]).sum()])
def test_axes_that_meet_are_not_split_among_the_same_ranks(f):
    """A rank would compute only the blocks on the diagonal."""
    x = kf.spec((64, 16))
    with pytest.raises(ValueError, match=r"(matmul|multiply) .*has two axes, of different arguments, .*shard one"):
        kf.plan(f, x, x, device="H200", mesh=kf.Mesh(2, {"a": 0, "b": 0}))
    assert kf.plan(f, x, x, device="H200", mesh=kf.Mesh(2, {"a": 0})).parts


def test_wrong_meshes():
    with pytest.raises(ValueError, match="ranks must be >= 1"):
        kf.Mesh(0, {})
    with pytest.raises(TypeError, match="shards must map"):
        kf.Mesh(2, ["x"])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="link must be > 0"):
        kf.Mesh(2, {}, -1.0)
    with pytest.raises(TypeError, match=r"mesh must be a kfusion\.Mesh, got int"):
        kf.plan(statistics, X, mesh=2)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="the device table has none; give bytes/s"):
        kf.plan(statistics, X, device="EPYC 9654", mesh=kf.Mesh(2, {"x": 0}))


def test_every_gpu_of_a_data_center_has_its_links():
    kinds = {entry["name"]: entry["kind"] for entry in device_table._file()["devices"]}
    for device in kf.devices():
        links = device_table.links_of(device)
        assert links or "data center" not in kinds[device.name], device.name
        assert not (links and device.is_cpu), device.name
        for rate, source in links.values():
            assert rate > 0
            assert source
        rates = [rate for rate, _ in links.values()]
        assert rates == sorted(rates, reverse=True)
