"""What merges cost: a plan with two calls of one kernel kept apart is seldom predicted to be faster."""

import itertools

import kfusion as kf
from programs.drawing import PROFILES, Seeded, draw_program

LAYERS = next(p for p in PROFILES if p.name == "layers")  # each needed by the next ones: merges get in each other's way
PROGRAMS = 15
WORST = 1.34  # one launch more of four


def most_lost(graph, device):
    """How many times the plan's predicted time is that of the fastest plan with one pair of its calls apart."""
    plan = kf.plan(graph, device=device)
    pairs = {pair for g in plan.groups for pair in itertools.combinations(dict.fromkeys(g.stages), 2)}
    apart = [kf.plan(graph, device=device, forbid=[pair]).fused.predicted_us for pair in sorted(pairs)]
    fastest = min(apart, default=plan.fused.predicted_us)
    return plan.fused.predicted_us / fastest if fastest else 1.0  # of no elements, nothing runs


def test_merges_seldom_lose():
    """5 of these programs are predicted to be faster with a pair apart; 7 where values are merged in one order only."""
    lost = {}
    for seed in range(PROGRAMS):
        made = draw_program(Seeded(seed), LAYERS)
        lost[seed] = most_lost(kf.trace(made.function(), *made.inputs), "EPYC 9654")
    assert max(lost.values()) <= WORST, lost
    assert sum(of > 1.02 for of in lost.values()) <= 5, lost
