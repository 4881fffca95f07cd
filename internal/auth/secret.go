package auth

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"math/big"
	"strings"
)

// A key's text is textPrefix and textMin to textMax characters of A–Z a–z 0–9 _ and -.
const (
	textPrefix = "csk_"
	textMin    = 20
	textMax    = 200
	// textLen base62 digits hold the 256 random bits of a text made here.
	textLen = 43
)

// redacted is what every formatter prints of a Secret.
const redacted = "[redacted]"

// A Secret is the text a caller presents. It leaves only through Reveal: every formatter prints a placeholder.
//
// The text sits in a closure because fmt prints unexported fields, and the
// argument of a wrong verb, by reflection, without asking for a method.
type Secret struct{ text func() string }

// Reveal returns the key's text, to be shown once.
func (s Secret) Reveal() string {
	if s.text == nil {
		return ""
	}
	return s.text()
}

// String returns a placeholder.
func (s Secret) String() string { return redacted }

// Format prints a placeholder, whatever the verb.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(redacted)) }

// LogValue returns a placeholder.
func (s Secret) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText returns a placeholder, for JSON as well.
func (s Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// NewSecret makes the text of a key, 256 bits that nobody can guess, for [Manager.Add].
func NewSecret() Secret {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails: the runtime stops the process instead
	digits := new(big.Int).SetBytes(b[:]).Text(62)
	text := textPrefix + strings.Repeat("0", textLen-len(digits)) + digits
	return Secret{text: func() string { return text }}
}

// A digest is all that is kept of a text.
type digest [sha256.Size]byte

// digestOf hashes the text. It reports false for what cannot be a key's text.
//
// Plain SHA-256 is enough, and fast enough for every request, because the texts
// are random: there is nothing to guess from a leaked hash.
func digestOf(text string) (digest, bool) {
	rest, ok := strings.CutPrefix(text, textPrefix)
	if !ok || len(rest) < textMin || len(rest) > textMax {
		return digest{}, false
	}
	for i := range len(rest) {
		if isForeign(rest[i]) {
			return digest{}, false
		}
	}
	var room [len(textPrefix) + textMax]byte // on the stack
	return sha256.Sum256(append(room[:0], text...)), true
}

func isForeign(c byte) bool {
	switch {
	case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '_', c == '-':
		return false
	}
	return true
}

// id names the key: half of the hash, so that a text finds its record with one
// read and an id, which anybody may see, does not prove the text.
func (d digest) id() string {
	var room [len("key_") + len(d)]byte
	return string(hex.AppendEncode(append(room[:0], "key_"...), d[:len(d)/2]))
}
