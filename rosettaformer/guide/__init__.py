"""The porting guide: a site generated from the tested source."""
