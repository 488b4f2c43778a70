"""Ready classifiers and reward models on vLLM as critics: `classify:` and `openhands:`."""
