"""Models timed side by side: the prefill and the decode of all of them in one run."""
