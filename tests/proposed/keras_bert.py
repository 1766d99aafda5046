"""A BERT-like encoder with a classifier in Keras: tables of tokens, positions and segments, post-norm blocks, a pooled first token."""

import keras
from keras import layers


class BertEmbedding(layers.Layer):
    def __init__(self, vocab_size, embed_dim, max_len, type_vocab_size, rate):
        super().__init__()
        self.word_embeddings = layers.Embedding(vocab_size, embed_dim)
        self.position_embeddings = layers.Embedding(max_len, embed_dim)
        self.token_type_embeddings = layers.Embedding(type_vocab_size, embed_dim)
        self.norm = layers.LayerNormalization(epsilon=1e-12)
        self.dropout = layers.Dropout(rate)

    def call(self, input_ids, token_type_ids=None, training=False):
        positions = keras.ops.arange(keras.ops.shape(input_ids)[1])
        if token_type_ids is None:
            token_type_ids = keras.ops.zeros_like(input_ids)
        x = self.word_embeddings(input_ids) + self.position_embeddings(positions) + self.token_type_embeddings(token_type_ids)
        return self.dropout(self.norm(x), training=training)


class EncoderBlock(layers.Layer):
    def __init__(self, embed_dim, num_heads, ff_dim, rate):
        super().__init__()
        self.att = layers.MultiHeadAttention(num_heads, embed_dim // num_heads)
        self.ffn = keras.Sequential([layers.Dense(ff_dim, activation="gelu"), layers.Dense(embed_dim)])
        self.norm1 = layers.LayerNormalization(epsilon=1e-12)
        self.norm2 = layers.LayerNormalization(epsilon=1e-12)
        self.dropout1 = layers.Dropout(rate)
        self.dropout2 = layers.Dropout(rate)

    def call(self, x, attention_mask=None, training=False):
        y = self.att(x, x, attention_mask=attention_mask)
        x = self.norm1(x + self.dropout1(y, training=training))
        return self.norm2(x + self.dropout2(self.ffn(x), training=training))


class BertClassifier(keras.Model):
    def __init__(self, vocab_size, max_len, num_layers, embed_dim, num_heads, ff_dim, num_classes, type_vocab_size=2, rate=0.1):
        super().__init__()
        self.embedding = BertEmbedding(vocab_size, embed_dim, max_len, type_vocab_size, rate)
        self.encoder_blocks = [EncoderBlock(embed_dim, num_heads, ff_dim, rate) for _ in range(num_layers)]
        self.pooler = layers.Dense(embed_dim, activation="tanh")
        self.classifier = layers.Dense(num_classes)

    def call(self, input_ids, attention_mask=None, token_type_ids=None, training=False):
        if attention_mask is not None:
            attention_mask = keras.ops.cast(attention_mask, "bool")[:, None, :]
        x = self.embedding(input_ids, token_type_ids, training=training)
        for block in self.encoder_blocks:
            x = block(x, attention_mask, training=training)
        return self.classifier(self.pooler(x[:, 0]))
