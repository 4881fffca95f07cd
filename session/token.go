package session

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"strconv"
	"strings"
)

// A token is "cst_", then in base62 digits of fixed width, without separators:
// the user's tag, the session's id, the secret, and the CRC-32 (IEEE) of all the
// text before it. The checksum lets a scanner tell a leaked token from noise and
// refuses a mistyped one without a read; it proves nothing. A handle is "ses_",
// the tag and the id.
const (
	tokenPrefix  = "cst_"
	handlePrefix = "ses_"

	tagBytes, tagWidth       = 16, 22
	idBytes, idWidth         = 16, 22
	secretBytes, secretWidth = 32, 43
	sumBytes, sumWidth       = 4, 6

	tokenLen  = len(tokenPrefix) + tagWidth + idWidth + secretWidth + sumWidth
	handleLen = len(handlePrefix) + tagWidth + idWidth
)

// redacted is what every formatter prints in place of a token.
const redacted = "[session token]"

// A Token authenticates its session. Its text leaves only through Reveal: every
// formatter prints a placeholder. It is a function inside because fmt walks
// through the unexported fields of other people's structs without asking for
// any method, and would find a string there.
type Token struct{ reveal func() string }

// Reveal returns the token's text, to be handed to the client once. It is empty
// for the zero Token.
func (t Token) Reveal() string {
	if t.reveal == nil {
		return ""
	}
	return t.reveal()
}

// String implements [fmt.Stringer] without the token.
func (Token) String() string { return redacted }

// GoString implements [fmt.GoStringer] without the token.
func (Token) GoString() string { return redacted }

// Format implements [fmt.Formatter] without the token, for every verb.
func (Token) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, redacted) }

// MarshalText implements [encoding.TextMarshaler] without the token.
func (Token) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// MarshalJSON implements [json.Marshaler] without the token.
func (Token) MarshalJSON() ([]byte, error) { return []byte(strconv.Quote(redacted)), nil }

// LogValue implements [slog.LogValuer] without the token.
func (Token) LogValue() slog.Value { return slog.StringValue(redacted) }

// A credential is what a token's text says and what is stored of it.
type credential struct {
	tag, id string
	hash    []byte // SHA-256 of the whole text
}

// newToken makes a token with a new id and secret for the user with this tag. A
// failing random source ends the process: [rand.Read] never returns without
// having filled its buffer.
func newToken(tag string) (Token, credential) {
	var id [idBytes]byte
	var secret [secretBytes]byte
	_, _ = rand.Read(id[:])
	_, _ = rand.Read(secret[:])
	return makeToken(tag, id, secret)
}

// nextToken makes a token with a new secret for the session that the credential names.
func nextToken(c credential) (Token, credential) {
	var secret [secretBytes]byte
	_, _ = rand.Read(secret[:])
	return spellToken(c.tag, c.id, secret)
}

func makeToken(tag string, id [idBytes]byte, secret [secretBytes]byte) (Token, credential) {
	return spellToken(tag, encode62(id[:], idWidth), secret)
}

func spellToken(tag, sid string, secret [secretBytes]byte) (Token, credential) {
	body := tokenPrefix + tag + sid + encode62(secret[:], secretWidth)
	text := body + checksum(body)
	return Token{func() string { return text }}, credential{tag, sid, hashToken(text)}
}

// parseToken reads a token; false means that no token has this text.
func parseToken(text string) (credential, bool) {
	if len(text) != tokenLen {
		return credential{}, false
	}
	rest, found := strings.CutPrefix(text, tokenPrefix)
	tag, rest := rest[:tagWidth], rest[tagWidth:]
	id, rest := rest[:idWidth], rest[idWidth:]
	secret, sum := rest[:secretWidth], rest[secretWidth:]
	if !found || checksum(text[:tokenLen-sumWidth]) != sum {
		return credential{}, false
	}
	if !fits62(tag, tagBytes/4) || !fits62(id, idBytes/4) || !fits62(secret, secretBytes/4) {
		return credential{}, false
	}
	return credential{tag, id, hashToken(text)}, true
}

// parseHandle reads a handle; false means that no session has this handle.
func parseHandle(handle string) (tag, id string, ok bool) {
	if len(handle) != handleLen {
		return "", "", false
	}
	rest, found := strings.CutPrefix(handle, handlePrefix)
	tag, id = rest[:tagWidth], rest[tagWidth:]
	return tag, id, found && fits62(tag, tagBytes/4) && fits62(id, idBytes/4)
}

func hashToken(text string) []byte {
	h := sha256.Sum256([]byte(text))
	return h[:]
}

func checksum(body string) string {
	sum := binary.BigEndian.AppendUint32(make([]byte, 0, sumBytes), crc32.ChecksumIEEE([]byte(body)))
	return encode62(sum, sumWidth)
}

// userTag is where a user's records are: HMAC-SHA-256 under the route key over
// "<length>:<tenant><length>:<user>", cut to 128 bits. It tells nothing of the
// user to who does not have the key, and no two users can be written alike.
func userTag(routeKey []byte, tenant, user string) string {
	mac := hmac.New(sha256.New, routeKey)
	_, _ = fmt.Fprintf(mac, "%d:%s%d:%s", len(tenant), tenant, len(user), user)
	return encode62(mac.Sum(nil)[:tagBytes], tagWidth)
}

// HandleOf returns the handle of the session that the token is for, "" where the
// text is no token. It says nothing of whether there is such a session.
func HandleOf(token string) string {
	c, ok := parseToken(token)
	if !ok {
		return ""
	}
	return handlePrefix + c.tag + c.id
}
