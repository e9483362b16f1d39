"""`python -m attngeo` runs the command line."""

from attngeo.cli.app import main

if __name__ == "__main__":
    main()
