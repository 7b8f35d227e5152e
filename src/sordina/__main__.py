"""``python -m sordina``: the command line."""

from sordina.cli.main import main

if __name__ == "__main__":
    main()
