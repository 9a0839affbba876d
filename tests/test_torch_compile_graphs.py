"""`mode="reduce-overhead"` without a GPU: what torch's trees of CUDA graphs are asked, and when."""

from __future__ import annotations

import types

import pytest

import kfusion as kf

torch = pytest.importorskip("torch")
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

from kfusion._torch_compile import cuda_graphs  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


@pytest.fixture
def trees():
    """torch's module, whose import warns."""
    from torch._inductor import cudagraph_trees

    return cudagraph_trees


def graph(function, *shapes, device="cuda"):
    """A graph of operators on tensors without data on a device."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        given = [torch.empty(shape, device=device) for shape in shapes]
        return make_fx(function)(*given)


@pytest.fixture
def asked(monkeypatch, trees):
    """The calls of the trees' entry, which runs what it is given."""
    calls = []

    def cudagraphify_impl(run, inputs, static, **facts):
        calls.append((list(inputs), list(static), facts))
        return lambda arguments: ("replayed", run(arguments))

    monkeypatch.setattr(trees, "cudagraphify_impl", cudagraphify_impl)
    return calls


def f(x, w):
    return torch.relu(x @ w), x


def test_which_graphs_are_recorded():
    assert cuda_graphs.recordable(graph(f, (2, 3), (3, 4))) == 0
    assert cuda_graphs.recordable(graph(f, (2, 3), (3, 4), device="cpu")) is None
    assert cuda_graphs.recordable(graph(lambda x: (torch.rand_like(x) + x,), (2, 3))) is None
    mixed = graph(f, (2, 3), (3, 4))
    next(iter(mixed.graph.nodes)).meta["val"] = torch.empty(2, 3)
    assert cuda_graphs.recordable(mixed) is None


def test_what_the_host_must_look_at_is_not_recorded():
    module = graph(f, (2, 3), (3, 4))
    size = torch.fx.experimental.symbolic_shapes.ShapeEnv().create_unbacked_symint()
    with module.graph.inserting_before(next(iter(module.graph.nodes))):
        module.graph.call_function(torch.ops.aten.sym_size.int).meta["val"] = size
    assert cuda_graphs.recordable(module) is None


def test_a_forward_pass_is_recorded_behind_its_first_call(asked):
    module = graph(f, (2, 3), (3, 4))
    runs = []
    replays = cuda_graphs.Replays(1)
    run = replays.forward(lambda a: runs.append(list(a)) or a.clear(), module, ["w", "x"], is_inference=True)
    assert run._boxed_call
    for call in range(3):
        given = ["w", "x"]
        made = run(given)
        assert (made is None) == (call == 0)
        assert given == []
    assert runs == [["w", "x"]] * 3
    ((inputs, static, facts),) = asked
    assert inputs == ["w", "x"]
    assert static == [0]
    assert facts["device_index"] == 0
    assert facts["is_inference"]
    assert not facts["is_backward"]
    assert len(facts["stack_traces"]) == 2  # which the trees demand of each result
    assert len(facts["placeholders"]) == 2


def test_parameters_are_fixed_where_torch_knows_them(asked, monkeypatch):
    known = types.SimpleNamespace(fw_metadata=types.SimpleNamespace(static_input_indices=[1]))
    monkeypatch.setattr(torch._guards.TracingContext, "try_get", staticmethod(lambda: known))
    run = cuda_graphs.Replays(2).forward(lambda a: None, graph(f, (2, 3), (3, 4)), ["x", "w"], is_inference=False)
    run([])
    run([])
    assert asked[0][1] == [1]


def test_new_sizes_run_as_they_are_first(asked):
    made = []
    run = cuda_graphs.Replays(2).forward(made.append, graph(f, (2, 3), (3, 4)), [4, "x"], is_inference=True)
    for size in (4, 4, 5, 5, 4):
        run([size, "x"])
    assert len(asked) == 1  # which tells sizes apart itself
    assert [v[0] for v in made] == [4, 4, 5, 5, 4]
    assert [run([n, "x"]) for n in (6, 6)] == [None, ("replayed", None)]


def test_a_backward_pass_says_that_it_runs(asked, monkeypatch, trees):
    said = []
    manager = types.SimpleNamespace(set_to_running_backward=lambda: said.append("backward"))
    monkeypatch.setattr(trees, "get_manager", lambda device, create_if_none_exists: manager)
    replays = cuda_graphs.Replays(2)
    backward = graph(lambda x, tangents_1: (tangents_1 * x,), (2, 3), (2, 3))
    assert replays.backward(len, backward, ["x", "t"]) is len  # behind a forward pass that is not recorded
    replays.forward(len, graph(f, (2, 3), (3, 4)), ["x", "w"], is_inference=False)
    drawing = graph(lambda x: (torch.rand_like(x) + x,), (2, 3))
    assert replays.backward(len, drawing, ["x"])(["x"]) == 1
    assert said == ["backward"]
    run = replays.backward(len, backward, ["x", "t"])
    assert run(["x", "t"]) == 2
    assert run(["x", "t"]) == ("replayed", 2)
    ((_, static, facts),) = asked
    assert facts["is_backward"]
    assert static == [0]  # what the forward pass kept
    assert len(said) == 3


def test_a_graph_is_wanted_where_there_is_a_device(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert cuda_graphs.is_wanted("reduce-overhead")
    assert not cuda_graphs.is_wanted("default")
    assert not cuda_graphs.is_wanted(None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert not cuda_graphs.is_wanted("reduce-overhead")


def test_results_are_torchs_own_while_a_graph_is_recorded():
    """The trees free results by torch's own function, which DLPack's memory does not have; it cannot be resized."""
    fused, x = kf.fuse(lambda x: x * 2), torch.ones(5)

    def owned(made):
        return made.untyped_storage().resizable()

    assert not owned(fused(x))
    assert owned(cuda_graphs._made_by_torch(fused)(x))
    assert not owned(fused(x))
    with pytest.raises(TypeError):
        cuda_graphs._made_by_torch(fused)("no array")
    assert not owned(fused(x))
