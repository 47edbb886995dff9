"""Pickles that run code, take memory or end the process, if they are trusted."""

import pickle
import struct
from collections import defaultdict

import numpy as np
import pytest
from scipy.sparse import csr_array, csr_matrix

from outgrow.core.errors import InputError
from outgrow.graph.readers.safe_pickle import load_plain_pickle

ARRAY = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tU\x01btR(K\x01(K\x02tcnumpy\ndtype\n"
TYPE, DATA = (
    b"(U\x02f4K\x00K\x01tR(K\x03U\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb",
    b"\x89U\x08\0\0\0\0\0\0\x80?tb",
)


@pytest.mark.parametrize("protocol", range(5))
def test_values_of_graphs_come_back(tmp_path, protocol):
    path = tmp_path / "p"
    lists = defaultdict(list, {0: [1, 2**40], 1: []})
    for value in (np.arange(6, dtype=">i4").reshape(2, 3), np.asfortranarray(np.eye(3)), lists, [1, "x", None, 0.5]):
        path.write_bytes(pickle.dumps(value, protocol))
        assert (
            np.array_equal(load_plain_pickle(path), value)
            if isinstance(value, np.ndarray)
            else load_plain_pickle(path) == value
        )
    path.write_bytes(pickle.dumps(csr_matrix(np.eye(3, 4)), protocol))
    made = load_plain_pickle(path)
    assert isinstance(made, csr_array)
    assert np.array_equal(made.toarray(), np.eye(3, 4))


def test_texts_of_protocol_0_may_hold_any_bytes(tmp_path):
    (tmp_path / "p").write_bytes(b"(lS'a\xff'\na.")
    assert load_plain_pickle(tmp_path / "p") == ["a\xff"]


INTEGERS = ARRAY + TYPE.replace(b"f4", b"i4") + DATA
KEYS = b"".join(b"\x8a\x0a" + (k * (2**61 - 1)).to_bytes(10, "little") + b"N" for k in range(9))
TEXT = b"X" + struct.pack("<I", 6000) + b"a" * 6000 + b"q\x02"
HOSTILE = {
    "a function": b"cos\nsystem\n(U\x04truetR.",
    "a class of Python 2": b"(U\x04trueios\nsystem\n.",
    "a name with dots": b"\x8c\x05numpy\x8c\x11core.multiarray.x\x93.",
    "an extension": b"\x82\x01.",
    "a call of what is named": b"cbuiltins\nlist\n(]tR.",
    "a state for a function": b"c_codecs\nencode\n}U\x0c__defaults__Nsb.",
    "a state for a class": b"cscipy.sparse.csr\ncsr_matrix\nN}U\x05arrayNs\x86b.",
    "a memory at 2^31": b"Nr" + struct.pack("<I", 2**31 - 1) + b".",
    "bytes that are not there": b"\x8e" + struct.pack("<Q", 2**40) + b".",
    "an array of bytes": b"\x96" + struct.pack("<Q", 2**34) + b".",
    "a key of deep tuples": b"})" + b"\x85" * 200_000 + b"Ns.",
    "keys of one hash": b"}(" + KEYS + b"u.",
    "the same text again": b"c_codecs\nencode\nq\x010" + TEXT + b"0](" + b"h\x01h\x02\x85R" * 9 + b"e.",
    "an array of objects": ARRAY + b"(U\x02O8K\x00K\x01tR" + DATA + b".",
    "an array with a type of flags": ARRAY + b"(U\x02V8K\x00K\x01tR(K\x03U\x01|NNNK\x08K\x08K\x3ftb" + DATA + b".",
    "an array of other bytes": ARRAY + TYPE + DATA.replace(b"U\x08\0\0\0\0", b"U\x04") + b".",
    "an array of 10^12": ARRAY.replace(b"(K\x02t", b"(\x8a\x06" + (10**12).to_bytes(6, "little") + b"t")
    + TYPE
    + DATA
    + b".",
    "a frame that is not there": b"\x95" + struct.pack("<Q", 2**40) + b"N.",
    "a text that is not there": b"X" + struct.pack("<I", 2**31) + b"N.",
    "a dictionary of deep tuples": b"()" + b"\x85" * 200_000 + b"Nd.",
    "a dictionary of a key alone": b"(K\x00d.",
    "a type of no order": ARRAY + TYPE.replace(b"U\x01<", b"U\x01?") + DATA + b".",
    "a memory before the first": b"Nq\x000g-1\n.",
    "a matrix whose shape doubles": b"cscipy.sparse.csr\ncsr_matrix\n)\x81}("
    + b"".join(b"U" + bytes([len(name)]) + name + INTEGERS for name in (b"data", b"indices", b"indptr"))
    + b"U\x05shape]q\x01"
    + b"0](h\x01h\x01eq\x01" * 60
    + b"\x85ub.",
    "no instruction": b"N\xff.",
    "nothing": b"",
}


@pytest.mark.parametrize("what", HOSTILE)
def test_anything_else_is_refused(tmp_path, what):
    path = tmp_path / "p"
    path.write_bytes(HOSTILE[what])
    with pytest.raises((InputError, pickle.UnpicklingError, ValueError, TypeError)):
        load_plain_pickle(path)


def test_the_array_of_those_tests_is_read(tmp_path):
    (tmp_path / "p").write_bytes(ARRAY + TYPE + DATA + b".")
    assert load_plain_pickle(tmp_path / "p").tolist() == [0, 1]


def test_matrices_have_indices_in_range(tmp_path):
    for key, value in (("indices", [7]), ("indices", [-1]), ("indptr", [0, 9]), ("indptr", [0]), ("data", [1.0, 2.0])):
        matrix = csr_matrix(np.array([[0, 1.0]]))
        object.__setattr__(matrix, key, np.array(value))
        (tmp_path / "p").write_bytes(pickle.dumps(matrix, 2))
        with pytest.raises(ValueError, match=r"."):
            load_plain_pickle(tmp_path / "p")
