"""python3 -m pyres: the command line of `cli`."""
from .cli import main_from_console

if __name__ == "__main__":
    main_from_console()
