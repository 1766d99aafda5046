import numpy as np
from plain_numpy import causal_mask, scaled_dot_product_attention, softmax

query_bthk = np.array([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]]).reshape(1, 3, 1, 2)
key_bsgk = np.array([[2.0, 0.0], [0.0, 2.0], [1.0, 1.0]]).reshape(1, 3, 1, 2)
value_bsge = np.array([[10.0], [20.0], [30.0]]).reshape(1, 3, 1, 1)
mask_bhts = causal_mask(3, 3)

logits_bhts = np.einsum("bthk,bshk->bhts", query_bthk, key_bsgk) / 2**0.5
weights_bhts = softmax(logits_bhts, mask_bhts)
output_bthe = scaled_dot_product_attention(query_bthk, key_bsgk, value_bsge, mask_bhts)

print("logits\n", logits_bhts[0, 0].round(3))
print("weights, each row of which adds up to 1\n", weights_bhts[0, 0].round(3))
print("output, a mean of the values by these weights\n", output_bthe[0, :, 0].round(3))
print("a query of 64 random features: deviation of the logits, largest of 16 weights on average")
random = np.random.default_rng(0)
query, key = random.standard_normal((1000, 64)), random.standard_normal((1000, 16, 64))
logits = np.einsum("nk,nsk->ns", query, key)
for name, scaled in (("not scaled", logits), ("divided by the root of 64", logits / 64**0.5)):
    print(f" {name}: {scaled.std():.2f}, {softmax(scaled).max(axis=1).mean():.2f}")
