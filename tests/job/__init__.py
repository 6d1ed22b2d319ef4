"""Job descriptions: apps, components, records, handles, and hidden secrets."""
