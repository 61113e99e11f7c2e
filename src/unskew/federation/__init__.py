"""Federations over a network: sites keep their data, a coordinator conducts the rounds, and Flower carries
the messages.

protocol      what both ends share: keys, signed messages, the description of a site's data, what may run over
a network
site          a site: its policy and approvals, what has left it, its connection and the process that holds
its data
coordinator   the coordinator: the run, the exchange with its sites, Flower's SuperLink and the processes that
conduct runs front         the process that sites connect to, which stands before Flower's SuperLink
sums          secure aggregation: the coordinator reads sums of replies only

Beside these folders are the files that several of them use: addresses, certificates, tickets and admission
(who takes part), the journal, programs that are restarted, Prometheus metrics, pages for a browser, a site's
data, the replay of a run for attacks, and the changes to Flower's SuperLink. The site and the coordinator do
not import each other.
"""
