"""Plans for several devices: bytes and times of a rank and of the links between them."""

from __future__ import annotations

import pytest

import kfusion as kf
from kfusion._devices import device_table
from sweeps import refusals

X = kf.spec((4096, 1024))


def statistics(x):
    return kf.softmax(x), x.var(0), x.sum()


def planned(f, *specs, device="H200", **mesh):
    return kf.plan(f, *specs, device=device, mesh=kf.Mesh(**mesh))


def test_rows_and_products():
    plan = planned(lambda x, b: kf.softmax(x + b), X, kf.spec((1024,)), ranks=4, shards={"x": 0})
    assert (plan.link_bytes, plan.exchanges) == (0, ())
    assert plan.rank_bytes == 2 * 4096 * 1024 * 4 // 4 + 1024 * 4
    assert plan.time_us == plan.parts[0].fused.time_us
    assert plan.speedup == plan.alone.fused.time_us / plan.time_us
    plan = planned(lambda x, w: x @ w, X, kf.spec((1024, 64)), device="A100 80GB", ranks=2, shards={"x": 1})
    (exchange,) = plan.exchanges
    assert exchange.nbytes == exchange.link_bytes == 4096 * 64 * 4
    plan = planned(statistics, X, ranks=1, shards={"x": 0})  # one rank is one device
    assert (plan.speedup, plan.exchanges) == (1, ())


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


def test_refusals():
    x = kf.spec((64, 16))
    rows = [(kf.Mesh(2, {"x": 1}), "softmax .* needs all of an axis that is sharded"),
            (kf.Mesh(2, {"y": 0}), r"shards must name arguments \(x\), got 'y'"),
            (kf.Mesh(2, {"x": 2}), "x has 2 axes, got axis 2"),
            (kf.Mesh(8192, {"x": 0}), "has 4096 elements for 8192 ranks"),
            (kf.Mesh(2, {"x": 0}, "token ring"), "link of H200: the device table has nvlink, pcie")]  # fmt: skip
    of_plans = [(lambda m=m: kf.plan(statistics, X, device="H200", mesh=m), ValueError, text) for m, text in rows]
    # A rank would compute only the blocks on the diagonal of axes that meet.
    for f in (lambda a, b: a @ b.T, lambda a, b: (a[:, None] * b[None]).sum()):
        says = r"(matmul|multiply) .*has two axes, of different arguments, .*shard one"
        of_plans += [(lambda f=f: planned(f, x, x, ranks=2, shards={"a": 0, "b": 0}), ValueError, says)]
        assert planned(f, x, x, ranks=2, shards={"a": 0}).parts
    refusals([
        *of_plans,
        (lambda: kf.Mesh(0, {}), ValueError, "ranks must be >= 1"),
        (lambda: kf.Mesh(2, ["x"]), TypeError, "shards must map"),
        (lambda: kf.Mesh(2, {}, -1.0), ValueError, "link must be > 0"),
        (lambda: kf.plan(statistics, X, mesh=2), TypeError, r"mesh must be a kfusion\.Mesh, got int"),
        (lambda: planned(statistics, X, device="EPYC 9654", ranks=2, shards={"x": 0}), ValueError,
         "the device table has none; give bytes/s"),
    ])  # fmt: skip


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
