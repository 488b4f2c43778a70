"""A hosted sandbox per particle, forked by the vendor's SDK. Each world is imported from its own module."""
