"""Real federations: sites that keep their data, a server that never sees them, and Flower between the two.

on disk       identity (keys), certificates, tickets (the coordinator's and a site's folder)
messages      sealed (as carried), wire (as checked), journal (as recorded)
large models  bulk (bytes that nobody holds twice), shelf (tensors on the disk), pieces (on their way), freed, lean
a site        site (answers requests), site_run, site_folder, site_files, owner (whose a file is), loaders (its data), doctor and
              handshake (checks before a run)
the server    server (a run), deployed (on disk), attendance, remote (the round), replies, scoring, post, notices
fairness      bounds and weighing (what a site counts for), proportion and soundness (replies that would wreck a run), units
both sides    hello (what a site says of its data), federations, studies (what may run over a network)
at a site     connecting (its processes), answering (its connection), fleet (Flower's calls), worker (holds the data)
at the server serving (its processes), conductors and conductor (of runs), conducting, superlink, mailbox (Flower's calls)
both sides    flower (messages in Flower's form), commands, supervise, addresses
membership    admission, admitted (keys as they are now), membership (sites that come and go), renewal (certificates)
a site's way  clocks, reaching (through proxies), cleaning (runs that are over)
operators     joining (and its fingerprint), asking and terminal (approval where a site runs), logs, metrics
operators     following (a run that goes on elsewhere), orders, bundle (the app that orders travel by), submit, export
"""
