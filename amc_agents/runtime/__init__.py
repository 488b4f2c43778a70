"""LangGraph and LangChain code that all methods share.

| file | content |
|---|---|
| `contract`, `effects` | check the agent that `amc` wraps, and the declared effects of its tools |
| `world` | the worlds of particles, and `current_environment` |
| `text_agent` | a ReAct agent for text worlds |
| `chosen_critic`, `calls` | the critic, context and config of a call |
| `deciding_model`, `deciding_middleware`, `deciding_node` | models, middlewares and nodes: code of LAC and PNLC |
| `sampling_actor`, `inner_calls`, `answer_chunk` | requests inside a deciding model |
| `metering` | usage of an agent's models |
| `store_operations` | operations on LangGraph stores |
"""
