"""`kfusion devices`: the device table, and the present machine's devices measured."""

from __future__ import annotations

import argparse
import json
from typing import Any

from .. import _core, _progress
from .._devices import devices, measure
from .._devices.device_table import DeviceTable


def add(subcommands: Any) -> None:
    """Adds the subcommand to argparse's subparsers."""
    parser = subcommands.add_parser(
        "devices",
        help="list the devices that plans can be made for, or measure this machine's",
        description="Prints the table of GPUs and CPUs with their bandwidths, peaks, caches and ridge points; of a "
        "named one, or of the measured ones, every number with its source.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="devices to show in detail (default: the whole table)")
    parser.add_argument("--measure", action="store_true", help="measure this machine's CPU and GPUs instead")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Finds or measures, and prints."""
    if args.measure and args.names:
        raise ValueError("kfusion devices: give names or --measure, not both")
    named = args.measure or args.names
    found = _measured() if args.measure else [devices.device(name) for name in args.names] or devices.devices()
    if args.json:
        print(json.dumps(DeviceTable(found).to_dict(), indent=2))
    elif named:
        print(*found, sep="\n\n")
    else:
        print(found)


def _measured() -> list[Any]:
    places = ["cpu", *(f"cuda:{i}" for i in range(_core.cuda_device_count()))]
    with _progress.reporting() as report:
        return [measure.measure_device(place, progress=report.part(i, len(places))) for i, place in enumerate(places)]
