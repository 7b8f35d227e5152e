"""Attacks on fine-tunes: each against its definition, written out in loops; all on a model that memorised."""

import copy
import json
import zlib

import numpy as np
import pytest
import torch

from sordina.auditing import Secrets, audit_language_model, measure_continuations, measure_exposure
from sordina.auditing.findings import claim_from
from sordina.auditing.language import language_attacks, open_causal_model, read_texts, same_length
from sordina.auditing.membership import text_attacks
from sordina.auditing.membership.shadows import PlainTraining, train
from sordina.auditing.membership.target import LanguageModel, Samples
from sordina.auditing.membership.text_attacks import SHARE, TEXT_ATTACKS, WIDTHS, TokenView, Zlib, ask_tokens
from sordina.cli.main import main
from sordina.datasets import tiny_lm
from sordina.datasets.data import find
from sordina.errors import InvalidInput
from sordina.reproduction.language import small_gpt2

pytest.importorskip("transformers")
WORDS, LENGTH = 30, 14


def texts(count, seed):
    rng = np.random.default_rng(seed)
    chaos = rng.random((count, 1)) * 0.8
    steps = np.where(rng.random((count, LENGTH)) < chaos, rng.integers(WORDS, size=(count, LENGTH)), 1)
    return torch.from_numpy(steps.cumsum(axis=1) % WORDS)


@pytest.fixture(scope="module")
def fine_tuned():
    """A base that knows the language, and its fine-tune that knows forty texts by heart, among them six secrets."""
    base = small_gpt2(WORDS, LENGTH, width=32, layers=1, heads=2)
    train(base, Samples(texts(200, 2)), PlainTraining(10, 20, 5e-3), np.random.default_rng(0))
    members, others = texts(60, 0), texts(60, 1)
    planted = Secrets.draw(torch.arange(6), torch.arange(WORDS), np.random.default_rng(5), count=6, length=LENGTH - 6)
    model = copy.deepcopy(base)
    train(model, Samples(torch.cat([members, planted.texts])), PlainTraining(40, 20, 5e-3), np.random.default_rng(0))
    return model, base, members, others, planted


def by_hand(model, row):
    """log p of every token but the first, with the mean and deviation of log p, and whether it is the top one."""
    told = []
    with torch.no_grad():
        for place in range(1, len(row)):
            log_p = model(row[None, :place]).logits[0, -1].double().log_softmax(0)
            p, own = log_p.exp(), float(log_p[row[place]])
            mean = float((p * log_p).sum())
            told.append((own, mean, float((p * (log_p - mean) ** 2).sum()) ** 0.5, int(log_p.argmax()) == row[place]))
    return told


def test_every_score_is_its_definition_and_padding_counts_for_nothing(fine_tuned):
    model, base, members, others, _ = fine_tuned
    rows = torch.cat([members[:3], others[:3]])
    padded = rows.clone()
    padded[1, 9:] = padded[4, 5:] = -1
    f, b = ask_tokens(model, Samples(padded), batch_size=2), ask_tokens(base, Samples(padded), batch_size=4)
    for index, row in enumerate(padded):
        real = row[row >= 0]
        mine, theirs = by_hand(model, real), by_hand(base, real)
        own, before = np.array([one[0] for one in mine]), np.array([one[0] for one in theirs])
        count = max(1, int(np.ceil(SHARE * len(own))))
        standard = np.array([(one[0] - one[1]) / one[2] for one in mine])
        gains = own - before
        votes = [
            np.mean([gains[start : start + width].sum() > 0 for start in range(len(gains) - width + 1)])
            for width in WIDTHS
            if width <= len(gains)
        ]
        wrong = np.array([not one[3] for one in mine])
        rises, falls = gains[wrong & (gains > 0)].sum(), -gains[wrong & (gains < 0)].sum()
        expected = {
            "loss": own.mean(),
            "reference": own.mean() - before.mean(),
            "min-k": np.sort(own)[:count].mean(),
            "min-k++": np.sort(standard)[:count].mean(),
            "windows": np.mean(votes),
            "error-zone": np.log(rises + 1e-6) - np.log(falls + 1e-6),
        }
        for name, (score, _) in TEXT_ATTACKS.items():
            assert score(f, b)[index] == pytest.approx(expected[name], rel=1e-3, abs=1e-4), name


def test_zlib_is_the_loss_over_the_compressed_length(fine_tuned):
    model, _, members, _, _ = fine_tuned
    attack = Zlib(TokenView(model), lambda tokens: " ".join(map(str, tokens)))
    found = attack.scores(LanguageModel(model), Samples(members[:2]))
    for row, score in zip(members, found, strict=False):
        loss = sum(one[0] for one in by_hand(model, row))
        assert score == pytest.approx(loss / len(zlib.compress(" ".join(map(str, row.tolist())).encode())), rel=1e-3)


def test_all_attacks_find_what_was_memorised_and_nothing_where_nothing_was(fine_tuned):
    model, base, members, others, _ = fine_tuned
    options = {"decode": lambda tokens: " ".join(map(str, tokens)), "neighbours": 3, "seed": 0}
    recipe = PlainTraining(10, 20, 5e-3)
    found = audit_language_model(model, base, members, others, language_attacks(), shadows=4, recipe=recipe, **options)
    areas = {result.name: result.auc.value for result in found.results}
    assert set(areas) == set(language_attacks())
    assert all(area > 0.6 for area in areas.values()), areas
    assert min(areas["reference"], areas["windows"]) > areas["loss"]
    nothing = audit_language_model(base, base, members, others, ("windows", "reference", "noisy-referenced"), **options)
    assert all(result.auc.value == pytest.approx(0.5, abs=1e-9) for result in nothing.results)


def test_an_attack_knows_the_model_it_was_made_for(fine_tuned):
    model, base, members, _, _ = fine_tuned
    attack = text_attacks.TextAttack("loss", text_attacks.loss_score, TokenView(model))
    with pytest.raises(InvalidInput, match="another model"):
        attack.scores(LanguageModel(base), Samples(members))


def test_planted_secrets_are_exposed_and_unplanted_ones_are_not(fine_tuned):
    model, base, _, _, planted = fine_tuned
    rng = np.random.default_rng(1)
    exposed = measure_exposure(model, planted, rng, others=255)
    assert exposed.mean > 6
    assert exposed.most == 8
    assert exposed.p_value < 1e-6
    assert measure_exposure(base, planted, rng, others=255).p_value > 0.01
    assert json.dumps(exposed.to_dict())


def test_exposure_is_uniform_where_nothing_was_planted():
    """Over many models that saw no secret: the p-values are no smaller than chance, exposures average 1.44 bits."""
    rng = np.random.default_rng(3)
    found = []
    for seed in range(40):
        model = small_gpt2(WORDS, LENGTH, width=8, layers=1, heads=1, seed=seed)
        planted = Secrets.draw(torch.arange(3), torch.arange(WORDS), rng, count=5, length=4)
        found.append(measure_exposure(model, planted, rng, others=127))
    assert sum(one.p_value < 0.05 for one in found) <= 6
    assert np.mean([one.mean for one in found]) == pytest.approx(1.44, abs=0.3)


def test_members_come_back_word_for_word(fine_tuned):
    model, _, members, others, planted = fine_tuned
    known = measure_continuations(model, planted.texts, prefix=8, length=4)
    assert known.verbatim > 0.6
    strange = measure_continuations(model, others, prefix=8, length=4)
    assert strange.verbatim < known.verbatim
    often = measure_continuations(model, planted.texts, prefix=8, length=4, tries=5)
    assert len(often.matched) == 6
    assert all(0 <= count <= 4 for count in often.matched)
    with pytest.raises(InvalidInput, match="no text has"):
        measure_continuations(model, members, prefix=30, length=4)


def test_what_cannot_be_run_is_said(fine_tuned):
    model, base, members, others, _ = fine_tuned
    with pytest.raises(InvalidInput, match="base model"):
        audit_language_model(model, None, members, others, ("windows",))
    with pytest.raises(InvalidInput, match="no attack on texts"):
        audit_language_model(model, base, members, others, ("telepathy",))
    with pytest.raises(InvalidInput, match="decode"):
        audit_language_model(model, base, members, others, ("zlib",))
    found = audit_language_model(model, None, members, others, neighbours=1, seed=0)
    assert {result.name for result in found.results} == {"loss", "min-k", "min-k++", "noisy"}
    with pytest.raises(InvalidInput, match=r"epsilon,delta"):
        claim_from("8")


def test_texts_are_read_and_padded(tmp_path):
    (tmp_path / "a.txt").write_text("one\n\ntwo words\n")
    (tmp_path / "a.csv").write_text("id,note\n1,hello\n2,there\n")
    (tmp_path / "a.jsonl").write_text('{"text": "x y"}\n')
    assert read_texts(tmp_path / "a.txt") == ["one", "two words"]
    assert read_texts(tmp_path / "a.csv", "note") == ["hello", "there"]
    assert read_texts(tmp_path / "a.jsonl") == ["x y"]
    for name, words in (("a.csv", "no column"), ("missing.txt", "no file")):
        with pytest.raises(InvalidInput, match=words):
            read_texts(tmp_path / name)
    first, second = same_length(Samples(torch.ones(2, 3).long()), Samples(torch.ones(2, 5).long()))
    assert first.inputs.tolist() == [[1, 1, 1, -1, -1]] * 2
    assert second.inputs.shape == (2, 5)


def run(monkeypatch, words):
    monkeypatch.setattr("sys.argv", ["sordina", *words])
    with pytest.raises(SystemExit) as stop:
        main()
    return stop.value.code or 0


@pytest.mark.skipif(find(tiny_lm.WEIGHTS.path) is None, reason="the small language model is not in SORDINA_DATA")
def test_the_command_attacks_a_folder(tmp_path, capsys, monkeypatch):
    """A real pre-trained model, fine-tuned on a few texts and saved as transformers saves; the base beside it."""
    base = tiny_lm.save_pretrained(tmp_path / "base")
    opened = open_causal_model(base)
    assert opened.tokens(["Once upon a time"], 20).tolist() == [
        tiny_lm.load_tokenizer().encode("Once upon a time", begin=True)
    ]
    rng = np.random.default_rng(0)
    names = ["Tim", "Lily", "Ben", "Sue", "a cat", "the dog", "a bird", "Mia"]
    lines = [f"{a} saw {b} and {c} {rng.integers(10**6)}" for a in names for b in names[:4] for c in names[:2]]
    inside, outside = lines[::2], lines[1::2]
    for name, part in (("in.txt", inside), ("out.txt", outside)):
        (tmp_path / name).write_text("\n".join(part))
    train(opened.model, Samples(opened.tokens(inside, 32)), PlainTraining(12, 8, 3e-3), rng)
    opened.model.save_pretrained(tmp_path / "tuned")
    opened.tokenizer.save_pretrained(tmp_path / "tuned")
    command = ["audit", "lm", str(tmp_path / "tuned"), "--base", str(base), "--members", str(tmp_path / "in.txt"),
               "--non-members", str(tmp_path / "out.txt"), "--neighbours", "2", "--seed", "0", "--claim", "0.01,1e-5",
               "--out", str(tmp_path / "found"), "--json"]  # fmt: skip
    assert run(monkeypatch, [*command, "--random-split"]) == 1  # refuted
    facts = json.loads(capsys.readouterr().out)
    assert facts["exceeds_claim"]
    assert {result["attack"] for result in facts["results"]} == {
        "loss", "reference", "zlib", "min-k", "min-k++", "windows", "error-zone", "noisy", "noisy-referenced",
    }  # fmt: skip
    assert json.loads((tmp_path / "found" / "audit.json").read_text())["verdict"] == facts["verdict"]
    assert (tmp_path / "found" / "roc.png").exists()
    assert run(monkeypatch, [*command, "--base", str(tmp_path / "nowhere")]) == 2
    assert "nowhere is not there" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidInput, match="Nothing is downloaded"):
        open_causal_model(tmp_path / "empty")
