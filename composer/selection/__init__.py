"""Which layers of a source should keep their own attention: each is scored, and the best are written into a spec."""
