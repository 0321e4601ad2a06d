/* Keyed 128-bit hash of one page of token ids, chained over its parent's key.
 *
 * Two Toeplitz lanes of the NH universal hash compress the page (collision probability 2^-64 a lane over the secret
 * key), then SipHash-1-3 with 128 bits of output mixes the lanes with the parent's key. NH: Black, Halevi, Krawczyk,
 * Krovetz, Rogaway, "UMAC", 1999. SipHash: Aumasson and Bernstein, 2012. Nothing of the key can be read off an output.
 */
#ifndef TSD_PAGE_HASH_H
#define TSD_PAGE_HASH_H

#include <stdint.h>
#include <string.h>

typedef struct {
    uint64_t lo, hi;
} tsd_key;

static inline uint64_t tsd_rotl(uint64_t x, int b) { return (x << b) | (x >> (64 - b)); }

#define TSD_SIP_ROUND                                                                                                  \
    do {                                                                                                               \
        v0 += v1; v1 = tsd_rotl(v1, 13); v1 ^= v0; v0 = tsd_rotl(v0, 32);                                              \
        v2 += v3; v3 = tsd_rotl(v3, 16); v3 ^= v2;                                                                     \
        v0 += v3; v3 = tsd_rotl(v3, 21); v3 ^= v0;                                                                     \
        v2 += v1; v1 = tsd_rotl(v1, 17); v1 ^= v2; v2 = tsd_rotl(v2, 32);                                              \
    } while (0)

/* tokens: `words` 64-bit words, an even number; nh: words + 2 secret words; sip: 2 secret words. */
static inline tsd_key tsd_page_hash(tsd_key parent, const uint64_t *tokens, int words, const uint64_t *nh,
                                    const uint64_t *sip) {
    unsigned __int128 a = 0, b = 0;
    for (int i = 0; i < words; i += 2) {
        uint64_t x, y;
        memcpy(&x, tokens + i, 8);
        memcpy(&y, tokens + i + 1, 8);
        a += (unsigned __int128)(x + nh[i]) * (y + nh[i + 1]);
        b += (unsigned __int128)(x + nh[i + 2]) * (y + nh[i + 3]);
    }
    uint64_t m[6] = {(uint64_t)a, (uint64_t)(a >> 64), (uint64_t)b, (uint64_t)(b >> 64), parent.lo, parent.hi};
    uint64_t v0 = sip[0] ^ 0x736f6d6570736575ULL, v1 = sip[1] ^ 0x646f72616e646f6dULL ^ 0xee;
    uint64_t v2 = sip[0] ^ 0x6c7967656e657261ULL, v3 = sip[1] ^ 0x7465646279746573ULL;
    for (int i = 0; i < 6; i++) {
        v3 ^= m[i];
        TSD_SIP_ROUND;
        v0 ^= m[i];
    }
    v3 ^= (uint64_t)48 << 56;
    TSD_SIP_ROUND;
    v0 ^= (uint64_t)48 << 56;
    tsd_key out;
    v2 ^= 0xee;
    TSD_SIP_ROUND; TSD_SIP_ROUND; TSD_SIP_ROUND;
    out.lo = v0 ^ v1 ^ v2 ^ v3;
    v1 ^= 0xdd;
    TSD_SIP_ROUND; TSD_SIP_ROUND; TSD_SIP_ROUND;
    out.hi = v0 ^ v1 ^ v2 ^ v3;
    return out;
}

#endif
