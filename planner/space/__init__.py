"""The space of layouts: degrees, cuts and everything they unfold into."""
