"""What an error of running out of memory says, by the user's lines, and what would make the program fit."""
