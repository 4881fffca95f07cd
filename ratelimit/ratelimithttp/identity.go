package ratelimithttp

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"net/http"

	"github.com/coordsvc/coordsvc/keytype"
)

// A Hasher turns what is too long, secret or personal to be a descriptor into one: 22
// characters from which nobody without the key can tell the input, not even by trying
// out all likely ones. Nodes of one key make the same.
type Hasher struct{ key []byte }

// minHashKey is how long a key is that nobody guesses, in bytes.
const minHashKey = 16

// NewHasher panics where the key has less than 16 bytes.
func NewHasher(key []byte) *Hasher {
	if len(key) < minHashKey {
		panic(fmt.Sprintf("ratelimithttp: a key of %d bytes can be guessed: take at least %d", len(key), minHashKey))
	}
	return &Hasher{append([]byte(nil), key...)}
}

// Sum hashes the parts, each behind its length, so that no two lists of them meet:
// HMAC-SHA-256, cut to 128 bits, in base64 without padding (RFC 4648, section 5).
func (h *Hasher) Sum(parts ...string) string {
	mac := hmac.New(sha256.New, h.key)
	for _, part := range parts {
		var length [8]byte
		binary.BigEndian.PutUint64(length[:], uint64(len(part)))
		mac.Write(length[:])
		mac.Write([]byte(part))
	}
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil)[:16])
}

// A Waterfall names the best identity that a request has.
type Waterfall struct {
	addresses *Addresses
	hash      *Hasher
	opts      WaterfallOptions
}

// WaterfallOptions are its steps before the last one, which is the network, in their order.
type WaterfallOptions struct {
	// User and APIKey return what has been verified, "" for none: a name that anybody
	// may write down is no identity. A key may be the secret itself, for it is hashed.
	User   func(*http.Request) string
	APIKey func(*http.Request) string
	// Fingerprint names a header that the trusted proxies set, and take away where a
	// client sends it. From anybody else, or there more than once, it is not looked at.
	Fingerprint string
}

// NewWaterfall panics without addresses or without a hash.
func NewWaterfall(addresses *Addresses, hash *Hasher, opts WaterfallOptions) *Waterfall {
	if addresses == nil || hash == nil {
		panic("ratelimithttp: a waterfall needs addresses and a hash")
	}
	return &Waterfall{addresses, hash, opts}
}

// longestPlain is the length of the longest user id, in bytes, that is not hashed.
const longestPlain = 64

// Identify returns a descriptor value of at most 80 bytes: user:<id>, key:<hash>,
// print:<hash> or net:<network>; and userhash:<hash> for a user id of over 64 bytes, or
// one that could be no descriptor. No two of these forms ever meet. Error:
// ErrNoAddress, where nothing else is there.
func (w *Waterfall) Identify(r *http.Request) (string, error) {
	if id := call(w.opts.User, r); id != "" {
		if plain(id) {
			return "user:" + id, nil
		}
		return "userhash:" + w.hash.Sum("user", id), nil
	}
	if secret := call(w.opts.APIKey, r); secret != "" {
		return "key:" + w.hash.Sum("key", secret), nil
	}
	if w.opts.Fingerprint != "" && w.addresses.Direct(r) {
		if values := r.Header.Values(w.opts.Fingerprint); len(values) == 1 && values[0] != "" {
			return "print:" + w.hash.Sum("print", values[0]), nil
		}
	}
	network, err := w.addresses.Network(r)
	if err != nil {
		return "", err
	}
	return "net:" + network.String(), nil
}

// plain reports whether an id can stand in a descriptor as it is.
func plain(id string) bool { return len(id) <= longestPlain && keytype.CheckID("user", id) == nil }

func call(f func(*http.Request) string, r *http.Request) string {
	if f == nil {
		return ""
	}
	return f(r)
}
