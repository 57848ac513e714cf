"""``python -m bunqueue_trio``: the same as the command ``bunqueue-trio``."""

from bunqueue_trio.cli.main import main

if __name__ == "__main__":
    main()
