"""The network of conv_nnx.py with one bug each."""

from conv_nnx import Net
from flax import nnx


def epsilon(*, rngs):
    return Net(epsilon=1e-3, rngs=rngs)


def padding(*, rngs):
    """SAME padding begins one pixel later if there are strides."""
    net = Net(rngs=rngs)
    net.stem = nnx.Conv(3, 8, kernel_size=(3, 3), padding=((2, 0), (2, 0)), rngs=rngs)
    return net


class Flattened(Net):
    """Flattens the image with channels first, as in PyTorch, so that the kernel would have to be copied unchanged."""

    def __call__(self, x):
        x = nnx.relu(self.norm(self.stem(x)))
        x = nnx.max_pool(x, (2, 2), strides=(2, 2))
        x = nnx.gelu(self.down(x), approximate=False)
        x = x.transpose(0, 3, 1, 2).reshape(x.shape[0], -1)
        return self.head(nnx.relu(self.hidden(x)))
