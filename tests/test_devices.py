"""Devices: the table is plausible and says where each number is from; Device refuses nonsense; measuring works."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import json
import pickle
import re
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kfusion as kf
from kfusion import _core
from kfusion._cli.main import main
from kfusion._devices import device_names, device_table, devices, measure, running
from kinds import HAVE_GPU
from sweeps import sweep

ENTRIES = {entry["name"]: entry for entry in device_table._file()["devices"]}
PEAKS = {"vector_float32": 19.5e12, "vector_float64": 9.7e12}
DTYPES = ("float16", "bfloat16", "float32", "float64", "bool", "int32", "int64")


def lesson(**values):
    return kf.Device(**{"name": "A100 of the lesson", "bandwidth": 2e12, "peaks": PEAKS, **values})


# ---- the table


def test_the_ridge_point_of_the_lesson():
    d = lesson(peaks={**PEAKS, "matrix_float16": 312e12})
    assert d.ridge_point("float16") == 312e12 / 2e12 == 156
    for name in ("A100", "A100 80GB", "A100 80GB PCIe"):
        assert kf.device(name).ridge_point("float16") == pytest.approx(156, rel=0.04)


def plausible(d):
    assert 0.75 * d.peak_bandwidth <= d.bandwidth <= d.peak_bandwidth
    assert d.bandwidth <= d.cache_bandwidth <= 40 * d.bandwidth
    assert d.tile_bytes <= d.on_chip_bytes < d.cache_bytes < 1e9
    assert 0 < d.launch_us < 20
    assert 1 < d.units < 1000
    p = d.peaks
    assert p["vector_float32"] / 64.5 <= p["vector_float64"] <= p["vector_float32"]
    assert d.peak_flops("float16") >= d.peak_flops("float32") >= p["vector_float32"]
    assert p["matrix_bfloat16"] in (0, p["matrix_float16"])
    assert d.peak_flops("float64") >= p["vector_float64"]
    for dtype in DTYPES:
        assert 0.3 < d.ridge_point(dtype, "vector") <= d.ridge_point(dtype, "matrix") < 500


def sourced_or_assumed(d):
    assert {"peaks", "cache", "on_chip"} <= set(d.source)
    for group, name in (("bandwidth", "bandwidth"), ("peak_bandwidth", "peak_bandwidth"), ("launch", "launch_us")):
        assert (group in d.source) != (name in d.assumed)
    assert all(len(text) > 20 for text in (*d.source.values(), *d.assumed.values()))
    assert any("http" in text or "Measured" in text for text in d.source.values())


def peaks_fall_back(d):
    """To the next wider unit."""
    p = d.peaks
    wide = p["matrix_float32"] or p["vector_float32"]
    assert d.peak_flops("float32") == wide
    assert d.peak_flops("float16") == (p["matrix_float16"] or wide)
    assert d.peak_flops("bfloat16") == (p["matrix_bfloat16"] or wide)
    assert d.peak_flops("float64") == (p["matrix_float64"] or p["vector_float64"])
    assert d.peak_flops("float16", "vector") == d.peak_flops("int32", "vector") == p["vector_float32"]
    assert d.peak_flops("int64", "vector") == p["vector_float32"] / 2
    assert d.peak_flops("float64", "vector") == p["vector_float64"]


def copied(d):
    again = kf.Device.from_dict(json.loads(json.dumps(d.to_dict())))
    assert again == d == pickle.loads(pickle.dumps(d)) == copy.deepcopy(d)
    assert hash(again) == hash(d)
    assert kf.Device.from_dict(MappingProxyType(d.to_dict())) == d


def peaks_follow_from_the_clock(d):
    """No slip of a digit, and never the figure with sparsity, which would be twice as much."""
    if not d.compute_capability:
        return
    entry = ENTRIES[d.name]
    geforce = entry["kind"] in device_table.GEFORCE or d.name == "A10G"  # half the rate in float32's sums
    expected = device_table.peaks_from_clock(entry["compute_capability"], d.units, entry["clock_hz"], geforce=geforce)
    for name, peak in expected.items():
        if name.startswith("matrix") and d.name.startswith("GTX"):
            peak = 0  # no such units, unlike others of its compute capability
        assert d.peaks[name] == pytest.approx(peak, rel=0.09), name
    assert d.tile_bytes == device_table._file()["architectures"][entry["compute_capability"]]["shared_bytes"]


def test_every_device():
    checks = (
        plausible,
        sourced_or_assumed,
        peaks_fall_back,
        copied,
        peaks_follow_from_the_clock,
    )
    sweep(lambda check, d: check(d), itertools.product(checks, kf.devices()))


# Peaks that are quoted, of those that follow from the clock.
TFLOPS = {
    "RTX 2060": 6.5, "RTX 3050 8GB": 9.1, "RTX 3060": 12.7, "RTX 3060 Laptop": 13.1, "RTX 3070 Laptop": 16.6,
    "RTX 4050 Laptop": 12.1, "RTX 4060": 15.1, "RTX 4060 Laptop": 14.6, "RTX 4060 Ti": 22.1, "RTX 4070": 29.1,
    "RTX 4070 Laptop": 20.0, "RTX 4090 Laptop": 39.7, "RTX 5070": 30.9, "RTX 5070 Ti": 43.9, "RTX 5080": 56.3,
    "RTX 5090 Laptop": 45.3,
}  # fmt: skip


def test_peaks_from_the_clock_are_those_that_are_quoted():
    assert set(TFLOPS) == {name for name, entry in ENTRIES.items() if "peaks" not in entry}
    for name, tflops in TFLOPS.items():
        assert kf.device(name).peaks["vector_float32"] == pytest.approx(tflops * 1e12, rel=0.01), name


def test_kinds_names_and_aliases():
    assert sum(map(len, device_table.kinds().values())) == len(ENTRIES)
    assert set(device_table.kinds()) == {kind for kind, _ in device_names._LOOKS}
    for kind, names in device_table.kinds().items():
        for name in names:
            key = device_table.key_of(name)
            assert next(k for k, look in device_names._LOOKS if re.fullmatch(look, key)) == kind, name
    names = [name for entry in ENTRIES.values() for name in (entry["name"], *entry.get("aliases", ()))]
    assert len({device_table.key_of(name) for name in names}) == len(names) == len(device_table.by_key())


# ---- finding one


def test_names_are_found_however_they_are_written():
    for text, name in {
        "h200": "H200", "NVIDIA H200": "H200", "a100-80gb": "A100 80GB", "NVIDIA A100-SXM4-40GB": "A100 40GB",
        "Tesla T4": "T4", "rtx3050": "RTX 3050 Laptop 4GB", "NVIDIA GeForce RTX 4090": "RTX 4090",
        "NVIDIA H100 80GB HBM3": "H100 SXM", "AMD Instinct MI300X": "MI300X", "Apple M2 Max": "M2 Max",
        "NVIDIA GeForce RTX 4060 Laptop GPU": "RTX 4060 Laptop", "Tesla V100-SXM2-16GB": "V100",
        "NVIDIA GH200 480GB": "GH200 96GB",
    }.items():  # fmt: skip
        assert kf.device(text).name == name
    assert kf.device(lesson()) == lesson()


def test_an_unknown_name_suggests_close_ones():
    def check(text, hint):
        with pytest.raises(ValueError, match=r"kfusion.device: name must be .*got") as info:
            kf.device(text)
        assert hint in str(info.value)

    sweep(check, {
        "H20": "did you mean H200", "A100 40": "did you mean A100 40GB", "": "GeForce: GTX 1650, RTX 2060",
        "GTX 1660": "did you mean GTX 1650", "RTX 3070 Ti": "did you mean RTX 3070 or RTX 4070 Ti",
        "RTX 4080 Laptop": "did you mean RTX 4090 Laptop", "RTX 3060 Max-Q": "did you mean RTX 3060 Laptop",
        "RTX A5000": "did you mean RTX A6000", "H100 NVL": "did you mean H100", "M5": "did you mean M4",
        "MI250X": "did you mean MI300X", "Ryzen 9": "of this kind (CPU) there are EPYC",
    }.items())  # fmt: skip
    with pytest.raises(TypeError, match=r"kfusion.device: name"):
        kf.device(3)
    if not HAVE_GPU:
        with pytest.raises(kf.DeviceError):
            kf.device("cuda")


def test_a_name_that_chips_share_is_told_apart_by_its_units(monkeypatch):
    laptop = kf.device("RTX 3050")
    info = {
        "name": "NVIDIA GeForce RTX 3050",
        "compute_capability": "8.6",
        "clock_hz": 1.777e9,
        "memory_clock_hz": 7e9,
        "memory_bus_bits": 128,
        "l2_bytes": 2 * 2**20,
        "shared_memory_per_block_bytes": 101376,
    }
    for units, name in ((laptop.units, laptop.name), (20, info["name"])):
        monkeypatch.setattr(running.hardware, "gpu", lambda index, units=units: info | {"multiprocessors": units})
        running._gpu.cache_clear()
        assert (running.device("cuda:0").name, running.device("cuda:0").units) == (name, units)
    running._gpu.cache_clear()


def test_an_unknown_gpu_gets_its_peaks_from_the_clock():
    info = {
        "name": "NVIDIA RTX 9999",
        "compute_capability": "8.7",
        "clock_hz": 1e9,
        "memory_clock_hz": 1e9,
        "memory_bus_bits": 256,
        "multiprocessors": 10,
        "l2_bytes": 4 * 2**20,
        "shared_memory_per_block_bytes": 101376,
    }
    d = device_table.from_properties(info)
    assert d.peak_bandwidth == 2 * 1e9 * 256 / 8
    assert d.peaks["vector_float32"] == 2 * 10 * 1e9 * 128
    assert set(d.assumed) == {"bandwidth", "cache_bandwidth", "launch_us", "peaks", "peak_bandwidth"}
    assert device_table.from_properties({**info, "compute_capability": "5.2"}).peaks["vector_float32"] > 0
    assert device_table.from_properties({**info, "compute_capability": "10.3"}).on_chip_bytes == 8 * 101376


# ---- Device


def test_what_is_left_out():
    d = lesson()
    assert d.peak_bandwidth == d.cache_bandwidth == d.bandwidth == 2e12
    assert d.on_chip_bytes == d.tile_bytes == 48 * 1024
    assert d.peaks["matrix_float16"] == 0
    assert (d.units, d.launch_us, d.is_cpu, d.write_allocate) == (1, 0, False, False)
    d = lesson(bandwidth=np.float32(2e12), units=np.int64(3), peaks={**PEAKS, "matrix_float16": np.float64(1e14)})
    assert json.loads(json.dumps(d.to_dict())) == d.to_dict()


def test_nonsense_is_refused():
    def check(error, words, **values):
        with pytest.raises(error, match=r"kfusion.Device: ") as info:
            lesson(**values)
        assert words in str(info.value)

    half = "must be text without half characters"  # for which C++ and files have no form
    sweep(lambda error, words, values: check(error, words, **values), [
        (ValueError, half, {"name": "\ud800"}),
        (ValueError, half, {"note": "a\udfff"}),
        (ValueError, half, {"source": {"launch": "\ud800"}}),
        (ValueError, "name must not be empty", {"name": ""}),
        (TypeError, "name must be text, got 3", {"name": 3}),
        (ValueError, "bandwidth must be > 0", {"bandwidth": 0}),
        (ValueError, "bandwidth must be a finite number >= 0, got -1", {"bandwidth": -1.0}),
        (ValueError, "finite", {"bandwidth": float("nan")}),
        (TypeError, "bandwidth must be a number, got '2 TB/s'", {"bandwidth": "2 TB/s"}),
        (TypeError, "bandwidth must be a number", {"bandwidth": True}),
        (ValueError, "peak_bandwidth must be at least bandwidth", {"peak_bandwidth": 1e12}),
        (ValueError, "cache_bandwidth must be at least bandwidth", {"cache_bandwidth": 1e12}),
        (ValueError, "on_chip_bytes must be at least tile_bytes", {"on_chip_bytes": 100}),
        (ValueError, "cost_per_hour must be a finite number >= 0", {"cost_per_hour": -1}),
        (TypeError, "cache_bytes must be an integer", {"cache_bytes": 1.5}),
        (ValueError, "cache_bytes must be >= 0 and below", {"cache_bytes": 2**63}),
        (ValueError, "units must be > 0", {"units": 0}),
        (ValueError, "units must be >= 0 and below", {"units": 2**31}),
        (TypeError, "is_cpu must be True or False", {"is_cpu": 1}),
        (TypeError, "peaks must be a mapping", {"peaks": 3}),
        (ValueError, "vector_float32'] must be > 0", {"peaks": {}}),
        (ValueError, "have keys among vector_float32", {"peaks": {**PEAKS, "float8": 1}}),
        (TypeError, "must be a number", {"peaks": {**PEAKS, "matrix_float16": "1"}}),
        (TypeError, "source must be a mapping", {"source": "a data sheet"}),
        (TypeError, "source must map text to text", {"source": {"peaks": 1}}),
        (ValueError, "assumed must name fields of kfusion.Device, got 'bandwith'", {"assumed": {"bandwith": "?"}}),
    ])  # fmt: skip
    plain = lesson().to_dict()
    for error, changed in (
        (ValueError, plain | {"colour": "green"}),
        (ValueError, {k: v for k, v in plain.items() if k != "bandwidth"}),
        (TypeError, list(plain.items())),
        (TypeError, plain | {"peaks": None}),
    ):
        with pytest.raises(error, match=r"kfusion.Device: "):
            kf.Device.from_dict(changed)


def test_devices_do_not_change():
    with pytest.raises(AttributeError):
        lesson().bandwidth = 1.0
    with pytest.raises(TypeError):
        lesson().peaks["vector_float32"] = 1.0
    plain = kf.device("H200").to_dict()
    plain["peaks"]["vector_float32"] = 1.0
    assert kf.device("H200").peaks["vector_float32"] > 1e12


def test_unknown_dtypes_and_units():
    for dtype, unit in (("float8", "matrix"), ("float32", "tensor")):
        with pytest.raises(ValueError, match="must be"):
            lesson().ridge_point(dtype, unit)
    with pytest.raises(TypeError, match="dtype must be text"):
        lesson().peak_flops(np.float32)
    with pytest.raises(KeyError):
        _core.peak_flops({}, "float32")


# ---- how they look


def test_a_device_shows_every_number_and_its_source():
    text, page = str(kf.device("T4")), kf.device("T4")._repr_html_()
    for word in ("T4", "320.0 GB/s", "65.00 TFLOP/s", "4,194,304", "launch_us is assumed", "https://"):
        assert word in text
        assert word in page
    assert "bfloat16 matrix  " not in text  # its note says so
    assert "<Device T4: 288 GB/s" in repr(kf.device("T4"))


def test_costs_are_those_of_the_user():
    assert all(d.cost_per_hour == 0 for d in kf.devices())
    d = dataclasses.replace(kf.device("H200"), cost_per_hour=3.6)
    assert "cost_per_hour" in str(d)
    assert "cost_per_hour" not in str(kf.device("H200"))
    plan = kf.plan(lambda x: kf.relu(x) + 1, kf.spec((4096, 4096)), device=d)
    fused, unfused = (3.6 * total.time_us / 3600 for total in (plan.fused, plan.unfused))
    assert plan.device.cost_per_hour == 3.6
    (line,) = [line for line in str(plan).splitlines() if "an hour" in line]
    assert line.startswith("At 3.6 an hour, a million calls cost ")
    said = [float(word) for word in re.findall(r"0\.\d+", line)]
    assert said == [pytest.approx(fused, rel=0.01), pytest.approx(unfused, rel=0.01)]
    assert "an hour" not in str(kf.plan(lambda x: kf.relu(x) + 1, kf.spec((4096, 4096)), device="H200"))


def test_the_table_is_a_list_and_shows_itself(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    table = kf.devices()
    assert len(table) == len(list(table)) == len(ENTRIES)
    assert table[0] == table["T4"] == table[:2][0]
    assert kf.device("H200") in table
    with pytest.raises(KeyError):
        table["H20"]
    with pytest.raises(IndexError):
        table[99]
    for text in (str(table), table._repr_html_(), repr(table)):
        assert all(d.name in text or d.is_cpu for d in table)  # names to give as --device
    assert table.to_dict() == {"devices": [d.to_dict() for d in table]}
    assert max(map(len, str(table).splitlines())) <= 80


def test_command_line(capsys):
    assert main(["devices"]) == 0
    assert "B200" in capsys.readouterr().out
    assert main(["devices", "h200", "t4", "--json"]) == 0
    assert [d["name"] for d in json.loads(capsys.readouterr().out)["devices"]] == ["H200", "T4"]
    assert main(["devices", "MI300X"]) == 0
    assert "Infinity Cache" in capsys.readouterr().out
    assert main(["devices", "H20"]) == 2
    assert "did you mean H200" in capsys.readouterr().err
    assert main(["devices", "H200", "--measure"]) == 2


# ---- measuring


@pytest.fixture
def quick(monkeypatch):
    """Small copies and products: what comes out is noise, but of the right form."""
    monkeypatch.setattr(measure, "_ROUNDS", 3)
    monkeypatch.setattr(measure, "_MATMUL", {False: 32, True: 64})
    monkeypatch.setattr(measure, "_MB", 2**10)
    monkeypatch.setattr(measure.hardware, "last_level_cache_bytes", lambda: 2**20)
    devices._measured.cache_clear()
    yield
    devices._measured.cache_clear()


def test_measure_the_cpu(quick):
    seen = []
    d = kf.measure_device("cpu", progress=lambda fraction, what: seen.append(fraction))
    assert d.is_cpu
    assert d.write_allocate
    assert d.units == kf.get_num_threads()
    assert set(d.source) == {"bandwidth", "cache", "launch", "on_chip", "peaks"}
    assert set(d.assumed) == {"peak_bandwidth"}
    assert d.peaks["vector_float32"] == d.peaks["matrix_float32"]
    assert kf.Device.from_dict(d.to_dict()) == d
    assert seen == sorted(seen)
    assert seen[-1] == 1


def test_the_command_line_measures(quick, capsys):
    assert main(["devices", "--measure", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["devices"][0]["is_cpu"]
    assert "copying" in err
    assert kf.device("cpu") is kf.device(" CPU ")  # measured once
    for place in ("gpu", "cuda:", "cuda:-1", "cpu:0", "", None, 0):
        with pytest.raises(ValueError, match=r"kfusion.measure_device: place must be"):
            kf.measure_device(place)


@given(st.floats(0, 100), st.floats(1e9, 1e13))
@settings(max_examples=50, deadline=None)
def test_the_intercept_of_a_line(launch_us, bandwidth):
    nbytes = [2**k for k in range(24, 31)]
    times_us = [launch_us + 1e6 * b / bandwidth for b in nbytes]
    assert measure.intercept_us(nbytes, times_us) == pytest.approx(launch_us, abs=1e-5 * times_us[0])
    # none is negative
    assert measure.intercept_us([1000, 2000, 4000], [0.9, 2.0, 4.2]) == 0


@pytest.mark.cuda
def test_measure_a_gpu():
    d = kf.measure_device("cuda")
    info = _core.cuda_device_info(0)
    assert (d.name, d.units, d.cache_bytes) == (info["name"], info["multiprocessors"], info["l2_bytes"])
    assert d.tile_bytes == info["shared_memory_per_block_bytes"]
    assert d.bandwidth <= d.peak_bandwidth
    assert kf.device("cuda:0").name == d.name
