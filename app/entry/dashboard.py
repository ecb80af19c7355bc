"""The script that Streamlit runs."""

from app.dashboard import main

if __name__ == "__main__":
    main()
