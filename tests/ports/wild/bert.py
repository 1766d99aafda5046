"""BERT, the encoder alone: embeddings of words, positions and segments, post-norm layers, a pooler and the masked-language head.

Follows the layout of the early PyTorch ports of BERT (separate Self/SelfOutput/Intermediate/Output modules).
"""

import math

import torch
from torch import nn
from rosettaformer.ports import CLASSIC


class BertLayerNorm(nn.Module):
    """Layer norm in the TF style: epsilon inside the square root."""

    def __init__(self, hidden_size, eps=1e-12):
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(hidden_size))
        self.beta = nn.Parameter(torch.zeros(hidden_size))
        self.variance_epsilon = eps

    def forward(self, x):
        u = x.mean(-1, keepdim=True)
        s = (x - u).pow(2).mean(-1, keepdim=True)
        x = (x - u) / torch.sqrt(s + self.variance_epsilon)
        return self.gamma * x + self.beta


def gelu(x):
    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


class BertEmbeddings(nn.Module):
    def __init__(self, vocab_size, hidden_size, max_position_embeddings, type_vocab_size, eps):
        super().__init__()
        self.word_embeddings = nn.Embedding(vocab_size, hidden_size)
        self.position_embeddings = nn.Embedding(max_position_embeddings, hidden_size)
        self.token_type_embeddings = nn.Embedding(type_vocab_size, hidden_size)
        self.LayerNorm = BertLayerNorm(hidden_size, eps)

    def forward(self, input_ids, token_type_ids=None):
        seq_length = input_ids.size(1)
        position_ids = torch.arange(seq_length, dtype=torch.long, device=input_ids.device)
        position_ids = position_ids.unsqueeze(0).expand_as(input_ids)
        if token_type_ids is None:
            token_type_ids = torch.zeros_like(input_ids)

        words = self.word_embeddings(input_ids)
        positions = self.position_embeddings(position_ids)
        token_types = self.token_type_embeddings(token_type_ids)
        embeddings = words + positions + token_types
        return self.LayerNorm(embeddings)


class BertSelfAttention(nn.Module):
    def __init__(self, hidden_size, num_attention_heads):
        super().__init__()
        self.num_attention_heads = num_attention_heads
        self.attention_head_size = hidden_size // num_attention_heads
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key = nn.Linear(hidden_size, hidden_size)
        self.value = nn.Linear(hidden_size, hidden_size)

    def transpose_for_scores(self, x):
        x = x.view(x.size(0), x.size(1), self.num_attention_heads, self.attention_head_size)
        return x.permute(0, 2, 1, 3)

    def forward(self, hidden_states, attention_mask):
        query_layer = self.transpose_for_scores(self.query(hidden_states))
        key_layer = self.transpose_for_scores(self.key(hidden_states))
        value_layer = self.transpose_for_scores(self.value(hidden_states))

        attention_scores = torch.matmul(query_layer, key_layer.transpose(-1, -2))
        attention_scores = attention_scores / math.sqrt(self.attention_head_size)
        if attention_mask is not None:
            attention_scores = attention_scores + attention_mask
        attention_probs = nn.Softmax(dim=-1)(attention_scores)
        if attention_mask is not None:
            attention_probs = attention_probs * (attention_mask == 0)  # nothing to attend to: nothing comes out

        context_layer = torch.matmul(attention_probs, value_layer)
        context_layer = context_layer.permute(0, 2, 1, 3).contiguous()
        return context_layer.view(*context_layer.size()[:-2], -1)


class BertAttention(nn.Module):
    def __init__(self, hidden_size, num_attention_heads, eps):
        super().__init__()
        self.self = BertSelfAttention(hidden_size, num_attention_heads)
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.LayerNorm = BertLayerNorm(hidden_size, eps)

    def forward(self, input_tensor, attention_mask):
        hidden_states = self.dense(self.self(input_tensor, attention_mask))
        return self.LayerNorm(hidden_states + input_tensor)


class BertLayer(nn.Module):
    def __init__(self, hidden_size, num_attention_heads, intermediate_size, eps):
        super().__init__()
        self.attention = BertAttention(hidden_size, num_attention_heads, eps)
        self.intermediate = nn.Linear(hidden_size, intermediate_size)
        self.output = nn.Linear(intermediate_size, hidden_size)
        self.LayerNorm = BertLayerNorm(hidden_size, eps)

    def forward(self, hidden_states, attention_mask):
        attention_output = self.attention(hidden_states, attention_mask)
        intermediate_output = gelu(self.intermediate(attention_output))
        return self.LayerNorm(self.output(intermediate_output) + attention_output)


class BertModel(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.pad = c.padding_id
        self.embeddings = BertEmbeddings(c.source_vocabulary, c.model_width, c.max_positions, c.segments, c.epsilon)
        self.layer = nn.ModuleList(
            [BertLayer(c.model_width, c.heads, c.feed_forward_width, c.epsilon) for _ in range(c.encoder_layers)]
        )
        self.pooler = nn.Linear(c.model_width, c.model_width) if c.pooler else None

    def forward(self, input_ids, attention_mask=None, token_type_ids=None):
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids, dtype=torch.bool) if self.pad is None else input_ids != self.pad
        embedding_output = self.embeddings(input_ids, token_type_ids)

        # [batch, 1, 1, to_seq]: 0 where we may look, very negative where we may not
        extended_attention_mask = attention_mask.unsqueeze(1).unsqueeze(2).to(embedding_output.dtype)
        extended_attention_mask = (1.0 - extended_attention_mask) * -10000.0

        encoded_layers = [embedding_output]
        for layer_module in self.layer:
            encoded_layers.append(layer_module(encoded_layers[-1], extended_attention_mask))
        sequence_output = encoded_layers[-1]

        pooled_output = None
        if self.pooler is not None:
            first_token_tensor = sequence_output[:, 0]
            pooled_output = torch.tanh(self.pooler(first_token_tensor))
        return sequence_output, pooled_output


class BertForMaskedLM(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.bert = BertModel(c)
        self.transform = nn.Linear(c.model_width, c.model_width)
        self.LayerNorm = BertLayerNorm(c.model_width, c.epsilon)
        # The output weights are the input embeddings, with an output-only bias for each token.
        self.decoder = nn.Linear(c.model_width, c.source_vocabulary, bias=False)
        self.decoder.weight = self.bert.embeddings.word_embeddings.weight
        self.bias = nn.Parameter(torch.zeros(c.source_vocabulary))

    def forward(self, input_ids, attention_mask=None, token_type_ids=None):
        hidden_states, _ = self.bert(input_ids, attention_mask, token_type_ids)
        hidden_states = gelu(self.transform(hidden_states))
        hidden_states = self.LayerNorm(hidden_states)
        return self.decoder(hidden_states) + self.bias


class Pooled(nn.Module):
    """The pooled output alone, as a classifier takes it."""

    def __init__(self, c):
        super().__init__()
        self.bert = BertModel(c)

    def forward(self, input_ids, attention_mask=None, token_type_ids=None):
        return self.bert(input_ids, attention_mask, token_type_ids)[1]


framework = "torch"
dtypes = ("float64", "float32")
config = CLASSIC | {"model_width": 12, "heads": 3, "key_value_heads": 3, "key_size": 4,
    "value_size": 4, "positions": "learned", "max_positions": 11, "position_offset": 0,
    "position_start": "row", "pooler_activation": "tanh", "embedding_norm": True,
    "activation": "gelu_erf", "norm_placement": "post", "final_norm": False,
    "scale_embedding": False, "tie_logits": True, "attention_bias": True, "output_bias": True}

components = {
    "layer_norm": lambda c, dtype: BertLayerNorm(c.model_width, c.epsilon).to(dtype).eval(),
    "pool": lambda c, dtype: Pooled(c).to(dtype).eval(),
    "masked_language_logits": lambda c, dtype: BertForMaskedLM(c).to(dtype).eval(),
}

inputs = {"input_ids": "source", "attention_mask": "source_mask_bs", "token_type_ids": "segment_bs"}
call = {"pool": inputs, "masked_language_logits": inputs, "layer_norm": {"x": "x_btd"}}

weights = {
    "layer_norm": (("scale", "gamma", "d"), ("offset", "beta", "d")),
    "encoder_layer": (("self_attention.query.kernel", "attention.self.query.weight", "(h k) d"),
        ("self_attention.query.bias", "attention.self.query.bias", "(h k)"),
        ("self_attention.key.kernel", "attention.self.key.weight", "(g k) d"),
        ("self_attention.key.bias", "attention.self.key.bias", "(g k)"),
        ("self_attention.value.kernel", "attention.self.value.weight", "(g e) d"),
        ("self_attention.value.bias", "attention.self.value.bias", "(g e)"),
        ("self_attention.output.kernel", "attention.dense.weight", "d (h e)"),
        ("self_attention.output.bias", "attention.dense.bias", "d"),
        ("self_attention_norm", "attention.LayerNorm"),
        ("feed_forward.hidden.kernel", "intermediate.weight", "f d"),
        ("feed_forward.hidden.bias", "intermediate.bias", "f"),
        ("feed_forward.output.kernel", "output.weight", "d f"),
        ("feed_forward.output.bias", "output.bias", "d"), ("feed_forward_norm", "LayerNorm")),
    "transformer": (("source_embedding.table", "bert.embeddings.word_embeddings.weight", "v d"),
        ("source_position_embedding.table", "bert.embeddings.position_embeddings.weight", "p d"),
        ("source_segment_embedding.table", "bert.embeddings.token_type_embeddings.weight", "a d"),
        ("source_embedding_norm", "bert.embeddings.LayerNorm"), ("encoder.layers", "bert.layer"),
        ("pooler.kernel", "bert.pooler.weight", "r d"), ("pooler.bias", "bert.pooler.bias", "r"),
        ("masked_language_head.hidden.kernel", "transform.weight", "r d"),
        ("masked_language_head.hidden.bias", "transform.bias", "r"),
        ("masked_language_head.norm", "LayerNorm"),
        ("masked_language_head.logits.bias", "bias", "v")),
}
