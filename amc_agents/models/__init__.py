"""Policies as LangChain chat models: the embedded numpy model and any transformers causal language model.

| file or package | content |
|---|---|
| `chat` | chat models over a batched engine, and their messages |
| `engine`, `batcher` | requests of all callers in one batch |
| `embedded` | a small Llama in numpy, and the shipped weights |
| `transformers_chat` | any causal language model of transformers (extra `train`) |
| `seeding` | seeds of model calls, and `particle_rng` |
| `tokenizers` | tokenizers that produce no special tokens from untrusted text |

This package imports nothing, so that `import amc_agents.models` is cheap.
"""
