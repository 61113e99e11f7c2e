"""Federations over a network: sites keep their data, a coordinator conducts the rounds, and Flower carries
the messages.

  protocol      what both ends share: keys, signed messages, descriptions of data, rules for studies, sums
  site          a site: policy, approvals, ledger, connection, and the process that holds the data
  coordinator   the coordinator: the run, the exchange with its sites, Flower's SuperLink, the runs' processes
  front         the process that sites connect to; it passes checked requests on to Flower's SuperLink

The files next to these folders are used by several of them: addresses, certificates, tickets and admission,
the journal, supervised programs, a site's data, and the changes to Flower. The
folders `site` and `coordinator` do not import each other.
"""
