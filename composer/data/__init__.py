"""How texts become batches: read, cut into tokens, packed into rows, and put in an order that any step can be resumed from."""
