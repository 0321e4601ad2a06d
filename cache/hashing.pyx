"""Page keys: a keyed 128-bit hash of a page's token ids chained over the key of the page before it.

Owns the secret. The chain starts at a root made of (secret, namespace, salt), so two tenants or two versions of the
weights never share a key. Knows nothing about pages' places or requests.
"""

import hashlib
import secrets

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

cdef int MAX_ROOTS = 4096


cdef class PageHasher:
    """Hashes pages of `page_size` tokens. An empty secret draws a random one."""

    def __cinit__(self, int page_size, bytes secret=b"", bytes namespace=b""):
        if page_size < 1:
            raise ValueError(f"page size {page_size} is below 1")
        self.page_size = page_size
        self.secret = secret or secrets.token_bytes(32)
        self.namespace = namespace
        self.words = ((page_size + 3) // 4) * 2
        self.nh = <uint64_t*>calloc(self.words + 2, sizeof(uint64_t))
        self.scratch = <uint64_t*>calloc(self.words, sizeof(uint64_t))
        if self.nh == NULL or self.scratch == NULL:
            raise MemoryError()
        cdef bytes stream = hashlib.shake_256(b"tsd page keys" + self.secret).digest((self.words + 4) * 8)
        cdef const char* raw = stream
        memcpy(self.sip, raw, 16)
        memcpy(self.nh, raw + 16, (self.words + 2) * 8)
        self.roots = {}

    def __dealloc__(self):
        free(self.nh)
        free(self.scratch)

    cdef tsd_key root(self, bytes salt):
        cdef tsd_key key
        cdef object found = self.roots.get(salt)
        if found is None:
            mac = hashlib.blake2b(key=hashlib.sha256(self.secret).digest(), digest_size=16, person=b"tsd root")
            mac.update(len(self.namespace).to_bytes(8, "little") + self.namespace + salt)
            found = mac.digest()
            if len(self.roots) >= MAX_ROOTS:
                self.roots.clear()
            self.roots[salt] = found
        memcpy(&key, <const char*>(<bytes>found), 16)
        return key

    cdef tsd_key next(self, tsd_key parent, const int32_t* tokens) noexcept:
        """The key of the page holding `tokens[0:page_size]` whose predecessor's key is `parent`."""
        if self.page_size % 4 == 0:
            return tsd_page_hash(parent, <const uint64_t*>tokens, self.words, self.nh, self.sip)
        memcpy(self.scratch, tokens, self.page_size * 4)
        return tsd_page_hash(parent, self.scratch, self.words, self.nh, self.sip)

    def chain(self, tokens, bytes salt=b""):
        """The 16-byte keys of every full page of `tokens` (int32, contiguous), in order."""
        cdef const int32_t[::1] view = tokens
        cdef tsd_key key = self.root(salt)
        cdef Py_ssize_t page
        keys = []
        for page in range(view.shape[0] // self.page_size):
            key = self.next(key, &view[page * self.page_size])
            keys.append(PyBytes_FromStringAndSize(<char*>&key, 16))
        return keys
