"""Plans of whole models: modules without data, layers that add up, reports that fold, what pays."""

from __future__ import annotations

import dataclasses
import html.parser
import importlib.util
import json
import re

import matplotlib
import pytest

import kfusion as kf
from kfusion._plans import elsewhere, folds, fusions, layers, whole

matplotlib.use("Agg")
torch = pytest.importorskip("torch")
nn = torch.nn

LAYERS = 12
ALIKE = f"layers.2..{LAYERS - 1}"  # the first one is torch's attention, the second one computes the mask for all others


class Block(nn.Module):
    """A transformer's block of one head: the same calls as in any, and few of them."""

    def __init__(self, width, hidden):
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(width), nn.RMSNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
        self.up, self.gate = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x):
        q, k, v = (t.unsqueeze(1) for t in self.qkv(self.norm(x)).chunk(3, -1))
        a = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.squeeze(1))
        y = self.norm2(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


class Model(nn.Module):
    def __init__(self, count=LAYERS, width=64, hidden=160, vocabulary=320):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Block(width, hidden) for _ in range(count))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.register_buffer("scale", torch.ones(width))

    def forward(self, ids):
        x = self.embed(ids) * self.scale.float().to(ids.device)  # no copy out of a tensor without data
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def on_meta(**options):
    with torch.device("meta"):
        return Model(**options)


def faked():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return Model()


IDS = kf.spec((2, 48), "int64")


@pytest.fixture(scope="module")
def plan():
    return kf.plan(on_meta(), IDS, device="H100")


def totals(p):
    return p.fused, p.unfused, len(p.groups), len(p.unfused_groups)


# ---- modules without data ----


@pytest.mark.parametrize("make", [faked, Model], ids=["fake", "real"])
def test_a_module_is_planned_alike_wherever_its_data_is(plan, make):
    model = make()
    if make is Model:  # with data, what is made of it alone is computed at once: so it is an argument here
        model.scale = None
        model.forward = lambda ids: nn.functional.linear(_body(model, ids), model.head.weight)
        expected = on_meta()
        expected.forward = lambda ids: nn.functional.linear(_body(expected, ids), expected.head.weight)
        assert totals(kf.plan(model, IDS, device="H100")) == totals(kf.plan(expected, IDS, device="H100"))
    else:
        assert totals(kf.plan(model, IDS, device="H100")) == totals(plan)


def _body(model, ids):
    x = model.embed(ids)
    for layer in model.layers:
        x = layer(x)
    return x


def test_parameters_without_data_have_their_names(plan):
    names = {node["name"]: node["shape"] for node in plan._nodes if node["op"] == "input"}
    expected = {name: list(p.shape) for name, p in on_meta().named_parameters()}
    assert names == expected | {"ids": [2, 48], "scale": [64]}


def test_no_name_of_a_bias_that_is_none():
    """A tensor that is no view has None for a base, as a linear layer without bias has None for its bias."""
    layer = nn.Linear(4, 4, bias=False)
    p = kf.plan(lambda x: layer(x) + torch.arange(4.0), kf.spec((3, 4), like="torch"))
    assert sorted(n["name"] for n in p._nodes if n["op"] == "input") == ["captured", "layer.weight", "x"]


def test_calls_of_the_library_between_layers_without_data():
    layer = nn.Linear(6, 6, device="meta")

    def f(x):
        y = layer(x).cumsum(-1)
        return torch.zeros_like(y).index_add_(0, torch.arange(3), torch.fft.fft(y).real + layer.weight.mT[:3])

    calls = [g.label for g in kf.plan(f, kf.spec((3, 6), like="torch"), device="L4").groups if g.kind == "library_call"]
    assert {"cumsum", "fft_fft", "index_add_"} <= {call.partition("+")[0] for call in calls}


def test_arguments_without_data():
    layer = nn.Linear(4, 4, device="meta")
    p = kf.plan(layer, torch.empty(3, 4, device="meta"), device="L4")
    assert totals(p) == totals(kf.plan(layer, kf.spec((3, 4)), device="L4"))


def test_parameters_without_data_lie_where_arguments_do():
    layer = nn.Linear(4, 4, device="meta")
    p = kf.plan(layer, kf.spec((3, 4), device="cuda:1"), device="L4")
    assert {n["device"] for n in p._nodes if n["op"] == "input"} == {"cuda:1"}


@pytest.mark.parametrize("make", [on_meta, faked], ids=["meta", "fake"])
def test_tensors_without_data_run_nowhere(make):
    layer = make().head
    with pytest.raises(kf.TraceError, match=r"weight is a tensor without data\n.*\n.*kfusion.plan takes it"):
        kf.fuse(lambda x: layer(x))(torch.ones(3, 64))


def test_gradients_of_a_model_without_data():
    layer = nn.Linear(8, 4, device="meta")

    def loss(x, target):
        return nn.functional.cross_entropy(layer(x), target)

    x, target = kf.spec((6, 8), like="torch"), kf.spec((6,), "int64", like="torch")
    p = kf.plan(kf.value_and_grad(loss), x, target, device="L4")
    assert sum(r.bytes for r in p.by_module().rows) == p.fused.issued.total
    assert "layer" in p.modules.values()


@pytest.mark.filterwarnings("ignore:To copy construct from a tensor")
def test_a_tensor_made_of_a_traced_value_is_still_refused():
    with pytest.raises(kf.TraceError, match="without data"):
        kf.plan(lambda x: torch.tensor(x) + x, kf.spec((3,), like="torch"))


def test_constants_made_on_the_weights_device_are_inputs():
    layer = nn.Linear(4, 4, device="meta")

    def f(x):
        return layer(x) + torch.zeros(4, device=layer.weight.device).to(x.device)

    assert len(kf.plan(f, kf.spec((3, 4), like="torch")).groups) == 1


# ---- layers ----


def test_each_call_has_its_module(plan):
    assert plan.modules["embedding"] == "embed"
    assert set(plan.modules.values()) <= {name for name, _ in on_meta().named_modules()}
    products = [s for s in plan.stages if s.startswith("linear.matmul")]
    assert plan.modules[products[0]] == "layers.0.qkv"
    assert plan.modules[products[-1]] == "head"
    unfused = [stage["name"] for stage in plan.unfused_graph.to_dict()["stages"]]
    assert set(unfused) <= plan.modules.keys()


def test_functions_without_modules_have_none():
    assert kf.plan(kf.softmax, kf.spec((3, 4))).modules == {}


def test_modules_in_closures_have_their_variables_names():
    block = Block(8, 16)
    p = kf.plan(lambda x: block(x), kf.spec((1, 4, 8), like="torch"))
    assert "block.qkv" in p.modules.values()


@pytest.mark.parametrize("depth", [None, 0, 1, 2, 9])
def test_layers_add_up(plan, depth):
    rows = plan.by_module(depth).rows
    assert sum(r.kernels for r in rows) == len(plan.groups)
    assert sum(r.unfused_kernels for r in rows) == len(plan.unfused_groups)
    assert sum(r.bytes for r in rows) == plan.fused.issued.total
    assert sum(r.unfused_bytes for r in rows) == plan.unfused.issued.total
    assert sum(r.flops for r in rows) == plan.fused.flop_total
    assert sum(r.us for r in rows) == pytest.approx(plan.fused.time_us)
    assert sum(r.unfused_us for r in rows) == pytest.approx(plan.unfused.time_us)
    assert len({r.module for r in rows}) == len(rows)


def test_depths_of_layers(plan):
    assert [r.module for r in plan.by_module(1).rows] == ["embed", "", "layers", "norm", "head"]
    assert [r.module for r in plan.by_module().rows if "." in r.module] == [f"layers.{i}" for i in range(LAYERS)]
    assert [r.module for r in plan.by_module(0).rows] == [""]
    assert json.loads(plan.by_module(1).to_json()) == plan.by_module(1).to_dicts()


def test_every_unfused_kernel_is_replaced_once(plan):
    replaced, gone = layers.replaced(plan)
    ids = sorted(g.id for groups in (*replaced, gone) for g in groups)
    assert ids == list(range(len(plan.unfused_groups)))
    assert not gone
    assert all(replaced)


def test_what_another_call_gives_too_replaces_nothing():
    p = kf.plan(lambda x: kf.exp(x) + kf.exp(x), kf.spec((99,)))
    replaced, gone = layers.replaced(p)
    assert [len(groups) for groups in replaced] == [2]
    assert [g.label for g in gone] == ["exp_2"]


def test_a_call_of_the_library_replaces_what_it_stands_for():
    plan = kf.plan(on_meta(count=2), IDS, device="H100")  # one layer makes the mask, the other is torch's attention
    (call,) = [g for g in plan.groups if g.kind == "library_call"]
    replaced, _ = layers.replaced(plan)
    assert {s.partition(".")[0] for g in replaced[call.id] for s in g.stages} == {"attention"}
    assert layers.module_of(plan, call).startswith("layers.0")


# ---- folding ----


def test_equal_layers_are_one_fold(plan):
    names = [fold.name for fold in folds.folds(plan)]
    assert ALIKE in names
    assert len(names) < LAYERS


def test_folding_changes_no_total(plan):
    found = [fold.layer for fold in folds.folds(plan)]
    assert sum(r.bytes for r in found) == plan.fused.issued.total
    assert sum(r.unfused_bytes for r in found) == plan.unfused.issued.total
    assert sum(r.kernels for r in found) == len(plan.groups)
    kernels = [g.id for fold in folds.folds(plan) for block in fold.kernels for g in block]
    assert sorted(kernels) == list(range(len(plan.groups)))


def test_blocks_of_a_fold_cost_the_same(plan):
    for fold in folds.folds(plan):
        assert len({tuple(map(folds.cost, block)) for block in fold.kernels}) == 1


def test_a_layer_of_another_width_is_not_folded():
    model = on_meta()
    model.layers[5] = Block(64, 192).to("meta")
    names = [fold.name for fold in folds.folds(kf.plan(model, IDS, device="H100"))]
    assert "layers.5" in names
    assert "layers.2..4, 6..11" in names


def test_loops_of_a_function_without_modules_fold():
    def f(x):
        for _ in range(50):
            x = kf.exp(x) / kf.exp(x).sum()
        return x

    p = kf.plan(f, kf.spec((12, 35)), device="T4")
    found = folds.folds(p)
    assert max(len(fold.blocks) for fold in found) > 40
    assert sorted(g.id for fold in found for block in fold.kernels for g in block) == list(range(len(p.groups)))
    assert sum(fold.layer.bytes for fold in found) == p.fused.issued.total
    assert sum(fold.layer.unfused_bytes for fold in found) == p.unfused.issued.total


def test_backward_passes_fold_too():
    model = on_meta(count=8)

    def loss(params, ids, target):
        logits = torch.func.functional_call(model, params, (ids,))
        return nn.functional.cross_entropy(logits.flatten(0, 1), target)

    params = {name: kf.spec(tuple(p.shape), like="torch") for name, p in model.named_parameters()}
    ids, target = (kf.spec(shape, "int64", like="torch") for shape in ((2, 48), (96,)))
    p = kf.plan(kf.value_and_grad(loss), params, ids, target, device="H100")
    found = folds.folds(p)
    repeats = max((f for f in found if f.name.startswith(layers.BACKWARD)), key=lambda f: len(f.blocks))
    assert len(repeats.blocks) >= 6  # all but those beside the loss and beside the embedding
    assert len(repeats.kernels[0]) > 10
    assert sum(fold.layer.bytes for fold in found) == p.fused.issued.total
    assert sum(fold.layer.unfused_bytes for fold in found) == p.unfused.issued.total
    assert sorted(g.id for fold in found for block in fold.kernels for g in block) == list(range(len(p.groups)))
    assert {r.module for r in p.by_module(1).rows} >= {"model", "", layers.BACKWARD}
    assert "params: 76 arrays" in p.title


@pytest.mark.parametrize(
    ("items", "expected"),
    [("", (0, 0, 0)), ("abc", (0, 0, 0)), ("xababab", (1, 2, 3)), ("aaaa", (0, 1, 4)), ("abcabcz", (0, 3, 2))],
)
def test_the_longest_repeat(items, expected):
    assert folds._longest_repeat(items) == expected


def test_ranges_of_paths():
    assert folds.ranged(["a.1"]) == "a.1"
    assert folds.ranged(["a.2", "a.1", "a.3", "a.7"]) == "a.1..3, 7"
    assert folds.ranged(["3", "4"]) == "3..4"


# ---- the report ----


@pytest.mark.parametrize("width", [80, 120])
def test_the_report_is_short_and_has_the_totals(plan, width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    text = str(plan)
    assert len(text.splitlines()) < 150
    assert f"{len(plan.groups)} kernels instead of {len(plan.unfused_groups)}" in text
    assert (ALIKE if width > 80 else "layers.0") in text
    assert "The fusions that pay" in text
    assert re.search(rf"total +{len(plan.groups)} +{len(plan.unfused_groups)} ", text)
    assert max(map(len, text.splitlines())) <= width
    assert "arrays," in plan.title


def test_small_plans_are_shown_as_before():
    p = kf.plan(kf.softmax, kf.spec((3, 4)))
    assert whole.folds_of(p) == []
    assert "The fusions that pay" not in str(p)


class Page(html.parser.HTMLParser):
    """Which elements are open, what the page loads, and its text."""

    VOID = frozenset({"meta", "source", "img", "br"})

    def __init__(self, text):
        super().__init__()
        self.open, self.counts, self.loads, self.text = [], {}, [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.counts[tag] = self.counts.get(tag, 0) + 1
        self.loads += [value for name, value in attrs if name in ("src", "srcset", "href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_the_page_folds_layers_and_loads_nothing(plan):
    page = Page(plan.to_html())
    assert page.open == []
    assert page.counts.get("script", 0) == 0
    assert page.counts["details"] >= len(folds.folds(plan))
    assert all(value.startswith("data:") for value in page.loads)
    text = " ".join(page.text)
    assert f"{ALIKE} ({LAYERS - 2} alike" in text
    assert "The fusions that pay" in text


def test_names_of_modules_are_no_markup(plan):
    evil = {stage: path.replace("layers", "<script>") for stage, path in plan.modules.items()}
    page = Page(dataclasses.replace(plan, modules=evil).to_html())
    assert page.counts.get("script", 0) == 0
    assert f"<script>.2..{LAYERS - 1}" in " ".join(page.text)


def test_fused_modules_say_their_layers_too():
    p = kf.fuse(Model(count=4).eval()).plan(kf.spec((2, 48), "int64", like="torch"))
    assert "layers.3" in [r.module for r in p.by_module().rows]


def test_plans_with_modules_survive_json(plan):
    again = kf.Plan.from_json(plan.to_json())
    assert again == plan
    assert str(again) == str(plan)


def test_plans_without_modules_are_read_as_ever(plan):
    plain = plan.to_dict()
    del plain["modules"]
    assert kf.Plan.from_dict(plain).modules == {}


# ---- what pays ----


def test_the_fusions_that_pay_are_ranked_and_sum_up(plan):
    everything = plan.top(10**6)
    saved = [row.saved_us for row in everything.rows]
    assert saved == sorted(saved, reverse=True)
    assert all(value > 0 for value in saved)
    assert plan.top(3).rows == everything.rows[:3]
    assert everything.all_saved_bytes == plan.unfused.issued.total - plan.fused.issued.total
    losses = [row.saved_us for row in fusions._all(plan) if row.saved_us <= 0]
    assert sum(saved) + sum(losses) == pytest.approx(everything.all_saved_us)
    ids = [i for row in everything.rows for i in row.kernels]
    assert len(ids) == len(set(ids))


def test_equal_kernels_of_layers_are_one_fusion(plan):
    attention = next(row for row in plan.top(100).rows if row.kind == "attention")
    assert len(attention.kernels) == LAYERS - 2
    assert attention.module == "layers.*"
    assert attention.one_call
    assert not any(row.one_call for row in plan.top(100, known=False).rows)
    assert json.loads(plan.top(2).to_json())[0]["saved_us"] == plan.top(2).rows[0].saved_us


def test_what_others_have_is_said_with_its_source(plan):
    for fact in elsewhere.FACTS.values():
        assert fact.source or fact is elsewhere.FACTS["library_call"]
    text = str(plan.top(5))
    assert "scaled_dot_product_attention" in text
    assert str(kf.plan(kf.negative, kf.spec((3,))).top(5)) == "No fusion saves time.\n"


def spec(*shape):
    return kf.spec(shape, "bfloat16")


X, W, ROW = spec(512, 1024), spec(1024, 1024), spec(1024)


@pytest.mark.parametrize(
    ("function", "arguments", "key"),
    [
        (lambda x, w: x @ w, (X, W), "product"),
        (lambda x, w, c: x @ w + c, (X, W, ROW), "product+bias"),
        (lambda x, w, y: x @ w + y, (X, W, X), "product+residual"),
        (lambda x, w, y, c: x @ w + c + y, (X, W, X, ROW), "product+residual"),
        (lambda x, w: x @ w + 1.0, (X, W), "product+maps"),
        (lambda x, w, c: kf.gelu(x @ w + c), (X, W, ROW), "product+activation"),
        (lambda x, w: kf.tanh(x @ w) * x, (X, W), "product+maps"),
        (lambda x, w: kf.silu(x @ w) * (x @ w.T), (X, W), "products"),
        (kf.softmax, (X,), "function"),
        (lambda x: kf.softmax(x * 2 + 1), (X,), "loops"),
        (lambda x, w: kf.logsumexp(x @ w), (X, W), "product+reduction"),
    ],
)
def test_facts_go_by_what_a_kernel_does(function, arguments, key):
    (group,) = kf.plan(function, *arguments, device="H100").groups
    assert elsewhere.fact_of(group) == elsewhere.FACTS[key]


# ---- large models ----


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed")
def test_a_llama_of_transformers_on_the_meta_device():
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 512, "intermediate_size": 1024, "num_attention_heads": 8, "num_key_value_heads": 2}
    config = LlamaConfig(num_hidden_layers=6, vocab_size=1000, use_cache=False, **sizes)
    with torch.device("meta"):
        model = LlamaForCausalLM(config).eval()
    p = kf.plan(model, kf.spec((1, "seq"), "int64"), sizes={"seq": 128}, device="H100")
    assert max(len(fold.blocks) for fold in folds.folds(p)) >= 4
    assert sum(r.bytes for r in p.by_module().rows) == p.fused.issued.total
