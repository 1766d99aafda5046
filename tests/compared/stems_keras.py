"""The models of stems_torch.py in Keras, channels last. first: `Dense` returns its channels first."""

from keras import layers, ops
from sinusoids import sinusoids


class Block(layers.Layer):
    def __init__(self, width, planted="", **named):
        super().__init__(**named)
        self.norm1 = layers.LayerNormalization(epsilon=1e-5, name="norm1")
        self.norm2 = layers.LayerNormalization(epsilon=1e-2 if planted == "epsilon" else 1e-5, name="norm2")
        self.query, self.key, self.value, self.output_ = (layers.Dense(width, name=name) for name in ("query", "key", "value", "output"))
        self.up, self.down = layers.Dense(2 * width, name="up"), layers.Dense(width, name="down")
        self.scale, self.approximate = (1.0 if planted == "scale" else 0.5), planted == "gelu"

    def call(self, x):
        b, t, d = x.shape
        y = self.norm1(x)
        q, k, v = (ops.transpose(ops.reshape(part(y), (b, t, d // 4, 4)), (0, 2, 1, 3)) for part in (self.query, self.key, self.value))
        y = ops.softmax(q @ ops.transpose(k, (0, 1, 3, 2)) * self.scale) @ v
        x = x + self.output_(ops.reshape(ops.transpose(y, (0, 2, 1, 3)), (b, t, d)))
        return x + self.down(ops.gelu(self.up(self.norm2(x)), approximate=self.approximate))


class Series(layers.Layer):
    def __init__(self, width=12, planted="", turned=False):
        super().__init__()
        options = {"padding": "causal", "dilation_rate": 2 if planted == "dilation" else 1}
        self.conv1 = layers.Conv1D(width, 3, activation="gelu", name="conv1", **options)
        self.conv2 = layers.Conv1D(width, 3, 2, activation="gelu", name="conv2")
        self.block, self.turned, self.interleaved = Block(width, planted, name="block"), turned, planted == "positions"

    def call(self, x):
        x = self.conv2(ops.pad(self.conv1(x), ((0, 0), (1, 1), (0, 0))))
        x = self.block(x + ops.cast(sinusoids(*x.shape[1:], self.interleaved), x.dtype))
        return ops.transpose(x, (0, 2, 1)) if self.turned else x


class Dense(layers.Layer):
    def __init__(self, width=12, planted="", turned=False, first=False):
        super().__init__()
        self.down = layers.Conv2D(width, 3, 2, name="down")
        self.norm = layers.GroupNormalization(2, epsilon=1e-2 if planted == "epsilon" else 1e-5, name="norm")
        self.up, self.out = layers.Conv2DTranspose(width, 2, 2, name="up"), layers.Conv2D(8, 1, name="out")
        self.turned, self.first, self.order = turned, first, -1 if planted == "skip" else 1

    def call(self, x):
        y = self.norm(self.down(ops.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))))
        x = self.out(ops.concatenate([ops.relu(self.up(ops.relu(y))), x][:: self.order], -1))
        x = ops.transpose(x, (0, 2, 1, 3)) if self.turned else x
        return ops.transpose(x, (0, 3, 1, 2)) if self.first else x
