// A rank that does nothing.
