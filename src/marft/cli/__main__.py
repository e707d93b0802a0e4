"""`python -m marft.cli`."""

from marft.cli import main

if __name__ == "__main__":
    main()
