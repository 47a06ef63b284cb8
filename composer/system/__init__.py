"""Files, locks, processes, devices, warnings: what the product does with the system it runs on."""
