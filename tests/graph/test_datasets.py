import hashlib
import http.server
import threading
import urllib.error
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from outgrow.core.errors import InputError
from outgrow.graph.datasets import FileOrigin, datasets, find_origin, load_graph, resolve_source
from outgrow.graph.datasets.dataset import RemoteFile
from outgrow.graph.datasets.download import FileDownloader, OgbDownloader
from outgrow.graph.datasets.locate import cache_dir
from outgrow.graph.readers.gnn_benchmark import GnnBenchmarkSource

LOCAL = ("wordnet", "cora", "citeseer", "amazon-photo", "coauthor-cs", "debian", "heco-acm")
SPLITS = {
    "wordnet": (58_829, 29_415, 29_415),
    "cora": (140, 500, 1000),
    "citeseer": (120, 500, 1000),
    "amazon-photo": (4_590, 1_530, 1_530),
    "coauthor-cs": (10_999, 3_667, 3_667),
    "debian": (31_540, 15_770, 15_771),
    "heco-acm": (180, 1000, 1000),
}


@pytest.fixture(autouse=True)
def nowhere(tmp_path, monkeypatch):
    """No data folder, an empty cache and no network."""

    def offline(url, **_):
        raise urllib.error.URLError(f"no network for {url}")

    monkeypatch.delenv("OUTGROW_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setattr("urllib.request.urlopen", offline)


@pytest.fixture
def online(monkeypatch, nowhere):
    monkeypatch.undo()


@pytest.mark.parametrize("name", LOCAL)
def test_real_data_sets_have_the_figures_of_the_table(name, data_dir):
    known, graph = datasets()[name], load_graph(name, data_dir=data_dir)
    assert graph.name == name
    assert (graph.num_nodes, graph.num_features, graph.num_classes) == (known.nodes, known.features, known.classes)
    assert graph.sparse == (name != "amazon-photo")
    assert tuple(len(part) for part in (graph.split.train, graph.split.val, graph.split.test)) == SPLITS[name]
    directed = load_graph(name, data_dir=data_dir, undirected=False)
    assert directed.num_edges == known.edges
    assert graph.num_edges <= 2 * directed.num_edges


def test_undirected_is_the_default_and_symmetric(data_dir):
    graph = load_graph("amazon-photo", data_dir=data_dir).topology
    dst = torch.repeat_interleave(torch.arange(graph.num_nodes), graph.indptr.diff())
    one, other = graph.indices * graph.num_nodes + dst, dst * graph.num_nodes + graph.indices
    assert torch.equal(one.sort().values, other.sort().values)
    assert int((graph.indices != dst).sum()) == 2 * 119_081


def test_wordnet_comes_with_the_package():
    assert find_origin(datasets()["wordnet"]) is FileOrigin.PACKAGED
    graph = load_graph("wordnet")
    assert (graph.num_nodes, graph.num_features, graph.num_relations) == (117_659, 6_900, 52)
    assert graph.num_classes == 45


def test_the_packaged_file_is_the_published_one(data_dir):
    import outgrow.data

    packaged = Path(outgrow.data.__file__).with_name("wordnet.npz")
    assert packaged.read_bytes() == (data_dir / "wordnet.npz").read_bytes()
    assert "WordNet 3.0 Copyright 2006 by Princeton University" in packaged.with_name("WORDNET_LICENSE").read_text()


def test_folders_are_searched_in_order(tmp_path, monkeypatch):
    debian = datasets()["debian"]
    given, variable = tmp_path / "given", tmp_path / "variable"
    assert find_origin(debian, given) is FileOrigin.MISSING
    for folder, kind in ((cache_dir(), FileOrigin.CACHED), (variable, FileOrigin.LOCAL), (given, FileOrigin.LOCAL)):
        folder.mkdir(parents=True)
        (folder / "debian.npz").write_bytes(b"")
        monkeypatch.setenv("OUTGROW_DATA", str(variable))
        assert find_origin(debian, given) is kind
        assert find_origin(datasets()["cora"], given) is FileOrigin.DOWNLOAD
    with pytest.raises(InputError) as error:
        load_graph("debian", data_dir=given)
    assert str(given) in str(error.value)


def test_files_of_planetoid_may_lie_in_the_data_folder_itself(tmp_path, data_dir):
    for file in (data_dir / "planetoid_cora").glob("ind.*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    assert load_graph("cora", data_dir=tmp_path).num_nodes == 2_708


def test_without_a_file_or_an_address_the_error_says_how_to_build_it(tmp_path):
    with pytest.raises(InputError, match=r"files of debian were not found") as error:
        load_graph("debian", data_dir=tmp_path)
    text = str(error.value)
    for part in ("debian.npz", str(tmp_path), str(cache_dir()), "OUTGROW_DATA is not set", "Packages index"):
        assert part in text


def test_offline_the_error_says_where_it_looked_and_what_for(tmp_path):
    with pytest.raises(InputError, match="files of cora were not found") as error:
        load_graph("cora", data_dir=tmp_path)
    text = str(error.value)
    for part in ("ind.cora.allx", "ind.cora.graph", str(tmp_path), "no network for https://", "--data-dir"):
        assert part in text
    assert not list(cache_dir().rglob("*ind*"))


def test_a_data_folder_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        load_graph("wordnet", data_dir=tmp_path / "typo")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("wordnt", "did you mean wordnet"),
        ("ogbn-arxive", "did you mean ogbn-arxiv"),
        ("product@0.1", "did you mean products"),
        ("products@much", "write a number"),
        ("reddit", "reddit@"),
        ("reddit@1e-9", "or more"),
        ("rmat-99", "change the numbers"),
        ("missing/file.npz", "correct the path"),
    ],
)
def test_unknown_names_are_refused_with_a_hint(name, hint):
    with pytest.raises(InputError) as error:
        load_graph(name)
    assert hint in error.value.repair


def test_generated_graphs_have_names():
    rmat = load_graph("rmat-8")
    assert (rmat.name, rmat.num_nodes, rmat.features) == ("rmat-8", 256, None)
    products = load_graph("products@0.001")
    assert (products.num_nodes, products.num_features, products.num_classes) == (2_449, 100, 47)
    assert products.num_edges > 1.5 * 61_859
    assert torch.equal(products.features, load_graph("products@0.001").features)
    directed = load_graph("products@0.001", undirected=False)
    assert directed.num_edges == 61_859
    assert not resolve_source("papers100M@0.0001").undirected


def test_a_path_is_taken_as_it_is_but_a_name_comes_first(tmp_path, monkeypatch):
    edges = np.array([[0, 1, 1], [1, 2, 2]], dtype=np.int32)
    np.savez(tmp_path / "small.npz", edge_index=edges, label=np.array([0, 1, 0]), train_idx=np.array([0]))
    assert load_graph(tmp_path / "small.npz").num_edges == 3
    assert load_graph(str(tmp_path / "small.npz"), undirected=True).num_edges == 4
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wordnet").mkdir()
    assert load_graph("wordnet").num_nodes == 117_659
    for path in (tmp_path / "wordnet", "./wordnet"):
        with pytest.raises(InputError, match="wordnet"):
            load_graph(path)


def test_a_store_is_opened_as_it_is(tmp_path):
    from outgrow.graph.builders.to_store import convert_to_store

    found = resolve_source("rmat-6")
    convert_to_store(found.source, tmp_path / "store", undirected=found.undirected)
    assert load_graph(tmp_path / "store").num_edges == load_graph("rmat-6").num_edges
    with pytest.raises(InputError, match="is a store"):
        load_graph(tmp_path / "store", undirected=True)


def test_files_are_fetched_whole_and_checked(tmp_path, online):
    (tmp_path / "public").write_bytes(b"some data")
    right = hashlib.sha256(b"some data").hexdigest()
    url = (tmp_path / "public").as_uri()
    fetch(url, tmp_path / "cache", right)
    assert (tmp_path / "cache" / "folder" / "file").read_bytes() == b"some data"
    with pytest.raises(InputError, match="is not the file it should be") as error:
        fetch(url, tmp_path / "other", "0" * 64)
    assert right in error.value.got
    assert not list((tmp_path / "other" / "folder").iterdir())
    with pytest.raises(InputError, match="cannot download"):
        fetch((tmp_path / "gone").as_uri(), tmp_path / "other", None)


def test_a_download_that_breaks_off_leaves_nothing(tmp_path, online):
    with server(b"half", claimed=8) as url, pytest.raises(InputError, match=r"broke off|cannot download"):
        fetch(url, tmp_path, None)
    assert not list((tmp_path / "folder").iterdir())


def test_an_ogb_archive_becomes_a_folder(tmp_path, online, monkeypatch):
    with zipfile.ZipFile(tmp_path / "arxiv.zip", "w") as archive:
        archive.writestr("__MACOSX/note", "")
        archive.writestr("arxiv/raw/edge.csv", "0,1\n")
        archive.writestr("arxiv/split/time/train.csv", "0\n")
    package = tmp_path / "packages" / "ogb" / "nodeproppred"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text("raise RuntimeError('must not be imported')")
    (package / "master.csv").write_text(
        f",ogbn-mag,ogbn-arxiv\nnum tasks,1,1\nurl,x,{(tmp_path / 'arxiv.zip').as_uri()}\n"
    )
    monkeypatch.syspath_prepend(tmp_path / "packages")
    OgbDownloader(name="ogbn-arxiv", folder="ogbn_arxiv").download_into(tmp_path / "cache")
    assert (tmp_path / "cache" / "ogbn_arxiv" / "raw" / "edge.csv").read_text() == "0,1\n"
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["ogbn_arxiv"]
    assert find_origin(datasets()["ogbn-arxiv"], tmp_path / "cache") is FileOrigin.LOCAL
    assert resolve_source("ogbn-arxiv", data_dir=tmp_path / "cache").source.name == "ogbn-arxiv"
    with zipfile.ZipFile(tmp_path / "arxiv.zip", "w") as archive:
        archive.writestr("readme", "")
    with pytest.raises(InputError, match="is not the archive"):
        OgbDownloader(name="ogbn-arxiv", folder="ogbn_arxiv").download_into(tmp_path / "other")
    assert not list((tmp_path / "other").iterdir())


def test_without_the_ogb_package_the_error_names_the_extra(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match="files of ogbn-arxiv were not found") as error:
        load_graph("ogbn-arxiv")
    assert "outgrow[ogb]" in error.value.repair


def test_files_of_gnn_benchmark_give_the_graph_that_our_file_gives(tmp_path, data_dir):
    """The upstream form is made from our file: the same matrices under its keys, without a split."""
    ours = load_graph("coauthor-cs", data_dir=data_dir)
    with np.load(data_dir / "coauthor_cs.npz") as file:
        src, dst = file["edge_index"]
        order = np.lexsort((dst, src))
        np.savez(
            tmp_path / "ms_academic_cs.npz",
            adj_data=np.ones(len(src), np.float32),
            adj_indices=dst[order],
            adj_indptr=np.concatenate([[0], np.cumsum(np.bincount(src, minlength=len(file["label"])))]),
            adj_shape=np.array([len(file["label"])] * 2),
            attr_data=file["feat_data"],
            attr_indices=file["feat_indices"],
            attr_indptr=file["feat_indptr"],
            attr_shape=file["feat_shape"],
            labels=file["label"],
        )
    theirs = load_graph("coauthor-cs", data_dir=tmp_path)
    assert torch.equal(theirs.topology.indices, ours.topology.indices)
    assert torch.equal(theirs.topology.indptr, ours.topology.indptr)
    assert torch.equal(theirs.labels, ours.labels)
    for part in ("train", "val", "test"):
        assert torch.equal(getattr(theirs.split, part), getattr(ours.split, part))
    assert torch.equal(theirs.features.values, ours.features.values)


@pytest.mark.parametrize("content", [b"no zip file", None])
def test_a_broken_file_of_gnn_benchmark_is_refused(tmp_path, content):
    path = tmp_path / "file.npz"
    np.savez(path, adj_data=np.ones(1))
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match="cannot be read as a file of gnn-benchmark"):
        GnnBenchmarkSource(path, "photo").read_tables()


def fetch(url, folder, sha256):
    FileDownloader(files=(RemoteFile(path="folder/file", url=url, sha256=sha256),)).download_into(folder)


class server:
    """Serves one body on a loopback port, with a length that may be a lie."""

    def __init__(self, body, claimed):
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200)
                self.send_header("Content-Length", str(claimed))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self._server = http.server.HTTPServer(("127.0.0.1", 0), Handler)

    def __enter__(self):
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        return f"http://127.0.0.1:{self._server.server_port}/file"

    def __exit__(self, *_):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
