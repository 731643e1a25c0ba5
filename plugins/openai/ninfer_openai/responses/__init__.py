"""OpenAI Responses: Items in, Items out, and what the server keeps between them."""
