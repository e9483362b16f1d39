"""`python -m attngeo` is the command line."""

from attngeo.cli import main

if __name__ == "__main__":
    main()
