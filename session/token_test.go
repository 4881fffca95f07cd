package session

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/coordsvc/coordsvc/internal/kv"
)

// The golden values were computed by another program, in another language.
func TestTokenGolden(t *testing.T) {
	routeKey, id, secret := make([]byte, 32), [16]byte{}, [32]byte{}
	for i := range 32 {
		routeKey[i], secret[i], id[i/2] = byte(i), byte(0xe0+i), byte(0x10+i/2)
	}
	const (
		wantTag    = "7TiEijPg0G5OdwEB61w81l"
		wantText   = "cst_7TiEijPg0G5OdwEB61w81l0UJg4EBGO3cQWJhXqJNbv5rKFCcw823OrBm12M1O8e6ZQf99v6mMY5fuWb9v97FWB4XrI85"
		wantHash   = "888132eca9d829424691d9ec557926d7cc8ed1fc377f73e73d63dd73b47c1828"
		wantHandle = "ses_7TiEijPg0G5OdwEB61w81l0UJg4EBGO3cQWJhXqJNbv5"
	)
	tag := userTag(routeKey, "acme", "zoë")
	if tag != wantTag {
		t.Errorf("tag %s, want %s", tag, wantTag)
	}
	token, c := makeToken(tag, id, secret)
	if token.Reveal() != wantText {
		t.Errorf("token %s, want %s", token.Reveal(), wantText)
	}
	if got := hex.EncodeToString(c.hash); got != wantHash {
		t.Errorf("hash %s, want %s", got, wantHash)
	}
	if got := (Record{}).Session(User{}, Key{"acme", c.tag, c.id}, Tracking{}).Handle; got != wantHandle {
		t.Errorf("handle %s, want %s", got, wantHandle)
	}
}

func TestTokenRoundTrip(t *testing.T) {
	edges := []struct{ id, secret byte }{{0, 0}, {0xff, 0xff}, {0, 0xff}, {0xff, 0}}
	for _, e := range edges {
		id, secret := [16]byte(bytes.Repeat([]byte{e.id}, 16)), [32]byte(bytes.Repeat([]byte{e.secret}, 32))
		token, want := makeToken(userTag(make([]byte, 32), "t", "u"), id, secret)
		got, ok := parseToken(token.Reveal())
		if !ok || got.tag != want.tag || got.id != want.id || !bytes.Equal(got.hash, want.hash) {
			t.Errorf("%x %x: parsed %v %v, want %v", e.id, e.secret, got, ok, want)
		}
		tag, sid, ok := parseHandle(handlePrefix + want.tag + want.id)
		if !ok || tag != want.tag || sid != want.id {
			t.Errorf("%x %x: handle parsed to %s %s %v", e.id, e.secret, tag, sid, ok)
		}
	}
}

func TestTokenRefusesEveryOneCharacterCorruption(t *testing.T) {
	token, _ := newToken(userTag(make([]byte, 32), "acme", "ann"))
	text := []byte(token.Reveal())
	for i := range text {
		for _, c := range []byte(digits + "_- \x00\xff") {
			if c == text[i] {
				continue
			}
			bad := slices.Clone(text)
			bad[i] = c
			if _, ok := parseToken(string(bad)); ok {
				t.Errorf("accepted with %q at %d", c, i)
			}
		}
	}
}

func TestTokenRefuses(t *testing.T) {
	zeros := func(n int) string { return strings.Repeat("0", n) }
	withSum := func(body string) string { return body + checksum(body) }
	good := withSum("cst_" + zeros(22) + zeros(22) + zeros(43))
	if _, ok := parseToken(good); !ok {
		t.Fatal("the token that the others vary was refused")
	}
	for name, text := range map[string]string{
		"empty":                 "",
		"prefix alone":          "cst_",
		"one short":             good[:len(good)-1],
		"one long":              good + "0",
		"1 MB":                  strings.Repeat("0", 1<<20),
		"spaces around":         " " + good[:len(good)-1],
		"prefix of a handle":    withSum("ses_" + zeros(87)),
		"prefix in capitals":    withSum("CST_" + zeros(87)),
		"tag overflows":         withSum("cst_" + "8" + strings.Repeat("z", 21) + zeros(65)),
		"tag one too large":     withSum("cst_" + encode62(append([]byte{0, 0, 0, 1}, make([]byte, 16)...), 22) + zeros(65)),
		"id overflows":          withSum("cst_" + zeros(22) + strings.Repeat("z", 22) + zeros(43)),
		"secret overflows":      withSum("cst_" + zeros(44) + strings.Repeat("z", 43)),
		"secret one too large":  withSum("cst_" + zeros(44) + encode62(append([]byte{0, 0, 0, 1}, make([]byte, 32)...), 43)),
		"tag with a separator":  withSum("cst_" + zeros(21) + "_" + zeros(65)),
		"id not in ASCII":       withSum("cst_" + zeros(22) + "é" + zeros(63)),
		"secret with a NUL":     withSum("cst_" + zeros(44) + "\x00" + zeros(42)),
		"checksum of 2^32 more": "cst_" + zeros(87) + "zzzzzz",
	} {
		if _, ok := parseToken(text); ok {
			t.Errorf("%s: accepted", name)
		}
	}
	for name, handle := range map[string]string{
		"empty":         "",
		"a token":       good,
		"one short":     "ses_" + zeros(43),
		"one long":      "ses_" + zeros(45),
		"token prefix":  "cst_" + zeros(44),
		"no prefix":     zeros(48),
		"tag overflows": "ses_" + strings.Repeat("z", 22) + zeros(22),
		"id overflows":  "ses_" + zeros(22) + strings.Repeat("z", 22),
		"no digit":      "ses_" + zeros(43) + "/",
	} {
		if _, _, ok := parseHandle(handle); ok {
			t.Errorf("handle, %s: accepted", name)
		}
	}
}

// What parses is exactly what would be written for the same parts.
func FuzzParseToken(f *testing.F) {
	token, _ := makeToken(userTag(make([]byte, 32), "acme", "ann"), [16]byte{1}, [32]byte{2})
	f.Add(token.Reveal())
	f.Add("")
	f.Add("cst_" + strings.Repeat("z", 93))
	f.Fuzz(func(t *testing.T, text string) {
		c, ok := parseToken(text)
		if !ok {
			return
		}
		number := func(digits62 string, size int) []byte {
			n, ok := new(big.Int), true
			for _, d := range digits62 {
				n.Mul(n, big.NewInt(62)).Add(n, big.NewInt(int64(strings.IndexRune(digits, d))))
				ok = ok && strings.ContainsRune(digits, d)
			}
			if !ok || n.BitLen() > 8*size {
				t.Fatalf("accepted %q in %q", digits62, text)
			}
			return n.FillBytes(make([]byte, size))
		}
		tag := encode62(number(c.tag, 16), 22)
		again, _ := makeToken(tag, [16]byte(number(c.id, 16)), [32]byte(number(text[48:91], 32)))
		if again.Reveal() != text {
			t.Fatalf("%q was read as what is written %q", text, again.Reveal())
		}
	})
}

func FuzzParseHandle(f *testing.F) {
	f.Add("ses_7TiEijPg0G5OdwEB61w81l0UJg4EBGO3cQWJhXqJNbv5")
	f.Add("ses_")
	f.Fuzz(func(t *testing.T, text string) {
		if tag, id, ok := parseHandle(text); ok && (text != handlePrefix+tag+id || len(tag) != 22 || len(id) != 22) {
			t.Fatalf("%q was read as %q and %q", text, tag, id)
		}
	})
}

func TestBase62KeepsOrderAndValue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "a")
		b := rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "b")
		ta, tb := encode62(a, 22), encode62(b, 22)
		if bytes.Compare(a, b) != strings.Compare(ta, tb) {
			t.Fatalf("%x and %x sort unlike %s and %s", a, b, ta, tb)
		}
		if !fits62(ta, 16/4) {
			t.Fatalf("%s does not fit", ta)
		}
		n := new(big.Int)
		for _, d := range ta {
			n.Mul(n, big.NewInt(62)).Add(n, big.NewInt(int64(strings.IndexRune(digits, d))))
		}
		if n.Cmp(new(big.Int).SetBytes(a)) != 0 {
			t.Fatalf("%x became %s = %x", a, ta, n)
		}
	})
}

func TestUserTagIsOfTheWholeNameAndTheKey(t *testing.T) {
	keyA, keyB := make([]byte, 32), bytes.Repeat([]byte{1}, 32)
	tags := map[string]string{}
	for name, tag := range map[string]string{
		"a, bc":          userTag(keyA, "a", "bc"),
		"ab, c":          userTag(keyA, "ab", "c"),
		"a with 1:b, c":  userTag(keyA, "a1:b", "c"),
		"a, b1:c":        userTag(keyA, "a", "b1:c"),
		"composed é":     userTag(keyA, "a", "\u00e9"),
		"decomposed é":   userTag(keyA, "a", "e\u0301"),
		"another key":    userTag(keyB, "a", "bc"),
		"swapped":        userTag(keyA, "bc", "a"),
		"braces":         userTag(keyA, "a", "}{x}"),
		"another braces": userTag(keyA, "a", "{}"),
	} {
		if other, taken := tags[tag]; taken {
			t.Errorf("%s and %s share a tag", name, other)
		}
		tags[tag] = name
	}
}

func TestS38NoFormatterPrintsAToken(t *testing.T) {
	token, _ := newToken(userTag(make([]byte, 32), "acme", "ann"))
	secret := token.Reveal()
	type open struct{ Token Token }
	type hidden struct{ token Token }
	type pointer struct{ Token *Token }
	var outputs []string
	for _, v := range []any{token, &token, open{token}, hidden{token}, &hidden{token}, pointer{&token}, []Token{token}, map[string]Token{"t": token}, errors.New(fmt.Sprint(token))} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%T", "%p", "%10.3s", "%!"} {
			outputs = append(outputs, fmt.Sprintf(verb, v))
		}
		var text bytes.Buffer
		for _, h := range []slog.Handler{slog.NewTextHandler(&text, nil), slog.NewJSONHandler(&text, nil)} {
			slog.New(h).With("with", v).Info(fmt.Sprint("message", v), "v", v, slog.Group("g", "v", v))
		}
		js, err := json.Marshal(v)
		if err != nil {
			t.Errorf("%T: %v", v, err)
		}
		outputs = append(outputs, text.String(), string(js))
	}
	x, err := xml.Marshal(open{token})
	if err != nil {
		t.Error(err)
	}
	key, err := json.Marshal(map[string]any{"k": open{token}})
	if err != nil {
		t.Error(err)
	}
	outputs = append(outputs, string(x), string(key), token.String(), token.GoString(), token.LogValue().String())
	// In hex, as bytes in decimal, or as it is; the tail is the secret's.
	tail := secret[60:]
	decimal := strings.Trim(fmt.Sprintf("%d", []byte(tail)), "[]")
	for _, out := range outputs {
		for _, form := range []string{tail, fmt.Sprintf("%x", tail), fmt.Sprintf("%X", tail), decimal} {
			if strings.Contains(out, form) {
				t.Errorf("a token was printed: %s", out)
			}
		}
	}
	if got := fmt.Sprintf("%v %+v %s %q %#v %x", token, token, token, token, token, token); got != strings.TrimSpace(strings.Repeat(redacted+" ", 6)) {
		t.Errorf("printed %s", got)
	}
	if (Token{}).Reveal() != "" {
		t.Error("the zero token has a text")
	}
}

// A process whose random source fails must end, not hand out a guessable token.
func TestS45FailingRandomSourceIsFatal(t *testing.T) {
	if os.Getenv("SESSION_TEST_BROKEN_RANDOM") != "" {
		rand.Reader = brokenReader{}
		m := New(NewLocal(kv.NewMemory(kv.MemoryOptions{})), Options{RouteKey: make([]byte, 32)})
		token, _, err := m.Create(t.Context(), "acme", CreateRequest{UserID: "ann"})
		fmt.Println("SURVIVED", token.Reveal(), err)
		os.Exit(0)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestS45FailingRandomSourceIsFatal$")
	cmd.Env = append(os.Environ(), "SESSION_TEST_BROKEN_RANDOM=1")
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || !bytes.Contains(out, []byte("failed to read random data")) || bytes.Contains(out, []byte("SURVIVED")) {
		t.Fatalf("ended with %v:\n%s", err, out)
	}
}

type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, errors.New("no entropy") }
