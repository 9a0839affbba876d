"""Named sizes, sweeps over them and over devices, and two plans side by side."""

from __future__ import annotations

import json

import matplotlib
import pytest

import kfusion as kf
from kfusion._cli.main import main

matplotlib.use("Agg")


def product(x, w):
    return kf.gelu(x @ w)


NAMED = kf.spec(("n", 1024), "bfloat16"), kf.spec((1024, 1024), "bfloat16")


def sized(n):
    return kf.spec((n, 1024), "bfloat16"), NAMED[1]


# ---- named sizes ----


def test_specs_name_sizes():
    s = kf.spec(("batch", "2 * seq - 1", 8), "float16", like="torch", device="cuda")
    assert s.names == {"batch", "seq"}
    filled = kf.spec((3, 9, 8), "float16", like="torch", device="cuda")
    assert s.filled({"batch": 3, "seq": 5, "more": 1}) == filled
    assert hash(s) == hash(kf.spec(("batch", "2 * seq - 1", 8), "float16", like="torch", device="cuda"))
    assert repr(s) == "spec(('batch', '2 * seq - 1', 8), 'float16', like='torch', device='cuda:0')"
    assert kf.spec("n").filled({"n": 0}) == kf.spec(0)
    assert kf.spec(("2*3", 4)) == kf.spec((6, 4))


@pytest.mark.parametrize(
    "text", ["", "a b", "a.b", "f(a)", "a / 2", "a ** 2", "-1", "[a]", "1.5", "a if b else c", "("]
)
def test_other_texts_are_no_sizes(text):
    with pytest.raises(ValueError, match="an extent must be"):
        kf.spec((text,))


def test_sizes_without_numbers():
    s = kf.spec(("n", 4))
    for call in (lambda: kf.plan(kf.relu, s), lambda: kf.trace(kf.relu, s), lambda: kf.sweep(kf.relu, s)):
        with pytest.raises(ValueError, match=r"needs numbers for its sizes: sizes=\{'n': 8\}"):
            call()
    with pytest.raises(ValueError, match="no spec names the size 'm'; they name n"):
        kf.plan(kf.relu, s, sizes={"n": 3, "m": 4})
    both, more = kf.spec(("a", "b")), kf.spec(("b", "c"))
    with pytest.raises(ValueError, match=r"spec\(\('a', 'b'\), 'float32'\) needs .*: sizes=\{'a': 8, 'b': 8\}"):
        kf.plan(kf.relu, both)
    with pytest.raises(ValueError, match=r"the specs need numbers for their sizes: sizes=\{'a': 8, 'c': 8\}"):
        kf.plan(product, both, more, sizes={"b": 3})
    with pytest.raises(ValueError, match="no spec names the sizes 'd', 'e'; they name a, b"):
        kf.plan(kf.relu, both, sizes={"e": 1, "d": 2})
    with pytest.raises(ValueError, match=">= 0, got -3"):
        kf.plan(kf.relu, s, sizes={"n": -3})
    with pytest.raises(TypeError, match="must be an integer"):
        kf.plan(kf.relu, s, sizes={"n": 1.5})
    with pytest.raises(ValueError, match="divides by 0"):
        kf.plan(kf.relu, kf.spec(("4 // n",)), sizes={"n": 0})
    with pytest.raises(ValueError, match="at most"):
        kf.plan(kf.relu, kf.spec(("n", "n")), sizes={"n": 2**40})


def test_a_plan_of_named_sizes_is_that_of_the_numbers():
    assert kf.plan(product, *NAMED, sizes={"n": 24}, device="H100") == kf.plan(product, *sized(24), device="H100")


def test_sizes_within_structures():
    def f(pair, more):
        return pair[0] + more["y"]

    s = kf.spec(("n",))
    assert kf.plan(f, (s, 1), {"y": s}, sizes={"n": 5}).fused.issued.total == 3 * 5 * 4


# ---- sweeps ----


def test_points_are_the_totals_of_plans():
    sweep = kf.sweep(product, *NAMED, n=[8, 512, 8192], devices=["H100", "L4"])
    assert [(p.sizes["n"], p.device) for p in sweep.points] == [
        (n, kf.device(d).name) for n in (8, 512, 8192) for d in ("H100", "L4")
    ]
    for point, (n, device) in zip(sweep.points, [(n, d) for n in (8, 512, 8192) for d in ("H100", "L4")], strict=True):
        p = kf.plan(product, *sized(n), device=device)
        assert (point.bytes, point.unfused_bytes) == (p.fused.issued.total, p.unfused.issued.total)
        assert (point.us, point.unfused_us, point.library_us) == (p.fused.time_us, p.unfused.time_us, p.library.time_us)
        assert (point.bound, point.intensity, point.kernels) == (p.fused.bound, p.fused.intensity, len(p.groups))
        assert 0 <= point.compute_share <= 1


def test_where_it_turns_compute_bound_is_said():
    sweep = kf.sweep(product, *NAMED, n=[8192, 8], device="L4")
    assert sweep.turns() == ["L4: bound by launches up to n=8, by computing from n=8192."]
    assert sweep.turns()[0] in str(sweep)
    one = kf.sweep(product, *NAMED, n=[8192, 16384], device="L4")
    assert one.turns() == ["L4: bound by computing at each n."]


def test_combinations_of_sizes_and_series():
    sweep = kf.sweep(product, kf.spec(("a", "b")), kf.spec(("b", 64)), a=[1, 2, 3], b=[8, 16], device="T4")
    assert [tuple(p.sizes.values()) for p in sweep.points] == [(a, b) for a in (1, 2, 3) for b in (8, 16)]
    assert sweep.axis == "a"
    assert list(sweep.series()) == ["b=8 on T4", "b=16 on T4"]


def test_sweeps_as_records_and_pictures(tmp_path):
    sweep = kf.sweep(product, *NAMED, n=[1, 8192], device="L4")
    assert json.loads(sweep.to_json()) == sweep.to_dicts()
    assert sweep.to_dicts()[0]["sizes"] == {"n": 1}
    figure = sweep.plot(tmp_path / "s.png")
    assert len(figure.axes) == 3
    assert any("compute-bound" in text.get_text() for text in figure.axes[2].texts)
    assert (tmp_path / "s.png").stat().st_size > 0


def test_a_table_of_devices(tmp_path):
    table = kf.plan(product, *sized(64), devices=["H100", "L4", "T4"])
    assert [p.device for p in table.points] == [kf.device(d).name for d in ("H100", "L4", "T4")]
    assert table.points[1].us == kf.plan(product, *sized(64), device="L4").fused.time_us
    assert len(table.turns()) == 3
    table.plot(tmp_path / "d.svg")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: kf.sweep(product, *NAMED, n=[]), ValueError, "must have a value"),
        (lambda: kf.sweep(product, *NAMED, n=["8"]), TypeError, "must be integers"),
        (lambda: kf.sweep(product, *NAMED, n=[True]), TypeError, "must be integers"),
        (lambda: kf.sweep(product, *NAMED, n=[8], m=[1]), ValueError, "no spec names the size 'm'"),
        (lambda: kf.sweep(product, *NAMED, n=range(10**5)), ValueError, "at most"),
        (lambda: kf.sweep(product, *NAMED, n=[8], devices=[]), ValueError, "one at least"),
        (lambda: kf.sweep(product, *NAMED, n=[8], devices="L4"), TypeError, "must be a list"),
        (lambda: kf.sweep(product, *NAMED, n=[8], devices=["L4"], device="T4"), TypeError, "not both"),
        (lambda: kf.plan(product, *sized(8), devices=["L4"], device="T4"), TypeError, "without device"),
        (lambda: kf.plan(product, *sized(8), device="T4").against("T4"), TypeError, "must be a Plan"),
    ],
)
def test_wrong_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()


# ---- side by side ----


def test_two_plans_side_by_side():
    a, b = (kf.plan(product, *sized(n), device="H100") for n in (512, 1024))
    both = a.against(b)
    assert sum(row.bytes for row in both.rows) == a.fused.issued.total
    assert sum(row.other_bytes for row in both.rows) == b.fused.issued.total
    assert sum(row.us for row in both.rows) == pytest.approx(a.fused.time_us)
    assert sum(row.other_us for row in both.rows) == pytest.approx(b.fused.time_us)
    assert [(row.kernels, row.other_kernels) for row in both.rows] == [((0,), (0,))]
    assert json.loads(both.to_json()) == both.to_dicts()
    assert a.title in str(both)
    assert b.title in str(both)


def test_what_only_one_plan_has():
    def f(x):
        return kf.softmax(x), x.sum()

    def g(x):
        return kf.softmax(x), x.T @ x

    a, b = (kf.plan(h, kf.spec((64, 64)), device="H100") for h in (f, g))
    rows = a.against(b).rows
    alone = [row for row in rows if not (row.kernels and row.other_kernels)]
    assert alone
    assert all((row.us == 0) == (not row.kernels) for row in rows)
    assert "Only in A:" in str(a.against(b))
    assert "Only in A:" not in str(a.against(a))


# ---- the command ----

MODULE = """
import kfusion as kf

def product(x, w):
    return kf.gelu(x @ w)
"""


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    (tmp_path / "swept.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)

    def run(*arguments, status=0):
        assert main(["plan", *arguments]) == status
        captured = capsys.readouterr()
        return captured.err if status else captured.out

    return run


ARGUMENTS = ("swept.py:product", "--shape", "Nx1024:bfloat16", "--shape", "1024x1024:bfloat16")


def test_named_kernels_have_shapes_of_their_own(run):
    assert json.loads(run("softmax", "--json", "--device", "L4"))["function"] == "softmax"
    assert "float32[8,16]" in run("softmax", "--shape", "8x16", "--device", "L4")


@pytest.mark.parametrize("name", [f.__name__ for f in kf._named.KERNELS])
def test_every_named_kernel_is_planned_by_name(run, name):
    assert f"{name}(" in run(name, "--device", "L4")


def test_names_near_a_wrong_one(run):
    assert "did you mean softmax" in run("sofmax", status=2)
    assert "the named ones are relu_layernorm" in run("zzzz", status=2)
    assert main(["traffic", "sofmax", "--shape", "8x8"]) == 2


def test_sizes_and_sweeps(run, tmp_path):
    assert "bfloat16[9,1024]" in run(*ARGUMENTS, "--size", "N=9", "--device", "L4")
    out = run(*ARGUMENTS, "--sweep", "N=8,8192", "--device", "L4", "--plot", "s.png")
    assert "by computing from N=8192" in out
    assert (tmp_path / "s.png").exists()
    points = json.loads(run(*ARGUMENTS, "--sweep", "N=1..8", "--device", "L4", "--device", "T4", "--json"))
    assert [p["sizes"]["N"] for p in points] == [n for n in (1, 2, 4, 8) for _ in range(2)]


def test_several_devices(run):
    out = run("softmax", "--device", "L4", "--device", "T4")
    assert "L4" in out
    assert "T4" in out


def test_against(run):
    out = run(*ARGUMENTS, "--size", "N=64", "--device", "L4", "--against", "--size N=128 --device T4")
    assert "B: product(x: bfloat16[128,1024]" in out
    assert "on T4" in out
    out = run("softmax", "--dtype", "float16", "--device", "L4", "--against", "log_softmax --dtype float32")
    assert "A: softmax(x: float16[4096,1024]) on L4" in out
    assert "B: log_softmax(x: float32[4096,1024]) on L4" in out


def test_top_and_modules(run):
    assert "The fusions that pay" in run("softmax", "--device", "L4", "--top", "3")
    assert json.loads(run("softmax", "--device", "L4", "--top", "3", "--json"))[0]["kernels"] == [0]
    assert "By module" in run("softmax", "--device", "L4", "--modules")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "FUNCTION is needed"),
        (("softmax", "--html", "p.html", "--device", "L4", "--device", "T4"), "--html is for one plan"),
        (("softmax", "--plot", "p.png", "--against", "gelu"), "--plot is for"),
        (("softmax", "--sweep", "N=1", "--against", "gelu"), "--against compares one plan"),
        (("softmax", "--sweep", "N=1"), "no spec names the size 'N'"),
        ((*ARGUMENTS, "--sweep", "N=1", "--no-fuse"), "--sweep plans what is possible"),
        ((*ARGUMENTS, "--device", "L4"), "needs numbers for its sizes"),
    ],
)
def test_what_the_command_refuses(run, arguments, message):
    assert message in run(*arguments, status=2)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--sweep", "N"),
        ("--sweep", "N=0"),
        ("--sweep", "N=a"),
        ("--size", "N=-1"),
        ("--size", "8"),
        ("--shape", "N-x4"),
    ],
)
def test_what_argparse_refuses(arguments):
    with pytest.raises(SystemExit):
        main(["plan", "softmax", *arguments])
