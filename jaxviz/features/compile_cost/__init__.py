"""What a program takes to trace, to lower and to compile: by line, by function, by what is repeated; and what a loop over it would save."""
