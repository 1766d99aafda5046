"""The same network, in Flax NNX."""

from flax import nnx


class Net(nnx.Module):
    def __init__(self, classes=5, epsilon=1e-5, *, rngs):
        self.stem = nnx.Conv(3, 8, kernel_size=(3, 3), padding=1, rngs=rngs)
        self.norm = nnx.BatchNorm(8, momentum=0.9, epsilon=epsilon, rngs=rngs)
        self.down = nnx.Conv(8, 16, kernel_size=(3, 3), strides=(2, 2), padding="VALID", rngs=rngs)
        self.hidden = nnx.Linear(144, 12, rngs=rngs)
        self.head = nnx.Linear(12, classes, rngs=rngs)

    def __call__(self, x):
        x = nnx.relu(self.norm(self.stem(x)))
        x = nnx.max_pool(x, (2, 2), strides=(2, 2))
        x = nnx.gelu(self.down(x), approximate=False)
        x = x.reshape(x.shape[0], -1)
        return self.head(nnx.relu(self.hidden(x)))
