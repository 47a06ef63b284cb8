"""From a resolved spec and a source to a folder of weights: the plan, the links and streams, the record, and its verification."""
