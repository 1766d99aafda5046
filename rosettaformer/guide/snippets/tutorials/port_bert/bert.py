# region imports
import torch
from torch import nn
from torch.nn import functional


# region feed_forward
def norm(c):
    return nn.LayerNorm(c.model_width)


class FeedForward(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.hidden = nn.Linear(c.model_width, c.feed_forward_width)
        self.output = nn.Linear(c.feed_forward_width, c.model_width)

    def forward(self, x):
        return self.output(functional.gelu(self.hidden(x)))


# region attention
class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads, self.groups = c.heads, c.key_value_heads
        self.query = nn.Linear(c.model_width, c.heads * c.key_size)
        self.key = nn.Linear(c.model_width, c.key_value_heads * c.key_size)
        self.value = nn.Linear(c.model_width, c.key_value_heads * c.value_size)
        self.output = nn.Linear(c.heads * c.value_size, c.model_width)

    def forward(self, x, mask=None):
        query = self.query(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)  # b h t k
        key = self.key(x).unflatten(-1, (self.groups, -1)).transpose(1, 2)
        value = self.value(x).unflatten(-1, (self.groups, -1)).transpose(1, 2)
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return self.output(mixed.transpose(1, 2).flatten(2))


# region layer
class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.attention, self.attention_norm = Attention(c), norm(c)
        self.feed_forward, self.feed_forward_norm = FeedForward(c), norm(c)

    def forward(self, x, mask=None):
        x = self.attention_norm(x + self.attention(x, mask))
        return self.feed_forward_norm(x + self.feed_forward(x))


# region encoder
class Embeddings(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.words = nn.Embedding(c.source_vocabulary, c.model_width, padding_idx=0)
        self.places = nn.Embedding(c.max_positions, c.model_width)
        self.segments = nn.Embedding(c.segments, c.model_width)
        self.norm = norm(c)

    def forward(self, ids, segments=None):
        segments = torch.zeros_like(ids) if segments is None else segments
        place = torch.arange(ids.shape[1], device=ids.device)
        return self.norm(self.words(ids) + self.places(place) + self.segments(segments))


class Encoder(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embeddings = Embeddings(c)
        self.layers = nn.ModuleList(Layer(c) for _ in range(c.encoder_layers))

    def forward(self, ids, real=None, segments=None):
        x = self.embeddings(ids, segments)
        for layer in self.layers:
            x = layer(x)
        return x


class Pooler(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.dense = nn.Linear(c.model_width, c.model_width)

    def forward(self, x):
        return torch.tanh(self.dense(x[:, 0]))


class Pooled(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.encoder, self.pooler = Encoder(c), Pooler(c)

    def forward(self, ids, real=None, segments=None):
        return self.pooler(self.encoder(ids, real, segments))


# region head
class Head(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.dense, self.norm = nn.Linear(c.model_width, c.model_width), norm(c)
        self.decoder = nn.Linear(c.model_width, c.source_vocabulary)

    def forward(self, x):
        return self.decoder(self.norm(functional.gelu(self.dense(x))))


class MaskedLanguageModel(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.encoder, self.head = Encoder(c), Head(c)
        self.head.decoder.weight = self.encoder.embeddings.words.weight  # its bias is not tied

    def forward(self, ids, real=None, segments=None):
        return self.head(self.encoder(ids, real, segments))
