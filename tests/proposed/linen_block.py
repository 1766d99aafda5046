"""A compact encoder block in Flax Linen."""

import flax.linen as nn


class EncoderBlock(nn.Module):
    input_dim: int
    num_heads: int
    dim_feedforward: int
    dropout_prob: float

    @nn.compact
    def __call__(self, x, mask=None, train=True):
        y = nn.MultiHeadDotProductAttention(num_heads=self.num_heads, name="self_attn")(x, mask=mask)
        x = nn.LayerNorm(1e-5, name="norm1")(x + nn.Dropout(self.dropout_prob)(y, deterministic=not train))
        y = nn.Dense(self.input_dim, name="linear2")(nn.relu(nn.Dense(self.dim_feedforward, name="linear1")(x)))
        return nn.LayerNorm(1e-5, name="norm2")(x + nn.Dropout(self.dropout_prob)(y, deterministic=not train))
