"""Real federations: sites that keep their data, a server that never sees them, Flower between the two.

identity    keys and signatures
tickets     a coordinator's folder, the tickets it gives out, a site's folder
wire        one message: a JSON header that is signed, and tensors as safetensors
site        a site's answers
roster      what the server knows of sites
remote      the round's exchange, over the wire
server      handshake, rounds, checkpoints
flower      the two Flower apps: they carry sealed messages and know nothing else
processes   the programs behind `unskew serve` and `unskew site run`
"""
