"""The ledger: a budget that outlives a process, kept as an append-only, hash-chained history.

Read in this order: `entries` (what one line of the history says, and the chain), `state` (what a history means),
`costs` (what its spends cost together), `store` (how it is kept in a database), `book` (one reading of it), `ledger`
(what a user does with it).

What the hash chain shows and what it cannot:

==========================================================================  ==========================================
what somebody with write access to the database does                        noticed
==========================================================================  ==========================================
edits, deletes, swaps or inserts an entry; cuts the end off                 always
alters the stored composition of a past (`costs`)                           always: it is composed again
does so, and rewrites every later hash and the head with it                 with ``verify(head=...)`` of a noted head
puts an older copy of the whole file back, or starts an empty one           with ``verify(head=...)`` of a noted head
forges entries after the last head that anybody noted                       never (a forged composition beside
                                                                            true entries: ``verify(recompose=True)``)
==========================================================================  ==========================================

The hashes carry no secret, so note the head from time to time where the database's owner cannot write.

A data set's accountant composes the events as if they had all been fixed in advance. Where analysts choose later noise
by looking at earlier *results*, that is proved for basic composition (Rogers et al. 2016), zCDP and a fixed Renyi order
(Feldman and Zrnic 2021) and Gaussian noise (Smith and Thakurta 2022), and is common practice, not theorem, for PLD.
"""

from sordina.accounting.ledger.entries import Entry, Head, Kind
from sordina.accounting.ledger.ledger import Ledger, Reservation
from sordina.accounting.ledger.state import DataSet, Life, Spend, Statement, Status

__all__ = ["DataSet", "Entry", "Head", "Kind", "Ledger", "Life", "Reservation", "Spend", "Statement", "Status"]
