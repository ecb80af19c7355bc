"""Hugging Face configurations, family by family."""
