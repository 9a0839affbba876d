"""Named sizes, sweeps over them and over devices, and two plans side by side."""

import json

import matplotlib
import pytest

import kfusion as kf
from kfusion._cli.main import main
from sweeps import sweep

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


def test_refused_sizes():
    s, both, more = kf.spec(("n", 4)), kf.spec(("a", "b")), kf.spec(("b", "c"))

    def check(call, message, error=ValueError):
        with pytest.raises(error, match=message):
            call()

    texts = ["", "a b", "a.b", "f(a)", "a / 2", "a ** 2", "-1", "[a]", "1.5", "a if b else c", "("]
    rows = [(lambda text=text: kf.spec((text,)), "an extent must be") for text in texts]
    needed = r"needs numbers for its sizes: sizes=\{'n': 8\}"
    rows += [(lambda f=f: f(kf.relu, s), needed) for f in (kf.plan, kf.trace, kf.sweep)]
    two = r"spec\(\('a', 'b'\), 'float32'\) needs .*: sizes=\{'a': 8, 'b': 8\}"
    several = r"the specs need numbers for their sizes: sizes=\{'a': 8, 'c': 8\}"
    rows += [
        (lambda: kf.plan(kf.relu, s, sizes={"n": 3, "m": 4}), "no spec names the size 'm'; they name n"),
        (lambda: kf.plan(kf.relu, both), two),
        (lambda: kf.plan(product, both, more, sizes={"b": 3}), several),
        (lambda: kf.plan(kf.relu, both, sizes={"e": 1, "d": 2}), "no spec names the sizes 'd', 'e'; they name a, b"),
        (lambda: kf.plan(kf.relu, s, sizes={"n": -3}), ">= 0, got -3"),
        (lambda: kf.plan(kf.relu, s, sizes={"n": 1.5}), "must be an integer", TypeError),
        (lambda: kf.plan(kf.relu, kf.spec(("4 // n",)), sizes={"n": 0}), "divides by 0"),
        (lambda: kf.plan(kf.relu, kf.spec(("n", "n")), sizes={"n": 2**40}), "at most"),
        (lambda: kf.sweep(product, *NAMED, n=[]), "must have a value"),
        (lambda: kf.sweep(product, *NAMED, n=["8"]), "must be integers", TypeError),
        (lambda: kf.sweep(product, *NAMED, n=[True]), "must be integers", TypeError),
        (lambda: kf.sweep(product, *NAMED, n=[8], m=[1]), "no spec names the size 'm'"),
        (lambda: kf.sweep(product, *NAMED, n=range(10**5)), "at most"),
        (lambda: kf.sweep(product, *NAMED, n=[8], devices=[]), "one at least"),
        (lambda: kf.sweep(product, *NAMED, n=[8], devices="L4"), "must be a list", TypeError),
        (lambda: kf.sweep(product, *NAMED, n=[8], devices=["L4"], device="T4"), "not both", TypeError),
        (lambda: kf.plan(product, *sized(8), devices=["L4"], device="T4"), "without device", TypeError),
        (lambda: kf.plan(product, *sized(8), device="T4").against("T4"), "must be a Plan", TypeError),
    ]
    sweep(check, rows)


def test_a_plan_of_named_sizes_is_that_of_the_numbers():
    assert kf.plan(product, *NAMED, sizes={"n": 24}, device="H100") == kf.plan(product, *sized(24), device="H100")


def test_sizes_within_structures():
    def f(pair, more):
        return pair[0] + more["y"]

    s = kf.spec(("n",))
    assert kf.plan(f, (s, 1), {"y": s}, sizes={"n": 5}).fused.issued.total == 3 * 5 * 4


# ---- sweeps ----


def test_points_are_the_totals_of_plans():
    swept = kf.sweep(product, *NAMED, n=[8, 512, 8192], devices=["H100", "L4"])
    assert [(p.sizes["n"], p.device) for p in swept.points] == [
        (n, kf.device(d).name) for n in (8, 512, 8192) for d in ("H100", "L4")
    ]
    for point, (n, device) in zip(swept.points, [(n, d) for n in (8, 512, 8192) for d in ("H100", "L4")], strict=True):
        p = kf.plan(product, *sized(n), device=device)
        assert (point.bytes, point.unfused_bytes) == (p.fused.issued.total, p.unfused.issued.total)
        assert (point.us, point.unfused_us, point.library_us) == (p.fused.time_us, p.unfused.time_us, p.library.time_us)
        assert (point.bound, point.intensity, point.kernels) == (p.fused.bound, p.fused.intensity, len(p.groups))
        assert 0 <= point.compute_share <= 1


def test_where_it_turns_compute_bound_is_said():
    swept = kf.sweep(product, *NAMED, n=[8192, 8], device="L4")
    assert swept.turns() == ["L4: bound by launches up to n=8, by computing from n=8192."]
    assert swept.turns()[0] in str(swept)
    one = kf.sweep(product, *NAMED, n=[8192, 16384], device="L4")
    assert one.turns() == ["L4: bound by computing at each n."]


def test_combinations_of_sizes_and_series():
    swept = kf.sweep(product, kf.spec(("a", "b")), kf.spec(("b", 64)), a=[1, 2, 3], b=[8, 16], device="T4")
    assert [tuple(p.sizes.values()) for p in swept.points] == [(a, b) for a in (1, 2, 3) for b in (8, 16)]
    assert swept.axis == "a"
    assert list(swept.series()) == ["b=8 on T4", "b=16 on T4"]


def test_sweeps_as_records_and_pictures(tmp_path):
    swept = kf.sweep(product, *NAMED, n=[1, 8192], device="L4")
    assert json.loads(swept.to_json()) == swept.to_dicts()
    assert swept.to_dicts()[0]["sizes"] == {"n": 1}
    figure = swept.plot(tmp_path / "s.png")
    assert len(figure.axes) == 3
    assert any("compute-bound" in text.get_text() for text in figure.axes[2].texts)
    assert (tmp_path / "s.png").stat().st_size > 0


def test_a_table_of_devices(tmp_path):
    table = kf.plan(product, *sized(64), devices=["H100", "L4", "T4"])
    assert [p.device for p in table.points] == [kf.device(d).name for d in ("H100", "L4", "T4")]
    assert table.points[1].us == kf.plan(product, *sized(64), device="L4").fused.time_us
    assert len(table.turns()) == 3
    table.plot(tmp_path / "d.svg")


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


def test_named_kernels(run):
    """They have shapes of their own, and names near a wrong one are said."""
    assert json.loads(run("softmax", "--json", "--device", "L4"))["function"] == "softmax"
    assert "float32[8,16]" in run("softmax", "--shape", "8x16", "--device", "L4")
    for f in kf._named.KERNELS:
        assert f"{f.__name__}(" in run(f.__name__, "--device", "L4")
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


def test_against(run):
    out = run(*ARGUMENTS, "--size", "N=64", "--device", "L4", "--against", "--size N=128 --device T4")
    assert "B: product(x: bfloat16[128,1024]" in out
    assert "on T4" in out
    out = run("softmax", "--dtype", "float16", "--device", "L4", "--against", "log_softmax --dtype float32")
    assert "A: softmax(x: float16[4096,1024]) on L4" in out
    assert "B: log_softmax(x: float32[4096,1024]) on L4" in out


def test_devices_top_and_modules(run):
    out = run("softmax", "--device", "L4", "--device", "T4")
    assert all(name in out for name in ("L4", "T4"))
    assert "The fusions that pay" in run("softmax", "--device", "L4", "--top", "3")
    assert json.loads(run("softmax", "--device", "L4", "--top", "3", "--json"))[0]["kernels"] == [0]
    assert "By module" in run("softmax", "--device", "L4", "--modules")


def test_what_the_command_refuses(run):
    rows = [
        ("FUNCTION is needed",),
        ("--html is for one plan", "softmax", "--html", "p.html", "--device", "L4", "--device", "T4"),
        ("--plot is for", "softmax", "--plot", "p.png", "--against", "gelu"),
        ("--against compares one plan", "softmax", "--sweep", "N=1", "--against", "gelu"),
        ("no spec names the size 'N'", "softmax", "--sweep", "N=1"),
        ("--sweep plans what is possible", *ARGUMENTS, "--sweep", "N=1", "--no-fuse"),
        ("needs numbers for its sizes", *ARGUMENTS, "--device", "L4"),
    ]
    for message, *arguments in rows:
        assert message in run(*arguments, status=2)
    for option, value in (
        ("sweep", "N"),
        ("sweep", "N=0"),
        ("sweep", "N=a"),
        ("size", "N=-1"),
        ("size", "8"),
        ("shape", "N-x4"),
    ):
        with pytest.raises(SystemExit):
            main(["plan", "softmax", f"--{option}", value])
