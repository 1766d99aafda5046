"""A port with a process for each device: rank 0 runs the reference, and an all-reduce of gloo shares its outputs.

The environment variable FAULT changes rank 1: crash, raise, apart (another output), hang, exit (at its start); `refuse`: all ranks.
"""

import os
import time

import numpy as np

from rosettaformer.judge.expectation import components

processes = True  # torch is imported only when the port runs
RANK = int(os.environ.get("RANK", "0"))
FAULT = os.environ.get("FAULT", "") if RANK == 1 or os.environ.get("FAULT") == "refuse" else ""
if FAULT == "exit":
    os._exit(4)


def on_mesh(case):
    """Returns the outputs of the reference through a collective."""
    if case.component == "rms_norm":
        raise NotImplementedError
    import torch
    import torch.distributed as dist

    if not dist.is_initialized():
        dist.init_process_group("gloo")
    assert dist.get_world_size() == case.mesh.devices == int(os.environ["LOCAL_WORLD_SIZE"])
    found = components.answer(case)
    if case.name.endswith("_2"):  # only the second case
        _fail()
    for name, value in found.items():
        found[name] = torch.from_numpy(np.asarray(value) * (RANK == 0))
        dist.all_reduce(found[name])
    return {name: value + (FAULT == "apart") for name, value in found.items()}


def _fail():
    if FAULT == "crash":
        os._exit(3)
    if FAULT == "raise":
        raise RuntimeError("a device is gone")
    if FAULT == "refuse":
        raise ValueError("no device is there")
    if FAULT == "hang":
        time.sleep(600)
