"""The same network, in Flax Linen."""

import flax.linen as nn


class Net(nn.Module):
    classes: int = 5
    epsilon: float = 1e-5

    @nn.compact
    def __call__(self, x, train: bool = False):
        x = nn.Conv(8, (3, 3), padding=1)(x)
        x = nn.BatchNorm(use_running_average=not train, momentum=0.9, epsilon=self.epsilon)(x)
        x = nn.relu(x)
        x = nn.max_pool(x, (2, 2), strides=(2, 2))
        x = nn.Conv(16, (3, 3), strides=2, padding="VALID")(x)
        x = nn.gelu(x, approximate=False)
        x = x.reshape((x.shape[0], -1))
        x = nn.Dense(12)(x)
        x = nn.relu(x)
        return nn.Dense(self.classes)(x)
