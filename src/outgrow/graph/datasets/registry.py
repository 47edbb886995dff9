"""Registry of the data sets that can be loaded by name.

The statistics are those of the files. Cora, Citeseer: Yang, Cohen, Salakhutdinov: Revisiting semi-supervised
learning with graph embeddings, ICML 2016 (public split). Amazon Photo, Coauthor CS: Shchur et al., 2018.
ogbn-*: Hu et al.: Open Graph Benchmark, NeurIPS 2020.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import MappingProxyType

from outgrow.core.arguments import check_arguments
from outgrow.graph.datasets.dataset import Dataset, FileSet, RemoteFile
from outgrow.graph.datasets.download import FileDownloader, OgbDownloader
from outgrow.graph.readers.gnn_benchmark import GnnBenchmarkSource
from outgrow.graph.readers.heco import HecoSource
from outgrow.graph.readers.matrices import RowNormalizedSource
from outgrow.graph.readers.npz import NpzSource
from outgrow.graph.readers.ogb import OgbSource
from outgrow.graph.readers.planetoid import PlanetoidSource
from outgrow.graph.readers.source import GraphSource

_PLANETOID = "https://raw.githubusercontent.com/kimiyoung/planetoid/af6abf468a772cc055bec88c52e4d6f51b7c37e3/data"
_GNN_BENCHMARK = "https://raw.githubusercontent.com/shchur/gnn-benchmark/master/data/npz"


@check_arguments()
def datasets() -> Mapping[str, Dataset]:
    """Return all data sets by name, in the order in which they are listed."""
    return _DATASETS


def _npz_file_set(file: str, name: str, *, annotations: Collection[str] = ()) -> FileSet:
    def open_source(folder: Path) -> GraphSource:
        return NpzSource(folder / file, name, annotations=annotations)

    return FileSet(paths=(file,), open_source=open_source)


def _planetoid_file_sets(name: str, checksums: Mapping[str, str]) -> tuple[FileSet, ...]:
    def open_in(folder_name: str) -> Callable[[Path], GraphSource]:
        # Features are bags of words, whose rows are usually divided by their sums.
        return lambda folder: RowNormalizedSource(PlanetoidSource(folder / folder_name, name))

    names = [f"ind.{name}.{part}" for part in checksums]
    folder = f"planetoid_{name}"
    files = tuple(
        RemoteFile(path=f"{folder}/{file}", url=f"{_PLANETOID}/{file}", sha256=sha256)
        for file, sha256 in zip(names, checksums.values(), strict=True)
    )
    return (
        FileSet(
            paths=tuple(file.path for file in files),
            open_source=open_in(folder),
            downloader=FileDownloader(files=files),
        ),
        FileSet(paths=tuple(names), open_source=open_in(".")),
    )


def _open_heco(folder: Path) -> GraphSource:
    return HecoSource(folder / "heco_acm", "heco-acm")


def _gnn_benchmark_file_set(file: str, name: str) -> FileSet:
    def open_source(folder: Path) -> GraphSource:
        return GnnBenchmarkSource(folder / file, name)

    return FileSet(
        paths=(file,),
        open_source=open_source,
        downloader=FileDownloader(files=(RemoteFile(path=file, url=f"{_GNN_BENCHMARK}/{file}"),)),
    )


def _ogb_file_sets(name: str) -> tuple[FileSet, ...]:
    folder = name.replace("-", "_")

    def open_source(data_folder: Path) -> GraphSource:
        return OgbSource(data_folder / folder)

    return (
        FileSet(
            paths=(f"{folder}/raw", f"{folder}/split"),
            open_source=open_source,
            downloader=OgbDownloader(name=name, folder=folder),
        ),
    )


_CORA_FILES = {
    "x": "23cfa55d91c6f624233f5eb7b6e3f141f1bd2b2ae39608a63cf5d084bb27baab",
    "y": "94465c14eb53e04ca262198dcbb2521ee8af60fb3f3d546cd6ca24a511b0e7d1",
    "tx": "b9afbaa4a400df991f6f02ef677e1e44da55ffc04801fd02f9e673987829226a",
    "ty": "41f5ac76596a1699cc33f53084a2419e92961c42bb75f36fc38e616d348532ad",
    "allx": "9419ba2f26f5c35243db64aba110e0f35a04851609e0dc5433450676ca6b8543",
    "ally": "2b998f5cc7fedc86e7f97ca2498f47a1ffc1462c29e2d578b23bf3f62b6e7d71",
    "graph": "58f13302f39dde8852dad6fe6d15b89b077b6d7f837626bce671ef80344b383d",
    "test.index": "297ce89af2b51a6a194181c7dbe1796c6a1cf9cd9349a88383b1b1e227867875",
}
_CITESEER_FILES = {
    "x": "d20de19150741e555de0ed037195630fc194114ebc7fd72ced62810148aa22f6",
    "y": "8ba87e515d8e3ee3cf52f6d2c5b86aa73f11ecad825a808455209ec26cd54924",
    "tx": "539a8906a2da97628d212f2fdd668c109a8b3f0d36574b59e5d3fd5b5303da21",
    "ty": "55e5bd1ba1e733a04598753ad1a8d57957f4b8f89e74519f41f4f4938767e4ce",
    "allx": "2ac30345d95c9ec933a817ee0bdd6a5f077f8c184a20e696910192d534414668",
    "ally": "f704b2d986dde6c2669934de1f3ae5696a6cf9455c0f6b2646a2d135ea0a1c95",
    "graph": "d79a4ef9d3e7169aee8946145f6b7306e35bc79bffad26346cfb94e10e9912a7",
    "test.index": "2af990671580b6b2df5d158d1038f8292e30c9cd821b5453f399659b25b723d4",
}
_MIT = "MIT"
# Figures are written down here so that data sets can be listed without their files.
_ALL = (
    Dataset(
        name="wordnet",
        description="synsets of WordNet 3.0; typed pointers; TF-IDF of glosses; lexicographer files as classes",
        nodes=117_659,
        edges=364_552,
        features=6_900,
        classes=45,
        licence="WordNet 3.0",
        file_sets=(_npz_file_set("wordnet.npz", "wordnet"),),
        packaged=True,
    ),
    Dataset(
        name="cora",
        description="papers on machine learning; citations; words; topics as classes; public split; rows sum to 1",
        nodes=2_708,
        edges=10_556,
        features=1_433,
        classes=7,
        licence=_MIT,
        file_sets=_planetoid_file_sets("cora", _CORA_FILES),
    ),
    Dataset(
        name="citeseer",
        description="papers on computer science; citations; words; topics as classes; public split; rows sum to 1",
        nodes=3_327,
        edges=9_104,
        features=3_703,
        classes=6,
        licence=_MIT,
        file_sets=_planetoid_file_sets("citeseer", _CITESEER_FILES),
    ),
    Dataset(
        name="amazon-photo",
        description="goods of the section Photo; bought together; words of reviews; categories as classes",
        nodes=7_650,
        edges=143_663,
        features=745,
        classes=8,
        licence=_MIT,
        file_sets=(
            _npz_file_set("amazon_photo.npz", "amazon-photo"),
            _gnn_benchmark_file_set("amazon_electronics_photo.npz", "amazon-photo"),
        ),
    ),
    Dataset(
        name="coauthor-cs",
        description="authors in computer science; common papers; key words; fields as classes",
        nodes=18_333,
        edges=163_788,
        features=6_805,
        classes=15,
        licence=_MIT,
        file_sets=(
            _npz_file_set("coauthor_cs.npz", "coauthor-cs"),
            _gnn_benchmark_file_set("ms_academic_cs.npz", "coauthor-cs"),
        ),
    ),
    Dataset(
        name="debian",
        description="packages of Debian 12; typed dependencies; TF-IDF of descriptions; sections as classes",
        nodes=63_436,
        edges=342_324,
        features=3_780,
        classes=50,
        licence="package metadata of the Debian archive",
        file_sets=(_npz_file_set("debian.npz", "debian", annotations=("names", "words")),),
        build=(
            "build debian.npz from the Packages index of Debian 12 (bookworm, main, amd64): packages as nodes, kinds "
            "of dependency as edge_type, sections as label, TF-IDF of the one-line descriptions as features"
        ),
    ),
    Dataset(
        name="heco-acm",
        description="papers, authors and subjects of ACM; words of papers and authors; areas of papers as classes",
        nodes=11_246,
        edges=17_426,
        features=3_804,
        classes=3,
        licence="none stated",
        file_sets=(FileSet(paths=("heco_acm/pa.txt", "heco_acm/p_feat.npz"), open_source=_open_heco),),
        build="copy data/acm of github.com/liun-online/HeCo to a folder heco_acm in a data folder",
    ),
    Dataset(
        name="ogbn-arxiv",
        description="papers on arXiv; citations; word embeddings; subject areas as classes",
        nodes=169_343,
        edges=1_166_243,
        features=128,
        classes=40,
        licence="ODC-BY",
        file_sets=_ogb_file_sets("ogbn-arxiv"),
    ),
    Dataset(
        name="ogbn-products",
        description="goods of Amazon; bought together; words of descriptions; categories as classes",
        nodes=2_449_029,
        edges=61_859_140,
        features=100,
        classes=47,
        licence="Amazon licence",
        file_sets=_ogb_file_sets("ogbn-products"),
    ),
    Dataset(
        name="ogbn-papers100M",
        description="papers; citations; word embeddings; arXiv subject areas as classes of a few",
        nodes=111_059_956,
        edges=1_615_685_872,
        features=128,
        classes=172,
        licence="ODC-BY",
        file_sets=_ogb_file_sets("ogbn-papers100M"),
    ),
)
_DATASETS: Mapping[str, Dataset] = MappingProxyType({dataset.name: dataset for dataset in _ALL})
