"""Models and functions that nothing can be compared with: each ends in one message, and none in a traceback."""

import torch
from torch import nn


class Plain(nn.Module):
    """What the others stand beside."""

    def __init__(self, width=5):
        super().__init__()
        self.up = nn.Linear(5, 7)
        self.down = nn.Linear(7, width)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


def no_module():
    return lambda x: x


def nothing():
    return None


def a_number():
    return 3


def a_class():
    return nn.Linear


def a_list():
    return [nn.Linear(5, 7), nn.Linear(7, 5)]


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


class Asserts(Plain):
    def forward(self, x):
        assert x.shape[-1] == 6
        return x


class OtherSizes(Plain):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(5, 9), nn.Linear(9, 5)


class MoreLayers(Plain):
    def __init__(self):
        super().__init__()
        self.more = nn.Linear(5, 5)

    def forward(self, x):
        return self.more(super().forward(x))


class OtherOutput(Plain):
    def forward(self, x):
        return super().forward(x)[..., :3]


class NoOutput(Plain):
    def forward(self, x):
        super().forward(x)


class Text(Plain):
    def forward(self, x):
        return "done"


class Empty(Plain):
    def forward(self, x):
        return super().forward(x)[:0]


class Integers(Plain):
    def forward(self, x):
        return super().forward(x).argmax(-1)


class Complex(Plain):
    def forward(self, x):
        return torch.fft.fft(super().forward(x))


class NaN(Plain):
    def forward(self, x):
        return super().forward(x) / 0 * 0


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
    """It holds itself."""

    def __init__(self):
        super().__init__()
        object.__setattr__(self, "me", self)
        self.__dict__["parent"] = [self]

    def forward(self, x):
        return super().forward(x) if x is not self.me else x


class Random(Plain):
    def forward(self, x):
        return super().forward(x) + torch.rand(())


class Meta(Plain):
    def __init__(self):
        super().__init__()
        self.to("meta")


class Half(Plain):
    def __init__(self):
        super().__init__()
        self.half()


class Quantised(Plain):
    def __init__(self):
        super().__init__()
        self.up = torch.ao.nn.quantized.dynamic.Linear(5, 7)


class Lazy(Plain):
    def __init__(self):
        super().__init__()
        self.up = nn.LazyLinear(7)


class Sparse(Plain):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.eye(5).to_sparse())

    def forward(self, x):
        return super().forward(torch.sparse.mm(self.table, x.reshape(-1, 5).T).T.reshape(x.shape))


class Many(Plain):
    """One layer is called a hundred times."""

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
    """Its parameters are another's after each call."""

    def forward(self, x):
        self.up.weight = nn.Parameter(self.up.weight.detach().clone())
        return super().forward(x)
