"""Generated message classes of the wire (``make proto``); never edited by hand."""
