"""Text in and out: tokenizer, chat template, prompt, detokenization, stop strings, channels."""
