"""Whole models: their results through kf.fuse are torch's, of torch's kinds; plans of modules without data, layers that
add up, reports that fold, what pays."""

from __future__ import annotations

import dataclasses
import html.parser
import importlib.util
import inspect
import json
import re

import matplotlib
import pytest

import kfusion as kf
from kfusion import _fuse
from kfusion._plans import elsewhere, folds, fusions, layers, whole
from kfusion._tracing.trace import trace_with
from sweeps import refusals, sweep

matplotlib.use("Agg")
torch = pytest.importorskip("torch")
nn = torch.nn

from benchmarks.model_zoo import MODELS, Size, built  # noqa: E402 - needs torch
from benchmarks.models import OWN, TRANSFORMERS  # noqa: E402

NEEDS = pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed")
NAMES = [pytest.param(name, marks=() if name in OWN else NEEDS) for name in MODELS]


# ---- results --------------------------------------------------------------------------------------------------------


def leaves(value):
    """The tensors of a result, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    value = list(value.values()) if isinstance(value, dict) else value
    return [t for v in value for t in leaves(v)] if isinstance(value, (tuple, list)) else []


def error(x, want):
    """The root of the mean square of what is wrong, relative to that of the result."""
    return float((x.double() - want).norm() / want.norm())


def is_text(x):
    return x.dim() == 2 and not x.is_floating_point() and x.shape[1] > 4


def test_every_model_is_measured():
    assert set(MODELS) == {*TRANSFORMERS, *OWN}


@pytest.mark.parametrize("name", NAMES)
def test_results_are_those_of_eager(name, monkeypatch):
    """Two traces serve batches of several, of any length."""
    traces = []
    monkeypatch.setattr(_fuse, "trace_with", lambda *given: (traces.append(1), trace_with(*given))[1])
    model, inputs = built(name, Size(real=False))
    fused = kf.fuse(model)
    got, want = fused(**inputs), model(**inputs)
    assert type(got) is type(want)
    torch.testing.assert_close(leaves(got), leaves(want), rtol=1e-4, atol=1e-5)
    traces.clear()
    for batch, less in ((2, 1), (3, 2), (4, 3), (5, 2)):
        given = {k: torch.cat([x[:, :-less] if is_text(x) else x] * batch) for k, x in inputs.items()}
        torch.testing.assert_close(leaves(fused(**given)), leaves(model(**given)), rtol=1e-4, atol=1e-5)
    assert len(traces) <= 2
    plan = fused.plan(**inputs)
    assert plan.fused.launches <= plan.library.launches
    assert plan.fused.launches < plan.unfused.launches


@pytest.mark.parametrize("name", NAMES)
def test_half_precision_is_as_exact_as_eager(name):
    model, inputs = built(name, Size(real=False), dtype=torch.bfloat16)
    got, eager = leaves(kf.fuse(model)(**inputs)), leaves(model(**inputs))
    exact = {k: x.double() if x.is_floating_point() else x for k, x in inputs.items()}
    for g, e, want in zip(got, eager, leaves(model.double()(**exact)), strict=True):
        assert g.dtype == e.dtype
        assert error(g, want) <= 1.5 * error(e, want) + 0.02


@NEEDS
@pytest.mark.parametrize("name", ["BERT", "GPT-2", "Mistral"])
def test_masks_of_padding(name):
    model, inputs = built(name, Size(real=False, batch=2))
    ids, fused = inputs["input_ids"], kf.fuse(model)
    for padded in (0, 3):
        mask = torch.ones_like(ids)
        mask[1, :padded] = 0
        got, want = (m(input_ids=ids, attention_mask=mask) for m in (fused, model))
        torch.testing.assert_close(leaves(got)[0][mask > 0], leaves(want)[0][mask > 0], rtol=1e-4, atol=1e-5)


@NEEDS
@pytest.mark.parametrize("kind", ["DynamicCache", "StaticCache"])
@pytest.mark.parametrize("name", ["GPT-2", "Llama"])
def test_generation_with_a_cache(name, kind):
    import transformers

    model, inputs = built(name, Size(real=False))
    room = {"max_cache_len": 24} if kind == "StaticCache" else {}
    fused, traces = kf.fuse(model), []
    for _ in range(3):
        caches = [getattr(transformers, kind)(config=model.config, **room) for _ in range(2)]
        ids = inputs["input_ids"][:, :5]
        for _ in range(3):
            got, want = (
                m(input_ids=ids, use_cache=True, **{cache_of(model): c})
                for m, c in zip((fused, model), caches, strict=True)
            )
            assert got.past_key_values is caches[0]
            torch.testing.assert_close(got.logits, want.logits, rtol=1e-4, atol=1e-5)
            ids = want.logits[:, -1:].argmax(-1)
        for mine, theirs in zip(*(c.layers for c in caches), strict=True):
            torch.testing.assert_close(mine.keys, theirs.keys, rtol=1e-4, atol=1e-5)
        traces.append(fused.fused_function._cached())
    # The first call of a process may set what the library keeps in its globals.
    assert traces[0] == (2 if kind == "StaticCache" else 3)
    assert traces[2] == traces[1] <= traces[0] + 1


def cache_of(model):
    """The parameter of that name, which older versions of transformers have another one for."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


@NEEDS
def test_a_cache_that_comes_back():
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=2, vocab_size=50)).eval().requires_grad_(False)
    ids = torch.arange(4)[None]
    fused, want = kf.fuse(model), model(ids)
    first, second = fused(ids), fused(ids + 1)
    assert type(first.past_key_values) is type(want.past_key_values)
    assert first.past_key_values is not second.past_key_values
    for mine, theirs in zip(first.past_key_values.layers, want.past_key_values.layers, strict=True):
        torch.testing.assert_close(mine.values, theirs.values, rtol=1e-4, atol=1e-5)


# ---- plans ----------------------------------------------------------------------------------------------------------

LAYERS = 12
ALIKE = f"layers.1..{LAYERS - 1}"  # the first one takes the embedding, too


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


def torchs(*shape, **options):
    return kf.spec(shape, like="torch", **options)


def inputs_of(p):
    return {n["name"]: n for n in p._nodes if n["op"] == "input"}


def test_modules_are_planned_alike_wherever_their_data_is(plan):
    assert totals(kf.plan(faked(), IDS, device="H100")) == totals(plan)
    body, expected = Model(), on_meta()
    for model in (body, expected):  # with data, what is made of it alone is computed at once: no scale

        def forward(ids, model=model):
            x = model.embed(ids)
            for layer in model.layers:
                x = layer(x)
            return nn.functional.linear(x, model.head.weight)

        model.forward, model.scale = forward, None
    assert totals(kf.plan(body, IDS, device="H100")) == totals(kf.plan(expected, IDS, device="H100"))
    shapes = {name: list(p.shape) for name, p in on_meta().named_parameters()} | {"ids": [2, 48], "scale": [64]}
    assert {name: node["shape"] for name, node in inputs_of(plan).items()} == shapes
    layer = nn.Linear(4, 4, device="meta")
    p = kf.plan(layer, torch.empty(3, 4, device="meta"), device="L4")
    assert totals(p) == totals(kf.plan(layer, kf.spec((3, 4)), device="L4"))
    p = kf.plan(layer, kf.spec((3, 4), device="cuda:1"), device="L4")
    assert {n["device"] for n in inputs_of(p).values()} == {"cuda:1"}
    made = lambda x: layer(x) + torch.zeros(4, device=layer.weight.device).to(x.device)  # noqa: E731
    assert len(kf.plan(made, torchs(3, 4)).groups) == 1


def test_calls_and_gradients_of_modules_without_data():
    layer, target = nn.Linear(6, 6, device="meta"), torchs(3, dtype="int64")

    def f(x):
        y = layer(x).cumsum(-1)
        return torch.zeros_like(y).index_add_(0, torch.arange(3), torch.fft.fft(y).real + layer.weight.mT[:3])

    calls = [g.label for g in kf.plan(f, torchs(3, 6), device="L4").groups if g.kind == "library_call"]
    assert {"cumsum", "fft_fft", "index_add_"} <= {call.partition("+")[0] for call in calls}
    loss = kf.value_and_grad(lambda x, target: nn.functional.cross_entropy(layer(x), target))
    p = kf.plan(loss, torchs(3, 6), target, device="L4")
    assert sum(r.bytes for r in p.by_module().rows) == p.fused.issued.total
    assert "layer" in p.modules.values()


@pytest.mark.filterwarnings("ignore:To copy construct from a tensor")
def test_tensors_without_data_run_nowhere():
    says = r"weight is a tensor without data\n.*\n.*kfusion.plan takes it"
    heads = [on_meta().head, faked().head]
    refusals([
        *((lambda h=h: kf.fuse(lambda x: h(x))(torch.ones(3, 64)), kf.TraceError, says) for h in heads),
        (lambda: kf.plan(lambda x: torch.tensor(x) + x, torchs(3)), kf.TraceError, "without data"),
    ])  # fmt: skip


def test_each_call_has_its_module(plan):
    assert plan.modules["embedding"] == "embed"
    assert set(plan.modules.values()) <= {name for name, _ in on_meta().named_modules()}
    products = [s for s in plan.stages if s.startswith("linear.matmul")]
    assert (plan.modules[products[0]], plan.modules[products[-1]]) == ("layers.0.qkv", "head")
    assert {stage["name"] for stage in plan.unfused_graph.to_dict()["stages"]} <= plan.modules.keys()
    assert kf.plan(kf.softmax, kf.spec((3, 4))).modules == {}
    block, biasless = Block(8, 16), nn.Linear(4, 4, bias=False)  # in closures, with their variables' names
    assert "block.qkv" in kf.plan(lambda x: block(x), torchs(1, 4, 8)).modules.values()
    # A tensor that is no view has None for a base, as a linear layer without bias has None for its bias.
    p = kf.plan(lambda x: biasless(x) + torch.arange(4.0), torchs(3, 4))
    assert sorted(inputs_of(p)) == ["biasless.weight", "captured", "x"]
    p = kf.fuse(Model(count=4).eval()).plan(torchs(2, 48, dtype="int64"))
    assert "layers.3" in [r.module for r in p.by_module().rows]
    again, plain = kf.Plan.from_json(plan.to_json()), plan.to_dict()
    assert again == plan
    assert str(again) == str(plan)
    del plain["modules"]  # plans of older versions
    assert kf.Plan.from_dict(plain).modules == {}


def test_layers_add_up(plan):
    for depth in (None, 0, 1, 2, 9):
        rows = plan.by_module(depth).rows
        assert sum(r.kernels for r in rows) == len(plan.groups)
        assert sum(r.unfused_kernels for r in rows) == len(plan.unfused_groups)
        assert sum(r.bytes for r in rows) == plan.fused.issued.total
        assert sum(r.unfused_bytes for r in rows) == plan.unfused.issued.total
        assert sum(r.flops for r in rows) == plan.fused.flop_total
        assert sum(r.us for r in rows) == pytest.approx(plan.fused.time_us)
        assert sum(r.unfused_us for r in rows) == pytest.approx(plan.unfused.time_us)
        assert len({r.module for r in rows}) == len(rows)
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
    replaced, gone = layers.replaced(kf.plan(lambda x: kf.exp(x) + kf.exp(x), kf.spec((99,))))
    assert [len(groups) for groups in replaced] == [2]
    assert [g.label for g in gone] == ["exp_2"]  # what another call gives, too, replaces nothing
    replaced, _ = layers.replaced(plan)
    for i, call in enumerate(g for g in plan.groups if g.kind == "library_call"):
        assert {s.partition(".")[0] for g in replaced[call.id] for s in g.stages} == {"attention"}
        assert layers.module_of(plan, call).startswith(f"layers.{i}")


def test_layers_that_share_a_mask_use_the_library_together(plan):
    """A kernel of each takes less than torch's attention, but for the mask: no layer is left to make it."""
    assert [g.kind for g in plan.groups].count("library_call") == LAYERS
    assert not any("mask" in stage for g in plan.groups for stage in g.stages)


# ---- folding ----


def require_folds(p):
    """Folding changes no total, and equal blocks cost the same but for times, as what is in the cache differs; the
    folds.
    """
    found = folds.folds(p)
    assert sum(f.layer.bytes for f in found) == p.fused.issued.total
    assert sum(f.layer.unfused_bytes for f in found) == p.unfused.issued.total
    assert sum(f.layer.kernels for f in found) == len(p.groups)
    assert sorted(g.id for f in found for block in f.kernels for g in block) == list(range(len(p.groups)))
    assert all(len({tuple(folds.cost(g)[:-1] for g in block) for block in f.kernels}) == 1 for f in found)
    return found


def test_equal_layers_are_one_fold(plan):
    names = [fold.name for fold in require_folds(plan)]
    assert ALIKE in names
    assert len(names) < LAYERS
    model = on_meta()
    model.layers[5] = Block(64, 192).to("meta")  # of another width
    assert {"layers.5", "layers.1..4, 6..11"} <= {f.name for f in require_folds(kf.plan(model, IDS, device="H100"))}

    def without_modules(x):
        for _ in range(50):
            x = kf.exp(x) / kf.exp(x).sum()
        return x

    found = require_folds(kf.plan(without_modules, kf.spec((12, 35)), device="T4"))
    assert max(len(fold.blocks) for fold in found) > 40


def test_backward_passes_fold_too():
    model = on_meta(count=8)

    def loss(params, ids, target):
        logits = torch.func.functional_call(model, params, (ids,))
        return nn.functional.cross_entropy(logits.flatten(0, 1), target)

    params = {name: torchs(*p.shape) for name, p in model.named_parameters()}
    ids, target = torchs(2, 48, dtype="int64"), torchs(96, dtype="int64")
    p = kf.plan(kf.value_and_grad(loss), params, ids, target, device="H100")
    of_backward = [f for f in require_folds(p) if f.name.startswith(layers.BACKWARD)]
    repeats = max(of_backward, key=lambda f: len(f.blocks))
    assert len(repeats.blocks) >= 6  # all but those beside the loss and beside the embedding
    assert len(repeats.kernels[0]) > 10
    assert {r.module for r in p.by_module(1).rows} >= {"model", "", layers.BACKWARD}
    assert "params: 76 arrays" in p.title


# ---- the report ----


def test_the_report_is_short_and_has_the_totals(plan, monkeypatch):
    for width in (80, 120):
        monkeypatch.setenv("COLUMNS", str(width))
        text = str(plan)
        assert len(text.splitlines()) < 150
        assert f"{len(plan.groups)} kernels instead of {len(plan.unfused_groups)}" in text
        assert (ALIKE if width > 80 else "layers.0") in text
        assert "The fusions that pay" in text
        assert re.search(rf"total +{len(plan.groups)} +{len(plan.unfused_groups)} ", text)
        assert max(map(len, text.splitlines())) <= width
    assert "arrays," in plan.title
    p = kf.plan(kf.softmax, kf.spec((3, 4)))  # small plans are shown as before
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
    assert f"{ALIKE} ({LAYERS - 1} alike" in text
    assert "The fusions that pay" in text
    evil = {stage: path.replace("layers", "<script>") for stage, path in plan.modules.items()}
    page = Page(dataclasses.replace(plan, modules=evil).to_html())
    assert page.counts.get("script", 0) == 0
    assert f"<script>.1..{LAYERS - 1}" in " ".join(page.text)


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
    norm = next(row for row in plan.top(100).rows if row.module == "layers.*.norm")  # equal kernels are one fusion
    assert (len(norm.kernels), norm.label, norm.one_call) == (LAYERS - 1, "layernorm", True)
    assert not any(row.one_call for row in plan.top(100, known=False).rows)
    assert json.loads(plan.top(2).to_json())[0]["saved_us"] == plan.top(2).rows[0].saved_us
    assert "scaled_dot_product_attention" in str(plan.top(5))
    assert str(kf.plan(kf.negative, kf.spec((3,))).top(5)) == "No fusion saves time.\n"


def test_what_others_have_is_said_with_its_source():
    for fact in elsewhere.FACTS.values():
        assert fact.source or fact is elsewhere.FACTS["library_call"]
    x, w, row = (kf.spec(shape, "bfloat16") for shape in ((512, 1024), (1024, 1024), (1024,)))

    def check(function, arguments, key):
        (group,) = kf.plan(function, *arguments, device="H100").groups
        assert elsewhere.fact_of(group) == elsewhere.FACTS[key]

    rows = [
        (lambda x, w: x @ w, (x, w), "product"),
        (lambda x, w, c: x @ w + c, (x, w, row), "product+bias"),
        (lambda x, w, y: x @ w + y, (x, w, x), "product+residual"),
        (lambda x, w, y, c: x @ w + c + y, (x, w, x, row), "product+residual"),
        (lambda x, w: x @ w + 1.0, (x, w), "product+maps"),
        (lambda x, w, c: kf.gelu(x @ w + c), (x, w, row), "product+activation"),
        (lambda x, w: kf.tanh(x @ w) * x, (x, w), "product+maps"),
        (lambda x, w: kf.silu(x @ w) * (x @ w.T), (x, w), "products"),
        (kf.softmax, (x,), "function"),
        (lambda x: kf.softmax(x * 2 + 1), (x,), "loops"),
        (lambda x, w: kf.logsumexp(x @ w), (x, w), "product+reduction"),
    ]
    sweep(check, rows)


@NEEDS
def test_a_llama_of_transformers_on_the_meta_device():
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 512, "intermediate_size": 1024, "num_attention_heads": 8, "num_key_value_heads": 2}
    config = LlamaConfig(num_hidden_layers=6, vocab_size=1000, use_cache=False, **sizes)
    with torch.device("meta"):
        model = LlamaForCausalLM(config).eval()
    p = kf.plan(model, kf.spec((1, "seq"), "int64"), sizes={"seq": 128}, device="H100")
    assert max(len(fold.blocks) for fold in require_folds(p)) >= 4
