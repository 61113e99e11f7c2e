"""How clients' weights become the next global ones: the weighted mean, and robust aggregation rules, one file
each."""
