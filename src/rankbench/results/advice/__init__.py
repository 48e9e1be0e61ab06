"""The answer: what to use, what cannot be told, and what to measure next."""
