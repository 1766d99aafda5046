"""The port file of the plain versions in PyTorch, computed in float64."""

import plain_pytorch
import torch
from plain_port import Port

torch.set_default_dtype(torch.float64)
dtypes = ("float64",)
globals().update(Port(plain_pytorch, torch.from_numpy).functions())
