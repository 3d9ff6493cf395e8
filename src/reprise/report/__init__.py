"""The report of a store: tables, figures and one page that works offline. It reads records and changes nothing."""
