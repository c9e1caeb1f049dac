"""python3 -m pyres: the command line of `cli`."""
import sys

if __name__ == "__main__":
    try:
        from .cli import main_from_console
    except KeyboardInterrupt:           # Ctrl-C while modules are imported
        sys.exit(130)
    main_from_console()
