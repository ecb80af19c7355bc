"""What the standard streams carry: answers, notes, signs of life."""
