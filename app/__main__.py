"""`python -m app` is `plan`, for places where the console script is not installed."""

from meshplan.__main__ import main

if __name__ == "__main__":
    main()
