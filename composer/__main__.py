"""``python -m composer``: ``compose``, where torchrun wants a module."""

from composer.cli.entry import main

if __name__ == "__main__":
    main()
