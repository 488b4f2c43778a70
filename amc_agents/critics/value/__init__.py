"""Value critics: a fine-tuned model with a scalar head, served by vLLM, by transformers, or in numpy."""
