package keytype

import (
	"crypto/sha256"
	"encoding/base64"
	"hash/maphash"
	"slices"
	"strings"
	"sync/atomic"
)

const (
	tagSize  = 9  // bytes of a tag's hash, of which a wrong meeting costs a slot, no answer
	hideSize = 16 // bytes of a hidden value's
	steered  = 3  // characters that a store may put behind a tag's hash to choose the slot

	// Of a key that a Veil hides, where each byte counts.
	hiddenTagSize = 4
	hiddenKeySize = 12 // 96 bits: of 10^9 keys two meet with a chance of 1 in 10^11
)

// Tagged is what a stored key is called in Redis: the prefix, a hash tag, and the
// type's name before the key itself. Keys of one tag share a slot of a Cluster;
// the tag may be any text and stands there as a hash.
func (t *Type) Tagged(prefix, tag, key string) string {
	var room, name [256]byte // on the stack; what is longer gets its own
	sum := sha256.Sum256(append(room[:0], tag...))
	return string(append(appendKind(appendTag(append(name[:0], prefix...), sum[:tagSize]), t.Name), key...))
}

// Beside is Tagged for another key of the same tag: place is what Tagged wrote up to the end
// of the hash tag.
func (t *Type) Beside(place, key string) string {
	var name [256]byte
	return string(append(appendKind(append(name[:0], place...), t.Name), key...))
}

func appendTag(name, hash []byte) []byte {
	return append(base64.RawURLEncoding.AppendEncode(append(name, '{'), hash), '}')
}

// appendKind writes what stands between the tag and the key itself.
func appendKind(name []byte, kind string) []byte { return append(append(name, kind...), ':') }

// A Veil hides what keys in Redis are made of, users' ids among it: they and their
// tags are HMAC-SHA-256 (RFC 2104), cut short. Whoever has not the secret cannot even
// try out likely ids. All keys of a type have the same length, whatever they are made of.
type Veil struct {
	inner, outer [sha256.BlockSize]byte // the secret under either pad

	seed  maphash.Seed
	known [knownNames]atomic.Pointer[veiled] // names of late, each in a place of its own or with others that push it out
}

// How many names a Veil remembers, and what one may be made of, in bytes: 5 MB at most.
const (
	knownNames   = 8192
	longestKnown = 256
)

// A veiled name, and what it is of.
type veiled struct {
	of   veiledBy
	name string
}

type veiledBy struct {
	kind             *Type
	prefix, tag, key string
	beside           bool // the prefix has the tag's hash
}

// NewVeil makes one. The secret must be the same wherever the keys are used.
func NewVeil(secret []byte) *Veil {
	if len(secret) > sha256.BlockSize {
		sum := sha256.Sum256(secret)
		secret = sum[:]
	}
	v := &Veil{seed: maphash.MakeSeed()}
	copy(v.inner[:], secret)
	copy(v.outer[:], secret)
	for i := range v.inner {
		v.inner[i] ^= 0x36
		v.outer[i] ^= 0x5c
	}
	return v
}

// Tagged is [Type.Tagged], but short: it has the type's Mark, and of the key 16 characters.
func (v *Veil) Tagged(t *Type, prefix, tag, key string) string {
	return v.remembered(veiledBy{t, prefix, tag, key, false})
}

// Beside is [Type.Beside] as Tagged of the Veil writes it.
func (v *Veil) Beside(t *Type, place, key string) string {
	return v.remembered(veiledBy{t, place, "", key, true})
}

func (v *Veil) remembered(of veiledBy) string {
	if len(of.prefix)+len(of.tag)+len(of.key) > longestKnown {
		return v.tagged(of)
	}
	place := &v.known[maphash.String(v.seed, of.key)%knownNames]
	if known := place.Load(); known != nil && known.of == of {
		return known.name
	}
	name := v.tagged(of)
	place.Store(&veiled{of, name})
	return name
}

func (v *Veil) tagged(of veiledBy) string {
	var room [256]byte
	name := append(room[:0], of.prefix...)
	if !of.beside {
		tag := v.sum("tag", of.tag)
		name = appendTag(name, tag[:hiddenTagSize])
	}
	hidden := v.sum("key", of.key)
	return string(base64.RawURLEncoding.AppendEncode(appendKind(name, of.kind.Mark), hidden[:hiddenKeySize]))
}

// Hide is a hash of 22 characters, of a value that stands in Redis.
func (v *Veil) Hide(text string) string {
	hidden := v.sum("val", text)
	return base64.RawURLEncoding.EncodeToString(hidden[:hideSize])
}

// sum is the HMAC, which package crypto/hmac computes at several times the cost of so
// short a text. It keeps what is hashed as different things apart.
func (v *Veil) sum(what, text string) [sha256.Size]byte {
	room := make([]byte, 0, 512) // on the stack; a longer text gets its own
	inner := sha256.Sum256(append(append(append(room, v.inner[:]...), what...), text...))
	return sha256.Sum256(append(append(room, v.outer[:]...), inner[:]...))
}

// SplitTagged undoes Tagged and Key: it returns the type and the parts of a key in
// Redis, or false where it is not one that Tagged built with the prefix. Of a key that a
// Veil hides there are no parts.
func SplitTagged(prefix, stored string) (t *Type, parts []string, ok bool) {
	rest, found := strings.CutPrefix(stored, prefix+"{")
	tag, rest, closed := strings.Cut(rest, "}")
	name, key, named := strings.Cut(rest, ":")
	if !found || !closed || !named {
		return nil, nil, false
	}
	size := func(hash int) bool {
		n := base64.RawURLEncoding.EncodedLen(hash)
		return len(tag) == n || len(tag) == n+steered
	}
	if t, known := byMark(name); known && size(hiddenTagSize) {
		raw, err := base64.RawURLEncoding.Strict().DecodeString(key)
		return t, nil, err == nil && len(raw) == hiddenKeySize
	}
	if t, ok = ByName(name); ok && size(tagSize) {
		parts, ok = t.Split(key)
		return t, parts, ok
	}
	return nil, nil, false
}

// byMark finds the type of a hidden key.
func byMark(mark string) (*Type, bool) {
	i := slices.IndexFunc(registry, func(t *Type) bool { return t.Mark != "" && t.Mark == mark })
	if i < 0 {
		return nil, false
	}
	return registry[i], true
}
