"""Pictures of specs: the graph of each head and the map of layers, as SVG."""
