"""torch optimizers whose step is one kernel for all parameters: `kfusion.optim.AdamW(model.parameters())`.

They are torch's own classes (hyperparameters, `state_dict`, schedulers, hooks) with another `step`. A step reads the
numbers of its groups on the host, so it cannot be captured in a CUDA graph.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from ._each import for_each

try:
    import torch
except ImportError as error:
    raise ImportError("kfusion.optim needs torch, whose optimizers it has: pip install torch") from error

__all__ = ["SGD", "Adam", "AdamW", "Lion"]

_HALF = (torch.float16, torch.bfloat16)


def _wide(x: Any) -> Any:
    return x.float() if x.dtype in _HALF else x


def _descending(g: Any, maximize: bool) -> Any:
    return -_wide(g) if maximize else _wide(g)


@for_each
def _sgd(p: Any, g: Any, lr: float, weight_decay: float, maximize: bool) -> None:
    x, g = _wide(p), _descending(g, maximize)
    if weight_decay != 0:
        g = g + weight_decay * x
    p.copy_(x - lr * g)


@for_each
def _momentum(
    p: Any,
    g: Any,
    buffer: Any,
    lr: float,
    momentum: float,
    dampening: float,
    weight_decay: float,
    nesterov: bool,
    maximize: bool,
) -> None:
    x, g = _wide(p), _descending(g, maximize)
    if weight_decay != 0:
        g = g + weight_decay * x
    new = _wide(buffer) * momentum + g * (1 - dampening)
    buffer.copy_(new)
    p.copy_(x - lr * (g + momentum * new if nesterov else new))


@for_each
def _adam(
    p: Any,
    g: Any,
    exp_avg: Any,
    exp_avg_sq: Any,
    largest: Any,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    step: int,
    decoupled: bool,
    maximize: bool,
) -> None:
    x, g = _wide(p), _descending(g, maximize)
    if weight_decay != 0:
        if decoupled:
            x = x * (1 - lr * weight_decay)
        else:
            g = g + weight_decay * x
    m, v = _wide(exp_avg), _wide(exp_avg_sq)
    m = m + (g - m) * (1 - beta1)
    v = v * beta2 + g * g * (1 - beta2)
    exp_avg.copy_(m)
    exp_avg_sq.copy_(v)
    if largest is not None:
        v = torch.maximum(_wide(largest), v)
        largest.copy_(v)
    root = (1 - beta2**step) ** 0.5  # m / (sqrt(v) / root + eps) without another product for each element
    p.copy_(x - (lr / (1 - beta1**step) * root) * m / (v.sqrt() + eps * root))


@for_each
def _lion(
    p: Any, g: Any, exp_avg: Any, lr: float, beta1: float, beta2: float, weight_decay: float, maximize: bool
) -> None:
    x, g, m = _wide(p), _descending(g, maximize), _wide(exp_avg)
    p.copy_(x * (1 - lr * weight_decay) - lr * torch.sign(m * beta1 + g * (1 - beta1)))
    exp_avg.copy_(m * beta2 + g * (1 - beta2))


def _evaluated(closure: Callable[[], Any] | None) -> Any:
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def _require_plain(name: str, group: dict[str, Any]) -> None:
    for option in ("capturable", "differentiable"):
        if group.get(option):
            raise RuntimeError(f"kfusion.optim.{name}: {option} is not supported")
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(f"kfusion.optim.{name}: a step cannot be captured in a CUDA graph: it reads lr on the host")


def _by_device(name: str, group: dict[str, Any]) -> Iterable[list[Any]]:
    """The parameters that have gradients."""
    _require_plain(name, group)
    found = defaultdict(list)
    for p in group["params"]:
        if p.grad is None:
            continue
        if p.grad.layout != torch.strided or p.is_complex():
            what = "complex parameters" if p.is_complex() else "sparse gradients"
            raise RuntimeError(f"kfusion.optim.{name}: {what} are not supported")
        found[p.device].append(p)
    return found.values()


def _zeros(p: Any, dtype: Any) -> Any:
    return torch.zeros_like(p, dtype=dtype or p.dtype, memory_format=torch.preserve_format)


def _next_steps(states: list[dict[str, Any]]) -> list[int]:
    """Counts the step. Where another optimizer left the counters on a device they come to the host once."""
    for state in states:
        if not state["step"].is_cpu:
            state["step"] = state["step"].cpu()
    counters = [state["step"] for state in states]
    torch._foreach_add_(counters, torch.tensor(1.0), alpha=1.0)  # a tensor: a number is made one for each counter
    return [int(counter.item()) for counter in counters]


def _float_or_none(name: str, dtype: Any) -> Any:
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise TypeError(f"kfusion.optim.{name}: state_dtype must be a torch dtype of floats or None, got {dtype!r}")
    return dtype


class _Stated:
    """Optimizers whose states may have another dtype than the parameters."""

    _KEYS: tuple[str, ...] = ()
    _state_dtype: Any = None
    state: Any
    param_groups: Any

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """torch casts states to the dtype of their parameters: those of another are set again as they were."""
        super().load_state_dict(state_dict)  # type: ignore[misc]
        if self._state_dtype is None:
            return
        numbers = [i for group in state_dict["param_groups"] for i in group["params"]]
        params = [p for group in self.param_groups for p in group["params"]]
        for number, p in zip(numbers, params, strict=True):
            for key in self._KEYS:
                if key in state_dict["state"].get(number, {}):
                    saved = state_dict["state"][number][key]
                    self.state[p][key] = saved.to(device=p.device, dtype=self._state_dtype, copy=True)


class SGD(_Stated, torch.optim.SGD):
    """torch.optim.SGD, with one kernel for all parameters of a group.

    Args:
        params: as for torch's.
        state_dtype: of the momentum buffers; None: the parameters'.
        options: as for torch's, by name: lr, momentum, dampening, weight_decay, nesterov, maximize.
    """

    _KEYS = ("momentum_buffer",)

    def __init__(self, params: Any, lr: Any = 1e-3, *args: Any, state_dtype: Any = None, **options: Any) -> None:
        super().__init__(params, lr, *args, **options)
        self._state_dtype = _float_or_none(type(self).__name__, state_dtype)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step; returns the closure's loss."""
        loss = _evaluated(closure)
        for group in self.param_groups:
            lr, decay = float(group["lr"]), float(group["weight_decay"])
            for params in _by_device("SGD", group):
                grads = [p.grad for p in params]
                if group["momentum"] == 0:
                    _sgd(params, grads, lr, decay, group["maximize"])
                    continue
                dampening = []
                for p in params:
                    is_first = self.state[p].get("momentum_buffer") is None
                    dampening.append(0.0 if is_first else float(group["dampening"]))  # as torch: the gradient itself
                    if is_first:
                        self.state[p]["momentum_buffer"] = _zeros(p, self._state_dtype)
                buffers = [self.state[p]["momentum_buffer"] for p in params]
                _momentum(
                    params,
                    grads,
                    buffers,
                    lr,
                    float(group["momentum"]),
                    dampening,
                    decay,
                    group["nesterov"],
                    group["maximize"],
                )
        return loss


class _AdamStep(_Stated):
    _KEYS = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step; returns the closure's loss."""
        loss = _evaluated(closure)
        for group in self.param_groups:
            for params in _by_device(type(self).__name__, group):
                states = [self.state[p] for p in params]
                for p, state in zip(params, states, strict=True):
                    if not state:
                        state["step"] = torch.tensor(0.0)
                        for key in self._KEYS[: 2 + group["amsgrad"]]:
                            state[key] = _zeros(p, self._state_dtype)
                _adam(
                    params,
                    [p.grad for p in params],
                    [s["exp_avg"] for s in states],
                    [s["exp_avg_sq"] for s in states],
                    [s["max_exp_avg_sq"] for s in states] if group["amsgrad"] else None,
                    float(group["lr"]),
                    *map(float, group["betas"]),
                    float(group["eps"]),
                    float(group["weight_decay"]),
                    _next_steps(states),
                    group.get("decoupled_weight_decay", False),
                    group["maximize"],
                )
        return loss


class Adam(_AdamStep, torch.optim.Adam):
    """torch.optim.Adam, with one kernel for all parameters of a group.

    Args:
        params: as for torch's.
        state_dtype: of the moments; None: the parameters'.
        options: as for torch's, by name: lr, betas, eps, weight_decay, amsgrad, maximize, decoupled_weight_decay.
    """

    def __init__(self, params: Any, lr: Any = 1e-3, *args: Any, state_dtype: Any = None, **options: Any) -> None:
        super().__init__(params, lr, *args, **options)
        self._state_dtype = _float_or_none(type(self).__name__, state_dtype)


class AdamW(_AdamStep, torch.optim.AdamW):
    """torch.optim.AdamW, with one kernel for all parameters of a group.

    Args:
        params: as for torch's.
        state_dtype: of the moments; None: the parameters'.
        options: as for torch's, by name: lr, betas, eps, weight_decay, amsgrad, maximize.
    """

    def __init__(self, params: Any, lr: Any = 1e-3, *args: Any, state_dtype: Any = None, **options: Any) -> None:
        super().__init__(params, lr, *args, **options)
        self._state_dtype = _float_or_none(type(self).__name__, state_dtype)


class Lion(_Stated, torch.optim.Optimizer):
    """Lion: p = (1 - lr decay) p - lr sign(b1 m + (1 - b1) g), m = b2 m + (1 - b2) g.

    X. Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023.

    Args:
        params: parameters, or dicts of groups.
        lr: learning rate.
        betas: b1, b2.
        weight_decay: decay.
        maximize: whether to follow the gradient instead.
        state_dtype: of m; None: the parameters'.

    Raises:
        ValueError: a number is out of its range.
    """

    _KEYS = ("exp_avg",)

    def __init__(
        self,
        params: Any,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
        state_dtype: Any = None,
    ) -> None:
        if not (lr >= 0 and weight_decay >= 0 and all(0 <= b < 1 for b in betas)):
            raise ValueError(
                "kfusion.optim.Lion: lr and weight_decay must be at least 0, betas in [0, 1), got "
                f"lr={lr}, weight_decay={weight_decay}, betas={betas}"
            )
        defaults = {"lr": lr, "betas": betas, "weight_decay": weight_decay, "maximize": maximize}
        super().__init__(params, defaults)
        self._state_dtype = _float_or_none(type(self).__name__, state_dtype)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step; returns the closure's loss."""
        loss = _evaluated(closure)
        for group in self.param_groups:
            for params in _by_device("Lion", group):
                for p in params:
                    if "exp_avg" not in self.state[p]:
                        self.state[p]["exp_avg"] = _zeros(p, self._state_dtype)
                _lion(
                    params,
                    [p.grad for p in params],
                    [self.state[p]["exp_avg"] for p in params],
                    float(group["lr"]),
                    *map(float, group["betas"]),
                    float(group["weight_decay"]),
                    group["maximize"],
                )
        return loss
