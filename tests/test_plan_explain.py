"""plan.explain(a, b)."""

from __future__ import annotations

import re

import pytest

import kfusion as kf
from plans import X, barrier_plan, mlp_plan, relu_layernorm, row_plan


def test_explain_what_shares_a_kernel():
    text = row_plan().explain("relu", "layernorm.scale")
    assert text.startswith("relu and layernorm.scale share kernel 0 (relu+layernorm)")
    assert "row stays on chip" in text


def test_explain_a_call_in_several_kernels():
    p = kf.plan(
        lambda x: kf.softmax(kf.layernorm(x) @ x.T), X, device="H200", forbid=[("layernorm.mean", "layernorm.var")]
    )
    assert {g.id for g in p.groups if "layernorm.var" in g.stages} != {
        g.id for g in p.groups if "layernorm.mean" in g.stages
    }
    assert re.search(r"share kernel \d.* layernorm is also in kernel \d", p.explain("layernorm", "layernorm.scale"))


def test_explain_rows_that_are_read_again():
    p = kf.plan(relu_layernorm, kf.spec((4, 10**7)), *(kf.spec((10**7,)),) * 2, device="H200")
    assert "a row is read" in p.explain("relu", "layernorm")
    assert "read again" in str(p)


def test_explain_neighbours_in_two_kernels():
    p = barrier_plan()
    text = p.explain("sum", "divide")
    assert "sum | divide: reduction_barrier" in text
    assert "The way is" not in text
    assert p.explain("divide", "sum").count("reduction_barrier") == 1


def test_explain_walks_the_way():
    p = mlp_plan()
    text = p.explain("layernorm", "matmul_2")
    assert re.search(r"The way is layernorm\.\w+ -> matmul -> gelu -> matmul_2\.", text)
    assert re.findall(r"(\S+) \| (\S+): contraction", text) == [
        ("layernorm.scale", "matmul"),
        ("gelu", "matmul_2"),
    ]
    assert p.explain("matmul_2", "layernorm").endswith(text.partition("The way")[2])


def test_explain_without_a_way():
    p = kf.plan(lambda x, y: (kf.relu(x), kf.exp(y)), X, kf.spec((3, 7)), device="H200")
    assert p.explain("relu", "exp").endswith("neither reads what the other gives.")
    q = barrier_plan()
    assert "domain_mismatch" in q.explain("sin", "relu")


def test_explain_inputs_results_and_views():
    p = barrier_plan()
    assert p.explain("x", "sin").startswith("x is an input, read by kernel")
    assert "from the same read" in p.explain("sin", "x")
    assert p.explain("columns", "sin").startswith("columns and sin share kernel")
    assert p.explain("transpose", "sin").startswith("transpose and sin share kernel")
    assert p.explain("y", "divide").startswith("y and divide share kernel")
    assert "x is an input" in p.explain("x", "x")


def test_explain_an_input_in_another_memory():
    p = kf.plan(lambda x, y: x + y, X, kf.spec((12, 35), device="cuda:0"), device="H200")
    (r,) = (r for r in p.refusals if r.producer_group == -1)
    assert (r.reason, p._nodes[r.producer_node]["name"]) == (kf.Reason.CROSS_DEVICE, r.producer)
    assert r.sentence in p.explain(r.producer, r.consumer)


def test_explain_finds_names_by_their_beginning_and_ops_inside_of_stages():
    p = kf.plan(lambda x: kf.relu(kf.softmax(x)), X, device="H200")
    assert p.explain("soft", "re").startswith("soft and re share kernel 0")
    assert p.explain("exp", "relu").startswith("exp and relu share kernel 0")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sinus", "'sinus' is no call, input or result; there are .*layernorm.*matmul_2.*w1"),
        ("", "'' is no call"),
        ("m", "'m' could be any of matmul, matmul_2"),
    ],
)
def test_explain_refuses_unknown_and_ambiguous_names(name, message):
    with pytest.raises(ValueError, match=message):
        mlp_plan().explain("gelu", name)


def test_explain_a_call_that_is_computed_with_another():
    p = kf.plan(lambda x: kf.exp(kf.relu(x)) + kf.relu(x), X, device="H200")
    with pytest.raises(ValueError, match="relu_2 gives what another call gives"):
        p.explain("relu_2", "exp")


UNLIKE = {
    "halves": lambda x: (x[:, :6] * 2, x[:, 6:] + 1),
    "rows of halves": lambda x: (x[:, :6].sum(1), x[:, 6:].sum(1)),
    "backwards": lambda x: (x * 2, x[:, ::-1] + 1),
    "transposed": lambda x: (lambda y: y + y.T)(kf.softmax(x, -1)),
    "a value backwards": lambda x: (lambda y: y + y[:, ::-1])(kf.exp(x)),
    "both axes": lambda x: (kf.exp(x).sum(0), kf.exp(x).sum(1)),
}


@pytest.mark.parametrize("f", UNLIKE.values(), ids=UNLIKE)
def test_no_refusal_contradicts_itself(f):
    for refusal in kf.plan(f, kf.spec((12, 12)), device="H200").refusals:
        shapes = re.findall(r"\(\d+, \d+\)", refusal.sentence)
        assert len(shapes) == len(set(shapes)), refusal.sentence
        if "different axes" in refusal.sentence:
            assert f is UNLIKE["both axes"]
