"""Operations and bytes of each equation."""
