"""LangGraph and LangChain code that all methods share.

| file | content |
|---|---|
| `contract`, `effects` | check the agent that `amc` wraps, and the declared effects of its tools |
| `calls` | the context, critic and config of a call |
| `world` | the worlds of particles, and `current_environment` |
| `door` | holds a particle at its commit tools |
| `metering` | counts the requests of an agent's models, and lets particles pass by their caches |
| `budget_keeper` | reserves requests under budgets |
| `tracing` | the interface of traces, and its default that records nothing |
| `deciding`, `inner_calls` | chat models that decide, their middleware and node; their requests: code of LAC and PNLC |
| `text_agent` | a ReAct agent for text worlds |
| `session_routing` | sends the requests of a conversation to one replica of a server |
| `store_operations` | operations on LangGraph stores |
"""
