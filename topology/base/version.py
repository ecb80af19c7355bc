"""The version of meshplan; the distribution takes it from here."""

VERSION = "0.1.0"
