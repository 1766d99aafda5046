"""The porting guide: a site made from the tested source."""
