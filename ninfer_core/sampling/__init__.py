"""From logits to tokens: resolved parameters and the sampler."""
