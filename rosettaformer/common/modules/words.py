"""Common names of the parts of attention and embeddings in users' code."""

IN_PROJECTION = ("query", "key", "value")  # order of the parts in a fused tensor, such as torch's `in_proj_weight`
PROJECTED = {
    "query": {"q", "query", "queries", "wq", "qs", "xq", "bq", "toquery", "toqueries"},
    "key": {"k", "key", "keys", "wk", "ks", "xk", "bk", "tokey", "tokeys"},
    "value": {"v", "value", "values", "wv", "vs", "xv", "bv", "tovalue", "tovalues"},
}
ATTENDS = {"attn", "attention", "att", "mha", "selfattn", "attns", "sa"}
EMBEDS = {"emb", "embed", "embedding", "embeddings"}
