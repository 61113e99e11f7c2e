"""The protocol of sites and coordinator: keys, messages, descriptions of data, and the rules for studies."""
