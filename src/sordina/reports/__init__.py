"""Reports: facts as frozen data, and their rendering, kept apart.

`facts` (what is known), `reading` (from run folders), `odds` and `words` (what it means to a person), `charts`, `bars`
and `svg` (what it looks like), `sections` and `page` (the one HTML file), `writing`, `compare`, and `demo`.
"""
