"""The explorer's stage of the compiled program: its text, its memory at the peak, and one of its repeated blocks."""
