"""A DCGM exporter's page: names old and new, values that mean nothing, hosts, slices, and XIDs that are news."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayorch.adapters.dcgm import FIELDS, MAX_GPUS, NUMBERS, DcgmPage, samples
from rayorch.core.device_facts import MigInstance, Sight, XidEvent

A, B = "GPU-aaaa", "GPU-bbbb"


def line(name: str, value: object, uuid: str = A, gpu: int = 0, host: str = 'hostname="n1"', more: str = "") -> str:
    """One line as the exporter writes it."""
    labels = f'gpu="{gpu}",UUID="{uuid}",pci_bus_id="00000000:1B:00.0",device="nvidia{gpu}",modelName="NVIDIA H100"'
    return f"DCGM_FI_DEV_{name}{{{labels},{host}{more}}} {value}"


def page(*lines: str) -> Sight:
    """What a page with these lines says."""
    return DcgmPage("http://example.invalid", frozenset({"n1"})).parse("\n".join(lines))


def test_the_exporters_default_page() -> None:
    sight = page(
        "# HELP DCGM_FI_DEV_SM_CLOCK SM clock frequency (in MHz).",
        "# TYPE DCGM_FI_DEV_SM_CLOCK gauge",
        line("SM_CLOCK", 1755, more=',DCGM_FI_DRIVER_VERSION="580.65.06"'),
        line("GPU_TEMP", 61),
        line("POWER_USAGE", 512.5),
        line("FB_FREE", 1000),
        line("FB_USED", 200),
        line("ROW_REMAP_FAILURE", 0),
        line("XID_ERRORS", 0),
        line("GPU_UTIL", 97),
        line("GPU_TEMP", 55, uuid=B, gpu=1),
    )
    first, second = sight.gpus
    assert (first.nvml_index, first.uuid, first.name, first.pci) == (0, A, "NVIDIA H100", "0000:1B:00.0")
    assert (first.sm_clock_mhz, first.temperature_c, first.power_w) == (1755, 61, 512.5)
    assert (first.memory_used_bytes, first.memory_total_bytes) == (200 * 2**20, 1200 * 2**20)
    assert first.remap_failed is False and first.uncorrectable is None
    assert (second.uuid, second.temperature_c) == (B, 55)
    assert (sight.xids, sight.error) == ((), "")


@pytest.mark.parametrize("number", sorted(FIELDS))
def test_a_field_is_the_same_under_each_of_its_names(number: int) -> None:
    pages = [DcgmPage("x").parse(f'{name}{{gpu="0",UUID="{A}"}} 1') for name in FIELDS[number]]
    assert all(sight.gpus == pages[0].gpus and sight.xids == pages[0].xids for sight in pages)
    assert pages[0] != DcgmPage("x").parse(line("NOBODYS", 1))
    assert {NUMBERS[name] for name in FIELDS[number]} == {number}


@pytest.mark.parametrize(
    "blank",
    [
        *(str(0x7FFFFFFFFFFFFFF0 + n) for n in range(4)),
        "9223372036854775794.000000",
        "9.223372036854775794e+18",
        *(f"{140737488355328.0 + n:.6f}" for n in range(4)),
        *(str(0x7FFFFFF0 + n) for n in range(4)),
        *("NaN", "+Inf", "-inf", "1e300"),
        "nothing",
    ],
)
def test_a_blank_is_no_value(blank: str) -> None:
    gpu = page(line("GPU_TEMP", blank), line("POWER_USAGE", 70)).gpus[0]
    assert (gpu.temperature_c, gpu.power_w) == (None, 70.0)


def test_lines_of_another_form_and_escaped_labels() -> None:
    text = 'x 1\nDCGM_FI_DEV_GPU_TEMP 3\nDCGM_FI_DEV_GPU_TEMP{a="b\\"c,d=\\"\\\\",UUID="u"} 4 1700000000000\n}{'
    (sample,) = samples(text)
    assert (sample.labels["a"], sample.labels["UUID"], sample.value) == ('b"c,d="\\', "u", 4.0)


@pytest.mark.parametrize("label", ["hostname", "Hostname"])
def test_of_several_hosts_only_ours_counts(label: str) -> None:
    mine, other = f'{label}="n1"', f'{label}="n2"'
    both = page(line("GPU_TEMP", 40, host=mine), line("GPU_TEMP", 90, uuid=B, host=other))
    assert [gpu.uuid for gpu in both.gpus] == [A]
    assert [gpu.uuid for gpu in page(line("GPU_TEMP", 90, uuid=B, host=other)).gpus] == [B]  # its own name for itself
    nobody = page(line("GPU_TEMP", 1, host='hostname="n3"'), line("GPU_TEMP", 1, uuid=B, host=other))
    assert "shows no GPU" in nobody.error


def test_slices_give_their_gpu_profiles_but_not_their_memory() -> None:
    first = ',GPU_I_PROFILE="1g.10gb",GPU_I_ID="7"'
    second = ',GPU_I_PROFILE="3g.40gb",GPU_I_ID="2"'
    (gpu,) = page(
        line("FB_USED", 10, more=first), line("FB_USED", 20, more=second), line("GPU_TEMP", 44, more=first)
    ).gpus
    assert gpu.instances == (MigInstance("", "3g.40gb", 2, 0), MigInstance("", "1g.10gb", 7, 0))
    assert (gpu.mig_enabled, gpu.memory_used_bytes, gpu.temperature_c) == (True, None, 44)


def test_the_gauge_of_the_last_xid_is_news_only_when_it_changes() -> None:
    reader = DcgmPage("x")
    assert reader.parse(line("XID_ERRORS", 79)).xids == (XidEvent(A, 79, fresh=False),)
    assert reader.parse(line("XID_ERRORS", 79)).xids == ()
    assert reader.parse(line("XID_ERRORS", 31)).xids == (XidEvent(A, 31),)
    assert reader.parse(line("XID_ERRORS", 0)).xids == ()


def test_the_counter_shows_an_xid_that_comes_again() -> None:
    def counted(*counts: tuple[int, int]) -> str:
        counters = [
            f'DCGM_EXP_XID_ERRORS_COUNT{{gpu="0",UUID="{A}",window_size_in_ms="300000",xid="{code}"}} {count}'
            for code, count in counts
        ]
        return "\n".join([line("XID_ERRORS", counts[-1][0] if counts else 0), *counters])

    reader = DcgmPage("x")
    assert reader.parse(counted()).xids == ()
    assert reader.parse(counted((31, 1))).xids == (XidEvent(A, 31),)
    assert reader.parse(counted((31, 1))).xids == ()
    assert reader.parse(counted((31, 3))).xids == (XidEvent(A, 31, count=2),)
    old = DcgmPage("x").parse(counted((79, 2)))
    assert old.xids == (XidEvent(A, 79, fresh=False, count=2),)


def test_an_xid_that_is_not_shown_for_a_while_is_no_news_when_it_is_shown_again() -> None:
    reader = DcgmPage("x")
    assert reader.parse(line("XID_ERRORS", 79)).xids == (XidEvent(A, 79, fresh=False),)
    for unshown in (line("GPU_TEMP", 40), line("XID_ERRORS", "NaN") + "\n" + line("GPU_TEMP", 40)):
        assert reader.parse(unshown).xids == ()
        assert reader.parse(line("XID_ERRORS", 79)).xids == ()


def test_an_xid_that_comes_again_after_the_exporters_window_is_news() -> None:
    reader, counted = DcgmPage("x"), f'DCGM_EXP_XID_ERRORS_COUNT{{UUID="{A}",xid="31"}} 1'
    reader.parse(line("GPU_TEMP", 40))
    for _ in range(2):
        assert reader.parse(counted).xids == (XidEvent(A, 31),)
        assert reader.parse(line("GPU_TEMP", 40)).xids == ()


def test_what_is_remembered_of_gpus_that_are_gone_is_bounded() -> None:
    reader = DcgmPage("x")
    for number in range(3 * MAX_GPUS):
        reader.parse(line("XID_ERRORS", 0, uuid=f"GPU-{number}"))
    assert len(reader._gauges) == len(reader._counts) <= MAX_GPUS + 1


def test_labels_of_nonsense_are_no_numbers() -> None:
    more = f',GPU_I_PROFILE="1g.10gb",GPU_I_ID="²",xid="{"9" * 5000}"'
    text = line("GPU_TEMP", 40, more=more).replace('gpu="0"', 'gpu="²"')
    xids = text.replace("DCGM_FI_DEV_GPU_TEMP", "DCGM_EXP_XID_ERRORS_COUNT")
    sight = DcgmPage("x").parse(f"{text}\n{xids}")
    assert [(gpu.uuid, gpu.temperature_c, gpu.instances) for gpu in sight.gpus] == [(A, 40, ())]
    assert sight.xids == ()


def test_a_line_without_labels_takes_no_longer_than_it_is() -> None:
    (sample,) = samples(f"x{{{'a' * 4 * 2**20}}} 1")  # minutes, if every letter could begin a label
    assert sample.labels == {}


@given(st.text(alphabet='D{}="\\,\n 0179.eINFna²\u2028UIxidgp_', max_size=200))
def test_no_page_breaks_the_reader(text: str) -> None:
    DcgmPage("x").parse(f'DCGM_FI_DEV_XID_ERRORS{{UUID="u",{text}}} 1\n{text}')


@pytest.fixture
def served() -> Iterator[tuple[str, list[bytes]]]:
    """A page over HTTP: its address, and the body that a test may change."""
    body = [line("GPU_TEMP", 50).encode()]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if body[0] else 500)
            self.end_headers()
            self.wfile.write(body[0] + b"\n")

        def log_message(self, *arguments: object) -> None:
            """Say nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/metrics", body
    server.shutdown()
    server.server_close()
    thread.join()


def test_it_is_fetched_anew_each_time(served: tuple[str, list[bytes]]) -> None:
    url, body = served
    reader = DcgmPage(url, timeout_s=60.0)
    assert reader.read().gpus[0].temperature_c == 50
    body[0] = line("GPU_TEMP", 51).encode()
    assert reader.read().gpus[0].temperature_c == 51


def test_a_page_that_can_not_be_had_is_an_error_not_an_empty_machine(served: tuple[str, list[bytes]]) -> None:
    url, body = served
    body[0] = b""
    assert "500" in DcgmPage(url, timeout_s=60.0).read().error
    assert DcgmPage("http://127.0.0.1:1/metrics").read().error
    assert DcgmPage("no url").read().error
    body[0] = b"# nothing here\n"
    assert "shows no GPU" in DcgmPage(url, timeout_s=60.0).read().error


class RawServer:
    """Answers one request with these pieces, and then with single bytes until the other side has had enough."""

    def __init__(self, *pieces: bytes, drip: bool = False) -> None:
        self._pieces, self._drip = pieces, drip
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> str:
        self._thread.start()
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}/metrics"

    def _serve(self) -> None:
        client, _ = self._socket.accept()
        with client:
            client.recv(65_536)
            try:
                for piece in self._pieces:
                    client.sendall(piece)
                while self._drip and not self._stop.wait(0.05):
                    client.sendall(b"x")
            except OSError:
                return  # it has had enough

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._socket.close()


def test_what_is_no_http_is_an_error_and_no_exception() -> None:
    with RawServer(b"SSH-2.0-OpenSSH_9.6\r\n") as url:
        assert "can't be read" in DcgmPage(url, timeout_s=60.0).read().error


@pytest.mark.parametrize("begin", [b"HTTP/1.1 200 OK\r\nX-A: ", b"HTTP/1.1 200 OK\r\n\r\n"])
def test_an_exporter_that_sends_a_byte_now_and_then_is_cut_off(begin: bytes) -> None:
    with RawServer(begin, drip=True) as url:
        assert "timed out" in DcgmPage(url, timeout_s=0.5).read().error


def test_half_a_line_at_the_end_of_a_page_is_not_read() -> None:
    whole = line("GPU_TEMP", 50) + "\n" + line("XID_ERRORS", 79)
    with RawServer(b"HTTP/1.1 200 OK\r\n\r\n", whole[:-1].encode()) as url:  # XID 7, it would say
        sight = DcgmPage(url, timeout_s=60.0).read()
    assert sight.gpus[0].temperature_c == 50 and sight.xids == ()


def test_a_page_that_is_too_large_is_an_error() -> None:
    with RawServer(b"HTTP/1.1 200 OK\r\n\r\n", (b"#" * 1023 + b"\n") * 2**13, b"x") as url:
        assert "bytes" in DcgmPage(url, timeout_s=60.0).read().error


def test_neither_a_proxy_nor_a_redirect_nor_a_file_is_followed(
    served: tuple[str, list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, _ = served
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert not DcgmPage(url, timeout_s=60.0).read().error
    with RawServer(f"HTTP/1.1 302 Found\r\nLocation: {url}\r\n\r\n".encode()) as elsewhere:
        assert "302" in DcgmPage(elsewhere, timeout_s=60.0).read().error
    assert "no address" in DcgmPage("file:///etc/hostname").read().error
