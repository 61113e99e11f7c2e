"""The methods: one file each, which holds one Part. `catalogue` reads which there are, `registry` reads their
names."""
