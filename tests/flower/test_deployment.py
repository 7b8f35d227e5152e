"""For real: a SuperLink and three SuperNodes as processes of their own, with TLS, and runs started by `flwr run`."""

import contextlib
import datetime
import ipaddress
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="the Flower engine needs flwr: pip install 'sordina[federated]'")

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from torch import nn

from sordina.federated import losses
from sordina.federated.flower.app_template import write
from sordina.federated.flower.client import ClientFolder, alone
from sordina.federated.objective import of_module
from sordina.federated.population import RowOrder
from sordina.federated.recipe import FederatedRecipe

pytestmark = pytest.mark.slow

SIZES = (37, 41, 53)
"""Sample counts that no message may hold."""
PATIENCE = 600.0
"""Seconds to wait for anything on a busy machine before the test gives up."""
DEADLINE = 240.0
"""Seconds a round may take. A killed SuperNode is noticed earlier: after two missed heartbeats, a minute or so."""
POLICY = {
    "accepts": ["metric", "central", "distributed", "gopa"],
    "leakage": 6.0,
    "radius": 0.5,
    "epsilon": 200.0,
    "delta": 1e-3,
}
"""What each client agrees to; the metric run costs 0.6 a round, and may be asked for twice after a kill."""
BIN = Path(sys.executable).parent

CLIENT_APP = '''
"""The generated client app, with a recorder around it: everything that enters and leaves is written down."""

import time
from pathlib import Path

import numpy as np
from flwr.clientapp import ClientApp

from {package} import task
from sordina.federated.messages import decode
from sordina.federated.flower.deployment import client_app

inner = client_app(task)
app = ClientApp()


def train(message, context):
    reply = inner(message, context)
    assert set(reply.content) == {{"letter"}} and not reply.has_error()
    plain = lambda one: decode(one.dtype, one.shape, one.stype, one.data)
    said = {{f"reply|{{name}}": plain(array) for name, array in reply.content["letter"].items()}}
    heard = {{f"sent|{{name}}": plain(array) for name, array in message.content["sent"].items()}}
    order = {{f"order|{{name}}": np.asarray(value) for name, value in message.content["order"].items()}}
    folder = Path(str(context.node_config["record"])) / "{package}"
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / f"{{time.time_ns()}}.npz", **said, **heard, **order)
    return reply


app.train()(train)
app.evaluate()(lambda message, context: inner(message, context))
'''

SECURE_CLIENT_APP = '''
"""The generated client app; every masked vector and every name that leaves is written down."""

import time
from pathlib import Path

import numpy as np
from flwr.clientapp import ClientApp

from {package} import task
from sordina.federated.messages import decode
from sordina.federated.flower.deployment import client_app

inner = client_app(task)
app = ClientApp()


def recorded(message, context):
    reply = inner(message, context)
    plain = lambda one: decode(one.dtype, one.shape, one.stype, one.data)
    said = {{key: plain(one) for record in reply.content.array_records.values() for key, one in record.items()}}
    names = sorted(key for record in reply.content.config_records.values() for key in record)
    folder = Path(str(context.node_config["record"])) / "{package}"
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / f"{{time.time_ns()}}.npz", names=np.array(names), **said)
    return reply


app.train()(recorded)
app.query()(recorded)
'''


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def certificates(folder):
    """A CA, and a certificate for the loopback address that it signed."""
    now = datetime.datetime.now(datetime.timezone.utc)

    def build(name, issuer, key, signer, authority):
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]))
            .issuer_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, issuer)]))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=2))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        )
        if not authority:
            names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        else:
            usage = x509.KeyUsage(
                digital_signature=True, content_commitment=False, key_encipherment=False, data_encipherment=False,
                key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
            )  # fmt: skip
            builder = builder.add_extension(usage, critical=True)
        return builder.sign(signer, hashes.SHA256())

    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    pem = serialization.Encoding.PEM
    plain = (pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "ca.crt").write_bytes(build("test CA", "test CA", ca_key, ca_key, True).public_bytes(pem))
    (folder / "server.pem").write_bytes(build("localhost", "test CA", key, ca_key, False).public_bytes(pem))
    (folder / "server.key").write_bytes(key.private_bytes(*plain))


class Fleet:
    """The processes, each in a group of its own, and the files they leave."""

    def __init__(self, folder):
        self.folder, self.port, self.running = folder, free_port(), {}
        self.env = {
            **os.environ, "FLWR_HOME": str(folder / "flwr"), "FLWR_TELEMETRY_ENABLED": "0", "OMP_NUM_THREADS": "1",
            "FLWR_DISABLE_UPDATE_CHECK": "1", "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        }  # fmt: skip
        certificates(folder)
        (folder / "flwr").mkdir()
        (folder / "flwr" / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{self.port}"\n'
            f'root-certificates = "{folder / "ca.crt"}"\n'
        )
        rng = np.random.default_rng(0)
        for number, size in enumerate(SIZES):
            x = rng.standard_normal((size, 2)).astype(np.float32)
            y = x @ np.array([[5.0], [6.0 - 10 * (number == 0)]], np.float32)
            np.savez(folder / f"rows-{number}.npz", x=x, y=y)
            (folder / f"home-{number}").mkdir(mode=0o700)
            (folder / f"home-{number}" / "policy.json").write_text(json.dumps(POLICY))

    def start(self, name, *command):
        log = open(self.folder / f"{name}.log", "ab")  # noqa: SIM115
        self.running[name] = subprocess.Popen(
            [str(BIN / command[0]), *command[1:]], stdout=log, stderr=log, env=self.env, cwd=self.folder,
            start_new_session=True,
        )  # fmt: skip
        log.close()

    def superlink(self):
        self.start(
            "superlink", "flower-superlink", "--host", "127.0.0.1", "--port", str(self.port), "--ssl-certfile",
            "server.pem", "--ssl-keyfile", "server.key", "--ssl-ca-certfile", "ca.crt",
            "--disable-runtime-dependency-installation",
        )  # fmt: skip
        self.until(lambda: _listens(self.port), "the SuperLink")
        trusting = ssl.create_default_context(cafile=str(self.folder / "ca.crt"))
        bare = socket.create_connection(("127.0.0.1", self.port))
        with trusting.wrap_socket(bare, server_hostname="127.0.0.1") as wrapped:
            assert wrapped.version() in ("TLSv1.2", "TLSv1.3")

    def supernode(self, number):
        config = {"data": f"rows-{number}.npz", "state-dir": f"home-{number}", "record": f"record-{number}"}
        words = " ".join(f'{key}="{self.folder / value}"' for key, value in config.items())
        self.start(
            f"supernode-{number}", "flower-supernode", "--superlink", f"127.0.0.1:{self.port}", "--root-certificates",
            "ca.crt", "--port", str(free_port()), "--node-config", words,
        )  # fmt: skip

    def until(self, condition, what):
        end = time.monotonic() + PATIENCE
        while not (found := condition()):
            for name, process in self.running.items():
                assert process.poll() is None, f"{name} ended:\n{self.log(name)}"
            assert time.monotonic() < end, f"no {what}:\n" + "\n".join(map(self.log, self.running))
            time.sleep(0.2)
        return found

    def log(self, name):
        return f"--- {name}\n" + (self.folder / f"{name}.log").read_text(errors="replace")[-4000:]

    def kill(self, name):
        process = self.running.pop(name)
        for group in _groups(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        process.wait()

    def app(self, name, recipe, deadline, source=CLIENT_APP):
        """The generated app with the recorder in it."""
        write(self.folder / name, recipe, clients=3, deadline=deadline)
        project = self.folder / name / "pyproject.toml"
        project.write_text(project.read_text().replace('out = "results"', f'out = "{self.folder / name}-out"'))
        (self.folder / name / name / "client_app.py").write_text(source.format(package=name))

    def submit(self, name):
        done = subprocess.run(
            [str(BIN / "flwr"), "run", str(self.folder / name)], env=self.env, cwd=self.folder, capture_output=True,
            text=True, timeout=PATIENCE,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Successfully started run" in done.stdout

    def result(self, name):
        path = self.folder / f"{name}-out" / "result.json"
        self.until(path.with_name("privacy.json").exists, f"result of {name}")  # written last, after the models
        return json.loads(path.read_text())

    def recorded(self, name, number):
        return [
            dict(np.load(path, allow_pickle=False))
            for path in sorted((self.folder / f"record-{number}" / name).glob("*.npz"))
        ]

    def account(self, number):
        home = ClientFolder(self.folder / f"home-{number}")
        return home.total()


def _groups(leader):
    """The group of a process and those of its descendants: a SuperNode's helpers may lead groups of their own."""
    children = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append((int(status.parent.name), int(fields[2])))
    groups, todo = {leader}, [leader]
    while todo:
        for child, group in children.get(todo.pop(), []):
            groups.add(group)
            todo.append(child)
    return groups


def _listens(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def fleet(tmp_path):
    if not Path("/proc").exists() or shutil.which(str(BIN / "flower-superlink")) is None:
        pytest.skip("needs /proc and Flower's commands next to the interpreter")
    fleet = Fleet(tmp_path)
    try:
        fleet.superlink()
        for number in range(3):
            fleet.supernode(number)
        yield fleet
    finally:
        for name in list(fleet.running):
            fleet.kill(name)


METRIC = FederatedRecipe(
    "own",
    "metric-pfl",
    2,
    "metric",
    5.0,
    "public:0.5",
    rounds=3,
    clients_per_round=3,
    learning_rate=0.05,
    batch_size=16,
)
CENTRAL = FederatedRecipe(
    "own",
    "fedavg",
    1,
    "central",
    epsilon=8.0,
    threshold=0.25,
    rounds=2,
    clients_per_round=3,
    learning_rate=0.05,
    batch_size=16,
)
DISTRIBUTED = FederatedRecipe(
    "own", "fedavg", 1, "distributed", epsilon=20.0, delta=1e-3, threshold=0.25, rounds=2, clients_per_round=3,
    learning_rate=0.05, batch_size=16, honest_share=0.67, tolerated_dropout=0.0,
)  # fmt: skip
GOPA = replace(DISTRIBUTED, privacy="gopa", neighbours=2)
PARAMETERS = 3


def clear(recipe, one, rows):
    """The vector a client would have sent without privacy, from the instruction it got."""
    method, _ = recipe.setup(3).method(of_module(nn.Linear(2, 1), losses.mse))
    client = int(one["order|client"])
    cohort = alone(torch.from_numpy(rows["x"]), torch.from_numpy(rows["y"]), client)
    sent = {key[5:]: torch.from_numpy(value) for key, value in one.items() if key.startswith("sent|")}
    order = RowOrder(int(one["order|seed"]), int(one["order|round"]))
    outcome, _ = method.work.run(sent, cohort, {}, order)
    return outcome.vectors[0].numpy()


def replies(fleet, name, recipe, words):
    """Every recorded reply with the vector it hides, after the checks that hold in any run."""
    found = []
    for number in range(3):
        with np.load(fleet.folder / f"rows-{number}.npz") as stored:
            rows = dict(stored)
        for one in fleet.recorded(name, number):
            said = {key[6:]: value for key, value in one.items() if key.startswith("reply|")}
            numbers = list(said.values())
            assert set(said) == words, "no sample count, no choice of hypothesis, nothing but the vector"
            assert numbers[0].size == PARAMETERS
            wire = b"".join(value.tobytes() for value in said.values())
            assert not any(row.tobytes() in wire for row in rows["x"]), "no raw rows"
            found.append((number, int(one["order|round"]), numbers[0].ravel(), clear(recipe, one, rows)))
    for number, order, vector, _ in found:
        again = [other for who, when, other, _ in found if (who, when) == (number, order)]
        assert all(np.array_equal(vector, other) for other in again), "asked twice, a client says the same twice"
    return found


def rounds_of(found, number):
    return len({order for who, order, _, _ in found if who == number})


def metric_pfl_with_a_supernode_killed_on_the_way(fleet):
    cost = Fraction(PARAMETERS, 5)
    spent = lambda total: total.leakage.per_distance * Fraction(1, 2)  # noqa: E731
    fleet.app("metricapp", METRIC, deadline=DEADLINE)
    fleet.submit("metricapp")
    fleet.until(lambda: fleet.account(0).participations, "charge of client 0")
    fleet.kill("supernode-0")
    before = fleet.account(0)
    assert spent(before) == cost * before.participations > 0
    fleet.supernode(0)
    told = fleet.result("metricapp")
    assert told["rounds"] == 3
    assert told["recipe"]["engine"] == "flower"
    assert told["sound"] is True
    assert told["releasable"] is True, "secure noise at every client"
    found = replies(fleet, "metricapp", METRIC, {"vectors"})
    for _, _, noised, raw in found:
        assert noised.shape == raw.shape
        assert np.linalg.norm(noised - raw) > 1e-6, "sanitised before it left"
    for number in range(3):
        account = fleet.account(number)
        assert spent(account) == cost * account.participations
        assert account.participations >= rounds_of(found, number), "everything that left was paid for before"
    after = fleet.account(0)
    assert spent(after) >= spent(before), "the restarted client remembers"
    assert after.participations > before.participations, "and takes part again"
    assert max(told["leakage_at_most"]) >= float(max(spent(fleet.account(k)) for k in range(3)))
    assert len(found) >= 5
    assert all(np.isfinite(np.load(fleet.folder / "metricapp-out" / "models.npz")["last"]).ravel())
    assert len(told["traffic"]) == told["rounds"]
    assert all(one["sent"] > 0 and one["received"] > 0 and one["seconds"] > 0 for one in told["traffic"])
    return {number: fleet.account(number).participations for number in range(3)}


def central_privacy(fleet, before):
    fleet.app("centralapp", CENTRAL, deadline=DEADLINE)
    fleet.submit("centralapp")
    told = fleet.result("centralapp")
    assert told["rounds"] == 2
    assert told["epsilon"] <= 8.0
    assert told["releasable"] is True
    assert "traffic" not in told, "it would tell how many took part in a round"
    assert len({json.dumps(one) for one in told["bytes_each"]}) == 1
    found = replies(fleet, "centralapp", CENTRAL, {"sum-0"})
    assert len(found) >= 3
    for _, _, clipped, raw in found:
        length = np.linalg.norm(raw)
        assert length > 0.25, "the threshold is low enough to bite"
        assert np.linalg.norm(clipped) <= 0.25 * (1 + 1e-6)
        assert np.allclose(clipped, raw * (0.25 / length), atol=1e-6), "clipped in the client's process"
    for number in range(3):
        assert fleet.account(number).participations >= before[number] + rounds_of(found, number)


def distributed_privacy(fleet):
    """Secure aggregation between three processes: the server gets masked words, and a model that learned."""
    fleet.app("sumapp", DISTRIBUTED, deadline=DEADLINE, source=SECURE_CLIENT_APP)
    fleet.submit("sumapp")
    told = fleet.result("sumapp")
    assert told["rounds"] == 2
    assert told["epsilon"] <= 20.0
    assert told["releasable"] is True
    left = [one for number in range(3) for one in fleet.recorded("sumapp", number)]
    assert {name for one in left for name in one["names"].tolist()} == {"keys", "digest", "numbers", "data"}
    masked = [one["masked"] for one in left if "masked" in one]
    assert len(masked) == 6
    assert all(one.dtype == np.int32 and one.shape == (PARAMETERS,) for one in masked)
    assert np.abs(np.concatenate(masked).astype(float)).mean() > 2**27, "words of all sizes, no small update"
    assert np.linalg.norm(np.load(fleet.folder / "sumapp-out" / "models.npz")["last"]) < 10


def gopa_privacy(fleet):
    """Pairwise noise between three processes, in the graph that the run's number draws."""
    fleet.app("gopaapp", GOPA, deadline=DEADLINE, source=SECURE_CLIENT_APP)
    fleet.submit("gopaapp")
    told = fleet.result("gopaapp")
    assert told["rounds"] == 2
    assert told["epsilon"] <= 20.0
    left = [one for number in range(3) for one in fleet.recorded("gopaapp", number)]
    assert {name for one in left for name in one["names"].tolist()} == {"key", "numbers", "data"}
    messages = [one["message"] for one in left if "message" in one]
    assert len(messages) == 6
    assert all(one.dtype == np.int32 and one.shape == (PARAMETERS,) for one in messages)
    assert np.abs(np.concatenate(messages).astype(float)).mean() > 5000, "pairwise noise of 300 times 64 steps"
    assert np.linalg.norm(np.load(fleet.folder / "gopaapp-out" / "models.npz")["last"]) < 10


def test_metric_central_distributed_and_gopa_runs_to_the_end(fleet):
    """One test for all runs, so that there is one fleet, however the tests are spread over workers."""
    before = metric_pfl_with_a_supernode_killed_on_the_way(fleet)
    central_privacy(fleet, before)
    distributed_privacy(fleet)
    if os.environ.get("SORDINA_LONG"):  # another fleet's minutes; the simulation runs GOPA every time
        gopa_privacy(fleet)
