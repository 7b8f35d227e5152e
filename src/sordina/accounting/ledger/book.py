"""A ledger as it was read at one moment: the history, what it means, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from sordina.accounting.ledger import costs
from sordina.accounting.ledger.costs import ComposedSpends
from sordina.accounting.ledger.entries import Entry, History, Kind
from sordina.accounting.ledger.state import DataSet, State, Statement, apply, replay
from sordina.errors import LedgerCorrupt

Remembered = dict[str, tuple[str, ComposedSpends]]
"""By data set: the hash of an entry, and all spends up to it, composed."""


@dataclass
class Book:
    """One reading of a ledger.

    Args:
        history: Checked against its chain.
        stored: Compositions of pasts as bytes, by data set; used only where the history holds their digest.
        remembered: What this process has composed itself; used only where the history holds the entry's hash.
    """

    history: History
    stored: dict[str, bytes]
    remembered: Remembered
    state: State = field(init=False)

    def __post_init__(self) -> None:
        self.state = replay(self.history.entries)

    def past(self, terms: DataSet) -> ComposedSpends | None:
        """The spends of a data set up to now, composed; None if they are too few to be kept."""
        best = self._vouched(terms)
        hash_, known = self.remembered.get(terms.name, ("", None))
        if known is not None and self.history.hashes[known.entry - 1 : known.entry] == (hash_,):
            best = known if best is None or known.entry > best.entry else best
        if best is not None and best.entry == self.history.head.count:
            return best
        made = costs.worth_keeping(terms, self.state.spends_on(terms), self.history.head.count, best)
        if made is not None:
            self.remembered[terms.name] = self.history.head.hash, made
        return made

    def _vouched(self, terms: DataSet) -> ComposedSpends | None:
        """The stored composition, if it is the one whose digest the last entry that has one holds."""
        data = self.stored.get(terms.name)
        if data is None:
            return None
        for entry in reversed(self.history.entries):
            if entry.dataset == terms.name and entry.past:
                found = costs.composed_from(data, entry.past)
                right = found is not None and (found.dataset, found.entry) == (terms.name, entry.id)
                return found if right else None
        return None

    def statement(self, terms: DataSet) -> Statement:
        """What was spent on a data set."""
        return costs.statement(self.state, terms, self.past(terms))

    def with_past(self, entry: Entry) -> tuple[Entry, bytes | None]:
        """``entry`` with the digest of the past up to it, and that past, where it is long enough to be kept."""
        if entry.kind is Kind.CREATE:
            return entry, None
        after = State(dict(self.state.datasets), dict(self.state.spends))
        apply(entry, after)
        terms = after.exactly(entry.dataset)
        made = costs.worth_keeping(terms, after.spends_on(terms), entry.id, self.past(terms))
        if made is None:
            return entry, None
        data = made.to_bytes()
        return replace(entry, past=costs.digest(data)), data

    def refuse_understated(self, terms: DataSet) -> None:
        """Compose a data set from its first entry on; `LedgerCorrupt` if the stored composition costs less.

        Args:
            terms: Of the data set.
        """
        stored = self._vouched(terms)
        if stored is None:
            return
        spends = self.state.spends_on(terms)
        kept, again = costs.epsilon(terms, spends, stored), costs.epsilon(terms, spends)
        if kept < again * (1 - 1e-6):
            raise LedgerCorrupt(
                f"the stored composition of {terms.name!r} costs epsilon {kept:.6g}, but its entries cost {again:.6g}: "
                "it was forged, together with the entry that vouches for it."
            )
