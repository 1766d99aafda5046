"""Models and functions that cannot be compared: each gives one message and no traceback."""

from functools import partial

import torch
from torch import nn


class Plain(nn.Module):
    """The baseline of the others."""

    def __init__(self, width=5, hidden=7):
        super().__init__()
        self.up = nn.Linear(5, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


def _giving(change):
    """Returns a class with a changed output."""

    class Changed(Plain):
        def forward(self, x):
            return change(super().forward(x))

    return Changed


def _changed(change):
    """Returns a model after a change of its layers."""

    def build():
        net = Plain()
        change(net)
        return net

    return build


OtherSizes = partial(Plain, hidden=9)
Meta = _changed(lambda net: net.to("meta"))
Half = _changed(nn.Module.half)
Quantised = _changed(lambda net: setattr(net, "up", torch.ao.nn.quantized.dynamic.Linear(5, 7)))
Lazy = _changed(lambda net: setattr(net, "up", nn.LazyLinear(7)))
OtherOutput = _giving(lambda y: y[..., :3])
NoOutput = _giving(lambda y: None)
Empty = _giving(lambda y: y[:0])
Text = _giving(lambda y: "done")
Integers = _giving(lambda y: y.argmax(-1))
Complex = _giving(torch.fft.fft)
NaN = _giving(lambda y: y / 0 * 0)
Random = _giving(lambda y: y + torch.rand(()))


def no_module():
    return lambda x: x


def a_class():
    return nn.Linear


def raises():
    raise RuntimeError("no licence")


def raises_without_words():
    raise KeyError


def exits():
    raise SystemExit(3)


def interrupts():
    raise KeyboardInterrupt


def needs_arguments(width, depth):
    return Plain(width)


class Raises(Plain):
    def forward(self, x):
        raise NotImplementedError


class MoreLayers(Plain):
    def __init__(self):
        super().__init__()
        self.more = nn.Linear(5, 5)

    def forward(self, x):
        return self.more(super().forward(x))


class Generator(Plain):
    def forward(self, x):
        yield super().forward(x)


class OtherArguments(Plain):
    def forward(self, image, mask, lengths):
        return image


class Starred(Plain):
    def forward(self, *args, **kwargs):
        return super().forward(*args, **kwargs)


class Endless(Plain):
    """Contains itself."""

    def __init__(self):
        super().__init__()
        object.__setattr__(self, "me", self)
        self.__dict__["parent"] = [self]

    def forward(self, x):
        return super().forward(x) if x is not self.me else x


class Sparse(Plain):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.eye(5).to_sparse())

    def forward(self, x):
        return super().forward(torch.sparse.mm(self.table, x.reshape(-1, 5).T).T.reshape(x.shape))


class Many(Plain):
    """Calls one layer a hundred times."""

    def forward(self, x):
        for _ in range(100):
            x = torch.tanh(super().forward(x))
        return x


class Hooked(Plain):
    def __init__(self):
        super().__init__()
        self.up.register_forward_pre_hook(lambda module, given: (given[0].clone(),))
        self.up.register_forward_hook(lambda module, given, output: None)


class Scripted:
    def __new__(cls):
        return torch.jit.script(Plain())


class NoParameters(nn.Module):
    def forward(self, x):
        return x + 1


class OddNames(Plain):
    def __init__(self):
        super().__init__()
        self._modules["a b\nc [red]"] = nn.Linear(5, 5)

    def forward(self, x):
        return self._modules["a b\nc [red]"](super().forward(x))


class Deleted(Plain):
    """Replaces its parameters after each call."""

    def forward(self, x):
        self.up.weight = nn.Parameter(self.up.weight.detach().clone())
        return super().forward(x)
